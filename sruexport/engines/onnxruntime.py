"""ONNX Runtime on the CPU. Without a library of kernels it inlines the recurrences' function bodies."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import ClassVar

import numpy as np

from sruexport.errors import EngineError, ModelFileError

from .base import AS_EXPORTED, Engine, Job, Opened, Port, Session

_TYPES = {
    "tensor(float)": np.float32,
    "tensor(float16)": np.float16,
    "tensor(double)": np.float64,
    "tensor(int64)": np.int64,
    "tensor(int32)": np.int32,
    "tensor(int16)": np.int16,
    "tensor(int8)": np.int8,
    "tensor(uint8)": np.uint8,
    "tensor(bool)": np.bool_,
}
_SILENT = 4  # errors come back as exceptions; the log would say them twice


class OnnxRuntime(Engine):
    name = "onnxruntime"
    title = "ONNX Runtime"
    packages = ("onnxruntime", "onnxruntime-gpu")
    # A Scan of elementwise steps takes less time than an LSTM, whose R is a product in every step.
    forms: ClassVar[tuple[str, ...]] = (
        "scan",
        AS_EXPORTED,
        "parallel",
        "loop",
        "unrolled",
        "lstm",
        "lstm-forward",
        "lstm-peephole-tanh",
        "lstm-peephole",
        "linear-attention",
    )
    refuses = MappingProxyType(
        {
            "LSTM.layout": "Batchwise recurrent operations (layout == 1) are not supported",
            "LSTM.bfloat16": "Could not find an implementation for LSTM(22)",
            "LSTM.float64": "LSTM operator does not support double yet",
        }
    )
    wrong = MappingProxyType({"LSTM.affine": "Affine without its alpha gives zeros"})

    def open(self, job: Job) -> Opened:
        return opened(load(job.path))


def load(path: Path | bytes, threads: int = 0, kernels: Path | None = None) -> OrtSession:
    """Load a file in this process.

    Args:
        threads: of the session; 0: as many as ONNX Runtime chooses.
        kernels: a library with kernels of the recurrences; without one their function bodies run.

    Raises:
        EngineError: the library cannot be loaded, or is not for this ONNX Runtime.
        ModelFileError: the file cannot be read, or ONNX Runtime does not take it.
    """
    if importlib.util.find_spec("onnxruntime") is None:
        raise ModelFileError("ONNX Runtime is not installed: pip install onnxruntime")
    return OrtSession(path, threads, kernels)


def opened(session: OrtSession) -> Opened:
    """A session in this process as an engine's."""
    return _Opened(session)


class _Opened(Opened):
    def __init__(self, session: OrtSession):
        self._session = session

    def run(self, feeds: Mapping[str, np.ndarray]) -> Sequence[np.ndarray]:
        return list(self._session.run(feeds).values())


class OrtSession(Session):
    def __init__(self, path: Path | bytes, threads: int, kernels: Path | None):
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.log_severity_level = _SILENT
        options.intra_op_num_threads = threads
        shown = path if isinstance(path, Path) else "the graph"
        if isinstance(path, Path) and not path.is_file():
            raise ModelFileError(f"{path}: is a folder" if path.is_dir() else f"{path}: there is no such file")
        if kernels is not None:
            try:
                options.register_custom_ops_library(str(kernels))
            except Exception as error:
                raise EngineError(
                    f"{kernels}: ONNX Runtime cannot load these kernels: {_short(error)}; SRUEXPORT_KERNELS=off does "
                    "without them"
                ) from error
        try:
            model = path if isinstance(path, bytes) else str(path)
            self._session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        except Exception as error:
            if "INVALID_PROTOBUF" in str(error):
                raise ModelFileError(f"{shown}: is cut off, damaged or no ONNX file") from error
            raise ModelFileError(f"{shown}: ONNX Runtime cannot load it: {_short(error)}") from error
        self._shown = shown
        self.inputs = tuple(_port(arg, shown) for arg in self._session.get_inputs())
        self.outputs = tuple(_port(arg, shown) for arg in self._session.get_outputs())
        self.metadata: dict[str, str] = dict(self._session.get_modelmeta().custom_metadata_map)

    def run(self, feeds: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        names = [port.name for port in self.outputs]
        try:
            return dict(zip(names, self._session.run(names, dict(feeds)), strict=True))
        except Exception as error:
            raise ModelFileError(f"{self._shown}: ONNX Runtime cannot run it: {_short(error)}") from error


def _port(arg: object, shown: object) -> Port:
    name, kind, shape = arg.name, arg.type, arg.shape  # type: ignore[attr-defined]
    if kind not in _TYPES:
        raise ModelFileError(f"{shown}: '{name}' is {kind}, which NumPy has no type for")
    return Port(name, np.dtype(_TYPES[kind]), tuple(dim if isinstance(dim, int) else str(dim) for dim in shape))


def _short(error: Exception) -> str:
    return " ".join(str(error).split())[:300]
