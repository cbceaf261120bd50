"""What is proven of a graph's values holds for every input in the declared ranges."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
from converted import DIRECTIONS, Graph, Net, SRULayer, Values, linear, run, sru
from hypothesis import given, settings
from hypothesis import strategies as st
from sruexport.converters.bounds import ASSUMED, Bounds, Interval

SHAPE = (3, 2, 4)
_quick = settings(max_examples=120, derandomize=True, deadline=None, database=None)


def output(define: Callable[[Any, Values], Any], ranges: dict[str, tuple[float, float]] | None = None) -> Interval:
    """What is known of the one output of a graph of x."""
    net = Net(lambda ops, given: {"y": define(ops, given["x"])}, {"x": ("float", ["T", "B", 4])})
    model = net.file(opset=20)
    return Bounds(model, ranges or {}).of(model.graph.outputs[0])


# Soundness


def _weight(ops: Graph, random: np.random.Generator, *shape: int) -> str:
    return ops.weight(random.standard_normal(shape).astype(np.float32))


def _normed(ops: Graph, random: np.random.Generator, x: str, _: str) -> str:
    return ops("LayerNormalization", x, _weight(ops, random, 4), _weight(ops, random, 4), epsilon=1e-5)


def _gemm(ops: Graph, random: np.random.Generator, x: str, _: str) -> str:
    rows = ops("Reshape", x, ops.weight(np.array([-1, 4])))
    product = ops("Gemm", rows, _weight(ops, random, 4, 4), _weight(ops, random, 4), transB=1, alpha=0.5, beta=-2.0)
    return ops("Reshape", product, ops.weight(np.array(SHAPE)))


def _recurrent(kind: str, gates: int) -> Callable[..., str]:
    def add(ops: Graph, random: np.random.Generator, x: str, y: str) -> str:
        weights = [_weight(ops, random, 1, gates * 4, 4) for _ in range(2)]
        more = {"linear_before_reset": 1} if kind == "GRU" else {}
        first = ops("Unsqueeze", ops("Gather", y, ops.weight(np.array(0)), axis=0), ops.weight(np.array([0])))
        found = ops(kind, x, *weights, "", "", first, outputs=2, hidden_size=4, **more)[0]
        return ops("Squeeze", found, ops.weight(np.array([1])))

    return add


def _first(ops: Graph, y: str) -> str:
    return ops("Gather", y, ops.weight(np.array(0)), axis=0)


def _sru(ops: Graph, random: np.random.Generator, x: str, y: str) -> str:
    options = {"direction": str(random.choice(["forward", "reverse"])), "masked": 1, "v_per_step": 0}
    u = ops("MatMul", x, _weight(ops, random, 4, 12)) if random.random() < 0.7 else ops("Concat", x, y, x, axis=-1)
    row, bias = _weight(ops, random, 1, 1, 8), _weight(ops, random, 8)
    mask = ops.weight((random.random(SHAPE[:2]) < 0.3).astype(np.int32))
    kind = str(random.choice(["identity", "tanh"]))
    return ops.recurrence("SRURecurrence", u, y, row, bias, _first(ops, y), mask, activation=kind, **options)[0]


def _linear(ops: Graph, random: np.random.Generator, x: str, y: str) -> str:
    decay = ops("Sigmoid", y)
    one = ops.weight(np.array(1, np.float32))
    added = ops("Mul", ops("Sub", one, decay), x) if random.random() < 0.5 else x
    first = ops("Mul", _first(ops, y), ops.weight(np.array(random.choice([0.1, 20]), np.float32)))
    no_mask = ops.weight(np.zeros((1, 1), np.int32))
    return ops.recurrence("LinearRecurrence", decay, added, first, no_mask, direction="forward", masked=0)[0]


def _sliced(ops: Graph, random: np.random.Generator, x: str, _: str) -> str:
    ahead, back = ops("Split", x, axis=-1, num_outputs=2)
    return ops("Concat", back, ahead, axis=-1)


def _windowed(ops: Graph, random: np.random.Generator, x: str, _: str) -> str:
    return ops("Conv", x, _weight(ops, random, 2, 2, 3), _weight(ops, random, 2), pads=[1, 1])


def _maximum(ops: Graph, random: np.random.Generator, x: str, _: str) -> str:
    return ops("MaxPool", x, kernel_shape=[3], pads=[1, 1])


def _divided(ops: Graph, random: np.random.Generator, x: str, y: str) -> str:
    """By what cannot be 0."""
    away = ops("Add", ops("Abs", y), ops.weight(np.array(0.25, np.float32)))
    return ops("Div", x, ops("Neg", away) if random.random() < 0.5 else away)


def _mean(ops: Graph, random: np.random.Generator, x: str, y: str) -> str:
    return ops("Add", y, ops("ReduceMean", x, ops.weight(np.array([-1])), keepdims=1))


def _chosen(ops: Graph, random: np.random.Generator, x: str, y: str) -> str:
    return ops("Where", ops("GreaterOrEqual", x, y), x, y)


def _plain(kind: str, **attributes: Any) -> Callable[..., str]:
    return lambda ops, random, x, y: ops(kind, x, **attributes)


def _pair(kind: str) -> Callable[..., str]:
    return lambda ops, random, x, y: ops(kind, x, y)


OPS: dict[str, Callable[..., str]] = {
    **{kind: _plain(kind) for kind in ("Neg", "Abs", "Sigmoid", "Tanh", "Relu", "Softplus", "Exp", "Gelu", "Erf")},
    **{kind: _plain(kind) for kind in ("Sin", "Cos", "Identity")},
    **{kind: _pair(kind) for kind in ("Add", "Sub", "Mul", "Max", "Min")},
    "Softmax": _plain("Softmax", axis=-1),
    "Transpose": lambda ops, random, x, y: ops("Transpose", ops("Transpose", x, perm=[1, 0, 2]), perm=[1, 0, 2]),
    "Cast": lambda ops, random, x, y: ops("Cast", ops("Cast", x, to=7), to=1),
    "Cast to bool": lambda ops, random, x, y: ops("Cast", ops("Cast", x, to=9), to=1),
    "Pow": lambda ops, random, x, y: ops("Pow", x, ops.weight(np.array(2, np.float32))),
    "scale": lambda ops, random, x, y: ops("Mul", x, _weight(ops, random, 4)),
    "shift": lambda ops, random, x, y: ops("Sub", _weight(ops, random, 4), x),
    "MatMul": lambda ops, random, x, y: ops("MatMul", x, _weight(ops, random, 4, 4)),
    "Gemm": _gemm,
    "Conv": _windowed,
    "MaxPool": _maximum,
    "Div": _divided,
    "ReduceMean": _mean,
    "Where": _chosen,
    "Split": _sliced,
    "LayerNormalization": _normed,
    "LSTM": _recurrent("LSTM", 4),
    "GRU": _recurrent("GRU", 3),
    "RNN": _recurrent("RNN", 1),
    "SRURecurrence": _sru,
    "LinearRecurrence": _linear,
}


Range = tuple[float, float]
#: On either side of 0, around it, at it, without an integer in it.
RANGES: list[Range] = [(-3.0, 2.0), (0.25, 0.75), (-0.75, -0.25), (0.0, 1.5), (1.5, 1.5), (2.0, 5.0)]


def assert_sound(steps: list[tuple[str, int, int]], x: Range, z: Range, seed: int) -> None:
    """A graph of these ops, each of two values before it, keeps to what is known of it: inside the ranges and at the
    ends of them."""
    random = np.random.default_rng(seed)

    def define(ops: Graph, given: Values) -> Values:
        values = [given["x"], given["z"]]
        for kind, first, second in steps:
            values.append(OPS[kind](ops, random, values[first % len(values)], values[second % len(values)]))
        return {f"y{i}": value for i, value in enumerate(values)}

    net = Net(define, {"x": ("float", list(SHAPE)), "z": ("float", list(SHAPE))})
    model = net.file(opset=20)
    bounds = Bounds(model, {"x": x, "z": z})
    draws = np.random.default_rng(seed + 1)
    for at_the_ends in (True, False):
        feeds = {
            name: (draws.choice(ends, SHAPE) if at_the_ends else draws.uniform(*ends, SHAPE)).astype(np.float32)
            for name, ends in (("x", x), ("z", z))
        }
        for name, array in run(model, feeds).items():
            known = bounds.of(next(value for value in model.graph.outputs if value.name == name))
            found = array[np.isfinite(array)]
            # The intervals are of exact numbers, and these are rounded at every step.
            slack = 1e-5 * (1 + np.abs(found).max(initial=0.0)) * len(steps)
            assert known.low - slack <= found.min(initial=np.inf), (name, known)
            assert found.max(initial=-np.inf) <= known.high + slack, (name, known)


@pytest.mark.parametrize("kind", sorted(OPS))
def test_what_an_op_gives_lies_in_its_interval(kind):
    for seed, x in enumerate(RANGES):
        for z in RANGES:
            assert_sound([(kind, 0, 1)], x, z, seed)


@_quick
@given(
    steps=st.lists(
        st.tuples(st.sampled_from(sorted(OPS)), st.integers(0, 9), st.integers(0, 9)), min_size=2, max_size=6
    ),
    x=st.sampled_from(RANGES),
    z=st.sampled_from(RANGES),
    seed=st.integers(0, 2**16),
)
def test_every_value_of_a_random_graph_lies_in_its_interval(steps, x, z, seed):
    assert_sound(steps, x, z, seed)


@pytest.mark.parametrize("kind", sorted(OPS))
def test_something_is_known_of_every_op_that_has_a_rule(kind):
    """So that the test above can fail. Of an integer little is, and of the quotient by what may be 0 nothing."""
    random = np.random.default_rng(0)
    found = output(lambda ops, x: OPS[kind](ops, random, x, x), {"x": (0.5, 2.0)})
    assert np.isfinite(found.size), found


# How tight


def test_a_product_reaches_the_ends_of_its_interval():
    matrix = np.array([[1, -2], [3, 4], [-5, 0], [0, 0]], np.float32)
    found = output(lambda ops, x: ops("MatMul", x, ops.weight(matrix)), {"x": (-1.0, 2.0)})
    # columns: 4 positive and -5 negative; 4 and -2
    assert (found.low, found.high) == (-1 * 4 - 5 * 2, 2 * 4 + 5)


def test_of_a_layer_norm_the_inputs_do_not_matter():
    gain, shift = np.array([1, 2, -3, 0.5], np.float32), np.array([0, 1, 0, -1], np.float32)

    def define(ops: Any, x: str) -> str:
        return ops("LayerNormalization", x, ops.weight(gain), ops.weight(shift), epsilon=1e-5)

    found = output(define)
    assert found == output(define, {"x": (-1e9, 1e9)})
    assert not found.inputs
    # One of four numbers that have mean 0 and mean square 1 is sqrt(3) at most.
    assert (found.low, found.high) == pytest.approx((-3 * 3**0.5, 3 * 3**0.5))


def test_a_product_behind_a_layer_norm_takes_the_columns_norm():
    """The four numbers cannot all be large: their norm is 2."""
    ones = np.ones((4, 1), np.float32)

    def define(ops: Any, x: str) -> str:
        normed = ops("LayerNormalization", x, ops.weight(np.ones(4, np.float32)), epsilon=1e-5)
        swapped = ops("Transpose", normed, perm=[1, 0, 2])
        return ops("MatMul", swapped, ops.weight(ones))

    assert output(define).high == pytest.approx(2 * 2)
    assert 4 * 3**0.5 > 2 * 2  # what its elements alone would give


def test_of_sru_only_the_candidates_columns_count():
    file = sru(4, 3, highway="none", scale=0.7).file()
    (node,) = (node for node in file.graph if node.domain)
    weights = SRULayer(4, 3).weights()["gates"].astype(np.float64)
    known = Bounds(file, {"x": (-1.0, 1.0), "c0": (0.0, 0.0)}).of(node.outputs[1])
    assert known.size == pytest.approx(np.abs(weights[:, :3]).sum(0).max())


@pytest.mark.parametrize("family", ["mingru", "minlstm", "qrnn", "sru v1"])
def test_a_coupled_recurrence_stays_between_its_candidates(family):
    file = linear(family, scale=2.0, gate_bias=30.0).file()
    (node,) = (node for node in file.graph if node.domain)
    bounds = Bounds(file, {"x": (-1.0, 1.0), "h0": (-1.0, 1.0)})
    assert bounds.of(node.outputs[0]) == bounds.of(node.outputs[1])
    assert bounds.of(node.outputs[0]).size < 50
    if family == "qrnn":  # tanh
        assert bounds.of(node.outputs[0]).size == 1


def test_a_recurrence_that_is_not_coupled_is_a_geometric_series():
    file = linear("free", scale=0.3).file()
    (node,) = (node for node in file.graph if node.domain)
    bounds = Bounds(file, {"x": (-1.0, 1.0), "h0": (-1.0, 1.0)})
    decay, added = (bounds.of(value).size for value in node.inputs[:2])
    assert bounds.of(node.outputs[0]).size == pytest.approx(max(added / (1 - decay), 1.0))


# What it depends on


def test_an_input_without_a_range_is_assumed_to_be_small():
    found = output(lambda ops, x: ops("Neg", x), {})
    assert (found.low, found.high) == ASSUMED == (-16.0, 16.0)
    assert found.inputs == {"x"}


def test_an_interval_names_the_inputs_that_it_depends_on():
    def define(ops: Any, given: Values) -> Values:
        both = ops("Add", given["x"], given["z"])
        return {"both": both, "x alone": ops("Neg", given["x"]), "none": ops("Sin", both)}

    model = Net(define, {"x": ("float", ["T", "B", 4]), "z": ("float", ["T", "B", 4])}).file()
    bounds = Bounds(model, {})
    found = {value.name: set(bounds.of(value).inputs) for value in model.graph.outputs}
    assert found == {"both": {"x", "z"}, "x alone": {"x"}, "none": set()}


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_a_streamed_state_is_what_the_file_itself_gave(direction):
    """It begins with zeros, and stays between the candidates."""
    net = sru(4, 3, direction=direction, norm=True)
    streamed = Net(net.define, net.inputs, {"states": [{"input": "c0", "output": "c"}]}).file()
    given = net.file()
    for file, size in ((streamed, None), (given, 16.0)):
        (node,) = (node for node in file.graph if node.domain)
        bounds = Bounds(file, {})
        candidates = bounds.candidates(node.inputs[0], 3).size
        assert bounds.of(node.outputs[1]).size == (size or candidates)
        assert candidates < 16


def test_a_truth_value_is_zero_or_one_wherever_it_comes_from():
    def define(ops: Any, given: Values) -> Values:
        padded = ops("Cast", given["mask"], to=1)
        kept = ops("Cast", ops("Not", given["mask"]), to=1)
        return {"padded": ops("Mul", given["x"], padded), "kept": ops("Mul", given["x"], kept)}

    model = Net(define, {"x": ("float", ["T", "B", 4]), "mask": ("bool", ["T", "B", 1])}).file()
    bounds = Bounds(model, {"x": (-2.0, 3.0)})
    assert [(bounds.of(value).low, bounds.of(value).high) for value in model.graph.outputs] == [(-2.0, 3.0)] * 2


def test_nothing_is_known_of_an_op_without_a_rule():
    found = output(lambda ops, x: ops("Sqrt", ops("Abs", x)))
    assert (found.low, found.high) == (-np.inf, np.inf)


def test_nothing_is_known_of_an_lstm_with_activations_of_its_own():
    def define(ops: Any, x: str) -> str:
        w, r = (ops.weight(np.ones((1, 16, 4), np.float32)) for _ in range(2))
        return ops("LSTM", x, w, r, outputs=2, hidden_size=4, activations=["Sigmoid", "Relu", "Relu"])[0]

    assert output(define).size == np.inf


def test_nothing_is_known_of_a_quotient_by_what_may_be_zero():
    assert output(lambda ops, x: ops("Div", x, x)).size == np.inf
    assert output(lambda ops, x: ops("Div", x, x), {"x": (1.0, 4.0)}) == Interval(0.25, 4.0, frozenset({"x"}))


def test_a_value_that_stands_in_for_another_has_its_interval():
    model = sru(4, 3).file()
    bounds = Bounds(model, {})
    new = ir.Value(name="new")
    bounds.replace(model.graph.outputs[0], new)
    assert bounds.of(new) == bounds.of(model.graph.outputs[0])
