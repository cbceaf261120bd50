"""What is read off a graph: constants, products with constant weights, gates that add up to 1."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
import torch
from converted import Eager, Net, run
from sruexport.converters.patterns import affine, constant, coupled, logit, negative_logit

WEIGHT = np.random.default_rng(0).standard_normal((4, 6)).astype(np.float32)
ROW = np.linspace(-1, 1, 6, dtype=np.float32)


def graph(define: Callable[[Any, Any], dict[str, Any]]) -> ir.Model:
    """A graph of x [T, B, 4]."""
    return Net(lambda ops, given: define(ops, given["x"]), {"x": ("float", ["T", "B", 4])}).file()


def values(model: ir.Model) -> dict[str, ir.Value]:
    """What each output is the Identity of."""
    return {value.name: value.producer().inputs[0] for value in model.graph.outputs}


def value(define: Callable[[Any, Any], Any]) -> ir.Value:
    return values(graph(lambda ops, x: {"y": define(ops, x)}))["y"]


# Products


def product(ops: Any, x: Any) -> Any:
    return ops("MatMul", x, ops.weight(WEIGHT))


def number(ops: Any, n: float) -> Any:
    return ops.weight(np.array(n, np.float32))


def _columns(ops: Any, x: Any, start: int, stop: int) -> Any:
    limits = (ops.weight(np.array([n])) for n in (start, stop, -1))
    return ops("Slice", product(ops, x), *limits)


AFFINE: dict[str, Callable[[Any, Any], Any]] = {
    "a product": product,
    "a row added": lambda ops, x: ops("Add", product(ops, x), ops.weight(ROW)),
    "a row added in front": lambda ops, x: ops("Add", ops.weight(ROW), product(ops, x)),
    "a row taken away": lambda ops, x: ops("Sub", product(ops, x), ops.weight(ROW)),
    "scaled by a number": lambda ops, x: ops("Mul", product(ops, x), number(ops, -2.5)),
    "scaled by a row": lambda ops, x: ops("Mul", ops.weight(ROW), product(ops, x)),
    "negated": lambda ops, x: ops("Neg", ops("Add", product(ops, x), ops.weight(ROW))),
    "a half": lambda ops, x: ops("Split", product(ops, x), axis=-1, num_outputs=2)[1],
    "uneven parts": lambda ops, x: ops("Split", product(ops, x), axis=2, num_outputs=4)[3],
    "parts of given sizes": lambda ops, x: ops(
        "Split", product(ops, x), ops.weight(np.array([1, 5])), axis=-1, outputs=2
    )[1],
    "columns": lambda ops, x: _columns(ops, x, 1, 4),
    "columns from behind": lambda ops, x: _columns(ops, x, -3, 2**62),
    "cast": lambda ops, x: ops("Cast", product(ops, x), to=11),
    "the batch in front": lambda ops, x: ops("Transpose", product(ops, x), perm=[1, 0, 2]),
    "all at once": lambda ops, x: ops(
        "Neg",
        ops(
            "Split",
            ops("Mul", ops("Transpose", ops("Add", product(ops, x), ops.weight(ROW)), perm=[1, 0, 2]), ops.weight(ROW)),
            axis=-1,
            num_outputs=3,
        )[1],
    ),
}


@pytest.mark.parametrize("define", AFFINE.values(), ids=AFFINE)
def test_a_product_is_found_behind_moves_and_sums(define):
    model = graph(lambda ops, x: {"y": define(ops, x)})
    found = affine(values(model)["y"])
    assert found is not None
    assert found.base is model.graph.inputs[0]
    x = np.random.default_rng(1).standard_normal((3, 2, 4)).astype(np.float32)
    right = run(model, {"x": x})["y"]
    base = x.transpose(1, 0, 2) if found.swapped else x
    np.testing.assert_allclose(base @ found.weight + found.bias, right, rtol=0, atol=1e-5)


OTHERWISE: dict[str, Callable[[Any, Any], Any]] = {
    "an input": lambda ops, x: x,
    "a function": lambda ops, x: ops("Tanh", product(ops, x)),
    "two sequences": lambda ops, x: ops("Add", product(ops, x), product(ops, x)),
    "a sequence added": lambda ops, x: ops("Mul", product(ops, x), product(ops, x)),
    "a matrix of the input's": lambda ops, x: ops("MatMul", x, ops("Transpose", x, perm=[0, 2, 1])),
    "steps split": lambda ops, x: ops("Split", product(ops, x), axis=0, num_outputs=2)[0],
    "another order of axes": lambda ops, x: ops("Transpose", product(ops, x), perm=[2, 0, 1]),
    "a row that is added along time": lambda ops, x: ops(
        "Add", product(ops, x), ops.weight(np.ones((6, 1, 1), np.float32))
    ),
    "every second column": lambda ops, x: ops(
        "Slice", product(ops, x), *(ops.weight(np.array([n])) for n in (0, 6, -1, 2))
    ),
    "a row minus a product": lambda ops, x: ops("Sub", ops.weight(ROW), product(ops, x)),
}


@pytest.mark.parametrize("define", OTHERWISE.values(), ids=OTHERWISE)
def test_anything_else_is_no_product(define):
    assert affine(value(define)) is None


# Constants


def test_a_constant_is_read_through_casts():
    found = value(lambda ops, x: ops("Cast", ops("Cast", ops.weight(np.array([1.7, -2.2], np.float32)), to=7), to=10))
    array = constant(found)
    assert array.dtype == np.float16
    np.testing.assert_array_equal(array, [1, -2])


def test_what_is_computed_is_no_constant():
    assert constant(value(lambda ops, x: ops("Neg", ops.weight(ROW)))) is None
    assert constant(value(lambda ops, x: x)) is None
    assert constant(None) is None


# Gates


def test_the_logit_of_a_sigmoid_is_what_it_is_taken_of():
    def define(ops: Any, x: Any) -> dict[str, Any]:
        z = product(ops, x)
        gate = ops("Sigmoid", z)
        rest = ops("Sub", number(ops, 1), ops("Cast", gate, to=1))
        return {"z": z, "gate": gate, "cast": ops("Cast", gate, to=1), "rest": rest, "tanh": ops("Tanh", z)}

    found = values(graph(define))
    assert logit(found["gate"]) is logit(found["cast"]) is found["z"]
    assert negative_logit(found["rest"]) is found["z"]
    assert logit(found["rest"]) is logit(found["tanh"]) is None
    assert negative_logit(found["gate"]) is negative_logit(found["tanh"]) is None


COUPLED: dict[str, Callable[[Any, Any, Any], tuple[Any, Any]]] = {
    "1 - a": lambda ops, z, u: (a := ops("Sigmoid", z), ops("Mul", ops("Sub", number(ops, 1), a), u)),
    "1 - a behind u": lambda ops, z, u: (a := ops("Sigmoid", z), ops("Mul", u, ops("Sub", number(ops, 1), a))),
    "a = 1 - share": lambda ops, z, u: (ops("Sub", number(ops, 1), f := ops("Sigmoid", z)), ops("Mul", f, u)),
    "sigmoids of z and -z": lambda ops, z, u: (
        ops("Sigmoid", ops("Neg", z)),
        ops("Mul", ops("Sigmoid", z), u),
    ),
    "casts in between": lambda ops, z, u: (
        ops("Cast", a := ops("Sigmoid", z), to=1),
        ops("Cast", ops("Mul", ops("Cast", ops("Sub", number(ops, 1), a), to=1), u), to=1),
    ),
}
APART: dict[str, Callable[[Any, Any, Any], tuple[Any, Any]]] = {
    "only a product": lambda ops, z, u: (ops("Sigmoid", z), ops("Mul", u, u)),
    "no product": lambda ops, z, u: (ops("Sigmoid", z), u),
    "2 - a": lambda ops, z, u: (a := ops("Sigmoid", z), ops("Mul", ops("Sub", number(ops, 2), a), u)),
    "a - 1": lambda ops, z, u: (a := ops("Sigmoid", z), ops("Mul", ops("Sub", a, number(ops, 1)), u)),
    "two sigmoids of z": lambda ops, z, u: (ops("Sigmoid", z), ops("Mul", ops("Sigmoid", z), u)),
    "sigmoids of u and -z": lambda ops, z, u: (ops("Sigmoid", ops("Neg", z)), ops("Mul", ops("Sigmoid", u), u)),
}


def _pair(define: Callable[[Any, Any, Any], tuple[Any, Any]]) -> dict[str, ir.Value]:
    def whole(ops: Any, x: Any) -> dict[str, Any]:
        u = ops("Tanh", product(ops, x))
        decay, added = define(ops, product(ops, x), u)
        return {"decay": decay, "added": added, "u": u}

    return values(graph(whole))


@pytest.mark.parametrize("define", COUPLED.values(), ids=COUPLED)
def test_a_candidate_is_found_whose_share_is_what_the_decay_leaves(define):
    found = _pair(define)
    assert coupled(found["decay"], found["added"]) is found["u"]


@pytest.mark.parametrize("define", APART.values(), ids=APART)
def test_shares_that_do_not_add_up_to_one_are_not_coupled(define):
    found = _pair(define)
    assert coupled(found["decay"], found["added"]) is None


def test_coupled_shares_do_add_up_to_one():
    """So that the patterns above are what they are called."""
    ops, u = Eager(torch.float64), torch.ones(3, 2, 6, dtype=torch.float64)
    z = product(ops, torch.linspace(-2, 2, 24, dtype=torch.float64).reshape(3, 2, 4))
    for name in ("1 - a", "a = 1 - share", "sigmoids of z and -z"):
        decay, added = COUPLED[name](ops, z, u)
        torch.testing.assert_close(decay + added, u)
    for name in ("2 - a", "a - 1", "two sigmoids of z"):
        decay, added = APART[name](ops, z, u)
        assert not torch.allclose(decay + added, u)
