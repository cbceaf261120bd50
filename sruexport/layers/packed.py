"""PackedSequence: to the padded form and back, and kept padded while a graph is traced."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import _VF, Tensor
from torch.fx.experimental.symbolic_shapes import statically_known_true
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence


def unpack(packed: PackedSequence) -> tuple[Tensor, Tensor]:
    """The padded sequence [T, B, ...] and its mask [T, B], true at padding, in the batch's original order."""
    padded, lengths = pad_packed_sequence(packed)
    steps = torch.arange(padded.shape[0]).unsqueeze(1)
    return padded, (steps >= lengths.unsqueeze(0)).to(padded.device)


def pack_like(padded: Tensor, packed: PackedSequence) -> PackedSequence:
    """Pack [T, B, ...] with the lengths of `packed`."""
    _, lengths = pad_packed_sequence(packed)
    return pack_padded_sequence(padded, lengths, enforce_sorted=False)


@contextmanager
def padded_packing() -> Iterator[None]:
    """Meanwhile a PackedSequence holds padded data [T, B, ...] and batch sizes [T], which end in zeros if T is longer.

    A packed form has as many rows as the lengths add up to, which no graph can express. Only the two functions
    that convert are replaced, so that models which pack, run a layer and unpack are traced as they are. One thing
    differs: unpacking gives T steps, PyTorch's own only as many as the longest sequence has.
    """
    names = ("_pack_padded_sequence", "_pad_packed_sequence")
    originals = {name: getattr(_VF, name) for name in names}
    for name, stand_in in zip(names, (_pack, _pad), strict=True):
        setattr(_VF, name, stand_in)
    try:
        yield
    finally:
        for name, original in originals.items():
            setattr(_VF, name, original)


def _pack(padded: Tensor, lengths: Tensor, batch_first: bool) -> tuple[Tensor, Tensor]:
    data = padded.transpose(0, 1) if batch_first else padded
    steps = torch.arange(data.shape[0]).unsqueeze(1)
    return data, (lengths.cpu().unsqueeze(0) > steps).sum(1)


def _pad(
    data: Tensor, batch_sizes: Tensor, batch_first: bool, padding_value: float, total_length: int
) -> tuple[Tensor, Tensor]:
    if not statically_known_true(total_length == data.shape[0]):
        longer = data.new_zeros(total_length - data.shape[0], *data.shape[1:])
        data = torch.cat([data, longer])
    rows = torch.arange(data.shape[1])
    lengths = (batch_sizes.unsqueeze(1) > rows.unsqueeze(0)).sum(0)
    padding = torch.arange(data.shape[0]).unsqueeze(1) >= lengths.unsqueeze(0)
    padding = padding.reshape(*padding.shape, *[1] * (data.dim() - 2)).to(data.device)
    padded = torch.where(padding, torch.full((), padding_value, dtype=data.dtype, device=data.device), data)
    return (padded.transpose(0, 1) if batch_first else padded), lengths
