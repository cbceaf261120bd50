"""ExecuTorch on the CPU: what XNNPACK takes runs there, the rest in the portable kernels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from .base import Engine, Job, Opened


class ExecuTorch(Engine):
    name = "executorch"
    title = "ExecuTorch"
    packages = ("executorch",)
    requirements = ("torch==2.13.0", "executorch==1.5.1", "torchao==0.18.0", "numpy==2.4.6")
    forms = ("torch-lstm",)
    takes = "program"
    static = True
    notes = ("its LSTMs are unrolled: each takes half a second or more per step and direction to convert",)

    def open(self, job: Job) -> Opened:
        import torch
        from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
        from executorch.exir import to_edge_transform_and_lower
        from executorch.runtime import Runtime, Verification

        program = torch.export.load(str(job.path))
        written = to_edge_transform_and_lower(program, partitioner=[XnnpackPartitioner()]).to_executorch()
        loaded = Runtime.get().load_program(bytes(written.buffer), verification=Verification.Minimal)
        return _Opened(loaded, job)


class _Opened(Opened):
    def __init__(self, program: Any, job: Job):
        self._program, self._job = program, job  # the method lives in the program's memory
        self._method = program.load_method("forward")

    def run(self, feeds: Mapping[str, np.ndarray]) -> Sequence[np.ndarray]:
        import torch

        outputs = self._method.execute([torch.from_numpy(np.array(feeds[p.name], order="C")) for p in self._job.inputs])
        # A copy: the tensors are overwritten by the next run.
        return [np.array(output.numpy()) for output in outputs]
