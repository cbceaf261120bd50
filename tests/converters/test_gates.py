"""The numbers of an LSTM that carries a recurrence: the LSTM's own equations, in float64, against the recurrence's."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sruexport.converters.gates import (
    ONNX_ORDER,
    OPEN,
    TORCH_ORDER,
    Gates,
    masked,
    peepholes,
    relative_error,
    scale_exponent,
    weights,
)

EPSILONS = {"float16": 2.0**-10, "float32": 2.0**-23, "float64": 2.0**-52}
_quick = settings(max_examples=150, derandomize=True, deadline=None, database=None)

_bounds = st.floats(1e-6, 1e9)


def sigmoid(z: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-np.clip(z, -700, 700)))


def random_gates(inputs: int, channels: int, seed: int, tied: bool = True, v: float = 1.0, size: float = 1.0) -> Gates:
    """
    Args:
        size: how large the candidates are.
    """
    random = np.random.default_rng(seed)
    shapes = ((inputs, channels), (inputs, channels), (channels,), (channels,), (channels,))
    forget, candidate, forget_bias, candidate_bias, own = (random.standard_normal(shape) for shape in shapes)
    return Gates(forget, size * candidate, forget_bias, size * candidate_bias, v * own, tied)


def recurrence(gates: Gates, x: np.ndarray, c: np.ndarray) -> np.ndarray:
    """c at every step: f = sigmoid(x W_f + b_f + v c), c = f c + (1 - f) u, or f c + u if not tied."""
    states = []
    for row in x:
        f = sigmoid(row @ gates.forget + gates.forget_bias + gates.v * c)
        u = row @ gates.candidate + gates.candidate_bias
        c = f * c + ((1 - f) * u if gates.tied else u)
        states.append(c)
    return np.stack(states)


def lstm(
    x: np.ndarray, h: np.ndarray, c: np.ndarray, w: np.ndarray, r: np.ndarray, b: np.ndarray, p: np.ndarray
) -> np.ndarray:
    """Y of ONNX's LSTM with its default activations, step by step as its documentation has it."""
    outputs = []
    p_i, p_o, p_f = np.split(p, 3)
    for row in x:
        i, o, f, g = np.split(row @ w.T + h @ r.T + b, 4, axis=-1)
        i, f = sigmoid(i + p_i * c), sigmoid(f + p_f * c)
        c = f * c + i * np.tanh(g)
        h = sigmoid(o + p_o * c) * np.tanh(c)
        outputs.append(h)
    return np.stack(outputs)


def embedded(gates: Gates, x: np.ndarray, c0: np.ndarray, k: int, peephole: bool) -> np.ndarray:
    """What an LSTM with these weights makes of c."""
    w, r, b = weights(gates, 0, 1, k, recurrent=not peephole)
    p = peepholes(gates, 0, 1, k) if peephole else np.zeros(3 * gates.v.size)
    scale = 2.0**-k
    return lstm(x, np.tanh(scale * c0), scale * c0, w, r, b, p) / scale


# The scale


@_quick
@given(bound=_bounds, dtype=st.sampled_from(list(EPSILONS)))
def test_tanh_takes_less_than_a_quarter_of_an_epsilon(bound, dtype):
    assert relative_error(bound, scale_exponent(bound, EPSILONS[dtype])) <= EPSILONS[dtype] / 4


@_quick
@given(bound=_bounds, more=st.integers(1, 20), dtype=st.sampled_from(list(EPSILONS)))
def test_k_grows_with_the_bound_by_one_for_each_power_of_two(bound, more, dtype):
    k = scale_exponent(bound, EPSILONS[dtype])
    larger = scale_exponent(bound * 2.0**more, EPSILONS[dtype])
    assert larger == k + more or k == 0
    assert larger >= k


@_quick
@given(x=st.floats(1e-6, 1e6), k=st.integers(0, 60))
def test_the_error_of_one_reading_is_no_more_than_what_is_said_of_it(x, k):
    """|x - tanh(e * x) / e| <= |x| * relative_error, beside what float64 rounds."""
    taken = abs(x - math.tanh(x * 2.0**-k) * 2.0**k)
    assert taken <= abs(x) * (relative_error(x, k) + 2.0**-51)


def test_a_state_that_cannot_be_but_zero_has_a_scale_too():
    assert scale_exponent(0.0, EPSILONS["float32"]) == 0
    assert relative_error(0.0, 0) == 0


# The embedding, in float64


@_quick
@given(
    channels=st.integers(1, 4),
    inputs=st.integers(1, 4),
    steps=st.integers(1, 30),
    tied=st.booleans(),
    peephole=st.booleans(),
    size=st.sampled_from([0.01, 1.0, 1000.0]),
    fewer=st.integers(0, 12),
    seed=st.integers(0, 2**16),
)
def test_the_reported_error_bounds_that_of_the_embedding(channels, inputs, steps, tied, peephole, size, fewer, seed):
    """Where no gate reads c: each candidate is read once, and each state once, each to `relative_error`.

    Args:
        fewer: how much smaller k is than it is chosen, so that the error is far above float64's own rounding.
    """
    gates = random_gates(inputs, channels, seed, tied, v=0.0, size=size)
    random = np.random.default_rng(seed)
    x, c0 = random.standard_normal((steps, 2, inputs)), size * random.standard_normal((2, channels))
    right = recurrence(gates, x, c0)
    candidates = x @ gates.candidate + gates.candidate_bias
    bound = max(np.abs(values).max() for values in (right, candidates, c0))
    k = max(0, scale_exponent(bound, EPSILONS["float32"]) - fewer)
    error = np.abs(embedded(gates, x, c0, k, peephole) - right)
    # Tied, the candidates' shares add up to at most 1; else each adds its own.
    readings = np.full((steps, 1, 1), 2.0) if tied else np.arange(2, steps + 2).reshape(-1, 1, 1)
    assert (error <= readings * relative_error(bound, k) * bound * (1 + 1e-6) + 1e-13 * bound).all()


@_quick
@given(channels=st.integers(1, 4), peephole=st.booleans(), size=st.sampled_from([0.01, 1.0, 1000.0]))
def test_with_gates_that_read_c_the_embedding_is_the_recurrence(channels, peephole, size):
    gates = random_gates(3, channels, channels, v=1.0, size=size)
    random = np.random.default_rng(channels)
    x, c0 = random.standard_normal((20, 2, 3)), size * random.standard_normal((2, channels))
    right = recurrence(gates, x, c0)
    # k for float64 leaves of tanh what float64 rounds; a gate that reads a large c amplifies either.
    k = scale_exponent(float(np.abs(right).max() + size), EPSILONS["float64"])
    assert np.abs(embedded(gates, x, c0, k, peephole) - right).max() <= 1e-12 * size * max(1.0, size)


def test_open_gates_are_open_in_every_type():
    for dtype in (np.float16, np.float32, np.float64):
        assert dtype(sigmoid(np.float64(OPEN))) == 1
        assert dtype(OPEN) == OPEN


# How the weights lie


def test_each_gate_has_its_rows_in_the_order_asked_for():
    gates = random_gates(2, 3, 0)
    blocks = {}
    for order in (ONNX_ORDER, TORCH_ORDER):
        w, r, b = weights(gates, 0, 1, 4, order)
        assert (w.shape, r.shape, b.shape) == ((12, 2), (12, 3), (12,))
        blocks[order] = dict(zip(order, zip(np.split(w, 4), np.split(r, 4), np.split(b, 4))))
    assert (ONNX_ORDER, TORCH_ORDER) == (("i", "o", "f", "c"), ("i", "f", "c", "o"))
    for name in ONNX_ORDER:
        for one, other in zip(blocks[ONNX_ORDER][name], blocks[TORCH_ORDER][name]):
            np.testing.assert_array_equal(one, other)
    found = blocks[ONNX_ORDER]
    np.testing.assert_array_equal(found["f"][0], gates.forget.T)
    np.testing.assert_array_equal(found["i"][0], -gates.forget.T)
    np.testing.assert_array_equal(found["c"][0], gates.candidate.T / 16)
    np.testing.assert_array_equal(found["f"][1], 16 * np.diag(gates.v))
    np.testing.assert_array_equal(found["i"][1], -16 * np.diag(gates.v))
    assert not found["o"][0].any()
    assert not found["o"][1].any()
    assert not found["c"][1].any()


def test_without_a_tie_the_input_gate_is_open():
    w, r, b = weights(random_gates(2, 3, 0, tied=False, v=0.0), 0, 1, 4)
    assert not w[:3].any()
    assert not r.any()
    assert (b[:3] == OPEN).all()


@pytest.mark.parametrize("direction", [0, 1])
def test_each_direction_has_the_weights_of_its_own_channels(direction):
    gates = random_gates(2, 6, 0)
    own = slice(3 * direction, 3 * direction + 3)
    half = Gates(
        *(array[..., own] for array in (gates.forget, gates.candidate, gates.forget_bias, gates.candidate_bias)),
        gates.v[own],
        gates.tied,
    )
    for found, right in zip(weights(gates, direction, 2, 5), weights(half, 0, 1, 5)):
        np.testing.assert_array_equal(found, right)
    np.testing.assert_array_equal(peepholes(gates, direction, 2, 5), peepholes(half, 0, 1, 5))


@pytest.mark.parametrize("peephole", [False, True])
@pytest.mark.parametrize("tied", [False, True])
def test_the_channel_of_padding_lets_the_state_pass(tied, peephole):
    """Even one that outweighs all else in the gates. Without a tie there is neither v nor a bias of what is added."""
    gates = random_gates(2, 3, 0, tied, size=10.0, v=3.0 * tied)
    gates = dataclasses.replace(gates, candidate_bias=gates.candidate_bias * tied)
    padded = masked(gates, 1e7)
    random = np.random.default_rng(0)
    x, c0 = random.standard_normal((6, 2, 2)), 1e6 * random.standard_normal((2, 3))
    padding = np.array([1, 0, 1, 1, 0, 1], bool)[:, None, None]
    k = scale_exponent(1e7, EPSILONS["float64"])
    given = np.concatenate([np.where(padding, 0, x), np.broadcast_to(padding, (6, 2, 1))], axis=-1)
    found = embedded(padded, given, c0, k, peephole)
    kept = found[[0, 2, 3, 5]] - np.stack([c0, found[1], found[1], found[4]])
    assert np.abs(kept).max() <= 1e-14 * np.abs(c0).max()
    right = recurrence(gates, x[[1, 4]], c0)
    assert np.abs(found[[1, 4]] - right).max() <= 1e-12 * np.abs(c0).max()


def test_the_channel_of_padding_is_finite_in_float16_for_states_that_are():
    """Engines may compute a float32 graph in float16, where infinity times 0 would be NaN."""
    gates = masked(random_gates(2, 3, 0), 1000.0)
    assert np.isfinite(gates.forget.astype(np.float16)).all()
    assert (gates.forget[-1] >= 1e4).all()
    assert not gates.candidate[-1].any()


@pytest.mark.parametrize("state", [1e6, np.inf])
def test_the_channel_of_padding_outweighs_a_large_state(state):
    gates = random_gates(2, 3, 0, v=3.0)
    shut = masked(gates, state).forget[-1]
    assert np.isfinite(shut.astype(np.float32)).all()
    assert (shut > np.abs(gates.v).max() * min(state, 1e20) + 40).all()
