"""Core ML: converted by coremltools everywhere, run on macOS."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from .base import Engine, Job, Opened

#: What its inputs can be; wider integers are narrowed, truth values go in as numbers.
_TYPES = {"float32": np.float32, "int32": np.int32, "int64": np.int32, "bool": np.bool_}

#: What a slice of a program leaves out: its dim, start, end and step.
_WHOLE: tuple[Any, ...] = (0, None, None, 1)


class CoreMl(Engine):
    name = "coreml"
    title = "Core ML"
    packages = ("coremltools",)
    requirements = ("torch==2.13.0", "coremltools==9.0", "numpy==2.4.6")
    forms = ("torch-lstm",)
    takes = "program"
    static = True
    only_builds = "" if sys.platform == "darwin" else "it runs on macOS only"
    notes = (
        "elsewhere than on macOS the model is converted, and every LSTM has to stay an lstm op, but nothing is run",
        "running it on macOS is written, and was not tried",
    )

    def open(self, job: Job) -> Opened:
        import coremltools
        import torch

        # What it leaves there goes away with the job.
        tempfile.tempdir = str(job.workdir)
        exported = torch.export.load(str(job.path))
        _plain_slices(exported.graph)
        samples = _samples(exported)
        inputs = [
            coremltools.TensorType(f"input_{i}", tuple(sample.shape), dtype=_type(sample.dtype, "input"))
            for i, sample in enumerate(samples)
        ]
        outputs = [coremltools.TensorType(f"output_{i}") for i in range(len(job.outputs))]
        for port in job.outputs:
            _type(port.dtype, "output")
        # From a trace: from the exported program itself coremltools takes no LSTM that is not unrolled.
        with torch.no_grad():
            traced = torch.jit.trace(exported.module(), samples, check_trace=False)
        model = coremltools.convert(
            traced,
            inputs=inputs,
            outputs=outputs,
            convert_to="mlprogram",
            minimum_deployment_target=coremltools.target.iOS17,
            compute_precision=coremltools.precision.FLOAT32,  # the default is float16
        )
        _check_lstms(exported, model)
        return _Opened(model, job)


class _Opened(Opened):
    def __init__(self, model: Any, job: Job):
        self._model, self._job = model, job

    def run(self, feeds: Mapping[str, np.ndarray]) -> Sequence[np.ndarray]:
        if CoreMl.only_builds:
            raise RuntimeError(f"the model is converted, but {CoreMl.only_builds}")
        given = {f"input_{i}": _narrowed(feeds[port.name]) for i, port in enumerate(self._job.inputs)}
        outputs = self._model.predict(given)
        return [np.asarray(outputs[f"output_{i}"], port.dtype) for i, port in enumerate(self._job.outputs)]


def _samples(exported: Any) -> tuple[Any, ...]:
    """Zeros for the inputs of an exported program."""
    import torch

    values = {node.name: node.meta["val"] for node in exported.graph.nodes if node.op == "placeholder"}
    names = exported.graph_signature.user_inputs
    return tuple(torch.zeros(tuple(values[name].shape), dtype=values[name].dtype) for name in names)


def _plain_slices(graph: Any) -> None:
    """Let slices end at a size: coremltools takes -1 for all of a single step. And leave out what is empty."""
    import torch

    aten = torch.ops.aten
    for node in graph.nodes:
        if node.target is aten.slice.Tensor:
            source, dim, *bounds = (*tuple(node.args), *_WHOLE[len(node.args) - 1 :])
            start, end, step = slice(*bounds).indices(source.meta["val"].shape[dim])
            node.args, node.kwargs = (source, dim, start, end, step), {}
        elif node.target is aten.cat.default:
            parts = [part for part in node.args[0] if part.meta["val"].numel()]
            node.args = (parts or node.args[0], *node.args[1:])
    graph.eliminate_dead_code()


def _type(dtype: Any, what: str) -> type:
    name = str(dtype).removeprefix("torch.")
    if name not in _TYPES:
        raise TypeError(f"an {what} is {name}, which Core ML has no tensors of")
    return _TYPES[name]


def _narrowed(array: np.ndarray) -> np.ndarray:
    dtype = np.int32 if array.dtype.kind == "i" else np.float32
    narrowed = np.array(array, dtype, order="C")
    if not np.array_equal(narrowed, array, equal_nan=True):
        raise ValueError(f"a number in {array.dtype} does not fit {np.dtype(dtype)}")
    return narrowed


def _check_lstms(exported: Any, model: Any) -> None:
    """Every LSTM is still one: unrolled, or replaced, it would be another model than was asked for."""
    operations = model._mil_program.functions["main"].operations
    found = sum(operation.op_type == "lstm" for operation in operations)
    wanted = sum(str(node.target) == "aten.lstm.input" for node in exported.graph.nodes)
    if found != wanted:
        raise RuntimeError(f"coremltools made {found} lstm ops of {wanted} LSTMs")
