"""OpenVINO on the CPU."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np

from .base import Engine, Job, Opened

#: Its default on CPUs that have it is bfloat16, with errors of 1e-3.
_CONFIG = {"INFERENCE_PRECISION_HINT": "f32", "EXECUTION_MODE_HINT": "ACCURACY"}


class OpenVino(Engine):
    name = "openvino"
    title = "OpenVINO"
    packages = ("openvino",)
    requirements = ("openvino==2026.4.1",)
    forms = ("lstm", "lstm-forward", "scan", "parallel", "loop", "unrolled")
    refuses = MappingProxyType(
        {
            "functions": "it has no rule for model-local functions",
            "custom ops": "it does not know them",
            "LinearAttention": "it has no rule for it",
        }
    )
    wrong = MappingProxyType(
        {
            "LSTM.peepholes": "they are ignored (2026.4)",
            "LSTM.input_forget": "it is ignored (2026.4)",
            "LSTM.layout": "it is ignored (2026.4)",
            "LSTM.sequence_lens": "they are ignored where T or B is dynamic (2026.4)",
            "Scan.state second": "with B static, sums and products of a slice and the state go wrong (2026.4)",
            "float64": "it is computed in float32 (2026.4)",
        }
    )

    def open(self, job: Job) -> Opened:
        import openvino

        core = openvino.Core()
        return _Opened(core.compile_model(core.read_model(str(job.path)), "CPU", _CONFIG), job)


class _Opened(Opened):
    def __init__(self, compiled: Any, job: Job):
        self._request, self._job = compiled.create_infer_request(), job

    def run(self, feeds: Mapping[str, np.ndarray]) -> Sequence[np.ndarray]:
        import openvino

        for port in self._job.inputs:
            self._request.set_tensor(port.name, openvino.Tensor(np.array(feeds[port.name], order="C")))
        self._request.infer()
        # A copy: the tensors are overwritten by the next run.
        return [np.array(self._request.get_output_tensor(i).data) for i in range(len(self._job.outputs))]
