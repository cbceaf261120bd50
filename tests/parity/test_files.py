"""A converted file held against the file that it was made from."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
import sru
import torch
from sruexport.converters import FORMS, convert, fix_sizes
from torch import Tensor, nn

from sruexport import export
from sruexport.engines import OnnxRuntime, Port
from sruexport.engines.running import EngineSession, ports
from sruexport.errors import EngineError, ModelFileError
from sruexport.layers import SRU
from sruexport.layers.mingru import MinLSTM
from sruexport.metadata import pack
from sruexport.parity.files import Exact, compare_files, in_memory, measured

Arrays = dict[str, np.ndarray]


@dataclasses.dataclass
class Stub:
    """As an EngineSession, in this process, and with what `change` makes of the outputs."""

    model: ir.Model
    change: Callable[[Arrays, Arrays], Arrays] = lambda feeds, outputs: outputs
    allowance: float = 1.0
    path: Path = Path("somewhere/else.onnx")
    ran_on: str = "Stub 1.0"
    written_as: str = "scan"
    static: bool = False

    def __post_init__(self) -> None:
        self._session = in_memory(self.model)
        self.inputs: tuple[Port, ...] = ports(self.model.graph.inputs, self.path)
        self.outputs: tuple[Port, ...] = ports(self.model.graph.outputs, self.path)
        self.metadata: Mapping[str, str] = dict(self.model.metadata_props)

    def run(self, feeds: Arrays) -> Arrays:
        return self.change(feeds, self._session.run(feeds))


def exported(model: nn.Module, folder: Path, args: Any = None, **options: Any) -> ir.Model:
    return ir.load(export(model, args, folder / "m.onnx", **options).path)


def trained(layer: nn.Module) -> nn.Module:
    for name, parameter in layer.named_parameters():
        if name.endswith(("weight_c", "bias")):
            nn.init.uniform_(parameter, -0.8, 0.8)
    return layer.eval()


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> ir.Model:
    torch.manual_seed(0)
    return exported(trained(SRU(3, 4, num_layers=2)), tmp_path_factory.mktemp("original"))


@pytest.fixture(scope="module")
def scan(original: ir.Model) -> ir.Model:
    return convert(original, FORMS["scan"]).model


@pytest.fixture(scope="module")
def stateful(tmp_path_factory: pytest.TempPathFactory) -> ir.Model:
    return exported(trained(SRU(3, 4, num_layers=1)), tmp_path_factory.mktemp("stateful"), stateful=True)


def names(report: Any) -> list[str]:
    return [case.name for case in report.cases]


# What passes


def test_every_output_of_every_case_is_judged(original, scan):
    heard: list[str] = []
    report = compare_files(original, Stub(scan), path=Path("out.onnx"), progress=heard.append)
    assert report.passed
    assert names(report) == heard == ["T=1 B=1", "T=1 B=3", "T=2 B=2", "T=17 B=4", "T=64 B=1"]
    assert all(case.outputs.keys() == {"h", "c"} for case in report.cases)
    assert all(errors.pytorch_max > 0 for errors in report.outputs.values())


def test_the_report_names_the_callers_file_the_engine_and_the_form(original, scan):
    report = compare_files(original, Stub(scan, allowance=4.0), path=Path("out.onnx"))
    assert (report.path, report.engine, report.form, report.dtype) == (Path("out.onnx"), "Stub 1.0", "scan", "float32")
    assert (report.baseline, report.allowance) == ("original", 4.0)
    one = compare_files(original, Stub(scan)).outputs["h"].bound
    assert report.outputs["h"].bound == pytest.approx(4 * one)


def test_on_an_engine_it_is_run_in_a_process_of_its_own(original, scan, tmp_path):
    ir.save(scan, tmp_path / "scan.onnx")
    with closing(EngineSession(OnnxRuntime(), tmp_path / "scan.onnx", fix=False)) as session:
        report = compare_files(original, session)
    assert report.passed
    assert report.engine.startswith("ONNX Runtime ")
    assert report.form == "scan"


def test_masks_are_tried_empty_and_full_of_holes(tmp_path):
    mask = torch.zeros(5, 2, dtype=torch.int32)
    args = {"input": torch.zeros(5, 2, 3), "mask_pad": mask}
    original = exported(trained(SRU(3, 4, num_layers=1)), tmp_path, args)
    seen: list[bool] = []

    def watch(feeds: Arrays, outputs: Arrays) -> Arrays:
        seen.append(bool(feeds["mask_pad"].any()))
        return outputs

    report = compare_files(original, Stub(convert(original, FORMS["scan"]).model, watch))
    assert [name for name in names(report) if "T=17" in name] == ["T=17 B=4", "T=17 B=4 masked"]
    assert {True, False} == set(seen)


def test_states_start_anew_and_chunks_are_left_to_validate(stateful):
    report = compare_files(stateful, Stub(convert(stateful, FORMS["scan"]).model))
    assert report.passed
    assert report.outputs.keys() == {"h", "c", "new_state_0"}
    assert not [name for name in names(report) if "chunks" in name]


def test_own_data_take_the_place_of_generated_ones(original, scan):
    report = compare_files(original, Stub(scan), {"input": np.ones((9, 2, 3), np.float32)})
    assert names(report) == ["data"]


@pytest.mark.parametrize(("low", "high"), [(0.0, 0.001), (-0.5, 0.25), (100.0, 200.0), (-1e30, 1e30)])
def test_made_up_inputs_lie_in_the_ranges_that_the_file_was_made_for(original, scan, low, high):
    model = ir.serde.deserialize_model(ir.serde.serialize_model(scan))
    model.metadata_props.update(pack({"form": {"name": "scan", "ranges": {"input": [low, high]}}}))
    seen: list[np.ndarray] = []

    def watch(feeds: Arrays, outputs: Arrays) -> Arrays:
        seen.append(feeds["input"])
        return outputs

    compare_files(original, Stub(model, watch))
    values = np.concatenate([array.ravel() for array in seen])
    assert np.float32(low) <= values.min()
    assert values.max() <= np.float32(high)
    width = min(high - low, 4.0)
    assert values.max() - values.min() > 0.9 * width, "they are spread over the range, and not cut off at its ends"
    assert np.unique(values).size > 0.9 * values.size


# What does not pass


def test_a_small_fault_fails_and_the_case_and_the_output_are_known(original, scan):
    def off(feeds: Arrays, outputs: Arrays) -> Arrays:
        return outputs | {"c": outputs["c"] + np.float32(1e-4 if len(feeds["input"]) == 17 else 0)}

    report = compare_files(original, Stub(scan, off))
    assert not report.passed
    assert [case.name for case in report.cases if not case.passed] == ["T=17 B=4"]
    assert {name for name, errors in report.outputs.items() if not errors.passed} == {"c"}


def test_the_words_are_of_the_original_and_not_of_pytorch(original, scan):
    shapes = compare_files(original, Stub(scan, lambda feeds, outputs: outputs | {"h": outputs["h"][:1]}))
    assert any(
        "the engine gives shape [1, 4, 4], the original [17, 4, 4]" in case.outputs["h"].reason for case in shapes.cases
    )
    nan = compare_files(original, Stub(scan, lambda feeds, outputs: outputs | {"h": outputs["h"] * np.nan}))
    assert (
        nan.outputs["h"].reason == "the engine has NaN or infinity where the original has none, or the other way around"
    )


def test_what_the_engine_refuses_in_some_cases_fails_there_with_what_it_says(original, scan):
    def refuse(feeds: Arrays, outputs: Arrays) -> Arrays:
        if len(feeds["input"]) == 1:
            raise EngineError("Stub cannot run it: one step is not enough")
        return outputs

    report = compare_files(original, Stub(scan, refuse))
    assert not report.passed
    assert [case.name for case in report.cases if not case.passed] == ["T=1 B=1", "T=1 B=3"]
    assert report.outputs["h"].reason == "Stub cannot run it: one step is not enough"


def test_what_the_engine_refuses_in_every_case_is_an_error(original, scan):
    def refuse(feeds: Arrays, outputs: Arrays) -> Arrays:
        raise EngineError(f"Stub cannot run it: {len(feeds['input'])} steps")

    with pytest.raises(EngineError, match="Stub cannot run it: 1 steps"):
        compare_files(original, Stub(scan, refuse))


# The original in float64


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_original_in_float64_is_the_sru_packages_own(tmp_path, dtype):
    """The twin is made of the file, so that it has the weights as the file's dtype has them."""
    torch.manual_seed(0)
    theirs = trained(sru.SRU(3, 4, num_layers=2, bidirectional=True, layer_norm=True))
    exact = Exact(exported(theirs, tmp_path, dtype=dtype))
    narrow = getattr(torch, dtype)
    x = torch.randn(6, 2, 3).to(narrow)
    right, rounded = exact({"input": x.float().numpy()})
    assert exact.allowance == 1
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # its path for gradients is the one that it has in float64
        wide = theirs.to(narrow).double()(x.double())
    for name, array in zip(("h", "c"), wide):
        # The file's epsilon of LayerNorm is a float32: 1e-5 is 3e-13 off.
        np.testing.assert_allclose(right[name], array.detach().numpy(), rtol=0, atol=1e-10)
    assert rounded["h"].dtype == np.float32
    assert np.abs(rounded["h"] - right["h"]).max() > 1e-9


class OwnLSTM(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.sru = SRU(3, 4, num_layers=1)
        self.lstm = nn.LSTM(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.lstm(self.sru(x)[0])[0]


def test_where_there_is_no_float64_the_original_has_to_do_with_a_wider_bound(tmp_path):
    model = OwnLSTM().eval()
    original = exported(model, tmp_path, (torch.zeros(5, 2, 3),), dynamic={"x": {0: "T", 1: "B"}})
    exact = Exact(original)
    x = np.ones((5, 2, 3), np.float32)
    right, rounded = exact({"x": x})
    assert exact.allowance == 8
    np.testing.assert_array_equal(right["output"], rounded["output"])
    report = compare_files(original, Stub(convert(original, FORMS["scan"]).model))
    assert report.passed
    assert report.allowance == 8
    off = Stub(convert(original, FORMS["scan"]).model, lambda feeds, outputs: {"output": outputs["output"] + 1e-3})
    assert not compare_files(original, off).passed


def test_an_original_that_onnx_runtime_does_not_run_is_an_error(original, scan):
    broken = ir.serde.deserialize_model(ir.serde.serialize_model(original))
    next(iter(broken.graph)).op_type = "Frobnicate"
    with pytest.raises(ModelFileError, match="ONNX Runtime cannot load it"):
        compare_files(broken, Stub(scan))


# What a state can become, on data


def test_the_largest_candidate_of_every_layer_is_measured(original):
    torch.manual_seed(0)
    layer = trained(SRU(3, 4, num_layers=2))
    x = torch.randn(9, 2, 3, generator=torch.Generator().manual_seed(1))
    found = measured(original, {"input": x.numpy()})
    assert found.keys() == {"rnn_lst.0", "rnn_lst.1"}
    first = layer.rnn_lst[0]
    # sru's own layout: the columns of one channel side by side, the candidate's first.
    candidate = (x @ first.weight.detach()).view(9, 2, 4, 4)[..., 0]
    assert found["rnn_lst.0"] == pytest.approx(float(candidate.abs().max()), rel=1e-5)
    with torch.no_grad():
        hidden = layer(x)[0]
    assert hidden.shape == (9, 2, 4)
    assert found["rnn_lst.1"] > 0


def test_states_that_are_given_count_and_what_is_not_finite_does_not(stateful):
    x = np.zeros((3, 2, 3), np.float32)
    assert measured(stateful, {"input": x})["rnn_lst.0"] == 0
    state = np.full((2, 4), -7.0, np.float32)
    assert measured(stateful, {"input": x, "state_0": state})["rnn_lst.0"] == 7
    x[0] = 100.0
    without = measured(stateful, {"input": x, "state_0": state})["rnn_lst.0"]
    assert without > 7
    x[1] = np.nan
    assert measured(stateful, {"input": x, "state_0": state})["rnn_lst.0"] == without


def test_the_state_of_a_linear_recurrence_is_measured_too(tmp_path):
    torch.manual_seed(0)
    layer = MinLSTM(3, expansion_factor=2.0).eval()
    original = exported(layer, tmp_path)
    x = torch.randn(2, 40, 3)
    ((_, largest),) = measured(original, {"x": x.numpy()}).items()
    with torch.no_grad():
        _, last = layer(x, return_next_prev_hidden=True)
    assert largest >= float(last.abs().max()) > 0


def test_sizes_that_are_fixed_have_one_case(original):
    fixed = fix_sizes(original, {"T": 3, "B": 2})
    report = compare_files(fixed, Stub(convert(fixed, FORMS["unrolled"]).model))
    assert report.passed
    assert names(report) == ["static"]
