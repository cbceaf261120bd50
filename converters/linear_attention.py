"""The form `linear-attention`: a linear recurrence with a > 0 as one standard op, LinearAttention of opset 27.

S_t = exp(g_t) * S_{t-1} + k_t * v_t,  o_t = q_t * S_t      with as many heads as channels, each of size 1,
                                                          g = log a, v = b, k = q = scale = 1
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from .base import Form, Lowering

#: The least decay: its logarithm is finite, and in float32 it forgets everything.
_LEAST = 1e-37


def lower(lowering: Lowering) -> Sequence[ir.Value]:
    if lowering.node.op_type != "LinearRecurrence":
        raise lowering.refuse("its gates read the state (weight_c is not 0), and LinearAttention's do not")
    build, variant, inputs, wide = lowering.build, lowering.variant, lowering.inputs, lowering.state_dtype
    decay = lowering.bounds.of(inputs["a"])
    if decay.low < 0:
        raise lowering.refuse(
            f"LinearAttention takes the decay's logarithm, and it is only known to be in [{decay.low:.3g}, "
            f"{decay.high:.3g}]"
        )
    if wide == ir.DataType.DOUBLE:
        raise lowering.refuse("LinearAttention has no float64")
    channels = inputs["h0"].shape[-1] if inputs["h0"].shape is not None else None
    if not isinstance(channels, int):
        raise lowering.refuse("its number of channels is not known")
    a, b = (build.cast(inputs[name], variant.dtype, wide) for name in ("a", "b"))
    one, zero, least = (build.op("Constant", [], value=ir.tensor(np.array(n, np.float32))) for n in (1, 0, _LEAST))
    if variant["masked"]:
        kept = build.keep(inputs["mask"], a, "forward")
        a, b = build.op("Where", [kept, a, one]), build.op("Where", [kept, b, zero])
    a, b = (build.reversed_where_backward(value, variant["direction"]) for value in (a, b))
    # LinearAttention has the batch first.
    g = build.op("Transpose", [build.op("Log", [build.op("Max", [a, least])])], perm=[1, 0, 2])
    v = build.op("Transpose", [b], perm=[1, 0, 2])
    ones = build.op("Expand", [one, build.op("Shape", [v])])
    past = build.op("Unsqueeze", [inputs["h0"], build.constant([2, 3])])
    out, present = build.ops(
        "LinearAttention",
        [ones, ones, v, past, g],
        2,
        update_rule="gated",
        q_num_heads=channels,
        kv_num_heads=channels,
        scale=1.0,
    )
    h = build.reversed_where_backward(build.op("Transpose", [out], perm=[1, 0, 2]), variant["direction"])
    return build.cast(h, wide, variant.dtype), build.op("Squeeze", [present, build.constant([2, 3])])


LINEAR_ATTENTION = Form(
    "linear-attention",
    "one LinearAttention op; linear recurrences with a > 0 only",
    lower,
    opset=27,
    features=("LinearAttention",),
)
