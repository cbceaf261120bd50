"""ONNX Runtime with moods, to see what becomes of an engine's faults. This file also runs in its process."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

import numpy as np

from sruexport.engines.base import Job, Opened
from sruexport.engines.onnxruntime import OnnxRuntime


class Moody(OnnxRuntime):
    """Off by a little where there is an LSTM, aborts at a Scan, refuses a Loop, and runs all else."""

    name = "moody"
    title = "Moody"
    packages = ("numpy",)
    forms = ("lstm", "scan", "loop", "unrolled")
    refuses: Mapping[str, str] = {}
    wrong: Mapping[str, str] = {}

    def open(self, job: Job) -> Opened:
        content = job.path.read_bytes()
        if b"Scan" in content:
            os.abort()
        if b"Loop" in content:
            raise ValueError("no rule for 'Loop'")
        opened = super().open(job)
        return _Off(opened) if b"LSTM" in content else opened


class _Off(Opened):
    def __init__(self, opened: Opened):
        self._opened = opened

    def run(self, feeds: Mapping[str, np.ndarray]) -> Sequence[np.ndarray]:
        return [array + array.dtype.type(0.01) for array in self._opened.run(feeds)]


class Builder(Moody):
    """Builds what it has no machine for, but no Loop."""

    name = "builder"
    title = "Builder"
    forms = ("loop", "unrolled")
    only_builds = "its machine is elsewhere"

    def open(self, job: Job) -> Opened:
        super().open(job)
        return _Built()


class _Built(Opened):
    def run(self, feeds: Mapping[str, np.ndarray]) -> Sequence[np.ndarray]:
        raise RuntimeError(f"it is built, but {Builder.only_builds}")


class Well(OnnxRuntime):
    """ONNX Runtime, with another order of forms."""

    name = "well"
    title = "Well"
    packages = ("numpy",)
    forms = ("parallel", "loop", "lstm")
