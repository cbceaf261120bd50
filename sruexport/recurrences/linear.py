"""LinearRecurrence: the real, elementwise, first-order linear recurrence.

    h_t = a_t * h_{t-1} + b_t                 at padding: h_t = h_{t-1}

Most linear RNNs are this with their own gates in front (Martin & Cundy 2018, "Parallelizing Linear Recurrent
Neural Nets Over Sequence Length"). It can be scanned in parallel over T.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import onnx_ir as ir
import torch

from .base import DIRECTIONS, Formal, Recurrence, Variant, reversed_where_backward, state_type
from .body import Body


def reference(
    a: torch.Tensor, b: torch.Tensor, h0: torch.Tensor, mask: torch.Tensor, *, direction: str, masked: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Run the recurrence step by step.

    Args:
        a, b: [T, B, C], any floating dtype.
        h0: [B, C], the initial state, float32 or wider.
        mask: [T, B] INT32, non-zero at padding; not looked at unless `masked`.

    Returns:
        h [T, B, C] in the dtype of `a`, the state carried through padding, and the last state [B, C] in
        float32 (float64 for float64 tensors). T = 0 gives an empty h and h0.
    """
    state = h0.to(state_type(a.dtype))
    a_run = reversed_where_backward(a.to(state.dtype), direction)
    b_run = reversed_where_backward(b.to(state.dtype), direction)
    padding = reversed_where_backward((mask != 0).unsqueeze(-1).expand(a.shape), direction) if masked else None
    states = []
    for t in range(a.shape[0]):
        new = a_run[t] * state + b_run[t]
        state = new if padding is None else torch.where(padding[t], state, new)
        states.append(state)
    h = torch.stack(states) if states else torch.empty_like(a_run)
    return reversed_where_backward(h, direction).to(a.dtype), state


def body(build: Body, variant: Variant, inputs: Mapping[str, ir.Value]) -> Sequence[ir.Value]:
    direction = variant["direction"]
    state_dtype = ir.DataType.DOUBLE if variant.dtype == ir.DataType.DOUBLE else ir.DataType.FLOAT
    a, b = (
        build.reversed_where_backward(build.cast(inputs[name], variant.dtype, state_dtype), direction)
        for name in ("a", "b")
    )
    sequences = [a, b]
    if variant["masked"]:
        sequences.append(build.keep(inputs["mask"], a, direction))

    def step(inner: Body, state: ir.Value, slices: Sequence[ir.Value]) -> ir.Value:
        new = inner.op("Add", [inner.op("Mul", [state, slices[0]]), slices[1]])
        return inner.op("Where", [slices[2], new, state]) if variant["masked"] else new

    states, last = build.scan(inputs["h0"], sequences, step)
    h = build.reversed_where_backward(states, direction)
    return build.cast(h, state_dtype, variant.dtype), last


LINEAR_RECURRENCE = Recurrence(
    op_type="LinearRecurrence",
    equation="h_t = a_t * h_{t-1} + b_t",
    inputs=(
        Formal("a", "[T, B, C]", "decay"),
        Formal("b", "[T, B, C]", "input"),
        Formal("h0", "[B, C]", "initial state", state=True),
        Formal("mask", "[T, B], or [1, 1] when not masked; INT32", "non-zero at padding"),
    ),
    outputs=(
        Formal("h", "[T, B, C]", "state at every step"),
        Formal("h_last", "[B, C]", "last state", state=True),
    ),
    attributes={"direction": DIRECTIONS, "masked": (0, 1)},
    reference=reference,
    body=body,
    output_shapes=lambda inputs: (inputs[0].shape, inputs[2].shape),
)
