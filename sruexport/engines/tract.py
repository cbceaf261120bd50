"""tract on the CPU."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np

from .base import Engine, Job, Opened


class Tract(Engine):
    name = "tract"
    title = "tract"
    packages = ("tract",)
    requirements = ("tract==0.23.9", "numpy")
    forms = ("scan", "parallel", "lstm", "lstm-forward", "unrolled")
    refuses = MappingProxyType(
        {
            "functions": "it knows no model-local functions",
            "custom ops": "it does not know them",
            "Loop": "Unimplemented(Loop)",
            "LinearAttention": "Unimplemented",
            "float64": "Sigmoid does not support F64",
            "bfloat16": "Unknown DatumType Bfloat16",
        }
    )
    wrong = MappingProxyType(
        {
            "LSTM.activations": "they are ignored (0.23.9)",
            "LSTM.clip": "it is ignored (0.23.9)",
            "LSTM.input_forget": "it is ignored (0.23.9)",
            "LSTM.reverse": "it runs forward (0.23.9)",
        }
    )

    def open(self, job: Job) -> Opened:
        import tract

        try:
            return _Opened(tract.onnx().load(str(job.path)).into_model().into_runnable(), job)
        except tract.TractError as error:
            raise RuntimeError(_short(error)) from None


class _Opened(Opened):
    def __init__(self, runnable: Any, job: Job):
        self._runnable, self._job = runnable, job

    def run(self, feeds: Mapping[str, np.ndarray]) -> Sequence[np.ndarray]:
        import tract

        try:
            outputs = self._runnable.run([feeds[port.name] for port in self._job.inputs])
        except tract.TractError as error:
            raise RuntimeError(_short(error)) from None
        return [output.to_numpy() for output in outputs]


def _short(error: Exception) -> str:
    """Without the backtrace."""
    lines = str(error).split("Stack backtrace")[0].splitlines()
    return " | ".join(line.strip() for line in lines if line.strip())
