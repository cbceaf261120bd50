"""ncnn on the CPU, by way of pnnx."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from .base import Engine, Job, Opened, python_in


class Ncnn(Engine):
    name = "ncnn"
    title = "ncnn"
    packages = ("ncnn",)
    requirements = ("ncnn==1.0.20261020", "numpy", "pnnx==20261020")
    forms = ("parallel", "unrolled")
    static = True
    refuses = MappingProxyType(
        {
            "functions": "pnnx does not inline model-local functions",
            "custom ops": "it does not know them",
            "Loop": "it has none",
            "Scan": "it has none",
            "LinearAttention": "it has none",
            "LSTM": "pnnx knows it only with the ops around it that PyTorch exports",
            "GRU": "pnnx knows it only with the ops around it that PyTorch exports",
            "RNN": "pnnx knows it only with the ops around it that PyTorch exports",
            "Where": "it has none",
            "float16": "it has no casts",
            "bfloat16": "it has no casts",
            "float64": "it has no float64",
        }
    )
    notes = (
        "it has neither masks nor comparisons",
        "pnnx takes axis 0 for the batch in some graphs, as in those with a LayerNorm: over time they are refused",
    )

    def setup(self, environment: Path, run: Callable[[list[str], str], None]) -> None:
        run([sys.executable, "-m", "venv", str(environment)], "making an environment")
        pip = [str(python_in(environment)), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        *others, pnnx = self.requirements
        run([*pip, *others], f"installing {', '.join(others)}")
        # It asks for torch, but what is used of it is a program that needs nothing.
        run([*pip, "--no-deps", pnnx], f"installing {pnnx}")

    def open(self, job: Job) -> Opened:
        import ncnn

        others = [port.name for port in (*job.inputs, *job.outputs) if port.dtype != np.float32]
        if others:
            raise RuntimeError(f"it takes and gives float32 only, which '{others[0]}' is not")
        param, axes = _convert(job)
        net = ncnn.Net()
        net.opt.use_vulkan_compute = False
        net.opt.use_fp16_packed = net.opt.use_fp16_storage = net.opt.use_fp16_arithmetic = False
        net.opt.use_bf16_storage = False
        # A net that is used after it failed to load takes the process down.
        if net.load_param(str(param)) or net.load_model(str(param.with_suffix(".bin"))):
            raise RuntimeError("it cannot load what pnnx made of it")
        return _Opened(net, axes, job)


class _Opened(Opened):
    def __init__(self, net: Any, axes: Mapping[str, int], job: Job):
        self._net, self._axes, self._job = net, axes, job

    def run(self, feeds: Mapping[str, np.ndarray]) -> Sequence[np.ndarray]:
        import ncnn

        extractor = self._net.create_extractor()
        for index, port in enumerate(self._job.inputs):
            name = f"in{index}"
            array = np.array(feeds[port.name], order="C")
            if extractor.input(name, ncnn.Mat(array, batch_index=self._axes[name]).clone()):
                raise RuntimeError(f"it does not take '{port.name}'")
        outputs = []
        for index, port in enumerate(self._job.outputs):
            name = f"out{index}"
            failed, matrix = extractor.extract(name)
            if failed:
                raise RuntimeError(f"it does not give '{port.name}'")
            outputs.append(np.array(matrix.numpy(batch_index=self._axes[name])))
        return outputs


def _convert(job: Job) -> tuple[Path, dict[str, int]]:
    """What pnnx makes of a file, and which axis of each port it takes for the batch."""
    place = importlib.util.find_spec("pnnx")
    if place is None or place.origin is None:
        raise RuntimeError("pnnx is not installed")
    # It writes beside what it reads.
    source = job.workdir / "model.onnx"
    source.write_bytes(job.path.read_bytes())
    done = subprocess.run(
        [str(Path(place.origin).with_name("pnnx")), source.name, "fp16=0"],
        cwd=job.workdir,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    )
    param = job.workdir / "model.ncnn.param"
    if done.returncode or not param.is_file():
        raise RuntimeError(f"pnnx cannot convert it (exit code {done.returncode})")
    wrong = _faults(done.stdout, (job.workdir / "model.pnnx.param").read_text(), param.read_text())
    if wrong:
        raise RuntimeError("; ".join(dict.fromkeys(wrong)))
    example = (job.workdir / "model_ncnn.py").read_text()
    ports = re.findall(r"(in\d+)\.numpy\(\), batch_index=(\d+)|(out\d+)\.numpy\(batch_index=(\d+)\)", example)
    return param, {source or target: int(of_source or of_target) for source, of_source, target, of_target in ports}


def _faults(printed: str, between: str, param: str) -> list[str]:
    """What pnnx (20261020) gets wrong, or leaves out, with exit code 0."""
    faults = []
    for line in printed.splitlines():
        if line.startswith("ignore "):
            faults.append(f"pnnx has no rule for {line.split()[1]}")
        elif "along batch axis" in line:
            faults.append(f"pnnx takes an axis for the batch: {line}")
    for line in between.splitlines():
        if line.startswith("Tensor.select ") and " index=(" in line:
            faults.append("of a Gather's indices pnnx takes the first only")
    for line in param.splitlines():
        if line.startswith("Reduction ") and "-23303=0" in line:
            faults.append("pnnx loses the axes of a reduction")
    return faults
