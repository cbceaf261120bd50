"""Carrying recurrent states across calls of a model that does not do so itself.

A streaming export gives every recurrent cell its initial state from a graph input and collects its last state. The
cells are deep inside a model whose own forward knows nothing of it, so they ask here. A cell that its
caller gives a state keeps to that one.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch

from sruexport.recurrences import state_type


@dataclass
class StateBank:
    """The states of one call, keyed by cell in the order in which the cells run.

    Attributes:
        given: initial states by cell, float32; a cell that is not there starts from zeros.
        last: the last states, filled while the model runs.
    """

    given: dict[torch.nn.Module, torch.Tensor] = field(default_factory=dict)
    last: dict[torch.nn.Module, torch.Tensor] = field(default_factory=dict)
    #: Cells that cannot be carried from one chunk to the next, with the reason.
    refused: dict[torch.nn.Module, str] = field(default_factory=dict)


_banks: list[StateBank] = []


@contextmanager
def state_bank(bank: StateBank) -> Iterator[StateBank]:
    """Make `bank` the one that cells take from and give to."""
    _banks.append(bank)
    try:
        yield bank
    finally:
        _banks.pop()


def initial_state(cell: torch.nn.Module, x: torch.Tensor, batch: int | torch.SymInt, size: int) -> torch.Tensor:
    """The state [B, size] that a cell without one of its own starts from: the bank's, or zeros."""
    if _banks and cell in _banks[-1].given:
        return _banks[-1].given[cell]
    return torch.zeros(batch, size, dtype=state_type(x.dtype), device=x.device)


def keep_state(cell: torch.nn.Module, last: torch.Tensor, refused: str = "") -> None:
    """Note the last state [B, size] of a cell that started from `initial_state`.

    Args:
        refused: why this cell cannot be carried over chunks, if so ("it is bidirectional").
    """
    if not _banks:
        return
    bank = _banks[-1]
    if cell in bank.last:
        refused = refused or "it runs more than once in a call, so that one state is not enough"
    if refused:
        bank.refused[cell] = refused
    bank.last[cell] = last
