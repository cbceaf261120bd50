"""What is done to a traced graph before it is a file: weights laid out, 16-bit ops made runnable, dims checked."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir
import onnx_ir.passes.common as passes
from onnx_ir import tape
from onnxscript import optimizer

from sruexport.errors import DynamicAxesError
from sruexport.quiet import quiet
from sruexport.recurrences import DOMAIN

from .call import Axes
from .trace import MODULE_KEY

#: Ops that only move weights about. They are done once, here, and not in every run of the graph.
_LAYOUT = {"Reshape", "Transpose", "Slice", "Squeeze", "Unsqueeze", "Identity", "Split", "Cast", "Concat", "Gather"}
_SMALL = 8192
#: Ops that ONNX Runtime's CPU provider has for bfloat16; all others run in float32 between casts (1.32, measured).
_BFLOAT16_ON_CPU = {
    "Cast", "Identity", "Reshape", "Transpose", "Squeeze", "Unsqueeze", "Split", "Shape", "Size", "Flatten",
}  # fmt: skip


def fold_weights(model: ir.Model) -> None:
    """Do layout ops on weights now, where the result replaces the weight and does not join it."""
    passes.CommonSubexpressionEliminationPass()(model)

    def should_fold(node: ir.Node) -> bool | None:
        large = [v for v in node.inputs if v is not None and v.const_value is not None and v.const_value.size > _SMALL]
        if not large:
            return None
        if node.op_type not in _LAYOUT or node.domain:
            return False
        return all(_only_moves_weights(user) for value in large for user in value.consumers())

    with quiet():
        optimizer.fold_constants(model, output_size_limit=2**40, should_fold=should_fold)
    passes.RemoveUnusedNodesPass()(model)
    passes.LiftConstantsToInitializersPass(lift_all_constants=False, size_limit=_SMALL)(model)


def _only_moves_weights(node: ir.Node) -> bool:
    """Whether a node goes when weights are laid out. An embedding's Gather, with indices of the input, does not."""
    constant = [
        value is None or value.const_value is not None or getattr(value.producer(), "op_type", None) == "Constant"
        for value in node.inputs
    ]
    return node.op_type in _LAYOUT and not node.domain and all(constant)


def name_weights(model: ir.Model) -> None:
    """Name what folding made of the weights after the module that uses it, as PyTorch names parameters."""
    for value in list(model.graph.initializers.values()):
        users = [user.metadata_props.get(MODULE_KEY) for user in value.consumers()]
        if value.name and "." not in value.name and users and users[0]:
            value.name = f"{users[0]}.{value.name}"


def exact_layer_norms(model: ir.Model) -> None:
    """Write out float64 LayerNormalization, whose epsilon is a float32 attribute: 1e-5 becomes 9.99999975e-6 there."""
    for node in list(model.graph):
        if node.op_type != "LayerNormalization" or node.domain or node.outputs[0].dtype != ir.DataType.DOUBLE:
            continue
        build = tape.Tape()
        x, scale, bias = (*node.inputs, None)[:3]
        attribute = node.attributes.get("epsilon")
        # The shortest decimal that rounds to the attribute is what PyTorch was given.
        epsilon = float(str(np.float32(attribute.as_float() if attribute is not None else 1e-5)))
        axis = node.attributes["axis"].as_int() if "axis" in node.attributes else -1
        rank = len(x.shape) if x is not None and x.shape is not None else -axis
        axes = build.op("Constant", [], {"value_ints": list(range(axis % rank, rank))})
        centred = build.op("Sub", [x, build.op("ReduceMean", [x, axes])])
        variance = build.op("ReduceMean", [build.op("Mul", [centred, centred]), axes])
        shifted = build.op(
            "Add", [variance, build.op("Constant", [], {"value": ir.tensor([epsilon], ir.DataType.DOUBLE)})]
        )
        normed = build.op("Mul", [build.op("Div", [centred, build.op("Sqrt", [shifted])]), scale])
        if bias is not None:
            normed = build.op("Add", [normed, bias])
        normed.dtype, normed.shape = node.outputs[0].dtype, node.outputs[0].shape
        for made in build.nodes:
            made.metadata_props.update(node.metadata_props)
        ir.convenience.replace_nodes_and_values(model.graph, node, [node], build.nodes, [node.outputs[0]], [normed])


def drop_full_lengths(model: ir.Model) -> None:
    """Leave out sequence_lens that say T in every row, as torch.onnx writes them for a torch.nn.LSTM, GRU or RNN.

    Many engines take no sequence_lens that they do not know to be constant, and some ignore them.
    """
    for node in model.graph:
        if node.op_type not in ("LSTM", "GRU", "RNN") or node.domain or len(node.inputs) < 5:
            continue
        x, lengths = node.inputs[0], node.inputs[4]
        if x is not None and x.shape is not None and lengths is not None and _is_full(lengths, x.shape[0]):
            node.replace_input_with(4, None)
    passes.RemoveUnusedNodesPass()(model)


def _is_full(lengths: ir.Value, steps: int | ir.SymbolicDim) -> bool:
    """Whether it is 1, broadcast to the rows, times a tensor's own size that is `steps`."""
    node = lengths.producer()
    if node is None or node.op_type != "Mul" or node.domain:
        return False
    return any(_is_one(a) and _is_size(b, steps) for a, b in (node.inputs, reversed(node.inputs)))


def _is_one(value: ir.Value | None) -> bool:
    node = value.producer() if value is not None else None
    if node is not None and node.op_type == "Expand" and not node.domain:
        value = node.inputs[0]
    tensor = ir.convenience.get_const_tensor(value) if value is not None else None
    return tensor is not None and bool((tensor.numpy() == 1).all())


def _is_size(value: ir.Value | None, steps: int | ir.SymbolicDim) -> bool:
    node = value.producer() if value is not None else None
    while node is not None and node.op_type in ("Cast", "Squeeze") and not node.domain:
        node = node.inputs[0].producer() if node.inputs[0] is not None else None
    if node is None or node.op_type != "Shape" or node.domain or node.inputs[0] is None:
        return False
    shape = node.inputs[0].shape
    start, end = (node.attributes[name].as_int() if name in node.attributes else None for name in ("start", "end"))
    if shape is None or start is None or end != start + 1 or not 0 <= start < len(shape):
        return False
    size = shape[start]
    if isinstance(size, ir.SymbolicDim) and isinstance(steps, ir.SymbolicDim):
        return size.value is not None and size.value == steps.value
    return isinstance(size, int) and size == steps


def run_bfloat16_anywhere(model: ir.Model) -> None:
    """Put the ops that few CPU engines have in bfloat16 between casts to float32 and back, inputs and outputs too.

    Weights, sequences between layers and the recurrences' own tensors stay bfloat16. NumPy has no bfloat16, so the
    graph takes and gives float32.
    """
    graph = model.graph
    widened: dict[ir.Value, ir.Value] = {}
    for node in list(graph):
        if node.domain == DOMAIN or (not node.domain and node.op_type in _BFLOAT16_ON_CPU):
            continue
        for i, value in enumerate(node.inputs):
            if value is not None and value.dtype == ir.DataType.BFLOAT16:
                if value not in widened:
                    cast = _cast(value, ir.DataType.FLOAT)
                    widened[value] = cast.outputs[0]
                    graph.insert_before(node, cast)
                node.replace_input_with(i, widened[value])
        for output in node.outputs:
            if output.dtype == ir.DataType.BFLOAT16:
                users = list(output.uses())
                output.type = ir.TensorType(ir.DataType.FLOAT)  # values may share a type
                cast = _cast(output, ir.DataType.BFLOAT16)
                graph.insert_after(node, cast)
                for user, index in users:
                    user.replace_input_with(index, cast.outputs[0])
    for value in graph.inputs:
        if value.dtype == ir.DataType.BFLOAT16:
            users = list(value.uses())
            value.type = ir.TensorType(ir.DataType.FLOAT)
            cast = _cast(value, ir.DataType.BFLOAT16)
            graph.insert_before(graph[0], cast)
            for user, index in users:
                user.replace_input_with(index, cast.outputs[0])
    for i, value in enumerate(graph.outputs):
        if value.dtype == ir.DataType.BFLOAT16:
            cast = _cast(value, ir.DataType.FLOAT)
            cast.outputs[0].name, value.name = value.name, f"{value.name}_bfloat16"
            graph.append(cast)
            graph.outputs[i] = cast.outputs[0]


def _cast(value: ir.Value, dtype: ir.DataType) -> ir.Node:
    node = ir.node("Cast", [value], {"to": dtype.value})
    node.outputs[0].dtype = dtype
    node.outputs[0].shape = value.shape
    return node


def check_dims(model: ir.Model, axes: Axes) -> None:
    """Compare the dims of the graph's inputs with those asked for, and give every other input axis a number.

    Raises:
        DynamicAxesError: an axis came out static that was to be dynamic, or the other way around.
    """
    for value in model.graph.inputs:
        asked = axes.get(value.name or "", {})
        for axis, dim in enumerate(value.shape or ()):
            got = dim.value if isinstance(dim, ir.SymbolicDim) else dim
            want = asked.get(axis)
            if want is None and not isinstance(got, int):
                raise DynamicAxesError(
                    f"{value.name} axis {axis} is '{got}' in the file but was not asked to be dynamic"
                )
            if want is not None and got != want:
                raise DynamicAxesError(
                    f"{value.name} axis {axis} was asked to be '{want}', but is {got!r} in the file: "
                    "the model's own code ties or fixes it"
                )


def name_output_dims(model: ir.Model, names: Sequence[str]) -> None:
    """Give dims of outputs that are no plain dynamic dim (the exporter writes an expression) a name without symbols."""
    for value in model.graph.outputs:
        if value.shape is None:
            continue
        for axis, dim in enumerate(value.shape):
            if isinstance(dim, ir.SymbolicDim) and dim.value is not None and dim.value not in names:
                value.shape[axis] = ir.SymbolicDim(f"{value.name}_{axis}")
