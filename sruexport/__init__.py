"""sruexport: trained SRU and linear-RNN models from PyTorch to ONNX, proven equal.

>>> import sruexport
>>> sruexport.export(model, (example,), "model.onnx")
>>> h, c = sruexport.load("model.onnx")(array)
>>> assert sruexport.validate(model, "model.onnx").passed
"""

from __future__ import annotations

from ._version import __version__
from .building import Built
from .building import build_file as build
from .checkpoint import read
from .conversion import Conversion
from .conversion import convert_file as convert
from .engines.onnxruntime_kernels import library as kernels
from .errors import SruExportError
from .exporter import Exported, export
from .parity import Report, validate
from .runtime import LoadedModel, load
from .torch_conversion import TorchConversion
from .torch_conversion import convert_to_torch as torch_lstm

__all__ = [
    "Built",
    "Conversion",
    "Exported",
    "LoadedModel",
    "Report",
    "SruExportError",
    "TorchConversion",
    "__version__",
    "build",
    "convert",
    "export",
    "kernels",
    "load",
    "read",
    "torch_lstm",
    "validate",
]
