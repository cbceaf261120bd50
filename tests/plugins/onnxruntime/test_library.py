"""The custom-op library in ONNX Runtime: its kernels run and no function body, and what it refuses it names."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from kernels_here import needs_kernels
from one_node import DTYPES, feeds, one_node_model, session
from onnx import TensorProto, helper
from recurrence_inputs import LINEAR_VARIANTS, SRU_VARIANTS, linear_inputs, sru_inputs
from torch import Tensor, nn

from sruexport import export
from sruexport.layers import SRU
from sruexport.recurrences import LINEAR_RECURRENCE, SRU_RECURRENCE


def optimized(model: bytes, library: Path | None, folder: Path) -> onnx.GraphProto:
    """The graph that ONNX Runtime runs."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.optimized_model_filepath = str(folder / "optimized.onnx")
    if library is not None:
        options.register_custom_ops_library(str(library))
    onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    return onnx.load(folder / "optimized.onnx").graph


def own_ops(graph: onnx.GraphProto) -> list[str]:
    return [node.op_type for node in graph.node if node.domain == "sruexport"]


class Several(nn.Module):
    """Two variants of one op, so that their bodies are overloads, and another op."""

    def __init__(self) -> None:
        super().__init__()
        self.both = SRU(4, 4, num_layers=1, bidirectional=True)
        self.tanh = SRU(8, 8, num_layers=1, use_tanh=True)
        self.linear = SRU(8, 8, num_layers=1, v1=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(self.tanh(self.both(x)[0])[0])[0]


@pytest.mark.parametrize("dtype", DTYPES)
def test_kernels_run_in_place_of_function_bodies(dtype, tmp_path):
    torch.manual_seed(0)
    axes = {"x": {0: "T", 1: "B"}}
    file = export(Several().eval(), torch.randn(5, 2, 4), tmp_path / "several.onnx", dynamic=axes, dtype=dtype).path
    model = file.read_bytes()
    assert {function.overload for function in onnx.load(file).functions} > {""}
    graph = optimized(model, needs_kernels(), tmp_path)
    assert own_ops(graph) == ["SRURecurrence", "SRURecurrence", "LinearRecurrence"]
    assert not any(node.op_type == "Scan" for node in graph.node)
    plain = optimized(model, None, tmp_path)
    assert own_ops(plain) == []
    assert sum(node.op_type == "Scan" for node in plain.node) == 3


def test_output_types_and_shapes_are_inferred():
    """In a file that does not say them, since ONNX Runtime reuses memory only where it knows both."""
    for recurrence, attributes in ((SRU_RECURRENCE, SRU_VARIANTS[0]), (LINEAR_RECURRENCE, LINEAR_VARIANTS[0])):
        for dtype in DTYPES:
            session(recurrence, attributes, dtype, kernels=needs_kernels())


@pytest.mark.parametrize(
    ("name", "shape", "message"),
    [
        ("u", (5, 3, 13), "u has shape [5, 3, 13] and should have [5, 3, 12]"),
        ("u", (5, 2, 12), "c0 has shape [3, 4] and should have [2, 4]"),
        ("x", (5, 3, 5), "x has shape [5, 3, 5] and should have [1, 1, 4]"),
        ("x", (5, 1, 4), "x has shape [5, 1, 4] and should have [1, 1, 4]"),
        ("v", (1, 1, 7), "v has shape [1, 1, 7] and should have [1, 1, 8]"),
        ("v", (5, 3, 8), "v has shape [5, 3, 8] and should have [1, 1, 8]"),
        ("bias", (7,), "bias has shape [7] and should have [8]"),
        ("c0", (3, 5), "u has shape [5, 3, 12] and should have [5, 3, 15]"),
        ("mask", (5, 2), "mask has shape [5, 2] and should have [5, 3]"),
        ("mask", (1, 1), "mask has shape [1, 1] and should have [5, 3]"),
    ],
)
def test_a_wrong_shape_is_refused_with_the_input_and_both_shapes(name, shape, message):
    attributes = SRU_VARIANTS[0] | {"masked": 1}
    inputs = feeds(sru_inputs(attributes))
    inputs[name] = np.zeros(shape, inputs[name].dtype)
    engine = session(SRU_RECURRENCE, attributes, "float32", kernels=needs_kernels())
    with pytest.raises(Exception, match="INVALID_ARGUMENT") as caught:
        engine.run(None, inputs)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("name", "shape", "message"),
    [
        ("b", (5, 3, 5), "b has shape [5, 3, 5] and should have [5, 3, 4]"),
        ("h0", (3, 5), "h0 has shape [3, 5] and should have [3, 4]"),
        ("mask", (3, 5), "mask has shape [3, 5] and should have [5, 3]"),
    ],
)
def test_so_it_is_of_a_linear_recurrence(name, shape, message):
    attributes = LINEAR_VARIANTS[0] | {"masked": 1}
    inputs = feeds(linear_inputs(attributes))
    inputs[name] = np.zeros(shape, inputs[name].dtype)
    engine = session(LINEAR_RECURRENCE, attributes, "float32", kernels=needs_kernels())
    with pytest.raises(Exception, match="INVALID_ARGUMENT") as caught:
        engine.run(None, inputs)
    assert message in str(caught.value)


def test_the_node_is_named_in_what_is_refused():
    model = one_node_model(LINEAR_RECURRENCE, LINEAR_VARIANTS[0], "float32")
    next(node for node in model.graph.node if node.domain == "sruexport").name = "encoder.layer_3"
    with pytest.raises(Exception, match=r"encoder\.layer_3: h0 has shape"):
        _opened(model).run(None, feeds(linear_inputs(LINEAR_VARIANTS[0])) | {"h0": np.zeros((1, 1), np.float32)})


def test_an_odd_number_of_channels_has_no_two_directions():
    attributes = {"direction": "bidirectional", "masked": 0}
    zeros = {"a": (2, 1, 3), "b": (2, 1, 3), "h0": (1, 3)}
    inputs = {name: np.zeros(shape, np.float32) for name, shape in zeros.items()} | {"mask": np.zeros((1, 1), np.int32)}
    engine = session(LINEAR_RECURRENCE, attributes, "float32", kernels=needs_kernels())
    with pytest.raises(Exception, match="bidirectional takes an even number of channels, and there are 3"):
        engine.run(None, inputs)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("direction", "backward", "direction is 'backward': it is forward, reverse or bidirectional"),
        ("activation", "relu", "activation is 'relu': it is identity or tanh"),
    ],
)
def test_an_unknown_attribute_value_is_refused_when_the_file_is_loaded(name, value, message):
    model = one_node_model(SRU_RECURRENCE, SRU_VARIANTS[0], "float32")
    node = next(node for node in model.graph.node if node.domain == "sruexport")
    next(attribute for attribute in node.attribute if attribute.name == name).s = value.encode()
    with pytest.raises(Exception, match=message):
        _opened(model)


def test_a_missing_attribute_is_refused():
    model = one_node_model(SRU_RECURRENCE, SRU_VARIANTS[0], "float32")
    node = next(node for node in model.graph.node if node.domain == "sruexport")
    del node.attribute[:]
    with pytest.raises(Exception, match="direction"):
        _opened(model)


def test_x_is_overwritten_only_where_nothing_else_reads_it():
    """Two ops that read the same x, and x itself as an output."""
    attributes = SRU_VARIANTS[0]
    tensors = sru_inputs(attributes, steps=6, batch=2, hidden=8)
    names = ["u", "y", "v", "bias", "c0", "mask"]
    nodes = [
        helper.make_node("Neg", ["x"], ["y"]),
        helper.make_node("SRURecurrence", names, ["first", "c_first"], domain="sruexport", **attributes),
        helper.make_node("SRURecurrence", names, ["second", "c_second"], domain="sruexport", **attributes),
        helper.make_node("Add", ["first", "second"], ["sum"]),
        helper.make_node("Neg", ["y"], ["again"]),
    ]
    floats = {name: tuple(tensor.shape) for name, tensor in tensors.items() if name != "mask"}
    inputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in floats.items()]
    inputs.append(helper.make_tensor_value_info("mask", TensorProto.INT32, tuple(tensors["mask"].shape)))
    outputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, (6, 2, 8)) for name in ("sum", "again")]
    model = helper.make_model(
        helper.make_graph(nodes, "twice", inputs, outputs),
        opset_imports=[helper.make_opsetid("", 18), helper.make_opsetid("sruexport", 1)],
        ir_version=10,
    )
    total, again = _opened(model).run(None, feeds(tensors))
    h, _ = SRU_RECURRENCE.reference(*(tensors | {"x": -tensors["x"]}).values(), **attributes)
    assert np.array_equal(again, tensors["x"].numpy())
    assert np.allclose(total, 2 * h.numpy(), atol=1e-5)


def _opened(
    model: onnx.ModelProto, providers: Sequence[str] = ("CPUExecutionProvider",)
) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.register_custom_ops_library(str(needs_kernels()))
    return onnxruntime.InferenceSession(model.SerializeToString(), options, providers=list(providers))
