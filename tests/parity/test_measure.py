"""The rule, at its edges: passed when max |engine - f64| <= max(8 * max |PyTorch - f64|, floor * max |f64|)."""

from __future__ import annotations

import numpy as np
import pytest

from sruexport.parity.measure import FACTOR, compare, distance, failure, floor

EXACT = np.array([2.0, -4.0, 1.0, 0.0])  # scale 4


def off_by(error: float) -> np.ndarray:
    return EXACT + np.array([0.0, 0.0, error, 0.0])


def judge(engine: np.ndarray, pytorch: np.ndarray = EXACT, exact: np.ndarray = EXACT, dtype: str = "float32"):
    return compare(engine, pytorch, exact, dtype)


def test_equal_numbers_pass_with_all_errors_zero():
    errors = judge(EXACT)
    assert errors.passed
    assert (errors.engine_max, errors.engine_mean, errors.engine_p99, errors.pytorch_max) == (0, 0, 0, 0)
    assert errors.scale == 4


@pytest.mark.parametrize(("share", "passes"), [(0.999, True), (1.001, False)])
def test_floor_times_scale_is_the_bound_where_pytorch_is_exact(share, passes):
    errors = judge(off_by(share * 4e-6))
    assert errors.bound == pytest.approx(4e-6)
    assert errors.passed is passes


@pytest.mark.parametrize(("share", "passes"), [(0.999, True), (1.001, False)])
def test_eight_times_pytorchs_own_error_is_the_bound_where_that_is_more(share, passes):
    errors = judge(off_by(share * 8e-3), pytorch=off_by(1e-3))
    assert errors.bound == pytest.approx(FACTOR * 1e-3)
    assert errors.passed is passes


def test_error_equal_to_the_bound_passes():
    assert compare(np.array([9.0]), np.array([2.0]), np.array([1.0]), "bfloat16").passed


def test_errors_at_other_places_than_pytorchs_are_still_judged_by_the_maximum():
    engine, pytorch = EXACT.copy(), EXACT.copy()
    engine[0] += 7e-4
    pytorch[3] += 1e-4
    assert judge(engine, pytorch).passed


@pytest.mark.parametrize(
    ("dtype", "epsilons"), [("float64", 2**-52), ("float32", 2**-23), ("float16", 2**-10), ("bfloat16", 2**-7)]
)
def test_floor_is_as_many_epsilons_for_every_dtype(dtype, epsilons):
    assert floor(dtype) / epsilons == pytest.approx(1e-6 / 2**-23)


def test_floor_of_float32_is_the_designs():
    assert floor("float32") == 1e-6


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16"])
def test_the_same_error_in_floors_is_judged_alike_in_every_dtype(dtype):
    assert judge(off_by(0.9 * 4 * floor(dtype)), dtype=dtype).passed
    assert not judge(off_by(1.1 * 4 * floor(dtype)), dtype=dtype).passed


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_the_same_nan_or_infinity_at_the_same_place_passes(value):
    array = EXACT.copy()
    array[1] = value
    errors = judge(array, array, array)
    assert errors.passed
    assert errors.engine_max == 0
    assert errors.scale == 2  # of what is finite


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_nan_or_infinity_in_the_engine_alone_fails(value):
    errors = judge(np.array([2.0, value, 1.0, 0.0]))
    assert not errors.passed
    assert errors.engine_max == errors.engine_mean == np.inf
    assert "engine has NaN or infinity where PyTorch has none" in errors.reason


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_finite_engine_where_pytorch_has_none_fails(value):
    array = EXACT.copy()
    array[1] = value
    assert not judge(EXACT, array, array).passed


def test_nan_at_another_place_fails():
    ours, theirs = EXACT.copy(), EXACT.copy()
    ours[0], theirs[1] = np.nan, np.nan
    assert not judge(ours, theirs, theirs).passed


@pytest.mark.parametrize("engine", [np.nan, -np.inf])
def test_another_kind_of_infinity_fails(engine):
    assert not judge(np.array([engine]), np.array([np.inf]), np.array([np.inf])).passed


def test_p99_is_a_number_even_between_infinities():
    engine = np.full(100, np.inf)
    assert judge(engine, np.zeros(100), np.zeros(100)).engine_p99 == np.inf


@pytest.mark.parametrize(("wrong", "p99"), [(10, 0.0), (11, 1.0)])
def test_p99_leaves_the_last_hundredth_out(wrong, p99):
    engine = np.zeros(1001)
    engine[:wrong] = 1.0
    errors = judge(engine, np.zeros(1001), np.zeros(1001))
    assert (errors.engine_max, errors.engine_p99) == (1.0, p99)


def test_pytorch_overflowing_where_float64_does_not_is_no_licence():
    errors = judge(np.array([np.inf]), np.array([np.inf]), np.array([70000.0]), "float16")
    assert not errors.passed


def test_pytorch_far_from_float64_fails_even_if_the_engine_agrees_with_it():
    """A layer that was read wrongly is wrong in PyTorch and in the engine alike."""
    errors = judge(off_by(0.5), pytorch=off_by(0.5))
    assert not errors.passed
    assert "PyTorch itself" in errors.reason


def test_another_shape_fails_and_both_shapes_are_named():
    errors = judge(np.zeros((2, 2)))
    assert not errors.passed
    assert "[2, 2]" in errors.reason
    assert "[4]" in errors.reason


def test_a_shape_that_would_broadcast_fails():
    assert not judge(np.zeros((1, 4)), np.zeros((3, 4)), np.zeros((3, 4))).passed


def test_empty_outputs_pass():
    empty = np.zeros((0, 3))
    assert judge(empty, empty, empty).passed
    assert not judge(np.zeros((0, 2)), empty, empty).passed


def test_all_zero_allows_no_error_at_all():
    zero = np.zeros(3)
    assert judge(zero, zero, zero).passed
    assert not judge(np.array([0.0, 1e-30, 0.0]), zero, zero).passed


def test_an_output_that_is_not_there_fails_with_its_reason():
    errors = failure("the engine refuses it")
    assert not errors.passed
    assert errors.reason == "the engine refuses it"


def test_ratio_says_how_much_of_the_bound_is_used():
    assert judge(off_by(2e-6)).ratio == pytest.approx(0.5)
    assert judge(EXACT).ratio == 0
    assert judge(np.zeros(3)).ratio == np.inf


def test_float16_arrays_are_compared_exactly():
    half = np.array([1.0, 0.333], np.float16)
    assert judge(half, half, half.astype(np.float64), "float16").engine_max == 0


def test_distance_is_elementwise():
    values = distance(np.array([1.0, np.nan, np.inf, 3.0]), np.array([1.5, np.nan, np.inf, np.nan]))
    assert values.tolist() == [0.5, 0.0, 0.0, np.inf]
