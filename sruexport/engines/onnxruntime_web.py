"""ONNX Runtime Web: ONNX Runtime as WebAssembly, which browsers run; here in Node."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from sruexport.errors import EngineError

from .base import AS_EXPORTED, Engine, Job, Opened
from .wire import receive, send

_PACKAGE = "onnxruntime-web"
_VERSION = "1.30.0"
_SCRIPT = Path(__file__).with_suffix(".mjs")


class OnnxRuntimeWeb(Engine):
    name = "onnxruntime-web"
    title = "ONNX Runtime Web"
    packages = (_PACKAGE,)
    requirements = (f"{_PACKAGE}@{_VERSION}",)
    forms = ("parallel", "scan", AS_EXPORTED, "loop", "lstm", "lstm-forward", "lstm-peephole", "lstm-peephole-tanh",
             "unrolled")  # fmt: skip
    refuses = MappingProxyType(
        {
            "LinearAttention": "it knows opsets up to 26",
            "LSTM.layout": "layout_ == 0 was false",
            "LSTM.bfloat16": "Could not find an implementation for LSTM(22)",
            "LSTM.float64": "LSTM operator does not support double yet",
        }
    )
    wrong = MappingProxyType({"LSTM.affine": "Affine without its alpha gives zeros (1.30)"})
    notes = ("it needs Node.js, with npm, on PATH",)

    def find(self, environment: Path) -> str | None:
        described = environment / "node_modules" / _PACKAGE / "package.json"
        if shutil.which("node") is None or not described.is_file():
            return None
        return str(json.loads(described.read_text(encoding="utf-8"))["version"])

    def setup(self, environment: Path, run: Callable[[list[str], str], None]) -> None:
        for program in ("node", "npm"):
            if shutil.which(program) is None:
                raise EngineError(f"{self.title} needs Node.js: there is no {program} on PATH")
        quiet = ["--no-audit", "--no-fund", "--loglevel", "error"]
        # By its full name: on Windows npm is a script, which is not found without its suffix.
        npm = [str(shutil.which("npm")), "install", "--prefix", str(environment), "--save-exact", *quiet]
        run([*npm, *self.requirements], f"installing {', '.join(self.requirements)}")

    def open(self, job: Job) -> Opened:
        return _Opened(job)


class _Opened(Opened):
    def __init__(self, job: Job):
        # This runs in the ordinary Python, as the engine's environment has none.
        from .environments import folder

        environment = folder(OnnxRuntimeWeb())
        self._job = job
        command = ["node", str(_SCRIPT), str(environment), str(job.path)]
        self._node: Any = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self._answer()

    def run(self, feeds: Mapping[str, np.ndarray]) -> Sequence[np.ndarray]:
        send(self._node.stdin, {}, feeds)
        outputs = self._answer()
        return [outputs[port.name] for port in self._job.outputs]

    def _answer(self) -> dict[str, np.ndarray]:
        try:
            header, arrays = receive(self._node.stdout)
        except EOFError:
            # Not an Exception: this process ends too, so that it is a crash and no refusal.
            raise SystemExit(f"node exited with {self._node.wait()}") from None
        if "error" in header:
            raise RuntimeError(header["error"])
        return arrays
