"""PackedSequence: to the padded form and back, and kept padded while a graph is traced."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import _VF, Tensor
from torch.fx.experimental.symbolic_shapes import statically_known_true
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence


class Packing:
    """How packed sequences are held while a graph is traced.

    Attributes:
        exact: unpacking gives as many steps as the longest sequence has, as in PyTorch; else all T steps.
        used: whether anything was packed.
    """

    def __init__(self, exact: bool):
        self.exact = exact
        self.used = False


_padded: list[Packing] = []


def unpack(packed: PackedSequence) -> tuple[Tensor, Tensor]:
    """The padded sequence [T, B, ...] and its mask [T, B], true at padding, in the batch's original order."""
    padded, lengths = _unpacked(packed)
    steps = torch.arange(padded.shape[0]).unsqueeze(1)
    return padded, (steps >= lengths.unsqueeze(0)).to(padded.device)


def pack_like(padded: Tensor, packed: PackedSequence) -> PackedSequence:
    """Pack [T, B, ...] with the lengths of `packed`."""
    _, lengths = _unpacked(packed)
    return pack_padded_sequence(padded, lengths, enforce_sorted=False)


def _unpacked(packed: PackedSequence) -> tuple[Tensor, Tensor]:
    """The padded sequence and its lengths; all T steps, zeros at padding, also where unpacking gives fewer."""
    if not _padded:
        return pad_packed_sequence(packed)
    padded, lengths = _pad(packed.data, packed.batch_sizes, False, 0.0, packed.data.shape[0])
    order = packed.unsorted_indices
    return (padded, lengths) if order is None else (padded.index_select(1, order), lengths[order])


@contextmanager
def padded_packing(exact: bool = False) -> Iterator[Packing]:
    """Meanwhile a PackedSequence holds padded data [T, B, ...] and batch sizes.

    A packed form has as many rows as the lengths add up to, which no graph can express. Only the two functions
    that convert are replaced, so that models which pack, run a layer and unpack are traced as they are.

    Args:
        exact: there are as many batch sizes, and unpacking gives as many steps, as the longest sequence is long. That
            number depends on the lengths' values, and not every model can be traced with it. Else there are T, the
            last of them zeros, which differs from PyTorch where no sequence has all T steps.
    """
    packing = Packing(exact)
    names = ("_pack_padded_sequence", "_pad_packed_sequence")
    originals = {name: getattr(_VF, name) for name in names}
    for name, stand_in in zip(names, (_pack, _pad), strict=True):
        setattr(_VF, name, stand_in)
    _padded.append(packing)
    try:
        yield packing
    finally:
        _padded.pop()
        for name, original in originals.items():
            setattr(_VF, name, original)


def _pack(padded: Tensor, lengths: Tensor, batch_first: bool) -> tuple[Tensor, Tensor]:
    data = padded.transpose(0, 1) if batch_first else padded
    _padded[-1].used = True
    steps = torch.arange(data.shape[0])
    if _padded[-1].exact:
        longest: Any = lengths.max().item()
        torch._check(longest >= 1)
        torch._check(longest <= data.shape[0])
        steps = torch.arange(longest)
    return data, (lengths.cpu().unsqueeze(0) > steps.unsqueeze(1)).sum(1)


def _pad(
    data: Tensor, batch_sizes: Tensor, batch_first: bool, padding_value: float, total_length: int
) -> tuple[Tensor, Tensor]:
    if not statically_known_true(total_length == data.shape[0]):
        steps = batch_sizes.shape[0]
        data = data.narrow(0, 0, steps)
        if not statically_known_true(total_length == steps):
            data = torch.cat([data, data.new_zeros(total_length - steps, *data.shape[1:])])
    rows = torch.arange(data.shape[1])
    lengths = (batch_sizes.unsqueeze(1) > rows.unsqueeze(0)).sum(0)
    padding = torch.arange(data.shape[0]).unsqueeze(1) >= lengths.unsqueeze(0)
    padding = padding.reshape(*padding.shape, *[1] * (data.dim() - 2)).to(data.device)
    padded = torch.where(padding, torch.full((), padding_value, dtype=data.dtype, device=data.device), data)
    return (padded.transpose(0, 1) if batch_first else padded), lengths
