"""convert_file(): a file of standard ops with the original's numbers, or none."""

from __future__ import annotations

import functools
import json
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
import torch
from engines_here import needs
from moody_engines import Builder, Moody, Well
from torch import Tensor, nn

from sruexport import export, validate
from sruexport.conversion import Conversion, convert_file
from sruexport.engines import ENGINES
from sruexport.engines.running import objections
from sruexport.errors import ConversionError, EngineError, InputError, ModelFileError, OptionError, OutputError
from sruexport.layers import SRU
from sruexport.metadata import unpack

AXES = {"x": {0: "T", 1: "B"}}
#: What the names of our own temporary files begin with; nobody should have to read of those.
OURS = "sruexport-"
#: With these a file is tried in one case only.
SMALL = {"T": 3, "B": 2}


def trained(**options: Any) -> SRU:
    """An SRU whose weight_c and biases are no longer what they began as."""
    torch.manual_seed(0)
    layer = SRU(3, 4, **options).eval()
    for name, parameter in layer.named_parameters():
        if name.endswith(("weight_c", "bias")):
            nn.init.uniform_(parameter, -0.8, 0.8)
    return layer


@pytest.fixture(scope="module")
def layer() -> SRU:
    return trained(num_layers=2)


@pytest.fixture(scope="module")
def file(layer: SRU, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return export(layer, None, tmp_path_factory.mktemp("file") / "m.onnx").path


@pytest.fixture(scope="module")
def as_lstm(file: Path, tmp_path_factory: pytest.TempPathFactory) -> Conversion:
    return convert_file(file, tmp_path_factory.mktemp("lstm") / "lstm.onnx", form="lstm")


@pytest.fixture(scope="module")
def in_dtype(layer: SRU, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    folder = tmp_path_factory.mktemp("dtypes")

    @functools.cache
    def exported(dtype: str) -> Path:
        return export(layer, None, folder / f"{dtype}.onnx", dtype=dtype).path

    return exported


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder of its own."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def moody(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Put engines with moods among the others; the forms are those of their profile."""

    def add(*forms: str) -> None:
        for engine in (Moody, Builder):
            monkeypatch.setattr(engine, "forms", forms or engine.forms)
            monkeypatch.setitem(ENGINES, engine.name, engine())

    return add


def form_in(path: str | Path) -> dict[str, Any]:
    return unpack(ir.load(path).metadata_props)["form"]


def ops(path: str | Path) -> list[str]:
    return [node.op_type for node in ir.load(path).graph.all_nodes()]


# What is written


def test_a_form_that_is_asked_for_is_written_in_standard_ops(layer, as_lstm):
    assert as_lstm.passed
    assert as_lstm.form == "lstm"
    assert as_lstm.report is not None
    assert as_lstm.report.passed
    assert as_lstm.report.baseline == "original"
    assert [case.name for case in as_lstm.report.cases] == ["T=1 B=1", "T=1 B=3", "T=2 B=2", "T=17 B=4", "T=64 B=1"]
    proto = onnx.load(as_lstm.path)
    assert not proto.functions
    assert {node.domain for node in ir.load(as_lstm.path).graph.all_nodes()} == {""}
    assert as_lstm.bytes == os.path.getsize(as_lstm.path)
    assert as_lstm.opset == proto.opset_import[0].version
    report = validate(layer, as_lstm.path)
    assert report.passed, report.to_dict()
    assert report.form == "lstm"


def test_nothing_but_the_file_is_left(file, tmp_path, monkeypatch):
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    data = {"input": np.ones((3, 2, 3), np.float32)}
    convert_file(file, "out.onnx", form="lstm", data=data)
    assert sorted(os.listdir()) == ["out.onnx", "temporary"]
    assert os.listdir(temporary) == []


def test_the_file_says_what_it_was_held_against_and_where(file, as_lstm):
    form = form_in(as_lstm.path)
    assert form["name"] == "lstm"
    assert form["held_against_original"] == {
        "engine": "onnxruntime",
        "version": onnxruntime.__version__,
        "verified": True,
    }
    kept = unpack(ir.load(as_lstm.path).metadata_props)
    kept.pop("form")
    assert kept == unpack(ir.load(file).metadata_props)


def test_the_scale_and_its_error_are_known_of_every_layer(as_lstm):
    assert [layer["layer"] for layer in as_lstm.layers] == ["rnn_lst.0", "rnn_lst.1"]
    assert form_in(as_lstm.path)["layers"] == [dict(layer) for layer in as_lstm.layers]
    for layer in as_lstm.layers:
        assert layer["bound"] * 2.0 ** -layer["k"] < 1e-3
        assert "input in [-16, 16], assumed" in layer["bound_from"]


def test_the_result_is_plain_data(as_lstm):
    found = json.loads(json.dumps(as_lstm.to_dict(), allow_nan=False))
    assert (found["passed"], found["form"], found["engine"]) == (True, "lstm", "onnxruntime")
    assert found["file"] == found["verified"]["file"] == str(as_lstm.path)
    assert found["verified"]["passed"] is True
    assert found["not_verified"] == ""
    assert OURS not in json.dumps(found)


def test_progress_says_what_goes_on(file):
    heard: list[str] = []
    convert_file(file, "out.onnx", form="scan", progress=heard.append)
    assert heard[:3] == ["converting", "running it on ONNX Runtime", "running it on ONNX Runtime: T=1 B=1"]
    assert heard[-1] == "writing"


def test_a_file_that_is_there_is_replaced(file):
    Path("out.onnx").write_bytes(b"old")
    convert_file(file, "out.onnx", form="scan", sizes=SMALL)
    onnx.load("out.onnx")


# The form for an engine


def test_the_engines_first_form_that_the_model_has_is_taken(file, monkeypatch):
    monkeypatch.setitem(ENGINES, "well", Well())
    done = convert_file(file, "out.onnx", engine="well", sizes=SMALL)
    assert (done.form, done.engine) == ("loop", "well")
    assert list(done.passed_over) == ["parallel"]
    assert "no parallel scan of it is exact" in done.passed_over["parallel"]
    assert "Loop" in ops("out.onnx")
    assert done.report is not None
    assert done.report.engine.startswith("Well ")


@pytest.mark.parametrize("name", ["openvino", "tract", "iree", "onnxruntime-web"])
def test_what_is_made_for_an_engine_has_run_on_it_and_has_nothing_that_it_gets_wrong(layer, file, name):
    needs(name)
    done = convert_file(file, "out.onnx", engine=name, sizes={"T": 5, "B": 2})
    assert done.passed
    assert done.form in ENGINES[name].forms
    assert done.report is not None
    assert done.report.engine.startswith(ENGINES[name].title)
    assert objections(ENGINES[name], ir.load("out.onnx")) == []
    assert form_in("out.onnx")["held_against_original"]["verified"] is True


def test_forms_with_wrong_numbers_crashes_and_refusals_are_passed_over_with_the_reason(layer, file, moody):
    moody()
    done = convert_file(file, "out.onnx", engine="moody", sizes=SMALL)
    assert done.form == "unrolled"
    assert list(done.passed_over) == ["lstm", "scan", "loop"]
    assert done.passed_over["lstm"].startswith("Moody ")
    assert "gives other numbers: off by 1.0e-02, allowed" in done.passed_over["lstm"]
    assert done.passed_over["scan"] == "Moody died of SIGABRT"
    assert done.passed_over["loop"] == "Moody cannot load it: ValueError: no rule for 'Loop'"
    assert validate(layer, "out.onnx").passed


def test_wrong_numbers_alone_write_nothing(file, moody):
    moody("lstm")
    Path("out.onnx").write_bytes(b"the old file")
    done = convert_file(file, "out.onnx", engine="moody", sizes=SMALL)
    assert not done.passed
    assert done.report is not None
    assert not done.report.passed
    assert done.to_dict()["passed"] is False
    assert done.to_dict()["file"] is None
    assert os.listdir() == ["out.onnx"]
    assert Path("out.onnx").read_bytes() == b"the old file"


def test_wrong_numbers_are_told_even_if_later_forms_are_refused(file, moody):
    moody("lstm", "loop")
    done = convert_file(file, "out.onnx", engine="moody", sizes=SMALL)
    assert (done.passed, done.form) == (False, "lstm")
    assert os.listdir() == []


def test_an_engine_that_takes_no_form_is_an_error_with_every_reason(file, moody):
    moody("parallel", "scan", "loop")
    with pytest.raises(EngineError, match="Moody runs no form of this model") as caught:
        convert_file(file, "out.onnx", engine="moody", sizes={"T": 3})
    for part in (
        "; with fixed sizes (--size B=...) it may run one: ",
        "parallel: rnn_lst.0",
        "scan: Moody died of SIGABRT",
        "loop: Moody cannot",
    ):
        assert part in str(caught.value)
    assert OURS not in str(caught.value)
    assert os.listdir() == []


def test_an_engine_whose_profile_has_no_form_of_the_model_is_an_error(file):
    with pytest.raises(ConversionError, match=r"Apache TVM runs no form of this model; with fixed sizes .*unrolled: "):
        convert_file(file, "out.onnx", engine="tvm")


def test_an_engine_out_of_time_is_an_error_and_no_verdict(file):
    with pytest.raises(EngineError, match=r"ONNX Runtime ran past the limit of 0\.01 s"):
        convert_file(file, "out.onnx", form="scan", limit=0.01)
    assert os.listdir() == []


def test_engines_that_take_programs_are_served_by_torch_lstm(file):
    with pytest.raises(
        ConversionError, match=r"ExecuTorch takes no ONNX file, but a PyTorch program: .*--to torch-lstm"
    ):
        convert_file(file, "out.pt2", engine="executorch")


class OwnLSTM(nn.Module):
    """An LSTM of the model's own, behind an SRU."""

    def __init__(self) -> None:
        super().__init__()
        self.sru = trained(num_layers=1)
        self.lstm = nn.LSTM(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.lstm(self.sru(x)[0])[0]


@pytest.fixture(scope="module")
def own_lstm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("own") / "own.onnx"
    return export(OwnLSTM().eval(), (torch.zeros(5, 2, 3),), path, dynamic=AXES).path


def test_a_model_with_an_lstm_of_its_own_is_converted_and_held_against_itself(own_lstm):
    """ONNX Runtime has no LSTM in float64, so that the original itself has to do."""
    done = convert_file(own_lstm, "out.onnx", form="scan", sizes=SMALL)
    assert done.passed
    assert done.report is not None
    assert done.report.allowance == 8
    assert ops("out.onnx").count("LSTM") == 1


def test_an_lstm_of_the_models_own_that_the_engine_gets_wrong_is_refused_in_every_form(own_lstm):
    model = ir.load(own_lstm)
    (node,) = [node for node in model.graph if node.op_type == "LSTM"]
    node.attributes["direction"] = ir.AttrString("direction", "reverse")
    ir.save(model, "reverse.onnx")
    with pytest.raises(ConversionError, match="tract runs no form of this model") as caught:
        convert_file("reverse.onnx", "out.onnx", engine="tract", sizes={"T": 4, "B": 1})
    for form in ("scan", "lstm", "unrolled"):
        assert f"{form}: LSTM.reverse ({node.name}) gives wrong numbers there: it runs forward" in str(caught.value)
    assert os.listdir() == ["reverse.onnx"]


# Not verified


def test_where_the_engine_is_not_installed_the_file_is_written_and_says_so(layer, file, tmp_path, monkeypatch):
    monkeypatch.setenv("SRUEXPORT_ENGINES", str(tmp_path / "none"))
    done = convert_file(file, "out.onnx", engine="tract")
    assert done.passed
    assert done.report is None
    assert done.not_verified == "tract is not installed here"
    assert done.to_dict()["verified"] is None
    assert form_in("out.onnx")["held_against_original"] == {
        "engine": "tract",
        "version": None,
        "verified": False,
        "not_verified": "tract is not installed here",
    }
    assert validate(layer, "out.onnx").passed


def test_an_engine_that_only_builds_builds_it(file, moody):
    moody()
    done = convert_file(file, "out.onnx", engine="builder", sizes=SMALL)
    assert done.passed
    assert done.form == "unrolled"
    assert done.passed_over == {"loop": "Builder cannot load it: ValueError: no rule for 'Loop'"}
    assert done.report is None
    assert done.not_verified == "Builder takes it, but its machine is elsewhere"
    assert form_in("out.onnx")["held_against_original"]["verified"] is False


def test_a_form_that_onnx_runtime_does_not_run_is_written_unverified(in_dtype):
    done = convert_file(in_dtype("float64"), "out.onnx", form="lstm")
    assert done.passed
    assert done.report is None
    assert done.not_verified.startswith("ONNX Runtime does not run it: LSTM.float64 (")


# Files of other kinds


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
def test_a_file_of_another_dtype_is_held_to_that_dtypes_rounding(in_dtype, dtype):
    done = convert_file(in_dtype(dtype), "out.onnx", form="scan", sizes=SMALL)
    assert done.passed
    assert done.report is not None
    assert done.report.dtype == dtype
    bound = done.report.outputs["h"].bound
    assert (bound < 1e-14) if dtype == "float64" else (bound > 1e-4)


def test_the_lstm_itself_may_compute_in_16_bits(in_dtype):
    done = convert_file(in_dtype("float16"), "out.onnx", form="lstm", lstm_dtype="float16", sizes=SMALL)
    assert done.passed
    model = ir.load("out.onnx")
    kinds = {node.inputs[1].dtype for node in model.graph if node.op_type == "LSTM" and node.inputs[1] is not None}
    assert kinds == {ir.DataType.FLOAT16}
    assert {layer["dtype"] for layer in done.layers} == {"float16"}
    wide = convert_file(in_dtype("float16"), "wide.onnx", form="lstm", sizes=SMALL)
    assert {layer["dtype"] for layer in wide.layers} == {"float32"}


def test_states_stay_and_a_stream_in_chunks_is_the_whole(tmp_path, layer):
    source = export(layer, None, tmp_path / "m.onnx", stateful=True).path
    done = convert_file(source, "out.onnx", form="lstm")
    assert done.report is not None
    assert done.report.outputs.keys() == {"h", "c", "new_state_0", "new_state_1"}
    assert not [case.name for case in done.report.cases if "chunks" in case.name]
    report = validate(layer, "out.onnx")
    assert report.passed, report.to_dict()
    assert "T=17 B=4 in chunks" in {case.name for case in report.cases}


# Sizes


def test_sizes_make_dims_static(layer, file):
    done = convert_file(file, "out.onnx", form="unrolled", sizes=SMALL)
    (port,) = ir.load("out.onnx").graph.inputs
    assert list(port.shape or ()) == [3, 2, 3]
    assert done.report is not None
    assert [case.name for case in done.report.cases] == ["static"]
    assert validate(layer, "out.onnx").passed


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"N": 4}, r"size 'N': no input has this dynamic dim \(they are T, B\)"),
        ({"T": 0}, "size T=0: give 1 or more"),
    ],
)
def test_sizes_that_do_not_fit_are_refused(file, sizes, message):
    with pytest.raises(OptionError, match=message):
        convert_file(file, "out.onnx", form="scan", sizes=sizes)


# Ranges and data


def test_a_range_sets_the_scale_and_is_what_the_file_is_tried_on(layer, file):
    """From 0 to 0.001 tanh is so near to the identity that e = 2^-5 will do; at 3 it would be off by 0.1."""
    done = convert_file(file, "out.onnx", form="lstm", ranges={"input": (0.0, 0.001)})
    assert done.passed, done.report
    assert max(entry["k"] for entry in done.layers) < 8
    assert all("input in [0, 0.001]" in entry["bound_from"] for entry in done.layers)
    assert form_in("out.onnx")["ranges"] == {"input": [0.0, 0.001]}
    assert validate(layer, "out.onnx").passed
    beyond = validate(layer, "out.onnx", data={"input": np.full((5, 2, 3), 3.0, np.float32)})
    assert not beyond.passed


@pytest.mark.parametrize(
    ("ranges", "message"),
    [
        ({"inputs": (-1.0, 1.0)}, r"range of 'inputs': no such input; did you mean 'input'\? \(the inputs are input\)"),
        ({"input": (1.0, -1.0)}, r"range of 'input': 1\.\.-1: give two numbers, the lower one first"),
        ({"input": (1.0, 1.0)}, "the lower one first"),
        ({"input": (-np.inf, np.inf)}, "give two numbers"),
        ({"input": (np.nan, np.nan)}, "give two numbers"),
    ],
)
def test_ranges_that_do_not_fit_are_refused(file, ranges, message):
    with pytest.raises(OptionError, match=message):
        convert_file(file, "out.onnx", form="lstm", ranges=ranges)
    assert os.listdir() == []


def test_own_data_is_what_the_file_is_tried_on_and_sets_the_ranges(file):
    array = np.random.default_rng(0).standard_normal((9, 2, 3)).astype(np.float32)
    np.savez("data.npz", input=array)
    for data in ({"input": array}, Path("data.npz")):
        done = convert_file(file, "out.onnx", form="lstm", data=data)
        assert done.report is not None
        assert [case.name for case in done.report.cases] == ["data"]
        low, high = form_in("out.onnx")["ranges"]["input"]
        assert -low == high == 2 * float(np.abs(array).max())
    given = convert_file(file, "out.onnx", form="lstm", data={"input": array}, ranges={"input": (-5.0, 5.0)})
    assert given.passed
    assert form_in("out.onnx")["ranges"]["input"] == [-5.0, 5.0]


def test_padding_of_nan_sets_no_range(tmp_path):
    model = trained(num_layers=1)
    mask = torch.zeros(5, 2, dtype=torch.int32)
    source = export(model, {"input": torch.zeros(5, 2, 3), "mask_pad": mask}, tmp_path / "m.onnx").path
    array = np.ones((5, 2, 3), np.float32)
    padding = np.zeros((5, 2), np.int32)
    array[3:, 0], padding[3:, 0] = np.nan, 1
    done = convert_file(source, "out.onnx", form="lstm", data={"input": array, "mask_pad": padding})
    assert form_in("out.onnx")["ranges"] == {"input": [-2.0, 2.0]}
    assert np.isfinite(done.layers[0]["bound"])
    assert done.layers[0]["k"] > 0


class Unbounded(nn.Module):
    """Nothing can be proven of what its SRU takes: a sum over time has no bound."""

    def __init__(self) -> None:
        super().__init__()
        self.sru = trained(num_layers=1)

    def forward(self, x: Tensor) -> Tensor:
        return self.sru(torch.cumsum(x, 0))[0]


def test_a_state_without_a_proven_bound_is_measured_on_data(tmp_path):
    source = export(Unbounded().eval(), (torch.zeros(5, 2, 3),), tmp_path / "m.onnx", dynamic=AXES).path
    with pytest.raises(ConversionError, match=r"sru\.rnn_lst\.0: .*no bound on its state can be proven .*--data FILE"):
        convert_file(source, "out.onnx", form="lstm")
    x = np.random.default_rng(0).standard_normal((6, 2, 3)).astype(np.float32)
    done = convert_file(source, "out.onnx", form="lstm", data={"x": x})
    assert done.passed
    assert done.layers[0]["bound_from"] == "measured on data, times 4"


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"inputs": np.ones((5, 2, 3))}, r"^data: 'inputs' is no input of .*m\.onnx; did you mean 'input'"),
        ({}, r"^data: input 'input' of .*m\.onnx is missing"),
        ({"input": np.ones((5, 2, 4))}, r"m\.onnx: 'input' has shape .* axis 2 is 4 and should be 3"),
        ({"input": np.ones((0, 2, 3))}, r"m\.onnx: 'input' has no steps on axis 0"),
        ("no.npz", r"^no\.npz: there is no such file"),
    ],
)
def test_data_that_does_not_fit_is_refused_by_the_names_that_the_user_knows(file, data, message):
    with pytest.raises(InputError, match=message) as caught:
        convert_file(file, "out.onnx", form="lstm", data=data)
    assert OURS not in str(caught.value)
    assert os.listdir() == []


def test_data_have_to_fit_the_sizes(file):
    with pytest.raises(InputError, match="axis 0 is 9 and should be 8"):
        convert_file(file, "out.onnx", form="scan", sizes={"T": 8}, data={"input": np.ones((9, 2, 3))})


# Refused


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({}, OptionError, r"give either a form \(--to FORM\) or an engine \(--engine NAME\)"),
        ({"form": "scan", "engine": "tract"}, OptionError, "give either a form"),
        ({"form": "lstmm"}, OptionError, r"form 'lstmm' is not known; did you mean 'lstm'\? \(they are lstm, "),
        ({"engine": "openvno"}, OptionError, r"engine 'openvno' is not known; did you mean 'openvino'\?"),
        ({"form": "lstm", "lstm_dtype": "float17"}, OptionError, "lstm_dtype 'float17' is not one of float32, float16"),
        ({"form": "lstm", "lstm_dtype": "float16"}, OptionError, "is for files of 16 bits, and this one is float32"),
        ({"form": "parallel"}, ConversionError, r"rnn_lst\.0: .* no parallel scan of it is exact"),
        ({"form": "unrolled"}, ConversionError, r"its length must be static: fix it \(--size T=50\)"),
    ],
    ids=str,
)
def test_options_that_do_not_fit_are_refused_with_the_way_out(file, options, error, message):
    with pytest.raises(error, match=message):
        convert_file(file, "out.onnx", **options)
    assert os.listdir() == []


def test_sources_that_cannot_be_converted_are_refused_with_the_reason(file, as_lstm):
    torch.save({"state_dict": trained(num_layers=1).state_dict()}, "c.pt")
    Path("text.txt").write_text("text")
    foreign = ir.load(file)
    foreign.metadata_props.clear()
    ir.save(foreign, "foreign.onnx")
    shutil.copy(as_lstm.path, "lstm.onnx")
    before = sorted(os.listdir())
    for source, message in {
        "no.onnx": r"^no\.onnx: there is no such file$",
        ".": r"^\.: is a folder$",
        "text.txt": r"^text\.txt: is cut off, damaged or no ONNX file",
        "c.pt": r"^c\.pt: is a checkpoint and no ONNX file: export it, .*\(sruexport export c\.pt -o M\.onnx\)$",
        "foreign.onnx": r"^foreign\.onnx: was not written by sruexport$",
        "lstm.onnx": r"^lstm\.onnx: has no recurrence as a custom op: it is converted already \(form lstm\)$",
    }.items():
        with pytest.raises((ModelFileError, ConversionError), match=message):
            convert_file(source, "out.onnx", form="scan")
    assert sorted(os.listdir()) == before


def test_outputs_that_cannot_be_written_are_refused_before_the_work(file):
    for target, message in {".": "is a folder", "no/out.onnx": "the folder no does not exist"}.items():
        with pytest.raises(OutputError, match=message):
            convert_file(file, target, form="scan", progress=lambda step: pytest.fail(step))


def test_a_conversion_without_a_report_counts_as_passed():
    done = Conversion(Path("m.onnx"), 1, 18, "scan", [], "tract", {}, None, "tract is not installed here")
    assert done.passed
