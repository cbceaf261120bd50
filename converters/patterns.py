"""What a value in a graph is made of: constants, affine functions of a sequence, gates that add up to 1."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

_PASSES = ("Cast", "Identity")
_LIMIT = 32  # nodes between a product and its use; beyond that it is another kind of graph


def constant(value: ir.Value | None) -> np.ndarray | None:
    """The numbers of an initializer or a Constant, casts applied; None if it is computed from inputs."""
    casts: list[np.dtype] = []
    for _ in range(_LIMIT):
        if value is None:
            return None
        tensor = ir.convenience.get_const_tensor(value)
        if tensor is not None:
            array = tensor.numpy()
            for dtype in reversed(casts):
                array = array.astype(dtype)
            return array
        node = value.producer()
        if node is None or node.op_type not in _PASSES or node.domain:
            return None
        if node.op_type == "Cast":
            casts.append(np.dtype(ir.DataType(node.attributes["to"].as_int()).numpy()))
        value = node.inputs[0]
    return None


@dataclass(frozen=True)
class Affine:
    """``base @ weight + bias``, with the first two axes swapped or not.

    Attributes:
        base: [T, B, I], or [B, T, I] when `swapped`.
        weight: [I, N] float64.
        bias: [N] float64.
    """

    base: ir.Value
    weight: np.ndarray
    bias: np.ndarray
    swapped: bool = False

    def columns(self, start: int, stop: int) -> Affine:
        return Affine(self.base, self.weight[:, start:stop], self.bias[start:stop], self.swapped)

    def scaled(self, by: float | np.ndarray) -> Affine:
        return Affine(self.base, self.weight * by, self.bias * by, self.swapped)


def affine(value: ir.Value) -> Affine | None:
    """Read a sequence [T, B, N] as a product with constant weights behind nothing but moves and sums; None if it is
    anything else."""
    steps: list[tuple[str, tuple]] = []
    swapped = False
    for _ in range(_LIMIT):
        node = value.producer()
        if node is None or node.domain:
            return None
        kind = node.op_type
        first = node.inputs[0] if node.inputs else None
        if first is None:
            return None
        other = constant(node.inputs[1]) if len(node.inputs) > 1 else None
        if kind == "MatMul":
            if other is None or other.ndim != 2:
                return None
            weight = other.astype(np.float64)
            return _applied(Affine(first, weight, np.zeros(weight.shape[1]), swapped), steps)
        if kind in _PASSES:
            pass
        elif kind == "Neg":
            steps.append(("scale", (-1.0,)))
        elif kind == "Transpose":
            if list(node.attributes["perm"].as_ints()) != [1, 0, 2]:
                return None
            swapped = not swapped
        elif kind in ("Add", "Sub", "Mul"):
            if other is None and kind != "Sub":
                first, other = node.inputs[1], constant(first)
            if other is None or first is None or not _is_row(other):
                return None
            row = other.astype(np.float64).reshape(-1)
            steps.append(("scale", (row,)) if kind == "Mul" else ("shift", (row if kind == "Add" else -row,)))
        elif kind in ("Split", "Slice"):
            limits = _columns(node, value)
            if limits is None:
                return None
            steps.append(("columns", limits))
        else:
            return None
        value = first
    return None


def _applied(found: Affine, steps: list[tuple[str, tuple]]) -> Affine:
    for kind, arguments in reversed(steps):
        if kind == "columns":
            found = found.columns(*arguments)
        elif kind == "scale":
            found = found.scaled(*arguments)
        else:
            found = Affine(found.base, found.weight, found.bias + arguments[0], found.swapped)
    return found


def _is_row(array: np.ndarray) -> bool:
    """Whether it broadcasts along the last axis alone."""
    return array.size == 1 or array.size == array.shape[-1]


def _columns(node: ir.Node, value: ir.Value) -> tuple[int, int] | None:
    """Which of the last axis's columns a Split or Slice takes."""
    first = node.inputs[0]
    if first is None or first.shape is None or not isinstance(first.shape[-1], int):
        return None
    rank, size = len(first.shape), first.shape[-1]
    if node.op_type == "Split":
        axis = node.attributes["axis"].as_int() if "axis" in node.attributes else 0
        if axis % rank != rank - 1:
            return None
        sizes = constant(node.inputs[1]) if len(node.inputs) > 1 else None
        parts = len(node.outputs)
        widths = [-(-size // parts)] * parts if sizes is None else [int(n) for n in sizes]
        index = list(node.outputs).index(value)
        start = sum(widths[:index])
        return start, min(start + widths[index], size)
    starts, stops = constant(node.inputs[1]), constant(node.inputs[2])
    axes = constant(node.inputs[3]) if len(node.inputs) > 3 else np.array([0])
    strides = constant(node.inputs[4]) if len(node.inputs) > 4 else np.array([1])
    if starts is None or stops is None or axes is None or strides is None:
        return None
    if starts.size != 1 or strides.reshape(-1)[0] != 1 or int(axes.reshape(-1)[0]) % rank != rank - 1:
        return None
    start, stop, _ = slice(int(starts.reshape(-1)[0]), int(stops.reshape(-1)[0])).indices(size)
    return start, stop


def logit(value: ir.Value) -> ir.Value | None:
    """z, where a value is ``sigmoid(z)``."""
    node = _through(value).producer()
    return node.inputs[0] if node is not None and node.op_type == "Sigmoid" and not node.domain else None


def negative_logit(value: ir.Value) -> ir.Value | None:
    """z, where a value is ``1 - sigmoid(z)``."""
    node = _through(value).producer()
    if node is None or node.op_type != "Sub" or node.domain or node.inputs[1] is None:
        return None
    whole = constant(node.inputs[0])
    return logit(node.inputs[1]) if whole is not None and np.all(whole == 1) else None


def coupled(decay: ir.Value, added: ir.Value) -> ir.Value | None:
    """u, where ``added = (1 - decay) * u``: then the state is a convex combination of its past and u."""
    node = _through(added).producer()
    if node is None or node.op_type != "Mul" or node.domain:
        return None
    for share, candidate in (node.inputs, reversed(node.inputs)):
        if share is not None and candidate is not None and _add_up_to_one(_through(share), _through(decay)):
            return candidate
    return None


def _add_up_to_one(a: ir.Value, b: ir.Value) -> bool:
    for one, other in ((a, b), (b, a)):
        node = one.producer()
        if node is not None and node.op_type == "Sub" and not node.domain:
            whole = constant(node.inputs[0])
            if whole is not None and np.all(whole == 1) and _same(node.inputs[1], other):
                return True
        z, minus_z = logit(one), logit(other)
        if z is not None and minus_z is not None:
            negated = minus_z.producer()
            if negated is not None and negated.op_type == "Neg" and _same(negated.inputs[0], z):
                return True
    return False


def _same(a: ir.Value | None, b: ir.Value) -> bool:
    return a is not None and _through(a) is _through(b)


def _through(value: ir.Value) -> ir.Value:
    """The value behind casts."""
    for source in _sources(value):
        value = source
    return value


def _sources(value: ir.Value) -> Iterator[ir.Value]:
    for _ in range(_LIMIT):
        node = value.producer()
        if node is None or node.op_type not in _PASSES or node.domain or node.inputs[0] is None:
            return
        value = node.inputs[0]
        yield value
