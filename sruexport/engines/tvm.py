"""Apache TVM on the CPU: imported to Relax, compiled by LLVM for this machine, run by its virtual machine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np

from .base import Engine, Job, Opened


class Tvm(Engine):
    name = "tvm"
    title = "Apache TVM"
    packages = ("apache-tvm",)
    requirements = ("apache-tvm==0.27.0.post1", "apache-tvm-ffi==0.1.15.post2", "onnx==1.23.2", "numpy")
    forms = ("parallel", "unrolled")
    refuses = MappingProxyType(
        {
            "functions": "its importer does not inline model-local functions",
            "custom ops": "it does not know them",
            "Loop": "not supported for frontend ONNX",
            "Scan": "not supported for frontend ONNX",
            "LSTM": "not supported for frontend ONNX",
            "GRU": "not supported for frontend ONNX",
            "RNN": "not supported for frontend ONNX",
            "LinearAttention": "not supported for frontend ONNX",
        }
    )

    def open(self, job: Job) -> Opened:
        import onnx
        import tvm
        from tvm import relax
        from tvm.relax.frontend.onnx import from_onnx

        module = from_onnx(onnx.load(str(job.path)), keep_params_in_input=False)
        machine = relax.VirtualMachine(tvm.compile(module, target="llvm"), tvm.cpu())
        return _Opened(machine["main"], job)


class _Opened(Opened):
    def __init__(self, function: Any, job: Job):
        self._function, self._job = function, job

    def run(self, feeds: Mapping[str, np.ndarray]) -> Sequence[np.ndarray]:
        import tvm

        # By position: it renames the inputs.
        arrays = [np.array(feeds[port.name], order="C") for port in self._job.inputs]
        found = self._function(*(tvm.runtime.tensor(array) for array in arrays))
        outputs = [found] if hasattr(found, "numpy") else found
        return [output.numpy() for output in outputs]
