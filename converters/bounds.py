"""What the values of a graph can become, proven from its weights and the ranges of its inputs.

Interval arithmetic: each value has one interval for all of its elements. Products with constant weights take the
largest column sum; behind a LayerNorm, whose output has a Euclidean norm of at most sqrt(size) before its own weights,
they take the column's norm instead, which is tighter (Cauchy-Schwarz).
A recurrence's state is a convex combination of its candidates, so the candidates' interval holds for it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from sruexport.metadata import unpack
from sruexport.recurrences import DOMAIN

from .patterns import constant, coupled

#: Assumed of a floating graph input whose range is not given: features are usually normalised or bounded.
ASSUMED = (-16.0, 16.0)


@dataclass(frozen=True)
class Interval:
    """All elements of a value lie in [low, high], given the ranges of `inputs` of the graph."""

    low: float
    high: float
    inputs: frozenset[str] = frozenset()

    @property
    def size(self) -> float:
        """The largest absolute value."""
        return max(abs(self.low), abs(self.high))

    def hull(self, other: Interval) -> Interval:
        return Interval(min(self.low, other.low), max(self.high, other.high), self.inputs | other.inputs)


_NOTHING_KNOWN = Interval(-math.inf, math.inf)
_TRUTH = (0.0, 1.0)
_Rule = Callable[["Bounds", ir.Node, Sequence[Interval]], "Interval | Sequence[Interval]"]


class Bounds:
    """The interval of every value in a model's graph.

    Args:
        ranges: of graph inputs, by name. Numbers without one are taken to lie in `ASSUMED`; streamed states to be what
            the file itself gave before, beginning from zeros.
    """

    def __init__(self, model: ir.Model, ranges: Mapping[str, tuple[float, float]]):
        self._known: dict[ir.Value, Interval] = {}
        #: (weight, bias) of the LayerNorm that a value comes straight out of.
        self._normed: dict[ir.Value, tuple[np.ndarray, np.ndarray]] = {}
        states = {state["input"] for state in unpack(model.metadata_props).get("states", [])}
        for value in model.graph.inputs:
            name = value.name or ""
            assumed = (0.0, 0.0) if name in states else _TRUTH if value.dtype == ir.DataType.BOOL else ASSUMED
            low, high = ranges.get(name, assumed)
            self._known[value] = Interval(low, high, frozenset({name} - states))
        for node in model.graph:
            self._run(node)

    def of(self, value: ir.Value | None) -> Interval:
        """The interval; from minus to plus infinity where nothing is known."""
        if value is None:
            return _NOTHING_KNOWN
        if value not in self._known:
            array = constant(value)
            if array is None or not array.size or array.dtype.kind not in "fiub":
                return _NOTHING_KNOWN
            self._known[value] = Interval(float(array.min()), float(array.max()))
        return self._known[value]

    def replace(self, old: ir.Value, new: ir.Value) -> None:
        """Take what is known of a value for the one that stands in its place."""
        self._known[new] = self.of(old)

    def weighted(self, value: ir.Value | None, matrix: np.ndarray) -> Interval:
        """Of ``value @ matrix``, whose matrix [I, N] is constant."""
        found = _weighted(self.of(value), matrix)
        if value not in self._normed or self._normed[value][0].size != matrix.shape[0]:
            return found
        gain, bias = self._normed[value]
        reach = math.sqrt(gain.size) * np.sqrt(np.square(gain[:, None] * matrix).sum(0))
        centre = bias @ matrix
        low, high = float((centre - reach).min()), float((centre + reach).max())
        return Interval(max(found.low, low), min(found.high, high), found.inputs)

    def candidates(self, u: ir.Value | None, planes: int) -> Interval:
        """Of the first of the planes of u, where that is a product with constant weights: else of all of u."""
        node = u.producer() if u is not None else None
        while node is not None and node.op_type in ("Cast", "Identity") and node.inputs[0] is not None:
            node = node.inputs[0].producer()
        weight = constant(node.inputs[1]) if node is not None and node.op_type == "MatMul" else None
        if node is None or weight is None or weight.ndim != 2:
            return self.of(u)
        return self.weighted(node.inputs[0], weight.astype(np.float64)[:, : weight.shape[1] // planes])

    def _run(self, node: ir.Node) -> None:
        rule = _RULES.get((node.domain, node.op_type))
        given = [self.of(value) for value in node.inputs]
        found = rule(self, node, given) if rule is not None else _NOTHING_KNOWN
        each = [found] * len(node.outputs) if isinstance(found, Interval) else found
        for value, interval in zip(node.outputs, each):
            # An interval of NaN says nothing: infinity minus infinity in between.
            known = not (math.isnan(interval.low) or math.isnan(interval.high))
            self._known[value] = interval if known else _NOTHING_KNOWN
            if value.dtype == ir.DataType.BOOL:
                self._known[value] = Interval(*_TRUTH)
        if node.op_type in ("Cast", "Identity", "Transpose") and node.inputs[0] in self._normed:
            perm = list(node.attributes["perm"].as_ints()) if "perm" in node.attributes else [0]
            if perm[-1] == len(perm) - 1:
                self._normed[node.outputs[0]] = self._normed[node.inputs[0]]

    # Rules, one per kind of op

    def _product(self, node: ir.Node, given: Sequence[Interval]) -> Interval:
        weight = constant(node.inputs[1])
        if weight is None or weight.ndim != 2:
            return _NOTHING_KNOWN
        matrix = weight.astype(np.float64)
        scale, plus = 1.0, Interval(0.0, 0.0)
        if node.op_type == "Gemm":
            if _int(node, "transA", 0):
                return _NOTHING_KNOWN
            matrix = matrix.T if _int(node, "transB", 0) else matrix
            scale = node.attributes["alpha"].as_float() if "alpha" in node.attributes else 1.0
            if len(node.inputs) > 2:
                plus = _scaled(given[2], node.attributes["beta"].as_float() if "beta" in node.attributes else 1.0)
        found = self.weighted(node.inputs[0], matrix)
        return _sum(_scaled(found, scale), plus)

    def _layer_norm(self, node: ir.Node, given: Sequence[Interval]) -> Interval:
        gain = constant(node.inputs[1])
        bias = constant(node.inputs[2]) if len(node.inputs) > 2 else np.zeros(1)
        axis = _int(node, "axis", -1)
        shape = node.inputs[0].shape if node.inputs[0] is not None else None
        last = axis == -1 or (shape is not None and axis == len(shape) - 1)
        if gain is None or bias is None or not last:
            return _NOTHING_KNOWN
        gain, bias = gain.astype(np.float64).reshape(-1), np.broadcast_to(bias.astype(np.float64), gain.shape)
        self._normed[node.outputs[0]] = gain, bias
        reach = math.sqrt(max(gain.size - 1, 0)) * np.abs(gain)
        return Interval(float((bias - reach).min()), float((bias + reach).max()))

    def _convolution(self, node: ir.Node, given: Sequence[Interval]) -> Interval:
        weight = constant(node.inputs[1])
        if weight is None:
            return _NOTHING_KNOWN
        # Padding adds zeros, so that 0 belongs to what is weighed.
        padded = given[0].hull(Interval(0.0, 0.0))
        found = _weighted(padded, weight.astype(np.float64).reshape(weight.shape[0], -1).T)
        return _sum(found, given[2]) if len(given) > 2 else found

    def _sru(self, node: ir.Node, given: Sequence[Interval]) -> Sequence[Interval]:
        u, x, _, _, c0, _ = node.inputs
        state = self.candidates(u, 3).hull(self.of(c0))
        tanh = node.attributes["activation"].as_string() == "tanh"
        seen = Interval(math.tanh(state.low), math.tanh(state.high), state.inputs) if tanh else state
        hidden = seen.hull(self.of(x))
        masked = node.attributes["masked"].as_int()
        return [hidden.hull(Interval(0.0, 0.0)) if masked else hidden, state]

    def _linear(self, node: ir.Node, given: Sequence[Interval]) -> Interval:
        a, b, h0, _ = node.inputs
        assert a is not None
        assert b is not None
        candidate = coupled(a, b)
        decay = self.of(a)
        if candidate is not None and decay.low >= 0 and decay.high <= 1:
            return self.of(candidate).hull(self.of(h0))
        if decay.size < 1:
            reach = max(self.of(b).size / (1 - decay.size), self.of(h0).size)
            return Interval(-reach, reach, decay.inputs | self.of(b).inputs | self.of(h0).inputs)
        return _NOTHING_KNOWN


def _int(node: ir.Node, name: str, default: int) -> int:
    return node.attributes[name].as_int() if name in node.attributes else default


def _weighted(x: Interval, matrix: np.ndarray) -> Interval:
    """Of ``x @ matrix``: the columns' positive and negative parts meet the interval's ends."""
    positive, negative = np.clip(matrix, 0, None).sum(0), np.clip(matrix, None, 0).sum(0)
    with np.errstate(invalid="ignore"):
        low = np.where(positive > 0, positive * x.low, 0.0) + np.where(negative < 0, negative * x.high, 0.0)
        high = np.where(positive > 0, positive * x.high, 0.0) + np.where(negative < 0, negative * x.low, 0.0)
    return Interval(float(low.min()), float(high.max()), x.inputs)


def _sum(x: Interval, y: Interval) -> Interval:
    return Interval(x.low + y.low, x.high + y.high, x.inputs | y.inputs)


def _scaled(x: Interval, by: float) -> Interval:
    return _times(x, Interval(by, by))


def _times(x: Interval, y: Interval) -> Interval:
    ends = [0.0 if 0 in (a, b) else a * b for a in (x.low, x.high) for b in (y.low, y.high)]
    return Interval(min(ends), max(ends), x.inputs | y.inputs)


def _within(low: float, high: float) -> _Rule:
    return lambda bounds, node, given: Interval(low, high)


def _monotone(function: Callable[[float], float]) -> _Rule:
    return lambda bounds, node, given: Interval(function(given[0].low), function(given[0].high), given[0].inputs)


def _same(bounds: Bounds, node: ir.Node, given: Sequence[Interval]) -> Interval:
    return given[0]


def _cast(bounds: Bounds, node: ir.Node, given: Sequence[Interval]) -> Interval:
    whole = ir.DataType(node.attributes["to"].as_int()).is_integer()
    return given[0].hull(Interval(0.0, 0.0)) if whole else given[0]  # rounded towards 0


def _any_of(skip: int) -> _Rule:
    def rule(bounds: Bounds, node: ir.Node, given: Sequence[Interval]) -> Interval:
        found = given[skip]
        for interval in given[skip + 1 :]:
            found = found.hull(interval)
        return found

    return rule


def _divided(bounds: Bounds, node: ir.Node, given: Sequence[Interval]) -> Interval:
    x, y = given
    if y.low <= 0 <= y.high:
        return _NOTHING_KNOWN
    return _times(x, Interval(1 / y.high, 1 / y.low, y.inputs))


def _powered(bounds: Bounds, node: ir.Node, given: Sequence[Interval]) -> Interval:
    exponent = constant(node.inputs[1])
    if exponent is None or exponent.size != 1 or float(exponent.reshape(-1)[0]) != 2:
        return _NOTHING_KNOWN
    return Interval(0.0, given[0].size ** 2, given[0].inputs)


def _gated(node: ir.Node, hidden: Interval) -> Sequence[Interval]:
    """Of an LSTM, GRU or RNN: its hidden states; of its cell state nothing is known."""
    known = _NOTHING_KNOWN if "activations" in node.attributes else hidden
    return [known, known, _NOTHING_KNOWN]


def _nth(node: ir.Node, index: int) -> ir.Value | None:
    return node.inputs[index] if index < len(node.inputs) else None


def _sigmoid(x: float) -> float:
    return 0.0 if x < -700 else 1 / (1 + math.exp(-x))


def _softplus(x: float) -> float:
    return x if x > 30 else (0.0 if x < -700 else math.log1p(math.exp(x)))


def _exp(x: float) -> float:
    return math.inf if x > 700 else math.exp(x)


_SAME = (
    "Identity", "Reshape", "Transpose", "Squeeze", "Unsqueeze", "Flatten", "Expand", "Slice", "Split",
    "Gather", "GatherElements", "GatherND", "Tile", "ReduceMean", "ReduceMax", "ReduceMin", "ReverseSequence",
    "MaxPool", "GlobalAveragePool", "GlobalMaxPool",
)  # fmt: skip
_RULES: dict[tuple[str, str], _Rule] = {
    **{("", name): _same for name in _SAME},
    ("", "Cast"): _cast,
    ("", "MatMul"): Bounds._product,
    ("", "Gemm"): Bounds._product,
    ("", "Conv"): Bounds._convolution,
    ("", "LayerNormalization"): Bounds._layer_norm,
    ("", "Add"): lambda bounds, node, given: _sum(*given),
    ("", "Sub"): lambda bounds, node, given: _sum(given[0], _scaled(given[1], -1.0)),
    ("", "Mul"): lambda bounds, node, given: _times(*given),
    ("", "Div"): _divided,
    ("", "Pow"): _powered,
    ("", "Neg"): lambda bounds, node, given: _scaled(given[0], -1.0),
    ("", "Abs"): lambda bounds, node, given: Interval(0.0, given[0].size, given[0].inputs),
    ("", "Sigmoid"): _monotone(_sigmoid),
    ("", "Tanh"): _monotone(math.tanh),
    ("", "Relu"): _monotone(lambda x: max(x, 0.0)),
    ("", "Softplus"): _monotone(_softplus),
    ("", "Exp"): _monotone(_exp),
    ("", "Gelu"): lambda bounds, node, given: Interval(-0.18, max(given[0].high, 0.0), given[0].inputs),
    ("", "Erf"): _within(-1.0, 1.0),
    ("", "Softmax"): _within(0.0, 1.0),
    ("", "Sin"): _within(-1.0, 1.0),
    ("", "Cos"): _within(-1.0, 1.0),
    ("", "LSTM"): lambda bounds, node, given: _gated(node, Interval(-1.0, 1.0)),
    ("", "RNN"): lambda bounds, node, given: _gated(node, Interval(-1.0, 1.0)),
    ("", "GRU"): lambda bounds, node, given: _gated(node, bounds.of(_nth(node, 5)).hull(Interval(-1.0, 1.0))),
    ("", "Where"): _any_of(1),
    ("", "Concat"): _any_of(0),
    ("", "Max"): _any_of(0),
    ("", "Min"): _any_of(0),
    (DOMAIN, "SRURecurrence"): Bounds._sru,
    (DOMAIN, "LinearRecurrence"): Bounds._linear,
}
