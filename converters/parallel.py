"""The form `parallel`: a linear recurrence in log(T) steps, each one elementwise over the whole sequence.

    (a, b) at t and (a', b') at t - d combine to (a * a', a * b' + b);  after d = 1, 2, 4 ... < T: h_t = a_t * h0 + b_t

(Hillis & Steele 1986, "Data parallel algorithms".) There is neither division nor logarithm in it, so that it is
exact up to rounding. A dynamic T is cut into chunks of a fixed size, which a Scan of T / size steps carries the state
across.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from .base import Form, Lowering

#: Steps per chunk of a dynamic T: log2 of it is how often the sequence is gone through.
CHUNK = 64
_END = 2**31 - 1


def lower(lowering: Lowering) -> Sequence[ir.Value]:
    if lowering.node.op_type != "LinearRecurrence":
        raise lowering.refuse(
            "its gates read the state (weight_c is not 0): no parallel scan of it is exact; take scan or lstm"
        )
    build, variant, inputs, wide = lowering.build, lowering.variant, lowering.inputs, lowering.state_dtype
    direction = variant["direction"]
    a, b = (build.cast(inputs[name], variant.dtype, wide) for name in ("a", "b"))
    if variant["masked"]:
        kept = build.keep(inputs["mask"], a, "forward")
        a, b = (
            build.op("Where", [kept, a, _number(lowering, 1.0)]),
            build.op("Where", [kept, b, _number(lowering, 0.0)]),
        )
    a, b = (build.reversed_where_backward(value, direction) for value in (a, b))
    if lowering.length is not None:
        h = _states(lowering, *_prefix(lowering, a, b, lowering.length, axis=0), inputs["h0"], axis=0)
        lowering.report["steps"] = (lowering.length - 1).bit_length()
    else:
        h = _in_chunks(lowering, a, b)
        lowering.report |= {"chunk": CHUNK, "steps": (CHUNK - 1).bit_length()}
    last = build.op("Squeeze", [_slice(lowering, h, -1, _END, 0), build.constant([0])])
    h = build.reversed_where_backward(h, direction)
    return build.cast(h, wide, variant.dtype), last


def _prefix(lowering: Lowering, a: ir.Value, b: ir.Value, length: int, axis: int) -> tuple[ir.Value, ir.Value]:
    """All steps up to and with each one, combined into one."""
    build, distance = lowering.build, 1
    while distance < length:
        late_a, late_b = (_slice(lowering, value, distance, _END, axis) for value in (a, b))
        early_a, early_b = (_slice(lowering, value, 0, -distance, axis) for value in (a, b))
        first_a, first_b = (_slice(lowering, value, 0, distance, axis) for value in (a, b))
        b = build.op("Concat", [first_b, build.op("Add", [build.op("Mul", [late_a, early_b]), late_b])], axis=axis)
        a = build.op("Concat", [first_a, build.op("Mul", [late_a, early_a])], axis=axis)
        distance *= 2
    return a, b


def _states(lowering: Lowering, a: ir.Value, b: ir.Value, start: ir.Value, axis: int) -> ir.Value:
    build = lowering.build
    start = build.op("Unsqueeze", [start, build.constant([axis])])
    return build.op("Add", [build.op("Mul", [a, start]), b])


def _in_chunks(lowering: Lowering, a: ir.Value, b: ir.Value) -> ir.Value:
    build = lowering.build
    shape = build.op("Shape", [a])
    length, rest = _slice(lowering, shape, 0, 1, 0), _slice(lowering, shape, 1, _END, 0)
    size = build.constant([CHUNK])
    lacking = build.op("Mod", [build.op("Neg", [length]), size])
    pads = build.op("Concat", [build.constant([0, 0, 0]), lacking, build.constant([0, 0])], axis=0)
    chunked = build.op("Concat", [build.constant([-1, CHUNK]), rest], axis=0)
    a, b = (
        build.op("Reshape", [build.op("Pad", [value, pads, _number(lowering, neutral)]), chunked])
        for value, neutral in ((a, 1.0), (b, 0.0))
    )
    a, b = _prefix(lowering, a, b, CHUNK, axis=1)

    # Over the chunks: the state that each begins with.
    inner = build.inner()
    old, a_last, b_last = inner.value("state"), inner.value("a"), inner.value("b")
    new = inner.op("Add", [inner.op("Mul", [a_last, old]), b_last])
    graph = inner.graph([old, a_last, b_last], [new, inner.op("Identity", [old])], name=inner.name("graph"))
    ends = [build.op("Squeeze", [_slice(lowering, value, -1, _END, 1), build.constant([1])]) for value in (a, b)]
    starts = build.ops("Scan", [lowering.inputs["h0"], *ends], 2, num_scan_inputs=2, body=graph)[1]
    h = _states(lowering, a, b, starts, axis=1)
    whole = build.op("Reshape", [h, build.op("Concat", [build.constant([-1]), rest], axis=0)])
    return build.op("Slice", [whole, build.constant([0]), length, build.constant([0])])


def _slice(lowering: Lowering, value: ir.Value, start: int, stop: int, axis: int) -> ir.Value:
    build = lowering.build
    return build.op("Slice", [value, *(build.constant([n]) for n in (start, stop, axis))])


def _number(lowering: Lowering, value: float) -> ir.Value:
    return lowering.build.op("Constant", [], value=ir.tensor(np.array(value, lowering.state_dtype.numpy())))


PARALLEL = Form("parallel", "log(T) elementwise steps; linear recurrences only; a dynamic T in chunks", lower)
