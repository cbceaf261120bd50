"""PackedSequence: padded and back in the batch's own order; and the padded stand-in while a graph is traced."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import _VF
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pack_sequence, pad_packed_sequence

from sruexport.layers.packed import pack_like, padded_packing, unpack

_lengths = st.lists(st.integers(1, 6), min_size=1, max_size=4)
_quick = settings(max_examples=60, derandomize=True, deadline=None, database=None)


def _padded(lengths: list[int], features: tuple[int, ...] = (2,)) -> torch.Tensor:
    """Numbers that are not zero, zeros where the sequences have ended."""
    longest = max(lengths)
    x = torch.arange(1.0, 1 + longest * len(lengths) * 2).reshape(longest, len(lengths), 2)
    x = x if features == (2,) else x[..., 0].reshape(longest, len(lengths), *features)
    for i, length in enumerate(lengths):
        x[length:, i] = 0
    return x


@_quick
@given(_lengths)
def test_unpacking_gives_the_padded_sequence_and_true_at_padding(lengths):
    x = _padded(lengths)
    padded, mask = unpack(pack_padded_sequence(x, torch.tensor(lengths), enforce_sorted=False))
    assert torch.equal(padded, x)
    assert mask.dtype == torch.bool
    assert mask.shape == x.shape[:2]
    assert (~mask).sum(0).tolist() == lengths
    assert torch.equal(mask, x[..., 0] == 0)


@_quick
@given(_lengths)
def test_packing_like_a_packed_sequence_takes_over_its_lengths(lengths):
    packed = pack_padded_sequence(_padded(lengths), torch.tensor(lengths), enforce_sorted=False)
    values = _padded(lengths) * 10
    again = pack_like(values, packed)
    assert torch.equal(again.data, packed.data * 10)
    assert torch.equal(again.batch_sizes, packed.batch_sizes)
    padded, seen = pad_packed_sequence(again)
    assert torch.equal(padded, values)
    assert seen.tolist() == lengths


def test_a_sequence_that_was_packed_in_order_keeps_it():
    packed = pack_sequence([torch.ones(3, 2), torch.ones(1, 2)], enforce_sorted=True)
    padded, mask = unpack(packed)
    assert (~mask).sum(0).tolist() == [3, 1]
    assert torch.equal(pack_like(padded, packed).data, packed.data)


@_quick
@given(_lengths, st.booleans(), st.sampled_from([0.0, -1.5]))
def test_in_a_graph_packing_and_unpacking_gives_what_it_always_does(lengths, batch_first, padding_value):
    x = _padded(lengths)
    x = x.transpose(0, 1) if batch_first else x

    def there_and_back() -> tuple[torch.Tensor, torch.Tensor]:
        packed = pack_padded_sequence(x, torch.tensor(lengths), batch_first, enforce_sorted=False)
        return pad_packed_sequence(packed, batch_first, padding_value)

    expected, expected_lengths = there_and_back()
    with padded_packing():
        got, got_lengths = there_and_back()
    assert torch.equal(got, expected)
    assert torch.equal(got_lengths, expected_lengths)


@pytest.mark.parametrize("total_length", [None, 3, 5])
def test_in_a_graph_a_total_length_is_kept_to(total_length):
    def there_and_back() -> tuple[torch.Tensor, torch.Tensor]:
        packed = pack_padded_sequence(_padded([2, 3]), torch.tensor([2, 3]), enforce_sorted=False)
        return pad_packed_sequence(packed, padding_value=-1.0, total_length=total_length)

    expected, _ = there_and_back()
    with padded_packing():
        got, _ = there_and_back()
    assert torch.equal(got, expected)


@_quick
@given(_lengths)
def test_in_a_graph_a_packed_sequence_holds_padded_data(lengths):
    x = _padded(lengths)
    with padded_packing():
        packed = pack_padded_sequence(x, torch.tensor(lengths), enforce_sorted=False)
        assert packed.data.shape == x.shape
        padded, mask = unpack(packed)
        again = pack_like(padded + 1, packed)
    assert (~mask).sum(0).tolist() == lengths
    assert isinstance(again, PackedSequence)
    assert again.data.shape == x.shape


def test_in_a_graph_steps_beyond_the_longest_sequence_stay_as_padding():
    x = torch.ones(5, 2, 1)
    with padded_packing():
        packed = pack_padded_sequence(x, torch.tensor([3, 1]), enforce_sorted=False)
        padded, lengths = pad_packed_sequence(packed)
    assert packed.batch_sizes.tolist() == [2, 1, 1, 0, 0]
    assert padded.shape == x.shape
    assert padded.sum((0, 2)).tolist() == [3, 1]
    assert lengths.tolist() == [3, 1]


def test_in_a_graph_data_of_any_rank_is_padded():
    x = _padded([2, 3], features=())
    with padded_packing():
        padded, _ = pad_packed_sequence(pack_padded_sequence(x, torch.tensor([2, 3]), enforce_sorted=False))
    assert torch.equal(padded, x)


@pytest.mark.parametrize("fails", [False, True])
def test_pytorchs_functions_are_back_afterwards(fails):
    names = ("_pack_padded_sequence", "_pad_packed_sequence")
    before = [getattr(_VF, name) for name in names]
    try:
        with padded_packing():
            assert all(getattr(_VF, name) is not original for name, original in zip(names, before, strict=True))
            if fails:
                raise RuntimeError("on purpose")
    except RuntimeError:
        assert fails
    assert [getattr(_VF, name) for name in names] == before
