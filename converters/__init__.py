"""ONNX to ONNX: the recurrences in forms for engines without functions and plugins.

Installed as `sruexport.converters`. One file per target form, one row in `FORMS`.
"""

from __future__ import annotations

from .base import Converted, Form, Lowering, Settings, convert, form_of, is_converted
from .linear_attention import LINEAR_ATTENTION
from .loop import LOOP
from .lstm import LSTM, LSTM_FORWARD, LSTM_PEEPHOLE, LSTM_PEEPHOLE_TANH
from .parallel import PARALLEL
from .scan import SCAN
from .sizes import fix_sizes, raise_opset
from .unrolled import UNROLLED
from .widened import widened

FORMS: dict[str, Form] = {
    form.name: form
    for form in (
        LSTM,
        LSTM_FORWARD,
        LSTM_PEEPHOLE,
        LSTM_PEEPHOLE_TANH,
        SCAN,
        LOOP,
        UNROLLED,
        PARALLEL,
        LINEAR_ATTENTION,
    )
}

__all__ = [
    "FORMS",
    "Converted",
    "Form",
    "Lowering",
    "Settings",
    "convert",
    "fix_sizes",
    "form_of",
    "is_converted",
    "raise_opset",
    "widened",
]
