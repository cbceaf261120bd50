"""SRURecurrence: everything of an SRU layer behind its matrix product.

    f_t = sigmoid(u1_t + b_f + v_f * c_{t-1})
    r_t = sigmoid(u2_t + b_r + v_r * c_{t-1})              both gates read c_{t-1}
    c_t = (c_{t-1} - u0_t) * f_t + u0_t
    h_t = (g(c_t) - x_t) * r_t + x_t                       g = identity or tanh
                                                           at padding: c_t = c_{t-1}, h_t = 0

The equations are those of Lei et al. 2018, "Simple Recurrent Units for Highly Parallelizable Recurrence", in
the form that the `sru` package computes (2.6.0, csrc/sru_cpu_impl.cpp). With a trained v, c is not a linear recurrence
and no parallel scan of it is exact; with v = 0 the layer uses LinearRecurrence instead.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import onnx_ir as ir
import torch

from .base import DIRECTIONS, Formal, Recurrence, Variant, reversed_where_backward, state_type
from .body import Body

_ACTIVATIONS = ("identity", "tanh")


def reference(
    u: torch.Tensor,
    x: torch.Tensor,
    v: torch.Tensor,
    bias: torch.Tensor,
    c0: torch.Tensor,
    mask: torch.Tensor,
    *,
    direction: str,
    activation: str,
    masked: int,
    v_per_step: int,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Run the recurrence step by step.

    Args:
        u: [T, B, 3 * C], planar: candidate u0, forget gate u1, reset gate u2; any floating dtype.
        x: [T, B, C], the highway input, or [1, 1, C] to broadcast (zeros: no skip term).
        v: [1, 1, 2 * C], planar: forget, reset; [T, B, 2 * C] when `v_per_step`.
        bias: [2 * C], planar: forget, reset.
        c0: [B, C], the initial state, float32 or wider.
        mask: [T, B] INT32, non-zero at padding; not looked at unless `masked`.

    Returns:
        h [T, B, C] in the dtype of `u`, and the last c [B, C] in float32 (float64 for float64 tensors).
        T = 0 gives an empty h and c0.
    """
    wide = state_type(u.dtype)
    state = c0.to(wide)
    candidate, forget, reset = u.to(wide).chunk(3, dim=-1)
    b_forget, b_reset = bias.to(wide).chunk(2)
    forget, reset = forget + b_forget, reset + b_reset
    v_forget, v_reset = v.to(wide).expand(u.shape[0], -1, -1).chunk(2, dim=-1)
    run = [reversed_where_backward(t, direction) for t in (candidate, forget, v_forget)]
    padding = (mask != 0).unsqueeze(-1).expand(candidate.shape) if masked else None
    padding_run = reversed_where_backward(padding, direction) if padding is not None else None

    before, after = [], []
    for t in range(u.shape[0]):
        u0, u1, v1 = (part[t] for part in run)
        before.append(state)
        new = (state - u0) * torch.sigmoid(u1 + v1 * state) + u0
        state = new if padding_run is None else torch.where(padding_run[t], state, new)
        after.append(state)
    if not after:
        return torch.empty_like(candidate, dtype=u.dtype), state
    c_before = reversed_where_backward(torch.stack(before), direction)
    c = reversed_where_backward(torch.stack(after), direction)

    gate = torch.sigmoid(reset + v_reset * c_before)
    g = torch.tanh(c) if activation == "tanh" else c
    highway = x.to(wide)
    h = (g - highway) * gate + highway
    if padding is not None:
        h = torch.where(padding, torch.zeros_like(h), h)
    return h.to(u.dtype), state


def body(build: Body, variant: Variant, inputs: Mapping[str, ir.Value]) -> Sequence[ir.Value]:
    direction, masked = variant["direction"], variant["masked"]
    wide = ir.DataType.DOUBLE if variant.dtype == ir.DataType.DOUBLE else ir.DataType.FLOAT
    u, x, v, bias = (build.cast(inputs[name], variant.dtype, wide) for name in ("u", "x", "v", "bias"))
    candidate, forget, reset = build.split(u, 3)
    v_forget, v_reset = build.split(v, 2)
    b_forget, b_reset = build.split(bias, 2)
    candidate_run = build.reversed_where_backward(candidate, direction)
    forget_run = build.reversed_where_backward(build.op("Add", [forget, b_forget]), direction)
    sequences = [candidate_run, forget_run]
    if variant["v_per_step"]:
        sequences.append(build.reversed_where_backward(v_forget, direction))
    else:
        v_forget = build.op("Squeeze", [v_forget, build.constant([0, 1])])
    if masked:
        sequences.append(build.keep(inputs["mask"], candidate_run, direction))

    def step(inner: Body, state: ir.Value, slices: Sequence[ir.Value]) -> ir.Value:
        v_t = slices[2] if variant["v_per_step"] else v_forget
        gate = inner.op("Sigmoid", [inner.op("Add", [slices[1], inner.op("Mul", [state, v_t])])])
        moved = inner.op("Mul", [inner.op("Sub", [state, slices[0]]), gate])
        new = inner.op("Add", [moved, slices[0]])
        return inner.op("Where", [slices[-1], new, state]) if masked else new

    states, last = build.scan(inputs["c0"], sequences, step)
    c_before = build.reversed_where_backward(build.before(inputs["c0"], states), direction)
    c = build.reversed_where_backward(states, direction)

    gate = build.op(
        "Sigmoid", [build.op("Add", [build.op("Add", [reset, b_reset]), build.op("Mul", [v_reset, c_before])])]
    )
    g = build.op("Tanh", [c]) if variant["activation"] == "tanh" else c
    h = build.op("Add", [build.op("Mul", [build.op("Sub", [g, x]), gate]), x])
    if masked:
        kept = build.keep(inputs["mask"], h, "forward")
        zero = build.op("Constant", [], value=ir.tensor([0.0], wide))
        h = build.op("Where", [kept, h, zero])
    return build.cast(h, wide, variant.dtype), last


SRU_RECURRENCE = Recurrence(
    op_type="SRURecurrence",
    equation="f, r = sigmoid(u + b + v * c_{t-1}); c_t = (c_{t-1} - u0) * f + u0; h_t = (g(c_t) - x) * r + x",
    inputs=(
        Formal("u", "[T, B, 3 * C]", "candidate, forget gate, reset gate; planar"),
        Formal("x", "[T, B, C] or [1, 1, C]", "highway input; zeros without a skip term"),
        Formal("v", "[1, 1, 2 * C], or [T, B, 2 * C] with v_per_step", "what c_{t-1} weighs in forget, reset; planar"),
        Formal("bias", "[2 * C]", "forget, reset; planar"),
        Formal("c0", "[B, C]", "initial state", state=True),
        Formal("mask", "[T, B], or [1, 1] when not masked; INT32", "non-zero at padding"),
    ),
    outputs=(
        Formal("h", "[T, B, C]", "hidden state at every step, 0 at padding"),
        Formal("c", "[B, C]", "last cell state", state=True),
    ),
    attributes={"direction": DIRECTIONS, "activation": _ACTIVATIONS, "masked": (0, 1), "v_per_step": (0, 1)},
    reference=reference,
    body=body,
    output_shapes=lambda inputs: (
        (*inputs[0].shape[:2], inputs[4].shape[-1]),
        inputs[4].shape,
    ),
)
