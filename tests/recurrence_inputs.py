"""The recurrences for tests: random inputs, every combination of attributes, and the result in more than float64."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import numpy as np
import torch
from one_node import Attributes, Tensors, state_dtype

DIRECTIONS = ("forward", "reverse", "bidirectional")
_SRU = {"direction": DIRECTIONS, "activation": ("identity", "tanh"), "masked": (0, 1), "v_per_step": (0, 1)}
SRU_VARIANTS: list[Attributes] = [dict(zip(_SRU, values)) for values in product(*_SRU.values())]
LINEAR_VARIANTS: list[Attributes] = [
    {"direction": direction, "masked": masked} for direction, masked in product(DIRECTIONS, (0, 1))
]


def sru_inputs(
    attributes: Attributes,
    dtype: str = "float32",
    steps: int = 5,
    batch: int = 3,
    hidden: int = 4,
    highway: bool = True,
    seed: int = 0,
) -> Tensors:
    """Random inputs in the op's order. Padding is NaN: anywhere, and all of the first row.

    Args:
        highway: x [T, B, C], or [1, 1, C] of zeros, for a layer without a skip term.
    """
    generator = torch.Generator().manual_seed(seed)
    channels = hidden * (2 if attributes["direction"] == "bidirectional" else 1)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    # Not looked at unless masked, so that it may be anything.
    mask = torch.ones(1, 1, dtype=torch.int32)
    if attributes["masked"]:
        mask = 5 * (torch.rand(steps, batch, generator=generator) < 0.35).to(torch.int32)
        mask[:, :1] = 1
    sequences = {
        "u": normal(steps, batch, 3 * channels),
        "x": normal(steps, batch, channels) if highway else torch.zeros(1, 1, channels),
        "v": normal(steps, batch, 2 * channels) if attributes["v_per_step"] else normal(1, 1, 2 * channels),
    }
    if attributes["masked"]:
        for name in ["u", *["x"] * highway, *["v"] * attributes["v_per_step"]]:
            sequences[name] = sequences[name].masked_fill(mask.unsqueeze(-1) != 0, torch.nan)
    kind = getattr(torch, dtype)
    return {
        **{name: tensor.to(kind) for name, tensor in sequences.items()},
        "bias": normal(2 * channels).to(kind),
        "c0": normal(batch, channels).to(state_dtype(dtype)),
        "mask": mask,
    }


def linear_inputs(
    attributes: Attributes, dtype: str = "float32", steps: int = 5, batch: int = 3, hidden: int = 4, seed: int = 0
) -> Tensors:
    """Random inputs with |a| <= 1, in the op's order. Padding is NaN: anywhere, and all of the first row."""
    generator = torch.Generator().manual_seed(seed)
    channels = hidden * (2 if attributes["direction"] == "bidirectional" else 1)
    # Not looked at unless masked, so that it may be anything.
    mask = torch.ones(1, 1, dtype=torch.int32)
    if attributes["masked"]:
        mask = 5 * (torch.rand(steps, batch, generator=generator) < 0.35).to(torch.int32)
        mask[:, :1] = 1
    a, b = (torch.randn(steps, batch, channels, generator=generator, dtype=torch.float64) for _ in "ab")
    if attributes["masked"]:
        a, b = (tensor.masked_fill(mask.unsqueeze(-1) != 0, torch.nan) for tensor in (a, b))
    h0 = torch.randn(batch, channels, generator=generator, dtype=torch.float64)
    kind = getattr(torch, dtype)
    return {"a": a.tanh().to(kind), "b": b.to(kind), "h0": h0.to(state_dtype(dtype)), "mask": mask}


def sru_exact(tensors: Tensors, attributes: Attributes) -> list[np.ndarray]:
    """SRURecurrence in NumPy's longdouble, every channel of a step at once."""
    u, x, v, bias, c, mask = _wide(tensors)
    channels = c.shape[1]
    h = np.zeros((u.shape[0], *c.shape), np.longdouble)
    for t, now in _steps(u.shape[0], channels, attributes):
        u0, u1, u2 = (u[t, :, i * channels : (i + 1) * channels] for i in range(3))
        weight = v[t if attributes["v_per_step"] else 0]
        highway = x[t if x.shape[0] == u.shape[0] else 0]
        keep = now & ((mask[t] == 0)[:, None] if attributes["masked"] else True)
        f = _sigmoid(u1 + bias[:channels] + weight[:, :channels] * c)
        r = _sigmoid(u2 + bias[channels:] + weight[:, channels:] * c)
        c = np.where(keep, (c - u0) * f + u0, c)
        out = np.tanh(c) if attributes["activation"] == "tanh" else c
        h[t] = np.where(keep, (out - highway) * r + highway, h[t])
    return [h, c]


def linear_exact(tensors: Tensors, attributes: Attributes) -> list[np.ndarray]:
    """LinearRecurrence, as `sru_exact`."""
    a, b, state, mask = _wide(tensors)
    h = np.zeros(a.shape, np.longdouble)
    for t, now in _steps(a.shape[0], a.shape[2], attributes):
        keep = now & ((mask[t] == 0)[:, None] if attributes["masked"] else True)
        state = np.where(keep, a[t] * state + b[t], state)
        h[t] = np.where(now, state, h[t])
    return [h, state]


def _wide(tensors: Tensors) -> list[np.ndarray]:
    return [tensor.double().numpy().astype(np.longdouble) for tensor in tensors.values()]


def _steps(steps: int, channels: int, attributes: Attributes) -> Iterator[tuple[int, np.ndarray]]:
    """The steps, each with the channels that take it then."""
    halves = np.arange(channels) < (channels // 2 if attributes["direction"] == "bidirectional" else channels)
    for i in range(steps):
        if attributes["direction"] != "reverse":
            yield i, halves
        if attributes["direction"] != "forward":
            yield steps - 1 - i, ~halves if attributes["direction"] == "bidirectional" else halves


def _sigmoid(x: np.ndarray) -> np.ndarray:
    with np.errstate(over="ignore"):
        return 1 / (1 + np.exp(-x))
