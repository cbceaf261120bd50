"""A bare SRU as a file: its names and dims, its numbers in plain ONNX Runtime, its metadata; the model left alone."""

from __future__ import annotations

import copy
import functools
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from torch import nn

import sruexport
from sruexport.errors import ExportError, ModelWarning
from sruexport.layers import SRU, SRUCell
from sruexport.parity.measure import compare

SIZES = ((4, 3), (1, 1), (7, 2))
Feeds = dict[str, np.ndarray]


def layer(cls: type[nn.Module] = SRU, *sizes: int, **options) -> nn.Module:
    torch.manual_seed(0)
    module = cls(*(sizes or (5, 4)), **options)
    for name, parameter in module.named_parameters():
        if name.endswith("bias"):
            nn.init.normal_(parameter, std=0.5)
    return module.eval()


@pytest.fixture(scope="module")
def two_layers(tmp_path_factory) -> Callable[..., sruexport.Exported]:
    """An SRU of two layers, exported with some options; every file is made once."""

    @functools.cache
    def export(stateful: bool = False, dtype: str | None = None, **options) -> sruexport.Exported:
        path = tmp_path_factory.mktemp("two_layers") / "m.onnx"
        return sruexport.export(layer(**options), None, path, stateful=stateful, dtype=dtype)

    return export


def session(path: Path) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def run(path: Path, feeds: Feeds) -> dict[str, np.ndarray]:
    engine = session(path)
    return dict(zip([port.name for port in engine.get_outputs()], engine.run(None, feeds)))


def ports(path: Path) -> tuple[dict[str, list], dict[str, list]]:
    """The dims of the file's inputs and outputs by name, in order."""
    graph = onnx.load(path).graph
    return tuple(
        {p.name: [d.dim_param or d.dim_value for d in p.type.tensor_type.shape.dim] for p in side}
        for side in (graph.input, graph.output)
    )


def metadata(path: Path) -> dict:
    return {p.key.removeprefix("sruexport."): json.loads(p.value) for p in onnx.load(path).metadata_props}


def recurrences(path: Path) -> list[onnx.NodeProto]:
    return [node for node in onnx.load(path).graph.node if node.domain == "sruexport"]


def random_input(module: nn.Module, steps: int, batch: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    generator = torch.Generator().manual_seed(steps)
    return torch.randn(steps, batch, module.input_size, generator=generator).to(dtype)


def assert_runs_right(path: Path, module: nn.Module, dtype: str = "float32") -> None:
    """At several sizes, against the module in float64, with its weights as `dtype` rounds them."""
    rounded = copy.deepcopy(module).to(getattr(torch, dtype))
    exact = copy.deepcopy(rounded).double()
    found: list[list[np.ndarray]] = []
    for steps, batch in SIZES:
        x = random_input(module, steps, batch, getattr(torch, dtype))
        with torch.no_grad():
            right, pytorch = exact(x.double()), rounded(x)
        engine = run(path, {"input": (x.float() if dtype == "bfloat16" else x).numpy()})
        assert [array.shape for array in engine.values()] == [tuple(tensor.shape) for tensor in right]
        found.append([engine.values(), [t.double().numpy() for t in pytorch], [t.numpy() for t in right]])
    for i in range(len(found[0][0])):
        errors = compare(*(np.concatenate([list(f[k])[i].ravel() for f in found]) for k in range(3)), dtype)
        assert errors.passed, errors


# Names and dims


def test_time_and_batch_are_dynamic_by_default(two_layers):
    exported = two_layers()
    assert ports(exported.path) == ({"input": ["T", "B", 5]}, {"h": ["T", "B", 4], "c": [2, "B", 4]})
    assert exported.metadata["dynamic"] == {"input": {"0": "T", "1": "B"}}
    assert exported.metadata["time"] == "T"
    assert_runs_right(exported.path, layer())


def test_state_and_mask_are_inputs_when_they_are_given(tmp_path):
    model = layer(SRU, 4, 4)
    args = (torch.zeros(5, 3, 4), torch.zeros(2, 3, 4), torch.zeros(5, 3, dtype=torch.bool))
    exported = sruexport.export(model, args, tmp_path / "m.onnx")
    assert ports(exported.path)[0] == {"input": ["T", "B", 4], "c0": [2, "B", 4], "mask_pad": ["T", "B"]}
    x, c0 = random_input(model, 6, 2), torch.randn(2, 2, 4)
    mask = torch.tensor([[0, 1], [1, 1], [0, 1], [0, 1], [0, 1], [1, 1]]).bool()  # anywhere; a row of nothing else
    with torch.no_grad():
        pytorch, right = model(x, c0, mask), copy.deepcopy(model).double()(x.double(), c0.double(), mask)
    found = run(exported.path, {"input": x.numpy(), "c0": c0.numpy(), "mask_pad": mask.numpy()})
    assert not found["h"][mask.numpy()].any()
    for got, rounded, exact in zip(found.values(), pytorch, right):
        errors = compare(got, rounded.numpy(), exact.numpy(), "float32")
        assert errors.passed, errors


@pytest.mark.parametrize(
    ("dynamic", "dims"),
    [
        ({}, [5, 3, 5]),
        ({"input": {0: "frames"}}, ["frames", 3, 5]),
        ({"input": {0: "frames", -2: "rows"}}, ["frames", "rows", 5]),
    ],
    ids=str,
)
def test_dims_are_those_asked_for(tmp_path, dynamic, dims):
    exported = sruexport.export(layer(), torch.zeros(5, 3, 5), tmp_path / "m.onnx", dynamic=dynamic)
    inputs, outputs = ports(exported.path)
    assert inputs == {"input": dims}
    assert outputs["h"] == [*dims[:2], 4]


def test_an_example_of_one_step_and_one_row_is_no_constant(tmp_path):
    model = layer(num_layers=1)
    exported = sruexport.export(model, torch.zeros(1, 1, 5), tmp_path / "m.onnx")
    assert ports(exported.path)[0] == {"input": ["T", "B", 5]}
    assert_runs_right(exported.path, model)


def test_a_file_takes_no_rows_at_all(two_layers):
    found = run(two_layers().path, {"input": np.zeros((4, 0, 5), np.float32)})
    assert {name: array.shape for name, array in found.items()} == {"h": (4, 0, 4), "c": (2, 0, 4)}


# Types and opsets


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
def test_every_dtype_runs_in_plain_onnxruntime(tmp_path, dtype):
    # ONNX has the epsilon of a LayerNorm in float32, whatever the tensors are: that is no matter of this layer.
    model = layer(bidirectional=True, layer_norm=dtype != "float64")
    exported = sruexport.export(model, None, tmp_path / "m.onnx", dtype=dtype)
    assert exported.metadata["dtype"] == dtype
    weights = {t.data_type for t in onnx.load(exported.path).graph.initializer if np.prod(t.dims) >= 8}
    assert weights == {getattr(onnx.TensorProto, {"float64": "DOUBLE"}.get(dtype, dtype.upper()))}
    shown = "float" if dtype == "bfloat16" else {"float64": "double"}.get(dtype, dtype)
    assert {port.type for port in session(exported.path).get_inputs()} == {f"tensor({shown})"}
    assert_runs_right(exported.path, model, dtype)


def test_a_model_keeps_its_own_dtype_when_none_is_asked_for(tmp_path):
    exported = sruexport.export(layer(num_layers=1).half(), None, tmp_path / "m.onnx")
    assert exported.metadata["dtype"] == "float16"
    assert_runs_right(exported.path, layer(num_layers=1), "float16")


@pytest.mark.parametrize("opset", [21, 25])
def test_a_cell_is_exported_alone_and_in_every_opset(tmp_path, opset):
    cell = layer(SRUCell, bidirectional=True)
    exported = sruexport.export(cell, None, tmp_path / "m.onnx", opset=opset)
    assert ports(exported.path) == ({"input": ["T", "B", 5]}, {"h": ["T", "B", 8], "c": ["B", 8]})
    model = onnx.load(exported.path)
    assert {o.domain: o.version for o in model.opset_import} == {"": opset, "sruexport": 1}
    assert [{o.domain: o.version for o in f.opset_import} for f in model.functions] == [{"": opset}]
    assert exported.metadata["opset"] == opset
    onnx.checker.check_model(model, full_check=True)
    assert_runs_right(exported.path, cell)


# Recurrences


def test_every_node_asks_for_its_plugin(two_layers):
    nodes = recurrences(two_layers().path)
    assert [node.op_type for node in nodes] == ["SRURecurrence"] * 2
    for node in nodes:
        attributes = {a.name: a.s for a in node.attribute}
        assert attributes["plugin_namespace"] == b"sruexport"
        assert attributes["plugin_version"] == b"1"


@pytest.mark.parametrize("options", [{"bidirectional": True, "use_tanh": True}, {"has_skip_term": False}], ids=str)
def test_a_layer_without_weight_c_is_a_linear_recurrence(tmp_path, options):
    model = layer(num_layers=1, v1=True, **options)
    exported = sruexport.export(model, None, tmp_path / "m.onnx")
    assert {node.op_type for node in recurrences(exported.path)} == {"LinearRecurrence"}
    assert [function.name for function in onnx.load(exported.path).functions] == ["LinearRecurrence"]
    assert exported.metadata["recurrences"] == ["LinearRecurrence"]
    assert_runs_right(exported.path, model)


def test_it_is_the_weights_that_decide_and_not_the_option(tmp_path):
    model = layer()
    nn.init.zeros_(model.rnn_lst[1].weight_c)
    exported = sruexport.export(model, None, tmp_path / "m.onnx")
    assert [node.op_type for node in recurrences(exported.path)] == ["SRURecurrence", "LinearRecurrence"]
    assert_runs_right(exported.path, model)


class Mixed(nn.Module):
    """Four variants, one of them twice."""

    def __init__(self):
        super().__init__()
        self.input_size = 5
        self.encoder = layer(SRU, 5, 4, bidirectional=True)
        self.tanh = layer(SRU, 8, 4, num_layers=1, use_tanh=True)
        self.decoder = layer(SRU, 4, 4, num_layers=1)
        self.linear = layer(SRU, 4, 3, num_layers=1, v1=True)

    def forward(self, input):
        h = self.decoder(self.tanh(self.encoder(input)[0])[0])[0]
        return self.linear(h)


def test_variants_in_one_file_are_told_apart_by_overload(tmp_path):
    model = Mixed().eval()
    axes = {"input": {0: "T", 1: "B"}}
    exported = sruexport.export(model, torch.zeros(5, 3, 5), tmp_path / "m.onnx", dynamic=axes)
    bodies = {(f.name, f.overload) for f in onnx.load(exported.path).functions}
    nodes = [(node.op_type, node.overload) for node in recurrences(exported.path)]
    assert len(bodies) == 4
    assert set(nodes) == bodies
    assert [name for name, _ in nodes] == [*["SRURecurrence"] * 4, "LinearRecurrence"]
    assert nodes[0] == nodes[1]
    assert nodes[-1][1] == ""  # the only one of its op
    assert_runs_right(exported.path, model)


# Streams


def test_stateful_adds_states_and_says_so(two_layers):
    exported = two_layers(stateful=True)
    inputs, outputs = ports(exported.path)
    assert inputs == {"input": ["T", "B", 5], "state_0": ["B", 4], "state_1": ["B", 4]}
    assert {name: dims for name, dims in outputs.items() if name not in ("h", "c")} == {
        "new_state_0": ["B", 4],
        "new_state_1": ["B", 4],
    }
    assert metadata(exported.path)["states"] == [
        {
            "input": f"state_{i}",
            "output": f"new_state_{i}",
            "layer": f"rnn_lst.{i}",
            "shape": ["B", 4],
            "batch_axis": 0,
            "dtype": "float32",
            "initial": 0,
        }
        for i in range(2)
    ]


@pytest.mark.parametrize(("dtype", "options"), [(None, {}), (None, {"v1": True}), ("float16", {})], ids=str)
def test_chunks_give_what_the_whole_gives(two_layers, dtype, options):
    exported = two_layers(stateful=True, dtype=dtype, **options)
    dtype = dtype or "float32"
    x = random_input(layer(), 9, 2, getattr(torch, dtype)).numpy()
    states = {f"state_{i}": np.zeros((2, 4), np.float32) for i in range(2)}
    whole = run(exported.path, {"input": x, **states})
    pieces = []
    for start, stop in ((0, 1), (1, 4), (4, 9)):
        out = run(exported.path, {"input": x[start:stop], **states})
        pieces.append(out["h"])
        states = {f"state_{i}": out[f"new_state_{i}"] for i in range(2)}
    assert {state.dtype for state in states.values()} == {np.dtype(np.float32)}
    # The same operations in the same order, but a matrix product may round otherwise for another number of rows.
    pairs = [(np.concatenate(pieces), whole["h"]), *((states[f"state_{i}"], whole[f"new_state_{i}"]) for i in range(2))]
    for chunked, right in pairs:
        np.testing.assert_allclose(chunked, right, rtol=0, atol=8 * np.finfo(dtype).eps * np.abs(right).max())


@pytest.mark.parametrize("axes", [{0: "L", 1: "N"}, {0: "T"}], ids=str)
def test_the_states_batch_axis_is_told_from_time_of_the_same_size(tmp_path, axes):
    exported = sruexport.export(
        layer(), torch.zeros(4, 4, 5), tmp_path / "m.onnx", dynamic={"input": axes}, stateful=True
    )
    assert ports(exported.path)[0]["state_0"] == [axes.get(1, 4), 4]


def test_a_layer_that_gets_no_state_is_told(tmp_path):
    class One(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = layer(), SRU(4, 4)

        def forward(self, input):
            return self.second(self.first(input, torch.zeros(2, input.shape[1], 4))[0])[0]

    with pytest.warns(ModelWarning, match=r"layer 'first\.rnn_lst\.0' is given its state by the model itself"):
        sruexport.export(One(), torch.zeros(5, 3, 5), tmp_path / "m.onnx", dynamic={}, stateful=True)


def test_a_backward_layer_cannot_be_streamed(tmp_path):
    with pytest.raises(ExportError, match=r"stateful: layer 'rnn_lst\.0' .* it is bidirectional"):
        sruexport.export(layer(bidirectional=True), None, tmp_path / "m.onnx", stateful=True)
    assert not list(tmp_path.iterdir())


def test_a_layer_that_is_given_its_state_cannot_be_given_another(tmp_path):
    args = (torch.zeros(5, 3, 5), torch.zeros(2, 3, 4))
    with pytest.raises(ExportError, match="stateful: every layer is given its state"):
        sruexport.export(layer(), args, tmp_path / "m.onnx", stateful=True)


# The file


def test_a_file_is_hardly_larger_than_its_weights(tmp_path):
    model = layer(SRU, 80, 512, num_layers=6, bidirectional=True)
    exported = sruexport.export(model, None, tmp_path / "m.onnx")
    weights = sum(tensor.nbytes for tensor in model.state_dict().values())
    assert exported.bytes == exported.path.stat().st_size <= 1.05 * weights


def test_weights_are_laid_out_in_the_file_and_not_in_every_run(tmp_path):
    exported = sruexport.export(layer(SRU, 80, 64, num_layers=1, bidirectional=True), None, tmp_path / "m.onnx")
    graph = onnx.load(exported.path).graph
    large = {tensor.name for tensor in graph.initializer if np.prod(tensor.dims) > 80 * 64}
    assert large
    users = {node.op_type for node in graph.node if large & set(node.input)}
    assert users == {"MatMul"}


def test_the_same_model_gives_the_same_bytes(tmp_path, two_layers):
    again = sruexport.export(layer(), None, tmp_path / "m.onnx")
    assert again.path.read_bytes() == two_layers().path.read_bytes()


def test_metadata_tells_what_the_file_is(tmp_path):
    model = layer(num_layers=1, use_tanh=True)
    exported = sruexport.export(model, None, tmp_path / "m.onnx", source={"checkpoint": "a.pt"})
    written = metadata(exported.path)
    assert written == exported.metadata
    (described,) = written["layers"]
    assert (described["path"], described["family"]) == ("", "sru")
    assert described["options"] | {"input_size": 5, "hidden_size": 4, "num_layers": 1} == described["options"]
    assert described["options"]["use_tanh"] is True
    assert described["options"]["bidirectional"] is False
    assert written["recurrences"] == ["SRURecurrence"]
    assert (written["opset"], written["dtype"], written["states"]) == (18, "float32", [])
    assert written["source"] == {"class": "sruexport.layers.sru.SRU", "checkpoint": "a.pt"}
    assert written["versions"]["torch"] == torch.__version__
    assert written["versions"]["sruexport"] == sruexport.__version__
    assert {"onnx", "onnx_ir", "python"} <= written["versions"].keys()


def test_nothing_of_this_machine_is_in_the_file(two_layers):
    path = two_layers().path
    content = path.read_bytes()
    for trace in (str(Path(sruexport.__file__).parent), str(path.parent), str(Path(torch.__file__).parent)):
        assert trace.encode() not in content


# The model


class Together(nn.Module):
    """With a layer of ours, one of torch's and a shared parameter; with one part in training mode and one not."""

    def __init__(self, fails: str = ""):
        super().__init__()
        self.sru = layer()
        self.lstm = nn.LSTM(4, 4)
        self.linear = nn.Linear(4, 5)
        self.tied = nn.Linear(4, 5)
        self.tied.weight = self.linear.weight
        self.register_buffer("scale", torch.tensor(2.0))
        self.fails = fails
        self.train()
        self.linear.eval()

    def forward(self, input):
        h = self.lstm(self.sru(input)[0])[0]
        if self.fails == "always" or (self.fails == "in the trace" and torch.compiler.is_exporting()):
            raise RuntimeError("on purpose")
        return self.linear(h) + self.tied(h) * self.scale


def everything(model: nn.Module) -> dict:
    """All that a caller could find changed: which objects are where, and what is in them."""
    tensors = [*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False)]
    return {
        "modules": [(name, id(module), module.training) for name, module in model.named_modules()],
        "attributes": [sorted(vars(module)) for module in model.modules()],
        "tensors": [(name, id(t), t.data_ptr(), t.dtype, t.requires_grad) for name, t in tensors],
        "values": [t.tolist() for _, t in tensors],
    }


@pytest.mark.parametrize(
    ("fails", "dynamic"),
    [("", {"input": {0: "T"}}), ("always", {}), ("in the trace", {}), ("", None), ("", {"nothing": {0: "T"}})],
)
def test_the_model_is_left_as_it_was_however_the_export_ends(tmp_path, fails, dynamic):
    model = Together(fails)
    before = everything(model)
    raises = bool(fails) or dynamic is None or "nothing" in dynamic
    try:
        sruexport.export(model, torch.zeros(5, 3, 5), tmp_path / "m.onnx", dynamic=dynamic, dtype="float16")
        assert not raises
    except ExportError:
        assert raises
    assert everything(model) == before
    assert torch.is_grad_enabled()
    assert len(list(tmp_path.iterdir())) == (0 if raises else 1)
