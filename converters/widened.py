"""A model in float64: what its file says, with next to no rounding. It is what a converted file is held against."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from .base import convert
from .scan import SCAN

_NARROW = (ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.BFLOAT16)


def widened(model: ir.Model) -> ir.Model:
    """The model with every float as float64, recurrences as Scan.

    Args:
        model: as `sruexport.export` writes it; left as it is. Its inputs and outputs become float64 too.
    """
    wide = convert(model, SCAN).model
    graphs = [wide.graph, *(graph for node in wide.graph.all_nodes() for graph in _bodies(node))]
    for graph in graphs:
        for value in [*graph.inputs, *graph.outputs, *(out for node in graph for out in node.outputs)]:
            if value.dtype in _NARROW:
                value.dtype = ir.DataType.DOUBLE
        for value in graph.initializers.values():
            if value.const_value is not None and value.dtype in _NARROW:
                value.const_value = ir.tensor(value.const_value.numpy().astype(np.float64), name=value.name)
                value.dtype = ir.DataType.DOUBLE
        for node in graph:
            _widen(node)
    return wide


def _widen(node: ir.Node) -> None:
    if node.op_type == "Cast" and ir.DataType(node.attributes["to"].as_int()) in _NARROW:
        node.attributes["to"] = ir.Attr("to", ir.AttributeType.INT, ir.DataType.DOUBLE.value)
    elif "value_float" in node.attributes or "value_floats" in node.attributes:
        name = "value_float" if "value_float" in node.attributes else "value_floats"
        array = np.array(node.attributes.pop(name).value, np.float64)
        node.attributes["value"] = ir.AttrTensor("value", ir.tensor(array))
    elif "value" in node.attributes and node.attributes["value"].type == ir.AttributeType.TENSOR:
        tensor = node.attributes["value"].as_tensor()
        if tensor.dtype in _NARROW:
            node.attributes["value"] = ir.AttrTensor("value", ir.tensor(tensor.numpy().astype(np.float64)))


def _bodies(node: ir.Node) -> list[ir.Graph]:
    return [attr.as_graph() for attr in node.attributes.values() if attr.type == ir.AttributeType.GRAPH]
