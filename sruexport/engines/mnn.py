"""MNN on the CPU."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np

from .base import Engine, Job, Opened

#: Its converter without its script: importing that one installs a package and sends what it converts to its makers.
_CONVERT = "import sys, _tools; _tools.mnnconvert(['mnnconvert'] + sys.argv[1:])"


class Mnn(Engine):
    name = "mnn"
    title = "MNN"
    packages = ("MNN",)
    requirements = ("MNN==3.6.1", "numpy")
    forms = ("parallel", "loop", "unrolled")
    refuses = MappingProxyType(
        {
            "functions": "its converter does not inline model-local functions",
            "custom ops": "it does not know them",
            "Scan": "These Op Not Support: ONNX::Scan",
            "LinearAttention": "These Op Not Support: ONNX::LinearAttention",
            "LSTM.peepholes": "MNN LSTM not support 8th input (peepholes)",
            "LSTM.activations": "MNN LSTM Don't support activation",
            "bfloat16": "it gives no outputs",
        }
    )
    wrong = MappingProxyType(
        {
            "LSTM.scaled": "its tanh is off by 2e-7 however small it is, which the scale makes 5e-4 to 0.7 (3.6.1)",
            "LSTM.reverse": "it runs forward (3.6.1)",
            "LSTM.sequence_lens": "they are ignored (3.6.1)",
            "LSTM.clip": "it is ignored (3.6.1)",
            "LSTM.input_forget": "it is ignored (3.6.1)",
            "LSTM.layout": "it is ignored (3.6.1)",
            "float64": "it is computed in float32 (3.6.1)",
        }
    )

    def open(self, job: Job) -> Opened:
        import MNN

        target = job.workdir / "model.mnn"
        command = [sys.executable, "-c", _CONVERT, "-f", "ONNX", "--modelFile", str(job.path)]
        command += ["--MNNModel", str(target), "--bizCode", "sruexport"]
        # A process of its own: its errors are what it prints, and it exits with 0 after them.
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        if done.returncode or "Converted Success" not in done.stdout:
            raise RuntimeError(_reason(done.stdout))
        manager = MNN.nn.create_runtime_manager(({"backend": 0, "precision": "high"},))
        names = ([port.name for port in ports] for ports in (job.inputs, job.outputs))
        try:
            return _Opened(MNN.nn.load_module_from_file(str(target), *names, runtime_manager=manager), job)
        except SystemError:
            raise RuntimeError("it cannot load what its converter made of it") from None


class _Opened(Opened):
    def __init__(self, module: Any, job: Job):
        self._module, self._job = module, job

    def run(self, feeds: Mapping[str, np.ndarray]) -> Sequence[np.ndarray]:
        import MNN

        found = self._module.forward([_variable(feeds[port.name]) for port in self._job.inputs])
        outputs = found if isinstance(found, (tuple, list)) else [found]
        if len(outputs) != len(self._job.outputs):
            raise RuntimeError("it gives no outputs")
        arrays = []
        for output, port in zip(outputs, self._job.outputs):
            if output.data_format == MNN.expr.NC4HW4:
                output = MNN.expr.convert(output, MNN.expr.NCHW)
            arrays.append(np.array(output.read()).reshape(output.shape).astype(port.dtype, copy=False))
        return arrays


def _variable(array: np.ndarray) -> Any:
    import MNN

    # It has no other integers.
    kind, dtype = (MNN.expr.float, np.float32) if array.dtype.kind == "f" else (MNN.expr.int, np.int32)
    variable = MNN.expr.placeholder(list(array.shape), MNN.expr.NCHW, kind)
    variable.write(np.array(array, dtype, order="C"))
    return variable


def _reason(printed: str) -> str:
    """What its converter printed, without what it prints in any case."""
    lines = [re.sub(r"^(\[[\d:]+\] )?(:\d+: )?", "", line.strip()) for line in printed.splitlines()]
    usual = ("The device supports", "ONNX Model", "Start to", "Check it out", "Use While", "Converted Failed")
    return " | ".join(line for line in lines if line and not line.startswith(usual)) or "no reason given"
