"""Products with constant weights, for only the columns that are used."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
import onnx_ir.passes.common as passes
import pytest
from converted import Net, Values, run
from sruexport.converters.patterns import affine
from sruexport.converters.products import drop_unused_columns, product

from sruexport.recurrences.body import Body

MATRIX = np.random.default_rng(0).standard_normal((4, 12)).astype(np.float32)
ROW = np.linspace(-1, 1, 12, dtype=np.float32)
X = {"x": np.random.default_rng(1).standard_normal((5, 3, 4)).astype(np.float32)}


def matrices(model: ir.Model) -> list[np.ndarray]:
    return [node.inputs[1].const_value.numpy() for node in model.graph if node.op_type == "MatMul"]


def split(used: dict[str, int], front: tuple[str, ...] = (), parts: int = 4) -> ir.Model:
    """A product of x, whatever is in front of the Split, and the parts that are used behind a Tanh."""

    def define(ops: Any, given: Values) -> Values:
        value = ops("MatMul", given["x"], ops.weight(MATRIX))
        for kind in front:
            if kind == "Transpose":
                value = ops(kind, value, perm=[1, 0, 2])
            else:
                value = ops(kind, value, *([ops.weight(ROW)] if kind in ("Add", "Mul") else []))
        values = ops("Split", value, axis=-1, num_outputs=parts)
        return {name: ops("Tanh", values[index]) for name, index in used.items()}

    return Net(define, {"x": ("float", ["T", "B", 4])}).file()


def narrowed(model: ir.Model) -> ir.Model:
    """As it is after the columns are dropped; the model itself stays."""
    copied = ir.serde.deserialize_model(ir.serde.serialize_model(model))
    drop_unused_columns(copied)
    passes.RemoveUnusedNodesPass()(copied)
    return copied


@pytest.mark.parametrize("front", [(), ("Add",), ("Add", "Mul", "Neg"), ("Transpose",), ("Add", "Transpose")])
def test_columns_that_nobody_uses_are_not_computed(front):
    model = split({"first": 0, "last": 3}, front)
    found = narrowed(model)
    assert [matrix.shape for matrix in matrices(found)] == [(4, 3), (4, 3)]
    assert "Split" not in [node.op_type for node in found.graph]
    before, after = run(model, X), run(found, X)
    for name, array in before.items():
        # A product of fewer columns is summed in another order, of numbers of up to 4 * 3.
        np.testing.assert_allclose(after[name], array, rtol=0, atol=4 * 12 * np.finfo(np.float32).eps)


def test_where_every_part_is_used_the_product_stays_one():
    found = narrowed(split({"a": 0, "b": 1}, ("Add",), parts=2))
    assert [matrix.shape for matrix in matrices(found)] == [(4, 12)]


def test_what_is_no_product_stays():
    model = split({"first": 0}, ("Tanh",))
    assert [node.op_type for node in narrowed(model).graph] == [node.op_type for node in model.graph]


def test_a_part_that_is_an_output_stays():
    """The graph's outputs keep their names."""

    def define(ops: Any, given: Values) -> Values:
        return {"y": ops("Split", ops("MatMul", given["x"], ops.weight(MATRIX)), axis=-1, num_outputs=2)[1]}

    model = Net(define, {"x": ("float", ["T", "B", 4])}).file()
    node = next(node for node in model.graph if node.op_type == "Split")
    node.outputs[1].name = "own"
    model.graph.outputs[0] = node.outputs[1]
    passes.RemoveUnusedNodesPass()(model)
    found = narrowed(model)
    np.testing.assert_array_equal(run(found, X)["own"], run(model, X)["own"])


def test_new_weights_are_in_the_type_of_the_sequence_and_named_after_their_place():
    model = split({"y": 1}, ("Add", "Neg"))
    value = next(node for node in model.graph if node.op_type == "Split").outputs[1]
    taken: list[tuple[str, np.ndarray, ir.DataType]] = []

    def weight(name: str, array: np.ndarray, dtype: ir.DataType) -> ir.Value:
        taken.append((name, array, dtype))
        return ir.Value(name=name)

    made = product(Body("p."), weight, affine(value), "gates")
    assert made.dtype == ir.DataType.FLOAT
    assert [(name, dtype) for name, _, dtype in taken] == [
        ("gates.weight", ir.DataType.FLOAT),
        ("gates.bias", ir.DataType.FLOAT),
    ]
    np.testing.assert_array_equal(taken[0][1], -MATRIX[:, 3:6].astype(np.float64))
    np.testing.assert_array_equal(taken[1][1], -ROW[3:6].astype(np.float64))


def test_no_bias_is_added_where_there_is_none():
    model = split({"y": 0})
    found = narrowed(model)
    assert [node.op_type for node in found.graph] == ["MatMul", "Tanh", "Identity"]
