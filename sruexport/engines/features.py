"""What in a graph engines differ by: an engine's profile speaks in these names.

An op's own type is a feature ("Scan"); what of it matters besides follows a dot ("LSTM.peepholes").
"""

from __future__ import annotations

from collections.abc import Iterable

import onnx_ir as ir

from sruexport.converters import form_of

_DEFAULT_ACTIVATIONS = {"LSTM": ["sigmoid", "tanh", "tanh"], "GRU": ["sigmoid", "tanh"], "RNN": ["tanh"]}
_FLOATS = {ir.DataType.FLOAT16: "float16", ir.DataType.BFLOAT16: "bfloat16", ir.DataType.DOUBLE: "float64"}


def features(model: ir.Model) -> dict[str, str]:
    """The features of a model, each with the name of a node that has it."""
    found: dict[str, str] = {}
    for node in model.graph.all_nodes():
        for feature in _of(node):
            found.setdefault(feature, node.name or node.op_type)
    if model.functions:
        found["functions"] = next(iter(model.functions))[1]
    for value in model.graph.inputs:
        if value.shape is not None and not all(isinstance(dim, int) for dim in value.shape):
            found.setdefault("dynamic", value.name or "")
    # A recurrence as an LSTM, whose tanh is used so near 0 that it is the identity.
    scaled = [layer for layer in form_of(model).get("layers", []) if layer.get("k")]
    if scaled and "LSTM" in found:
        found["LSTM.scaled"] = found["LSTM"]
    return found


def _of(node: ir.Node) -> Iterable[str]:
    if node.domain:
        yield "custom ops"
        return
    yield node.op_type
    yield from (_FLOATS[value.dtype] for value in node.outputs if value.dtype in _FLOATS)
    if any(value.shape is not None and 0 in value.shape for value in node.outputs):
        yield "empty"
    if node.op_type in _DEFAULT_ACTIVATIONS:
        yield from (f"{node.op_type}.{name}" for name in _recurrent(node))
    if node.op_type == "Scan":
        yield from (f"Scan.{name}" for name in _scanned(node))


def _recurrent(node: ir.Node) -> Iterable[str]:
    """Of an LSTM, GRU or RNN."""
    attributes = node.attributes
    direction = attributes["direction"].as_string() if "direction" in attributes else "forward"
    if direction != "forward":
        yield direction
    if "activations" in attributes:
        default = _DEFAULT_ACTIVATIONS[node.op_type] * (2 if direction == "bidirectional" else 1)
        if [name.lower() for name in attributes["activations"].as_strings()] != default:
            yield "activations"
        if any(name.lower() == "affine" for name in attributes["activations"].as_strings()):
            yield from () if "activation_alpha" in attributes else ("affine",)
    for name in ("clip", "input_forget", "layout"):
        if name in attributes and attributes[name].value:
            yield name
    if len(node.inputs) > 4 and node.inputs[4] is not None:
        yield "sequence_lens"
    if _length_of(node.inputs[0], 0) is None or _length_of(node.inputs[0], 1) is None:
        yield "dynamic"
    if node.outputs[0].dtype in _FLOATS:
        yield _FLOATS[node.outputs[0].dtype]
    if any(value.uses() or value.is_graph_output() for value in node.outputs[1:]):
        yield "last"
    if node.op_type == "LSTM" and len(node.inputs) > 7 and node.inputs[7] is not None:
        yield "peepholes"


def _scanned(node: ir.Node) -> Iterable[str]:
    """Of a Scan."""
    length = _length(node)
    if length is None:
        yield "dynamic"
    if length == 1:
        yield "one step"
    body = node.attributes["body"].as_graph()
    states = len(body.inputs) - node.attributes["num_scan_inputs"].as_int()
    static = {inner for inner, value in zip(body.inputs[:states], node.inputs) if _length_of(value, 0) is not None}
    for inner in body:
        if inner.op_type in ("Add", "Mul") and inner.inputs[0] in body.inputs[states:] and inner.inputs[1] in static:
            yield "state second"


def _length(scan: ir.Node) -> int | None:
    """T of a Scan over axis 0, if it is static."""
    count = scan.attributes["num_scan_inputs"].as_int()
    return next((n for value in list(scan.inputs)[-count:] if (n := _length_of(value, 0)) is not None), None)


def _length_of(value: ir.Value | None, axis: int) -> int | None:
    """The size of an axis, if it is known and static."""
    if value is None or value.shape is None or len(value.shape) <= axis:
        return None
    size = value.shape[axis]
    return size if isinstance(size, int) else None
