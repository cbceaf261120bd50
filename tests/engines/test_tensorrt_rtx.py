"""TensorRT-RTX: what it builds on a machine without a GPU, for GPUs of several generations."""

from __future__ import annotations

import json
import subprocess
from contextlib import closing
from pathlib import Path

import onnx_ir as ir
import pytest
import torch
from engines_here import needs, opened
from small_graphs import PAIRS, Lstm, Scan
from sruexport.converters import FORMS, convert, fix_sizes

from sruexport import export
from sruexport.engines import ENGINES
from sruexport.engines.environments import interpreter
from sruexport.engines.tensorrt_rtx import _shapes
from sruexport.errors import EngineCrash, EngineError
from sruexport.layers import SRU

SIZES = {"T": 6, "B": 2}
#: Parses a file, and says what it takes the outputs for.
LOOK = """
import json, sys
import tensorrt_rtx_bindings as trt
log = trt.Logger(trt.Logger.ERROR)
network = trt.Builder(log).create_network(0)
assert trt.OnnxParser(network, log).parse_from_file(sys.argv[1])
outputs = [network.get_output(i) for i in range(network.num_outputs)]
print(json.dumps({output.name: [output.dtype.name, list(output.shape)] for output in outputs}))
"""


@pytest.fixture(scope="module", autouse=True)
def here() -> None:
    needs("tensorrt-rtx")


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, ir.Model]:
    """SRU in both directions with LayerNorm and a mask, and two linear recurrences."""
    folder = tmp_path_factory.mktemp("files")
    torch.manual_seed(0)
    both = SRU(4, 2, num_layers=2, bidirectional=True, layer_norm=True).eval()
    linear = SRU(4, 4, num_layers=1, v1=True).eval()
    masked = {"input": torch.zeros(5, 2, 4), "mask_pad": torch.zeros(5, 2, dtype=torch.int32)}
    paths = {
        "sru": export(both, masked, folder / "sru.onnx").path,
        "linear": export(linear, None, folder / "linear.onnx").path,
        "float16": export(linear, None, folder / "float16.onnx", dtype="float16").path,
    }
    return {name: ir.load(path) for name, path in paths.items()}


def build(model: ir.Model, folder: Path, capability: str = "") -> None:
    path = folder / "m.onnx"
    ir.save(model, path)
    opened("tensorrt-rtx", path, **({"capability": capability} if capability else {})).close()


@pytest.mark.parametrize("capability", ["86", "120"])
@pytest.mark.parametrize("form", ["lstm", "lstm-peephole", "lstm-peephole-tanh", "scan"])
def test_it_builds_both_directions_with_a_mask_and_any_sizes(files, tmp_path, form, capability):
    build(convert(files["sru"], FORMS[form]).model, tmp_path, capability)


@pytest.mark.parametrize("capability", ["86", "120"])
@pytest.mark.parametrize("sizes", [{}, SIZES], ids=["dynamic", "static"])
def test_it_builds_a_linear_recurrence_in_parallel(files, tmp_path, sizes, capability):
    model = fix_sizes(files["linear"], sizes) if sizes else files["linear"]
    build(convert(model, FORMS["parallel"]).model, tmp_path, capability)


@pytest.mark.parametrize("form", ["parallel", "unrolled", "scan", "loop"])
def test_for_turing_it_builds_a_file_in_float16_in_forms_without_an_lstm(files, tmp_path, form):
    build(convert(fix_sizes(files["float16"], SIZES), FORMS[form]).model, tmp_path, "75")


@pytest.mark.parametrize(("name", "form"), [("linear", "parallel"), ("float16", "lstm")])
def test_for_turing_it_builds_no_product_in_float32(files, tmp_path, name, form):
    """As the profile's notes say: an LSTM's is in float32 whatever the file is in."""
    with pytest.raises(EngineError) as caught:
        build(convert(fix_sizes(files[name], SIZES), FORMS[form]).model, tmp_path, "75")
    assert not isinstance(caught.value, EngineCrash)


@pytest.mark.parametrize("form", ENGINES["tensorrt-rtx"].forms)
def test_it_builds_every_form_that_its_profile_names(files, tmp_path, form):
    model = fix_sizes(files["linear"], SIZES)
    build(convert(model, FORMS[form]).model if form in FORMS else model, tmp_path)


def test_an_unknown_capability_is_refused_with_those_that_are_known(files, tmp_path):
    with pytest.raises(EngineError, match="capability '87' is unknown: give one of 75, 80, 86"):
        build(fix_sizes(files["linear"], SIZES), tmp_path, "87")


def test_every_input_has_the_sizes_of_its_dims():
    """States and masks are as long and as many as the sequences, since their dims have the same names."""
    sizes = {"T": (1, 20, 400), "B": (2, 4, 8)}
    assert _shapes(("T", "B", 12), sizes) == [[1, 2, 12], [20, 4, 12], [400, 8, 12]]
    assert _shapes(("B", 12), sizes) == [[2, 12], [4, 12], [8, 12]]
    assert _shapes(("N",), sizes) == [[1], [32], [512]], "where nobody says"


def test_running_says_that_it_takes_the_gpu(tmp_path):
    graph = Scan().graph()
    path = tmp_path / "m.onnx"
    path.write_bytes(graph.model.SerializeToString())
    with closing(opened("tensorrt-rtx", path)) as engine, pytest.raises(EngineError, match="only that GPU can run it"):
        engine.run(graph.feeds)


# What it takes and gets wrong: without a GPU, by what it takes the outputs for.

EVIDENCE = {"LSTM.layout": ("LSTM.layout", "shape"), "float64": ("LSTM.float64", "dtype")}


def test_there_is_evidence_of_every_fault_in_its_profile():
    assert EVIDENCE.keys() == ENGINES["tensorrt-rtx"].wrong.keys()


@pytest.mark.parametrize("feature", EVIDENCE)
def test_it_takes_the_outputs_for_others_with_it_and_not_without(tmp_path, feature):
    pair, what = EVIDENCE[feature]
    with_it, without = PAIRS[pair]
    assert _is_taken_right(without, what, tmp_path)
    assert not _is_taken_right(with_it, what, tmp_path), f"it is mended: take {feature} out of its row"


def _is_taken_right(case: Lstm | Scan, what: str, folder: Path) -> bool:
    graph = case.graph()
    path = folder / "m.onnx"
    path.write_bytes(graph.model.SerializeToString())
    opened("tensorrt-rtx", path).close()  # it builds
    command = [interpreter(ENGINES["tensorrt-rtx"]), "-I", "-c", LOOK, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    (dtype, shape), right = json.loads(done.stdout)["Y"], graph.rounded()["Y"]
    return shape == list(right.shape) if what == "shape" else dtype == {"float32": "FLOAT"}.get(str(right.dtype))
