"""TensorRT for RTX: builds engines on a CPU for a GPU that need not be here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np

from .base import AS_EXPORTED, Engine, Job, Opened

#: Compute capability to build for, without the dot, where none is asked for: with every form, and widely spread.
_CAPABILITY = "86"
#: Smallest, best and largest size of a dynamic dim.
_SIZES = (1, 32, 512)


class TensorRtRtx(Engine):
    name = "tensorrt-rtx"
    title = "TensorRT-RTX"
    packages = ("tensorrt-rtx-cu13-bindings",)
    requirements = ("tensorrt-rtx-cu13-bindings==1.7.1.116", "tensorrt-rtx-cu13-libs==1.7.1.116", "numpy")
    # In this order by what a step costs: nothing was timed.
    forms = ("parallel", "scan", AS_EXPORTED, "loop", "lstm-peephole", "lstm-peephole-tanh", "lstm", "lstm-forward",
             "unrolled")  # fmt: skip
    refuses = MappingProxyType(
        {
            "LinearAttention": "failed to load LinearAttention plugin",
            "LSTM.affine": "Unknown activation type: Affine",
            "LSTM.input_forget": "Coupled input/forget is unsupported in the LSTM converter",
        }
    )
    wrong = MappingProxyType(
        {
            "LSTM.layout": "it is ignored, and the outputs have other shapes (1.7)",
            "float64": "inputs, outputs and what is between are float32 (1.7)",
        }
    )
    only_builds = "it builds for a GPU that need not be here, and only that GPU can run it"
    notes = (
        "the option 'capability' names the GPU: 75, 80, 86, 89, 120 or 121; 86 where it is left out",
        "for 75 (Turing) no product in float32 builds: export the model in float16, and take no form with an LSTM",
    )

    def open(self, job: Job) -> Opened:
        import tensorrt_rtx_bindings as trt

        log = _log(trt)
        builder = trt.Builder(log)
        network = builder.create_network(0)
        parser = trt.OnnxParser(network, log)
        if not parser.parse_from_file(str(job.path)):
            error = parser.get_error(0)
            raise RuntimeError(f"parsing {error.node_name()}: {error.desc()}")
        config = builder.create_builder_config()
        _aim(trt, config, job.options.get("capability", _CAPABILITY))
        config.clear_flag(trt.BuilderFlag.TF32)  # its errors are 1e-3
        dynamic = [port for port in job.inputs if any(isinstance(dim, str) for dim in port.shape)]
        if dynamic:
            profile = builder.create_optimization_profile()
            for port in dynamic:
                shapes = ([size if isinstance(dim, str) else dim for dim in port.shape] for size in _SIZES)
                profile.set_shape(port.name, *shapes)
            if config.add_optimization_profile(profile) < 0:
                raise RuntimeError(log.first())
        if builder.build_serialized_network(network, config) is None:
            raise RuntimeError(log.first())
        return _Built()


class _Built(Opened):
    def run(self, feeds: Mapping[str, np.ndarray]) -> Sequence[np.ndarray]:
        raise RuntimeError(f"the engine is built, but {TensorRtRtx.only_builds}")


def _aim(trt: Any, config: Any, capability: str) -> None:
    target = getattr(trt.ComputeCapability, f"SM{capability}", None)
    if target is None:
        known = (name.removeprefix("SM") for name in trt.ComputeCapability.__members__ if name.startswith("SM"))
        raise ValueError(f"capability '{capability}' is unknown: give one of {', '.join(known)}")
    config.num_compute_capabilities = 1
    config.set_compute_capability(target, 0)


def _log(trt: Any) -> Any:
    class Log(trt.ILogger):
        """Keeps the errors, which the builder only logs."""

        def __init__(self) -> None:
            trt.ILogger.__init__(self)
            self.errors: list[str] = []

        def log(self, severity: Any, message: str) -> None:
            if severity <= trt.ILogger.ERROR:
                self.errors.append(message)

        def first(self) -> str:
            return self.errors[0] if self.errors else "no reason given"

    return Log()
