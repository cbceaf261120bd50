"""The form `scan`: every recurrence as an ONNX Scan over time, with nothing but the state inside.

It is the recurrences' own function bodies, inlined. Only constants are captured from outside the Scan: what is computed
and read inside it comes in as a state or a sequence, which is all that some engines take.
"""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from sruexport.recurrences import RECURRENCES

from . import unrolled
from .base import Form, Lowering


def lower(lowering: Lowering) -> Sequence[ir.Value]:
    if lowering.length == 1:
        # A Scan of one step: an engine has gone wrong in it (IREE 3.13).
        return unrolled.lower(lowering)
    return RECURRENCES[lowering.node.op_type].body(lowering.build, lowering.variant, lowering.inputs)


SCAN = Form("scan", "Scan over time, only the state in the loop; T dynamic", lower, features=("Scan",))
