"""The native kernels in ONNX Runtime against longdouble, by the rule: all options, dtypes, sizes, thread counts."""

from __future__ import annotations

from functools import cache

import numpy as np
import onnxruntime
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from kernels_here import needs_kernels
from one_node import DTYPES, Attributes, assert_engine_agrees, feeds, session, state_dtype, words
from recurrence_inputs import LINEAR_VARIANTS, SRU_VARIANTS, linear_exact, linear_inputs, sru_exact, sru_inputs

from sruexport.recurrences import LINEAR_RECURRENCE, SRU_RECURRENCE

OPS = {
    "sru": (SRU_RECURRENCE, SRU_VARIANTS, sru_inputs, sru_exact),
    "linear": (LINEAR_RECURRENCE, LINEAR_VARIANTS, linear_inputs, linear_exact),
}
VARIANTS = [(name, attributes) for name, (_, variants, *_) in OPS.items() for attributes in variants]

each_variant = pytest.mark.parametrize(("name", "attributes"), VARIANTS, ids=[f"{n}-{words(a)}" for n, a in VARIANTS])
each_dtype = pytest.mark.parametrize("dtype", DTYPES)


@cache
def _session(name: str, variant: int, dtype: str, threads: int) -> onnxruntime.InferenceSession:
    recurrence, variants, *_ = OPS[name]
    return session(recurrence, variants[variant], dtype, kernels=needs_kernels(), threads=threads)


def kernels(name: str, attributes: Attributes, dtype: str, threads: int = 2) -> onnxruntime.InferenceSession:
    return _session(name, OPS[name][1].index(attributes), dtype, threads)


def check(name: str, attributes: Attributes, dtype: str, threads: int = 2, **sizes: int) -> None:
    recurrence, _, inputs, exact = OPS[name]
    tensors = inputs(attributes, dtype, **sizes)
    engine = kernels(name, attributes, dtype, threads)
    assert_engine_agrees(engine, recurrence, attributes, dtype, tensors, exact(tensors, attributes))


@each_dtype
@each_variant
def test_every_variant_in_every_dtype(name, attributes, dtype):
    check(name, attributes, dtype, steps=17, batch=3, hidden=37)


@given(
    variant=st.sampled_from(VARIANTS),
    dtype=st.sampled_from(list(DTYPES)),
    steps=st.integers(1, 40),
    batch=st.integers(1, 5),
    hidden=st.integers(1, 150),
    threads=st.sampled_from([1, 2, 3, 5, 8, 16]),
    seed=st.integers(0, 2**20),
)
@settings(max_examples=400, deadline=None, derandomize=True)
def test_random_shapes(variant, dtype, steps, batch, hidden, threads, seed):
    check(*variant, dtype, threads, steps=steps, batch=batch, hidden=hidden, seed=seed)


@pytest.mark.parametrize("threads", range(1, 17))
@pytest.mark.parametrize("name", OPS)
def test_any_number_of_threads(name, threads):
    """With so much to do that it is shared out."""
    attributes = OPS[name][1][-1]
    check(name, attributes, "float32", threads, steps=257, batch=3, hidden=301)


@pytest.mark.parametrize("steps", [1000, 5000])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", OPS)
def test_long_sequences(name, dtype, steps):
    for attributes in (OPS[name][1][0], OPS[name][1][-1]):
        check(name, attributes, dtype, steps=steps, batch=2, hidden=9)


def test_a_sequence_that_is_cut_in_time():
    """Few channels and many steps, of which every thread takes a part."""
    for attributes in LINEAR_VARIANTS[:2]:
        check("linear", attributes, "float32", 2, steps=14000, batch=2, hidden=7)


@each_dtype
@each_variant
def test_without_steps_the_state_stays(name, attributes, dtype):
    """No function body runs it, so that this also shows that a kernel did."""
    inputs = OPS[name][2]
    tensors = inputs(attributes, dtype, steps=0)
    h, last = kernels(name, attributes, dtype).run(None, feeds(tensors))
    assert h.shape[0] == 0
    assert np.array_equal(last, tensors["c0" if name == "sru" else "h0"].numpy())


@each_variant
def test_without_rows_there_is_nothing(name, attributes):
    tensors = OPS[name][2](attributes, batch=0)
    h, last = kernels(name, attributes, "float32").run(None, feeds(tensors))
    assert (h.shape[1], last.shape[0]) == (0, 0)


@pytest.mark.parametrize("dtype", ["float32", "float16", "float64"])
@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
def test_one_highway_for_all_steps(direction, dtype):
    """As a layer without a skip term has it."""
    attributes = SRU_VARIANTS[-1] | {"direction": direction}
    tensors = sru_inputs(attributes, dtype, highway=False)
    engine = kernels("sru", attributes, dtype)
    right = sru_exact(tensors, attributes)
    assert_engine_agrees(engine, SRU_RECURRENCE, attributes, dtype, tensors, right)


@given(
    variant=st.sampled_from(VARIANTS),
    dtype=st.sampled_from(list(DTYPES)),
    odd=st.lists(
        st.tuples(st.integers(0, 4), st.integers(0, 2**20), st.sampled_from([np.inf, -np.inf, np.nan])),
        min_size=1,
        max_size=4,
    ),
    seed=st.integers(0, 2**20),
)
@settings(max_examples=300, deadline=None, derandomize=True)
def test_infinities_and_nan_spread_as_in_pytorch(variant, dtype, odd, seed):
    name, attributes = variant
    recurrence, _, inputs, _ = OPS[name]
    tensors = inputs(attributes, dtype, steps=6, batch=2, hidden=19, seed=seed)
    floats = [tensor for tensor in tensors.values() if tensor.is_floating_point()]
    for which, where, value in odd:
        tensor = floats[which % len(floats)]
        tensor.view(-1)[where % tensor.numel()] = value
    found = kernels(name, attributes, dtype).run(None, feeds(tensors))
    for got, pytorch in zip(found, recurrence.reference(*tensors.values(), **attributes)):
        right = pytorch.double().numpy()
        assert np.array_equal(np.isnan(got), np.isnan(right))
        for infinity in (np.inf, -np.inf):
            assert np.array_equal(got == infinity, right == infinity)


def test_large_gates_saturate_as_in_pytorch():
    attributes = SRU_VARIANTS[0]
    for scale in (30.0, 1e3, 1e30):
        tensors = sru_inputs(attributes, "float32", steps=9, hidden=33)
        channels = tensors["c0"].shape[1]
        tensors["u"][..., channels:] *= scale
        right = sru_exact(tensors, attributes)
        assert_engine_agrees(
            kernels("sru", attributes, "float32"), SRU_RECURRENCE, attributes, "float32", tensors, right
        )


def test_threads_do_not_change_a_bit():
    """Lanes are independent: however they are shared out, each is computed alike."""
    attributes = SRU_VARIANTS[0]
    tensors = feeds(sru_inputs(attributes, "float32", steps=300, batch=2, hidden=333))
    first, *others = (kernels("sru", attributes, "float32", threads).run(None, tensors) for threads in (1, 2, 7, 16))
    assert all(np.array_equal(a, b) for other in others for a, b in zip(first, other, strict=True))


def test_state_dtypes_are_those_of_the_op():
    for dtype in DTYPES:
        _, last = kernels("linear", LINEAR_VARIANTS[0], dtype).run(
            None, feeds(linear_inputs(LINEAR_VARIANTS[0], dtype))
        )
        assert last.dtype == (np.float64 if state_dtype(dtype) == torch.float64 else np.float32)
