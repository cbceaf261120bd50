"""TensorRT for RTX: builds engines on a CPU for a GPU that need not be here."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np

from .base import AS_EXPORTED, DEFAULT_SIZES, BuildingEngine, Job, Opened, Progress

#: Less than this share of the whole is not worth a message.
_STEP = 0.01
#: What mends an error of the builder, by a part of it.
_WAYS_OUT = {
    "FP32 GEMM is not supported": "no product in float32 builds for 75, and an LSTM's is unless it was made with "
    "--lstm-dtype float16",
    "within workspace limit": "give it more workspace",
}


class TensorRtRtx(BuildingEngine):
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
    capabilities = ("75", "80", "86", "89", "120", "121")
    capability = "86"  # with every form, and widely spread
    dtypes_for = MappingProxyType({"75": ("float16",)})
    only_builds = "it builds for a GPU that need not be here, and only that GPU can run it"
    notes = (
        "the option 'capability' names the GPU: 75, 80, 86, 89, 120 or 121; 86 where it is left out",
        "for 75 (Turing) no product in float32 builds: export the model in float16, and take no form with an LSTM",
        "there is no timing cache: its operations do nothing (1.2 and later)",
    )

    def open(self, job: Job) -> Opened:
        _build(job, None)
        return _Built()

    def build(self, job: Job, progress: Progress) -> bytes:
        return _build(job, progress)


def _build(job: Job, progress: Progress | None) -> bytes:
    import tensorrt_rtx_bindings as trt

    log = _log(trt)
    builder = trt.Builder(log)
    network = builder.create_network(0)
    parser = trt.OnnxParser(network, log)
    if not parser.parse_from_file(str(job.path)):
        error = parser.get_error(0)
        raise RuntimeError(f"parsing {error.node_name()}: {error.desc()}")
    config = builder.create_builder_config()
    _aim(trt, config, job.options.get("capability", TensorRtRtx.capability).split(","))
    config.clear_flag(trt.BuilderFlag.TF32)  # its errors are 1e-3
    if "workspace" in job.options:
        config.set_memory_pool_limit(trt.MemoryPoolType.WORKSPACE, int(job.options["workspace"]) << 20)
    if progress is not None:
        monitor = _monitor(trt, progress)  # a name of its own: alive until it is built
        config.progress_monitor = monitor
    dynamic = [port for port in job.inputs if any(isinstance(dim, str) for dim in port.shape)]
    if dynamic:
        profile = builder.create_optimization_profile()
        for port in dynamic:
            profile.set_shape(port.name, *_shapes(port.shape, job.sizes))
        if config.add_optimization_profile(profile) < 0:
            raise RuntimeError(log.first())
    memory = builder.build_serialized_network(network, config)
    if memory is None:
        said = log.first()
        ways_out = [way_out for part, way_out in _WAYS_OUT.items() if part in said]
        raise RuntimeError(": ".join([*ways_out, said]))
    return bytes(memory)


def _shapes(shape: Sequence[int | str], sizes: Mapping[str, tuple[int, int, int]]) -> list[list[int]]:
    """The smallest, the best and the largest shape."""
    return [
        [sizes.get(dim, DEFAULT_SIZES)[which] if isinstance(dim, str) else dim for dim in shape] for which in range(3)
    ]


class _Built(Opened):
    def run(self, feeds: Mapping[str, np.ndarray]) -> Sequence[np.ndarray]:
        raise RuntimeError(f"the engine is built, but {TensorRtRtx.only_builds}")


def _aim(trt: Any, config: Any, capabilities: Sequence[str]) -> None:
    config.num_compute_capabilities = len(capabilities)
    for place, capability in enumerate(capabilities):
        target = getattr(trt.ComputeCapability, f"SM{capability}", None)
        if target is None:
            known = (name.removeprefix("SM") for name in trt.ComputeCapability.__members__ if name.startswith("SM"))
            raise ValueError(f"capability '{capability}' is unknown: give one of {', '.join(known)}")
        config.set_compute_capability(target, place)


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


def _monitor(trt: Any, progress: Progress) -> Any:
    class Monitor(trt.IProgressMonitor):
        """Makes one number of phases that have steps, which have phases of their own."""

        def __init__(self) -> None:
            trt.IProgressMonitor.__init__(self)
            self.phases: dict[str, tuple[str | None, int, int]] = {}  # the parent, steps done, and all steps
            self.told = ("", -1.0)
            self.lock = threading.Lock()  # the builder calls from several threads

        def phase_start(self, name: str, parent: str | None, steps: int) -> None:
            with self.lock:
                self.phases[name] = (parent, 0, max(steps, 1))
                self.tell(name)

        def step_complete(self, name: str, step: int) -> bool:
            with self.lock:
                if name in self.phases:
                    parent, _, steps = self.phases[name]
                    self.phases[name] = (parent, min(step + 1, steps), steps)
                    self.tell(name)
            return True  # go on

        def phase_finish(self, name: str) -> None:
            with self.lock:
                self.phases.pop(name, None)

        def share(self, within: str | None) -> float:
            """Of a phase with all that it holds; with None of the whole."""
            shares = [
                min(1.0, (done + self.share(name)) / steps)
                for name, (parent, done, steps) in self.phases.items()
                if parent == within
            ]
            return max(shares, default=0.0)

        def tell(self, name: str) -> None:
            # A phase that starts again under the same parent does not take the number back.
            share = max(self.share(None), self.told[1])
            if name != self.told[0] or share - self.told[1] >= _STEP:
                self.told = (name, share)
                progress(name, share)

    return Monitor()
