"""The form `loop`: every recurrence as an ONNX Loop over time, with nothing but the state inside."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import onnx_ir as ir

from sruexport.recurrences import RECURRENCES
from sruexport.recurrences.body import Body

from .base import Form, Lowering


class LoopBody(Body):
    """A function body whose scans are Loops."""

    def scan(
        self,
        state: ir.Value,
        sequences: Sequence[ir.Value],
        step: Callable[[Body, ir.Value, Sequence[ir.Value]], ir.Value],
    ) -> tuple[ir.Value, ir.Value]:
        inner = self.inner()
        t, going, old = inner.value("t"), inner.value("going"), inner.value("state")
        t.dtype, t.shape = ir.DataType.INT64, ir.Shape([])
        going.dtype, going.shape = ir.DataType.BOOL, ir.Shape([])
        new = step(inner, old, [inner.op("Gather", [sequence, t], axis=0) for sequence in sequences])
        outputs = [inner.op("Identity", [going]), new, inner.op("Identity", [new])]
        graph = inner.graph([t, going, old], outputs, name=inner.name("graph"))
        length = self.op("Shape", [sequences[0]], start=0, end=1)
        count = self.op("Squeeze", [length, self.constant([0])])
        true = self.op("Constant", [], value=ir.tensor(np.array(True)))
        last, states = self.ops("Loop", [count, true, state], 2, body=graph)
        return states, last


def lower(lowering: Lowering) -> Sequence[ir.Value]:
    lowering.build = LoopBody(f"{lowering.layer}.", length=lowering.length)
    return RECURRENCES[lowering.node.op_type].body(lowering.build, lowering.variant, lowering.inputs)


LOOP = Form("loop", "Loop over time, only the state in the loop; T dynamic", lower, features=("Loop",))
