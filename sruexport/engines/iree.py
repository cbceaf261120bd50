"""IREE on the CPU: imported to MLIR, compiled by LLVM for this machine, run by its runtime."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np

from .base import Engine, Job, Opened


class Iree(Engine):
    name = "iree"
    title = "IREE"
    packages = ("iree-base-compiler",)
    requirements = ("iree-base-compiler[onnx]==3.13.0", "iree-base-runtime==3.13.0", "numpy")
    forms = ("scan", "parallel", "lstm", "lstm-forward", "unrolled")
    refuses = MappingProxyType(
        {
            "functions": "its importer does not inline model-local functions",
            "custom ops": "it does not know them",
            "Loop": "failed to legalize operation onnx.Loop",
            "LinearAttention": "failed to legalize operation",
            "LSTM.reverse": "only forward and bidirectional",
            "LSTM.clip": "it is not supported",
            "LSTM.input_forget": "it is not supported",
            "float64": "it is computed in float32, and does not fit what comes out",
        }
    )
    wrong = MappingProxyType(
        {
            "LSTM.peepholes": "they are ignored (3.13)",
            "LSTM.activations": "LeakyRelu and Affine are taken for others (3.13)",
            "LSTM.sequence_lens": "they are ignored (3.13)",
            "LSTM.dynamic": "off by 0.1 and more where what stands beside it was computed before it (3.13)",
            "Scan.dynamic": "its sequence comes out with length 1 (3.13)",
            "Scan.one step": "off by more than 1 where what stands beside it was computed before it (3.13)",
        }
    )

    def open(self, job: Job) -> Opened:
        import iree.compiler.tools as compiler

        mlir = job.workdir / "model.mlir"
        command = [
            sys.executable,
            "-W",
            "ignore",
            "-m",
            "iree.compiler.tools.import_onnx",
            str(job.path),
            "-o",
            str(mlir),
        ]
        # A process of its own: the importer is a program, and its errors are what it prints.
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(f"import: {_last_line(done.stderr)}")
        try:
            compiled = compiler.compile_file(
                str(mlir),
                input_type="onnx",
                target_backends=["llvm-cpu"],
                extra_args=["--iree-llvmcpu-target-cpu=host"],
            )
        except compiler.CompilerToolError as error:
            said = str(error)
            raise RuntimeError(said[max(0, said.find("error:")) :].splitlines()[0][:400]) from None
        return _Opened(_function(compiled), job)


class _Opened(Opened):
    def __init__(self, function: Callable[..., Any], job: Job):
        self._function, self._job = function, job

    def run(self, feeds: Mapping[str, np.ndarray]) -> Sequence[np.ndarray]:
        found = self._function(*(np.array(feeds[port.name], order="C") for port in self._job.inputs))
        outputs = found if isinstance(found, (tuple, list)) else (found,)
        # Truth values come back as bytes.
        return [np.array(out.to_host()).astype(port.dtype, copy=False) for out, port in zip(outputs, self._job.outputs)]


def _function(compiled: bytes) -> Callable[..., Any]:
    import iree.runtime as runtime

    config = runtime.Config("local-sync")
    module = runtime.VmModule.copy_buffer(config.vm_instance, compiled)
    context = runtime.SystemContext(config=config)
    context.add_vm_module(module)
    names = [name for name in module.function_names if not name.endswith("$async") and not name.startswith("__")]
    return context.modules[module.name][names[0]]


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:400] if lines else "no reason given"
