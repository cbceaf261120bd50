"""The form `unrolled`: every time step written out. T must be static; the graph grows with it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import onnx_ir as ir

from sruexport.recurrences import RECURRENCES
from sruexport.recurrences.body import Body

from .base import Form, Lowering


class UnrolledBody(Body):
    """A function body whose scans are written out over a known number of steps."""

    def scan(
        self,
        state: ir.Value,
        sequences: Sequence[ir.Value],
        step: Callable[[Body, ir.Value, Sequence[ir.Value]], ir.Value],
    ) -> tuple[ir.Value, ir.Value]:
        assert self.length is not None
        slices = [self._steps(sequence, self.length) for sequence in sequences]
        states = []
        for t in range(self.length):
            state = step(self, state, [steps[t] for steps in slices])
            states.append(self.op("Unsqueeze", [state, self.constant([0])]))
        return self.op("Concat", states, axis=0), state

    def _steps(self, sequence: ir.Value, length: int) -> list[ir.Value]:
        axis = self.constant([0])
        if length == 1:
            return [self.op("Squeeze", [sequence, axis])]
        parts = self.ops("Split", [sequence], length, axis=0, num_outputs=length)
        return [self.op("Squeeze", [part, axis]) for part in parts]


def lower(lowering: Lowering) -> Sequence[ir.Value]:
    if lowering.length is None:
        raise lowering.refuse("to be written out step by step its length must be static: fix it (--size T=50)")
    lowering.build = UnrolledBody(f"{lowering.layer}.", length=lowering.length)
    return RECURRENCES[lowering.node.op_type].body(lowering.build, lowering.variant, lowering.inputs)


UNROLLED = Form("unrolled", "every step written out; T static, and the graph grows with it", lower, static=True)
