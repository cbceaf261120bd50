"""validate(): passes for what export wrote, fails for anything else, and says which layer departs."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
import sru
import torch
from torch import Tensor, nn

from sruexport import Report, export, validate
from sruexport.errors import CheckpointError, InputError, ModelFileError, OptionError
from sruexport.layers import SRU

AXES = {"x": {0: "T", 1: "B"}}


class Tagger(nn.Module):
    """A Conv over the features of each step, an SRU, a Linear: a layer before and one after."""

    def __init__(self, layer: Callable[..., nn.Module] = SRU):
        super().__init__()
        self.conv = nn.Conv1d(3, 6, 3, padding=1)
        self.sru = layer(6, 6, num_layers=3)
        self.out = nn.Linear(6, 2)

    def forward(self, x: Tensor) -> Tensor:
        h = self.conv(x.permute(1, 2, 0)).permute(2, 0, 1)
        return self.out(self.sru(h)[0])


def seeded(make: Callable[[], nn.Module], seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return make().eval()


@pytest.fixture(scope="module")
def layer() -> nn.Module:
    return seeded(lambda: SRU(4, 4, num_layers=3))


@pytest.fixture(scope="module")
def file(layer: nn.Module, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return export(layer, None, tmp_path_factory.mktemp("layer") / "layer.onnx").path


@pytest.fixture(scope="module")
def tagger() -> nn.Module:
    return seeded(Tagger)


@pytest.fixture(scope="module")
def tagger_file(tagger: nn.Module, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tagger") / "tagger.onnx"
    return export(tagger, (torch.zeros(6, 2, 3),), path, dynamic=AXES).path


def assert_passed(report: Report) -> None:
    assert report.passed, report.to_dict()
    assert report.first_departure is None
    assert not any(case.skipped for case in report.cases)


def plain(report: Report) -> dict[str, Any]:
    """The report through JSON as RFC 8259 has it, without NaN and Infinity."""
    return json.loads(json.dumps(report.to_dict(), allow_nan=False))


# What passes


def test_every_output_of_every_case_is_judged(layer, file):
    report = validate(layer, file)
    assert_passed(report)
    assert report.outputs.keys() == {"h", "c"}
    assert all(case.outputs.keys() == {"h", "c"} for case in report.cases)
    assert [case.name for case in report.cases] == ["T=1 B=1", "T=1 B=3", "T=2 B=2", "T=17 B=4", "T=64 B=1"]
    assert report.dtype == "float32"
    assert report.engine.startswith("ONNX Runtime ")


def test_numbers_are_not_trivially_equal(layer, file):
    assert all(errors.engine_max > 0 and errors.pytorch_max > 0 for errors in validate(layer, file).outputs.values())


@pytest.mark.parametrize(
    "options",
    [{"bidirectional": True, "layer_norm": True}, {"use_tanh": True, "rescale": True}, {"v1": True}],
    ids=lambda options: "-".join(options),
)
def test_layers_of_the_sru_package_pass(tmp_path, options):
    model = seeded(lambda: sru.SRU(5, 4, **options))
    assert_passed(validate(model, export(model, None, tmp_path / "m.onnx").path))


def test_masks_are_tried_empty_and_full_of_holes(tmp_path, layer):
    mask = torch.zeros(5, 2, dtype=torch.int32)
    path = export(layer, {"input": torch.zeros(5, 2, 4), "mask_pad": mask}, tmp_path / "m.onnx").path
    report = validate(layer, path)
    assert_passed(report)
    assert [case.name for case in report.cases if "T=17" in case.name] == ["T=17 B=4", "T=17 B=4 masked"]


def test_a_file_with_states_is_run_whole_and_in_chunks(tmp_path, layer):
    report = validate(layer, export(layer, None, tmp_path / "m.onnx", stateful=True).path)
    assert_passed(report)
    assert report.outputs.keys() == {"h", "c", "new_state_0", "new_state_1", "new_state_2"}
    assert {"T=17 B=4", "T=17 B=4 in chunks", "T=64 B=1 in chunks"} <= {case.name for case in report.cases}


def test_states_and_masks_together_are_chunked_too(tmp_path, layer):
    mask = torch.zeros(5, 2, dtype=torch.int32)
    call = {"input": torch.zeros(5, 2, 4), "mask_pad": mask}
    report = validate(layer, export(layer, call, tmp_path / "m.onnx", stateful=True).path)
    assert_passed(report)
    assert "T=17 B=4 masked in chunks" in {case.name for case in report.cases}


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
def test_a_file_of_another_dtype_is_held_to_that_dtypes_rounding(tmp_path, layer, dtype):
    report = validate(layer, export(layer, None, tmp_path / "m.onnx", dtype=dtype).path)
    assert_passed(report)
    assert report.dtype == dtype
    smallest = min(errors.bound for errors in report.outputs.values())
    assert (smallest < 1e-9) if dtype == "float64" else (smallest > 1e-4)


def test_whole_models_pass_with_layers_of_either_kind(tmp_path, tagger, tagger_file):
    assert_passed(validate(tagger, tagger_file))
    theirs = seeded(lambda: Tagger(sru.SRU))
    path = export(theirs, (torch.zeros(6, 2, 3),), tmp_path / "m.onnx", dynamic=AXES).path
    assert_passed(validate(theirs, path))


def test_the_callers_model_is_left_as_it_was(tagger, tagger_file):
    before = {name: tensor.clone() for name, tensor in tagger.state_dict().items()}
    tagger.train()
    validate(tagger, tagger_file)
    assert tagger.training
    tagger.eval()
    assert all(torch.equal(tensor, before[name]) for name, tensor in tagger.state_dict().items())


def test_a_checkpoint_stands_for_its_model(tmp_path, layer, file):
    bare = tmp_path / "bare.pt"
    torch.save({"model.enc." + name: tensor for name, tensor in layer.state_dict().items()}, bare)
    options = {"bidirectional": False, "use_tanh": False, "has_skip_term": True}
    assert_passed(validate(bare, file, options=options))
    assert_passed(validate(str(bare), str(file), options=options, prefix="model.enc"))


def test_progress_names_every_case(layer, file):
    heard: list[str] = []
    report = validate(layer, file, progress=heard.append)
    assert heard == [case.name for case in report.cases]


# Own inputs


def test_own_data_takes_the_place_of_generated_ones(tmp_path, layer, file):
    array = np.random.default_rng(0).standard_normal((9, 2, 4))
    np.savez(tmp_path / "data.npz", input=array)
    for data in ({"input": array}, {"input": array.tolist()}, tmp_path / "data.npz", str(tmp_path / "data.npz")):
        report = validate(layer, file, data=data)
        assert_passed(report)
        assert [case.name for case in report.cases] == ["data"]


@pytest.mark.parametrize(
    "args", [(torch.ones(5, 2, 4),), {"input": torch.ones(5, 2, 4)}, torch.ones(5, 2, 4)], ids=type
)
def test_own_args_are_what_forward_is_called_with(layer, file, args):
    report = validate(layer, file, args=args)
    assert_passed(report)
    assert [case.name for case in report.cases] == ["data"]


def test_arguments_that_are_none_are_no_inputs(layer, file):
    assert_passed(validate(layer, file, args=(torch.ones(5, 2, 4), None, None)))


def test_own_data_for_a_file_with_states_is_chunked_as_well(tmp_path, layer):
    path = export(layer, None, tmp_path / "m.onnx", stateful=True).path
    report = validate(layer, path, data={"input": np.ones((5, 2, 4), np.float32)})
    assert_passed(report)
    assert [case.name for case in report.cases] == ["data", "data in chunks"]


def test_lists_and_constants_among_the_arguments_come_from_the_example(tmp_path):
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.sru = SRU(4, 4, num_layers=1)

        def forward(self, parts: list[Tensor], factor: float = 1.0) -> Tensor:
            return self.sru(parts[0] + parts[1])[0] * factor

    model = seeded(Scaled)
    args = {"parts": [torch.ones(5, 2, 4), torch.ones(5, 2, 4)], "factor": 3.0}
    axes = {name: {0: "T", 1: "B"} for name in ("parts_0", "parts_1")}
    path = export(model, args, tmp_path / "m.onnx", dynamic=axes).path
    assert_passed(validate(model, path, args=args))
    report = validate(model, path, example=args)
    assert_passed(report)
    assert len(report.cases) > 1
    assert not validate(model, path, args=args | {"factor": 2.0}).passed
    with pytest.raises(OptionError, match="its input 'parts_0' is no argument of Scaled"):
        validate(model, path)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"inputs": np.ones((5, 2, 4))}, "'inputs' is no input of .*; did you mean 'input'"),
        ({}, "input 'input' of .* is missing"),
        ({"input": np.ones((5, 2, 3))}, "axis 2 is 3 and should be 4"),
        ({"input": np.ones((5, 4))}, r"has shape \[5, 4\], the file takes \[T, B, 4\]"),
        ({"input": np.ones((5, 2, 4), complex)}, "is complex128, the file takes float32"),
        ({"input": np.ones((0, 2, 4))}, "no steps"),
        ("missing.npz", "missing.npz: there is no such file"),
        (".", "is a folder"),
    ],
)
def test_data_that_does_not_fit_is_refused(layer, file, data, message):
    with pytest.raises(InputError, match=message):
        validate(layer, file, data=data)


@pytest.mark.parametrize("content", ["empty", "text", "npy", "cut", "objects"])
def test_data_that_is_no_npz_file_is_refused(tmp_path, layer, file, content):
    path = tmp_path / "data.npz"
    np.savez(path, input=np.ones((5, 2, 4)))
    whole = path.read_bytes()
    if content == "npy":
        with path.open("wb") as stream:
            np.save(stream, np.ones((5, 2, 4)))
    elif content == "objects":
        np.savez(path, input=np.array([{}], dtype=object))
    else:
        path.write_bytes({"empty": b"", "text": b"input 1 2 3", "cut": whole[:-40]}[content])
    with pytest.raises(InputError, match=r"data\.npz: cannot be read as an \.npz file"):
        validate(layer, file, data=path)


def test_args_that_the_file_does_not_take_are_refused(layer, file):
    with pytest.raises(OptionError, match="args: 'mask_pad' is no input"):
        validate(layer, file, args=(torch.ones(5, 2, 4), None, torch.zeros(5, 2, dtype=torch.int32)))
    with pytest.raises(OptionError, match="forward takes input, c0, mask_pad"):
        validate(layer, file, args={"x": torch.ones(5, 2, 4)})


# What fails


def changed(path: Path, name: str, by: float, target: Path) -> Path:
    """The file with `by` added to one number of one weight, at its middle."""
    model = ir.load(path)
    value = model.graph.initializers[name]
    array = value.const_value.numpy().copy()
    array.flat[array.size // 2] += by
    value.const_value = ir.Tensor(array, name=name)
    ir.save(model, target)
    return target


def weight_of(path: Path, layer: str) -> str:
    """The largest initializer that a node of `layer` (or of what is in it) reads."""
    graph = ir.load(path).graph
    sizes = {
        value.name: value.const_value.size
        for value in graph.initializers.values()
        for user in value.consumers()
        if (user.metadata_props.get("sruexport.module") or "").startswith(layer)
    }
    assert sizes, f"no weights of {layer}"
    return max(sizes, key=lambda name: sizes[name])


def just_beyond(model: nn.Module, path: Path, name: str, folder: Path) -> Path:
    """The file with one number of a weight changed so much that the outputs are 3 times their bounds away."""
    probe = 1e-3
    report = validate(model, changed(path, name, probe, folder / "probe.onnx"))
    return changed(path, name, 3 * probe / max(errors.ratio for errors in report.outputs.values()), folder / "bad.onnx")


@pytest.mark.parametrize("where", ["rnn_lst.0", "rnn_lst.1", "rnn_lst.2"])
def test_one_changed_weight_fails_and_its_layer_is_named(tmp_path, layer, file, where):
    path = just_beyond(layer, file, weight_of(file, where), tmp_path)
    report = validate(layer, path)
    assert not report.passed
    assert max(errors.ratio for errors in report.outputs.values()) < 10, "a small departure, not a gross one"
    assert report.first_departure == where


@pytest.mark.parametrize("where", ["conv", "sru.rnn_lst.0", "sru.rnn_lst.1", "sru.rnn_lst.2", "out"])
def test_the_departing_layer_is_found_inside_a_whole_model(tmp_path, tagger, tagger_file, where):
    report = validate(tagger, just_beyond(tagger, tagger_file, weight_of(tagger_file, where), tmp_path))
    assert not report.passed
    assert report.first_departure == where


@pytest.mark.parametrize("where", ["conv", "sru.rnn_lst.1", "out"])
def test_a_gross_change_is_found_as_well(tmp_path, tagger, tagger_file, where):
    report = validate(tagger, changed(tagger_file, weight_of(tagger_file, where), 1.0, tmp_path / "bad.onnx"))
    assert not report.passed
    assert report.first_departure == where


def test_as_many_steps_as_layers_is_not_mistaken_for_a_departure(tmp_path, tagger, tagger_file):
    """h [T, B, 6] and c [3, B, 6] have one shape when T is 3; the graph makes no use of c."""
    path = changed(tagger_file, weight_of(tagger_file, "out"), 1.0, tmp_path / "bad.onnx")
    report = validate(tagger, path, data={"x": np.ones((3, 2, 3), np.float32)})
    assert not report.passed
    assert report.first_departure == "out"


def test_a_change_below_the_bound_passes(tmp_path, layer, file):
    assert_passed(validate(layer, changed(file, weight_of(file, "rnn_lst.1"), 1e-9, tmp_path / "same.onnx")))


def test_another_model_of_the_same_shape_fails_at_its_first_layer(layer, file):
    report = validate(seeded(lambda: SRU(4, 4, num_layers=3), seed=1), file)
    assert not report.passed
    assert not any(case.passed for case in report.cases)
    assert report.first_departure == "rnn_lst.0"


def test_another_checkpoint_fails(tmp_path, layer, file):
    other = seeded(lambda: SRU(4, 4, num_layers=3), seed=1)
    kwargs = {"input_size": 4, "hidden_size": 4, "num_layers": 3}
    torch.save({"state_dict": other.state_dict(), "kwargs": kwargs}, tmp_path / "other.pt")
    assert not validate(tmp_path / "other.pt", file).passed


def test_a_wrong_option_fails(layer, file):
    tanh = seeded(lambda: SRU(4, 4, num_layers=3, use_tanh=True))
    tanh.load_state_dict(layer.state_dict())
    assert not validate(tanh, file).passed


def test_a_model_of_another_size_does_not_pass(layer, file):
    report = validate(seeded(lambda: SRU(5, 4, num_layers=3)), file)
    assert not report.passed
    assert all("PyTorch refuses it" in case.skipped for case in report.cases)


def test_a_model_with_other_arguments_is_refused(tagger, file):
    with pytest.raises(OptionError, match=r"its input 'input' is no argument of Tagger \(which takes x\)"):
        validate(tagger, file)


def test_nan_in_the_engines_output_fails(tmp_path, tagger, tagger_file):
    path = changed(tagger_file, weight_of(tagger_file, "sru.rnn_lst.1"), float("nan"), tmp_path / "nan.onnx")
    report = validate(tagger, path)
    assert not report.passed
    assert report.outputs["output"].engine_max == float("inf")
    assert "NaN" in report.outputs["output"].reason
    assert report.first_departure == "sru.rnn_lst.1"


def test_nan_in_the_weights_themselves_is_the_same_in_both(tmp_path):
    model = seeded(lambda: SRU(4, 4, num_layers=2))
    model.rnn_lst[0].bias.data[0] = float("nan")
    with pytest.warns(UserWarning, match=r"rnn_lst\.0\.bias has NaN"):
        path = export(model, None, tmp_path / "m.onnx").path
    assert validate(model, path).passed


def test_a_stateful_file_of_a_model_that_looks_across_chunks_fails_and_says_why(tmp_path, tagger):
    path = export(tagger, (torch.zeros(6, 2, 3),), tmp_path / "m.onnx", dynamic=AXES, stateful=True).path
    report = validate(tagger, path)
    assert not report.passed
    assert all(case.passed for case in report.cases if "chunks" not in case.name)
    assert "looks across time" in report.outputs["output"].reason
    assert report.first_departure is None


# What cannot be checked


def test_a_file_that_is_not_of_sruexport_is_refused(tmp_path, layer):
    x = ir.Value(name="input", shape=ir.Shape(["T", "B", 4]), type=ir.TensorType(ir.DataType.FLOAT))
    node = ir.node("Identity", [x])
    node.outputs[0].name, node.outputs[0].shape, node.outputs[0].type = "h", x.shape, x.type
    graph = ir.Graph([x], node.outputs, nodes=[node], opset_imports={"": 18}, name="other")
    ir.save(ir.Model(graph, ir_version=10), tmp_path / "other.onnx")
    with pytest.raises(ModelFileError, match=r"other\.onnx: was not written by sruexport"):
        validate(layer, tmp_path / "other.onnx")


def test_missing_files_are_named(tmp_path, layer, file):
    with pytest.raises(ModelFileError, match=r"no\.onnx: there is no such file"):
        validate(layer, tmp_path / "no.onnx")
    with pytest.raises(CheckpointError, match=r"no\.pt: there is no such file"):
        validate(tmp_path / "no.pt", file)


# The report


def test_report_of_a_pass_is_plain_data(layer, file):
    found = plain(validate(layer, file))
    assert found["passed"] is True
    assert found["file"] == str(file)
    assert found["first_departure"] is None
    assert len(found["cases"]) == 5
    figures = found["outputs"]["h"]
    assert figures["passed"] is True
    assert figures["engine_mean"] <= figures["engine_p99"] <= figures["engine_max"] <= figures["bound"]
    assert figures["pytorch_max"] > 0
    assert figures["scale"] > 0


def test_report_of_nan_is_plain_data_too(tmp_path, layer, file):
    path = changed(file, weight_of(file, "rnn_lst.2"), float("nan"), tmp_path / "nan.onnx")
    found = plain(validate(layer, path))
    assert found["passed"] is False
    assert found["outputs"]["h"]["engine_max"] == "inf"


def test_outputs_are_those_of_the_case_nearest_to_its_bound(layer, file):
    report = validate(layer, file)
    for name, errors in report.outputs.items():
        assert errors.ratio == max(case.outputs[name].ratio for case in report.cases)


def test_a_report_without_a_case_that_ran_has_not_passed(layer, file):
    report = validate(seeded(lambda: SRU(5, 4, num_layers=3)), file)
    assert plain(report)["passed"] is False
    assert not any(case["passed"] for case in plain(report)["cases"])
