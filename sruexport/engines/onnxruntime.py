"""ONNX Runtime on the CPU. Without a kernel library registered it inlines the recurrences' function bodies."""

from __future__ import annotations

import importlib.metadata
import importlib.util
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from sruexport.errors import ModelFileError

from .base import Engine, Port, Session

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

    def version(self) -> str | None:
        if importlib.util.find_spec("onnxruntime") is None:
            return None
        for distribution in ("onnxruntime", "onnxruntime-gpu"):
            try:
                return importlib.metadata.version(distribution)
            except importlib.metadata.PackageNotFoundError:
                continue
        return "unknown"

    def load(self, path: Path | bytes, threads: int = 0) -> Session:
        if self.version() is None:
            raise ModelFileError("ONNX Runtime is not installed: pip install onnxruntime")
        return _OrtSession(path, threads)


class _OrtSession(Session):
    def __init__(self, path: Path | bytes, threads: int):
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.log_severity_level = _SILENT
        options.intra_op_num_threads = threads
        shown = path if isinstance(path, Path) else "the graph"
        if isinstance(path, Path) and not path.is_file():
            raise ModelFileError(f"{path}: is a folder" if path.is_dir() else f"{path}: there is no such file")
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
