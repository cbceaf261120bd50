"""The bank of states: cells that start from zero take theirs from it and leave their last one there."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from sruexport.layers import SRU, SRUCell
from sruexport.layers.standard import StandardRNN
from sruexport.layers.states import StateBank, initial_state, keep_state, state_bank
from sruexport.recurrences import graph_tracing


@pytest.fixture
def cell() -> SRUCell:
    torch.manual_seed(0)
    return SRUCell(3, 4).eval()


@pytest.fixture
def x() -> torch.Tensor:
    torch.manual_seed(1)
    return torch.randn(5, 2, 3)


@pytest.mark.parametrize(
    ("dtype", "state"),
    [
        (torch.float32, torch.float32),
        (torch.float16, torch.float32),
        (torch.bfloat16, torch.float32),
        (torch.float64, torch.float64),
    ],
)
def test_without_a_bank_a_cell_starts_from_zeros_no_narrower_than_float32(cell, dtype, state):
    zeros = initial_state(cell, torch.zeros(5, 2, 3, dtype=dtype), 2, 4)
    assert zeros.shape == (2, 4)
    assert zeros.dtype == state
    assert not zeros.any()


def test_a_bank_hears_nothing_of_what_runs_outside_its_block(cell, x):
    with state_bank(StateBank()) as bank:
        pass
    with torch.no_grad():
        cell(x)
    assert bank.last == bank.given == bank.refused == {}


def test_a_cell_starts_from_the_banks_state_and_leaves_its_last(cell, x):
    given = torch.randn(2, 4)
    with torch.no_grad(), state_bank(StateBank(given={cell: given})) as bank:
        h, c = cell(x)
        expected_h, expected_c = cell(x, given)
    assert torch.equal(h, expected_h)
    assert torch.equal(bank.last[cell], expected_c)
    assert torch.equal(c, expected_c)
    assert bank.refused == {}


def test_a_cell_that_is_not_in_the_bank_starts_from_zeros(cell, x):
    with torch.no_grad(), state_bank(StateBank()) as bank:
        h, _ = cell(x)
    assert torch.equal(h, cell(x, torch.zeros(2, 4))[0])
    assert list(bank.last) == [cell]


def test_a_cell_that_its_caller_gives_a_state_keeps_to_that(cell, x):
    own = torch.randn(2, 4)
    with torch.no_grad(), state_bank(StateBank(given={cell: torch.randn(2, 4)})) as bank:
        h, _ = cell(x, own)
    assert torch.equal(h, cell(x, own)[0])
    assert bank.last == {}


def test_states_are_kept_in_the_order_in_which_the_cells_run(x):
    stack = SRU(3, 4, num_layers=3).eval()
    first = SRU(3, 3, num_layers=1).eval()
    with torch.no_grad(), state_bank(StateBank()) as bank:
        _, c = stack(first(x)[0])
    assert list(bank.last) == [*first.rnn_lst, *stack.rnn_lst]
    for i, cell in enumerate(stack.rnn_lst):
        assert torch.equal(bank.last[cell], c[i])


def test_a_sequence_in_chunks_through_the_bank_is_the_whole_sequence(x):
    torch.manual_seed(0)
    stack = SRU(3, 4, num_layers=2).double().eval()
    x = x.double()
    with torch.no_grad():
        whole, last = stack(x)
        states: dict[nn.Module, torch.Tensor] = {}
        parts = []
        for chunk in x.split([1, 3, 1]):
            with state_bank(StateBank(given=states)) as bank:
                parts.append(stack(chunk)[0])
            states = bank.last
    # Not bit by bit: a product of one row is summed in another order than one of many.
    torch.testing.assert_close(torch.cat(parts), whole, rtol=1e-13, atol=1e-14)
    torch.testing.assert_close(torch.stack(list(states.values())), last, rtol=1e-13, atol=1e-14)


def test_a_bidirectional_cell_cannot_be_carried(x):
    cell = SRUCell(3, 4, bidirectional=True).eval()
    with torch.no_grad(), state_bank(StateBank()) as bank:
        cell(x)
    assert bank.refused == {cell: "it is bidirectional"}


def test_a_cell_that_runs_twice_cannot_be_carried(cell, x):
    with torch.no_grad(), state_bank(StateBank()) as bank:
        cell(x)
        cell(x)
    assert list(bank.refused) == [cell]
    assert "more than once" in bank.refused[cell]


def test_a_standard_layer_without_a_state_cannot_be_carried():
    lstm = StandardRNN(nn.LSTM(3, 4))
    with graph_tracing(), state_bank(StateBank()) as bank:
        keep_state(lstm, torch.zeros(1), "why")
    assert bank.refused == {lstm: "why"}


def test_banks_nest_and_end_with_their_block(cell):
    outer, inner = torch.ones(2, 4), torch.full((2, 4), 2.0)
    like = torch.zeros(1, 2, 3)
    with state_bank(StateBank(given={cell: outer})):
        with state_bank(StateBank(given={cell: inner})):
            assert initial_state(cell, like, 2, 4) is inner
        assert initial_state(cell, like, 2, 4) is outer
    assert not initial_state(cell, like, 2, 4).any()


def test_a_bank_ends_with_its_block_also_when_that_fails(cell):
    with pytest.raises(RuntimeError, match="on purpose"), state_bank(StateBank(given={cell: torch.ones(2, 4)})):
        raise RuntimeError("on purpose")
    assert not initial_state(cell, torch.zeros(1, 2, 3), 2, 4).any()
