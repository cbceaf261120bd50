"""ONNX Runtime on the CPU with our own kernels (plugins/onnxruntime) registered: files as they were exported."""

from __future__ import annotations

import ctypes
import importlib.metadata
import os
from pathlib import Path

from .base import AS_EXPORTED, Job, Opened
from .onnxruntime import OnnxRuntime, load, opened

#: A library in place of the installed one, or "off".
VARIABLE = "SRUEXPORT_KERNELS"
_FOLDER = Path(__file__).resolve().parent.parent / "native"
_REMEDY = (
    "bring ONNX Runtime's headers (scripts/onnxruntime_headers, or ONNXRUNTIME_INCLUDE_DIR) and a C++ compiler, "
    "then install sruexport again"
)


class OnnxRuntimeKernels(OnnxRuntime):
    name = "onnxruntime-kernels"
    title = "ONNX Runtime with native kernels"
    forms = (AS_EXPORTED, *(form for form in OnnxRuntime.forms if form != AS_EXPORTED))

    def absence(self) -> str:
        return "" if library() else missing()

    def find(self, environment: Path) -> str | None:
        found, own = _runtime(), library()
        return f"{found}, {instructions(own)}" if found and own else None

    def open(self, job: Job) -> Opened:
        return opened(load(job.path, kernels=library()))


def library() -> Path | None:
    """The library of native kernels; None where there is none, or SRUEXPORT_KERNELS is off.

    `sruexport.load` registers it. For a session of your own, with every kernel for the CPU that the file needs:

    >>> options = onnxruntime.SessionOptions()
    >>> options.register_custom_ops_library(str(sruexport.kernels()))
    >>> session = onnxruntime.InferenceSession("model.onnx", options)
    """
    wanted = os.environ.get(VARIABLE, "")
    if wanted:
        return None if wanted == "off" else Path(wanted).expanduser().resolve()
    return next(iter(sorted(_FOLDER.glob("*sruexport_onnxruntime.*"))), None)


def missing() -> str:
    """Why there is no library, and how to get it."""
    if os.environ.get(VARIABLE) == "off":
        return f"{VARIABLE} is off"
    try:
        reason = (_FOLDER / "absent.txt").read_text(encoding="utf-8").strip()
    except OSError:
        reason = "the kernels were not built"
    return f"{reason} when sruexport was installed: {_REMEDY}"


def without() -> str:
    """What to say where files run without kernels: why, and how to get them; empty where there are some."""
    return "" if library() else f"without native kernels: {missing()}"


def instructions(path: Path) -> str:
    """The instruction set that a library uses on this machine: "AVX-512", "AVX2" or "portable"."""
    try:
        target = ctypes.CDLL(str(path)).sruexport_kernels_target
    except (OSError, AttributeError):
        return "unknown"
    target.restype = ctypes.c_char_p
    return target().decode()


def _runtime() -> str | None:
    """The version of the installed ONNX Runtime."""
    for package in OnnxRuntime.packages:
        try:
            return importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return None
