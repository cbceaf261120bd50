"""sruexport: trained SRU and linear-RNN models from PyTorch to ONNX, proven equal.

>>> import sruexport
>>> sruexport.export(model, (example,), "model.onnx")
>>> h, c = sruexport.load("model.onnx")(array)
>>> assert sruexport.validate(model, "model.onnx").passed
"""

from __future__ import annotations

from ._version import __version__
from .checkpoint import read
from .errors import SruExportError
from .exporter import Exported, export
from .parity import Report, validate
from .runtime import LoadedModel, load

__all__ = [
    "Exported",
    "LoadedModel",
    "Report",
    "SruExportError",
    "__version__",
    "export",
    "load",
    "read",
    "validate",
]
