"""The engines: one file each, one row here.

base.py           what an engine is
running.py        a file on an engine, in a form that it runs
features.py       what in a graph engines differ by
process.py, worker.py, wire.py    an engine's own process
environments.py   where an engine is installed

Only `base.py` and the engines' own files are imported here: this package is also imported in an engine's process, where
neither PyTorch nor onnx need be.
"""

from __future__ import annotations

from .base import AS_EXPORTED, Engine, Port, Session
from .coreml import CoreMl
from .executorch import ExecuTorch
from .iree import Iree
from .litert import LiteRt
from .mnn import Mnn
from .ncnn import Ncnn
from .onnxruntime import OnnxRuntime
from .onnxruntime_kernels import OnnxRuntimeKernels
from .onnxruntime_web import OnnxRuntimeWeb
from .openvino import OpenVino
from .pytorch import PyTorch
from .tensorrt_rtx import TensorRtRtx
from .tract import Tract
from .tvm import Tvm

ENGINES: dict[str, Engine] = {
    engine.name: engine
    for engine in (
        OnnxRuntime(),
        OnnxRuntimeKernels(),
        PyTorch(),
        OpenVino(),
        Tract(),
        Iree(),
        Tvm(),
        Ncnn(),
        Mnn(),
        OnnxRuntimeWeb(),
        LiteRt(),
        ExecuTorch(),
        CoreMl(),
        TensorRtRtx(),
    )
}

__all__ = ["AS_EXPORTED", "ENGINES", "Engine", "OnnxRuntime", "Port", "Session"]
