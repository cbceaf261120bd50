"""OpenVINO for `bench_cpu.py`: the time of a run alone, without handing arrays over, on a given number of threads.

Loaded in OpenVINO's own process, whose environment has NumPy and OpenVINO and nothing else.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from sruexport.engines.base import Job, Opened
from sruexport.engines.openvino import OpenVino

#: The only output: seconds of each run.
SECONDS = "seconds"


class TimedOpenVino(OpenVino):
    """Runs a file as often as the input `runs` says, always on the same tensors, and gives the times of the runs."""

    def open(self, job: Job) -> Opened:
        import openvino

        core = openvino.Core()
        config = {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": int(job.options["threads"])}
        return _Timed(core.compile_model(core.read_model(str(job.path)), "CPU", config))


class _Timed(Opened):
    def __init__(self, compiled: Any):
        self._request = compiled.create_infer_request()

    def run(self, feeds: Mapping[str, np.ndarray]) -> Sequence[np.ndarray]:
        """The first call brings the inputs, by name; later ones only `runs`."""
        import openvino

        for name, array in feeds.items():
            if name != "runs":
                self._request.set_tensor(name, openvino.Tensor(np.array(array, order="C")))
        seconds = []
        for _ in range(int(feeds["runs"])):
            started = time.perf_counter()
            self._request.infer()
            seconds.append(time.perf_counter() - started)
        return [np.array(seconds)]
