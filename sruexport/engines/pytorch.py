"""PyTorch itself: runs the program that engines which convert from PyTorch start from."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from .base import Engine, Job, Opened


class PyTorch(Engine):
    name = "pytorch"
    title = "PyTorch"
    packages = ("torch",)
    forms = ("torch-lstm",)
    takes = "program"
    static = True

    def open(self, job: Job) -> Opened:
        import torch

        return _Opened(torch.export.load(str(job.path)).module(), job)


class _Opened(Opened):
    def __init__(self, program: Callable[..., Any], job: Job):
        self._program, self._job = program, job

    def run(self, feeds: Mapping[str, np.ndarray]) -> Sequence[np.ndarray]:
        import torch

        with torch.no_grad():
            values = self._program(*(torch.from_numpy(np.array(feeds[port.name])) for port in self._job.inputs))
        return [value.numpy() for value in values]
