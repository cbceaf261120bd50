"""The inputs that a file is tried on: short and single ones among them, fitting the file, the same every time."""

from __future__ import annotations

import numpy as np
import pytest

from sruexport.engines import Port
from sruexport.parity.cases import SIZES, chunk_lengths, generated, given, time_axis, time_length

FLOAT, INT32, INT64, BOOL = (np.dtype(kind) for kind in (np.float32, np.int32, np.int64, np.bool_))
UINT8 = np.dtype(np.uint8)
BARE = (Port("input", FLOAT, ("T", "B", 4)),)
METADATA = {"time": "T", "dynamic": {"input": {"0": "T", "1": "B"}}}
STATE = {"input": "state_0", "output": "new_state_0", "shape": ["B", 4]}


def shapes(cases) -> list[tuple[int, ...]]:
    return [case.feeds["input"].shape for case in cases]


def test_one_step_and_one_row_are_among_the_sizes():
    assert (1, 1) in SIZES
    assert any(t == 1 and b > 1 for t, b in SIZES)
    assert any(t > 1 and b == 1 for t, b in SIZES)
    assert any(t > 1 and b > 1 for t, b in SIZES)


def test_every_size_is_a_case_named_after_it():
    cases = list(generated(BARE, METADATA, set()))
    assert shapes(cases) == [(t, b, 4) for t, b in SIZES]
    assert [case.name for case in cases] == [f"T={t} B={b}" for t, b in SIZES]


def test_cases_are_the_same_every_time():
    for one, other in zip(generated(BARE, METADATA, set()), generated(BARE, METADATA, set()), strict=True):
        np.testing.assert_array_equal(one.feeds["input"], other.feeds["input"])


def test_another_seed_gives_other_numbers():
    first, other = (next(iter(generated(BARE, METADATA, set(), seed=seed))) for seed in (0, 1))
    assert not np.array_equal(first.feeds["input"], other.feeds["input"])


def test_static_axes_are_kept():
    (case,) = generated((Port("input", FLOAT, (7, 2, 4)),), {}, set())
    assert case.name == "static"
    assert case.feeds["input"].shape == (7, 2, 4)


def test_time_alone_can_be_dynamic():
    cases = generated((Port("input", FLOAT, ("T", 2, 4)),), {"time": "T"}, set())
    assert shapes(cases) == [(t, 2, 4) for t, _ in SIZES]


def test_inputs_share_the_size_of_a_dim():
    ports = (*BARE, Port("other", FLOAT, ("B", "T")))
    for case in generated(ports, METADATA, set()):
        assert case.feeds["other"].shape == case.feeds["input"].shape[1::-1]


def test_dims_of_other_names_vary_around_the_example_one_at_a_time():
    ports = (Port("x", FLOAT, ("time", "batch", 4)),)
    cases = list(generated(ports, {"examples": {"x": {"shape": [6, 2, 4]}}}, set()))
    sizes = [case.feeds["x"].shape[:2] for case in cases]
    assert sizes[0] == (6, 2)
    assert {(1, 2), (6, 1)} <= set(sizes)
    assert any(t > 6 for t, _ in sizes)
    assert any(b > 2 for _, b in sizes)


def test_masks_are_zero_in_one_half_of_the_cases_and_mixed_in_the_other():
    ports = (*BARE, Port("mask_pad", INT32, ("T", "B")))
    cases = list(generated(ports, METADATA, {"mask_pad"}))
    plain = [case for case in cases if "masked" not in case.name]
    masked = [case for case in cases if "masked" in case.name]
    assert len(plain) == len(masked) == len(SIZES)
    assert not any(case.feeds["mask_pad"].any() for case in plain)
    large = masked[-2].feeds["mask_pad"]
    assert 0 < large.mean() < 1
    assert np.diff(large, axis=0).min() < 0, "padding comes before real steps too"
    assert large.dtype == INT32


def test_states_are_no_inputs_of_a_case_and_bring_chunked_ones():
    ports = (*BARE, Port("state_0", FLOAT, ("B", 4)))
    cases = list(generated(ports, METADATA | {"states": [STATE]}, set()))
    assert all(case.feeds.keys() == {"input"} for case in cases)
    chunked = [case for case in cases if case.chunks]
    assert [case.feeds["input"].shape[0] for case in chunked] == [t for t, _ in SIZES if t > 1]
    for case in chunked:
        assert "in chunks" in case.name
        assert sum(case.chunks) == case.feeds["input"].shape[0]


def test_without_states_nothing_is_chunked():
    assert not any(case.chunks for case in generated(BARE, METADATA, set()))


@pytest.mark.parametrize("length", [1, 2, 3, 5, 7, 17, 64])
def test_chunks_add_up_and_have_one_of_a_single_step(length):
    chunks = chunk_lengths(length)
    assert sum(chunks) == length
    assert min(chunks) == 1
    assert length == 1 or len(chunks) > 1


def test_integers_keep_to_the_examples_range():
    ports = (Port("ids", INT64, ("T", "B")),)
    metadata = {"examples": {"ids": {"shape": [5, 2], "low": 3, "high": 9}}}
    values = np.concatenate([case.feeds["ids"].ravel() for case in generated(ports, metadata, set())])
    assert values.dtype == INT64
    assert (values.min(), values.max()) == (3, 9)


def test_lengths_are_as_long_as_each_cases_sequences():
    ports = (*BARE, Port("lengths", INT64, ("B",)))
    metadata = METADATA | {"examples": {"lengths": {"shape": [2], "low": 4, "high": 5, "longest": "T"}}}
    for case in generated(ports, metadata, set()):
        lengths, steps = case.feeds["lengths"], case.feeds["input"].shape[0]
        assert lengths.min() >= 1
        assert lengths.max() == steps


def test_booleans_are_true_as_often_as_in_the_example():
    ports = (Port("flags", BOOL, ("T", "B")),)
    for share in (0.0, 1.0):
        for case in generated(ports, {"examples": {"flags": {"shape": [5, 2], "true": share}}}, set()):
            if "masked" in case.name:
                continue
            assert case.feeds["flags"].dtype == BOOL
            assert (case.feeds["flags"] == bool(share)).all()


@pytest.mark.parametrize(
    ("dtype", "known"),
    [
        (BOOL, {"true": 0.0}),
        (BOOL, {"true": 1.0}),
        (UINT8, {"low": 0, "high": 0}),
        (np.dtype(np.int32), {"low": 0, "high": 0}),
        (INT64, {"low": 1, "high": 1}),
    ],
)
def test_truth_values_that_are_alike_in_the_example_are_mixed_in_half_of_the_cases(dtype, known):
    ports = (Port("flags", dtype, ("T", "B")),)
    cases = list(generated(ports, {"examples": {"flags": {"shape": [5, 2], **known}}}, set()))
    mixed = [case.feeds["flags"] for case in cases if "masked" in case.name]
    assert len(mixed) == len(cases) / 2
    assert {False, True} == {bool(value) for array in mixed for value in array.ravel()}


def test_own_data_is_one_case_as_it_is():
    data = {"input": np.ones((5, 2, 4), np.float32)}
    (case,) = given(data, METADATA)
    assert case.name == "data"
    np.testing.assert_array_equal(case.feeds["input"], data["input"])


def test_own_data_for_a_file_with_states_is_chunked_too():
    data = {"input": np.ones((5, 2, 4), np.float32)}
    whole, chunked = given(data, METADATA | {"states": [STATE]})
    assert not whole.chunks
    assert sum(chunked.chunks) == 5


def test_own_data_of_one_step_is_not_chunked():
    cases = list(given({"input": np.ones((1, 2, 4), np.float32)}, METADATA | {"states": [STATE]}))
    assert [case.name for case in cases] == ["data"]


def test_the_axis_of_time_is_the_metadatas():
    metadata = {"time": "T", "dynamic": {"x": {"0": "B", "1": "T"}, "flag": {"0": "B"}}}
    assert time_axis("x", metadata) == 1
    assert time_axis("flag", metadata) is None
    assert time_axis("unknown", metadata) is None
    assert time_length({"flag": np.zeros(3), "x": np.zeros((3, 8))}, metadata) == 8
