"""Products with constant weights, for fewer columns than the model has them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx_ir as ir

from sruexport.recurrences.body import Body

from .patterns import Affine, affine

Weight = Callable[[str, np.ndarray, ir.DataType], ir.Value]


def product(build: Body, weight: Weight, found: Affine, name: str) -> ir.Value:
    """``base @ weight + bias``, in the base's dtype.

    Args:
        weight: makes an initializer.
    """
    dtype = found.base.dtype or ir.DataType.FLOAT
    value = build.op("MatMul", [found.base, weight(f"{name}.weight", found.weight, dtype)])
    if found.bias.any():
        value = build.op("Add", [value, weight(f"{name}.bias", found.bias, dtype)])
    if found.swapped:
        # Behind the product, as in the original: in front of it, in float16, ONNX Runtime 1.32 dies of its optimizer.
        value = build.op("Transpose", [value], perm=[1, 0, 2])
    value.dtype = dtype
    return value


def drop_unused_columns(model: ir.Model) -> None:
    """Where only some parts of a Split are used, compute only their columns of the product that is split."""
    for node in list(model.graph):
        used = [value for value in node.outputs if value.uses() or value.is_graph_output()]
        if node.op_type != "Split" or node.domain or len(used) == len(node.outputs):
            continue
        for value in used:
            found = affine(value)
            if found is not None and not value.is_graph_output():
                _narrow(model, node, value, found)


def _narrow(model: ir.Model, split: ir.Node, value: ir.Value, found: Affine) -> None:
    build = Body(f"{value.name}.")

    def weight(name: str, array: np.ndarray, dtype: ir.DataType) -> ir.Value:
        tensor = ir.tensor(array.astype(dtype.numpy()), name=f"{value.name}.{name}")
        made = ir.Value(name=tensor.name, const_value=tensor, shape=ir.Shape(array.shape), type=ir.TensorType(dtype))
        model.graph.register_initializer(made)
        return made

    new = product(build, weight, found, "product")
    if value.dtype is not None:
        new = build.cast(new, new.dtype or value.dtype, value.dtype)
        new.dtype = value.dtype
    new.shape = value.shape
    for node in build.nodes:
        node.metadata_props.update(split.metadata_props)
    model.graph.insert_after(split, build.nodes)
    ir.convenience.replace_all_uses_with(value, new)
