"""ONNX to ONNX: the recurrences in forms for engines without functions and plugins.

Installed as `sruexport.converters`. One file per target form, one row in `CONVERTERS`.
"""

from __future__ import annotations

from collections.abc import Callable

import onnx_ir as ir

from .inlined import inline

CONVERTERS: dict[str, Callable[[ir.Model], ir.Model]] = {"inlined": inline}

__all__ = ["CONVERTERS", "inline"]
