"""Parity of a converted file with the file that it was made from, where PyTorch and the model are not at hand.

The original's own numbers are its float64 twin's, in ONNX Runtime; its noise is what ONNX Runtime makes of the file
itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir

from sruexport.converters import widened
from sruexport.engines import onnxruntime as ort
from sruexport.engines.running import EngineSession
from sruexport.errors import ConversionError, EngineCrash, EngineError, ModelFileError
from sruexport.layers import FAMILIES
from sruexport.runtime import LoadedModel

from .cases import Case, generated, given
from .measure import FACTOR, compare, failure
from .report import CaseResult, Report

#: Whose own noise the bounds go by.
_BASELINE = "original"


def compare_files(
    original: ir.Model,
    converted: EngineSession,
    data: Mapping[str, np.ndarray] | None = None,
    *,
    path: Path | None = None,
    progress: Callable[[str], None] = lambda case: None,
) -> Report:
    """Hold a converted file, on the engine that it is for, against the original.

    Args:
        original: the model that was converted, in the same sizes.
        converted: the file on an engine.
        data: own inputs by name, in place of generated ones.
        path: what the report is to name.

    Raises:
        EngineError: the engine takes the file in no case.
        ModelFileError: ONNX Runtime does not run the original.
    """
    exact = Exact(original)
    file = LoadedModel(converted.path, converted)
    metadata = file.metadata
    masks = _masks(metadata) & {port.name for port in file.inputs}
    cases: Iterable[Case] = given(data, metadata) if data else generated(file.inputs, metadata, masks)
    results: list[CaseResult] = []
    refused: list[EngineError | ConversionError] = []
    for case in cases:
        if case.chunks:
            continue  # chunks of the original equal the whole of it, which `validate` holds against PyTorch
        progress(case.name)
        feeds = file.bind(**case.feeds)
        right, rounded = exact(feeds)
        try:
            found = file.run(**case.feeds)
        except (EngineError, ConversionError) as error:
            refused.append(error)
            outputs = {name: failure(str(error)) for name in right}
            crashed = isinstance(error, EngineCrash)
            results.append(CaseResult(case.name, outputs, refused=str(error), crashed=crashed))
            continue
        allowance = converted.allowance * exact.allowance
        outputs = {
            name: compare(
                array, rounded[name], right[name], metadata.get("dtype", "float32"), allowance, f"the {_BASELINE}"
            )
            for name, array in found.items()
        }
        results.append(CaseResult(case.name, outputs))
    if refused and len(refused) == len(results):
        raise refused[0]
    return Report(
        path or file.path,
        converted.ran_on,
        metadata.get("dtype", "float32"),
        tuple(results),
        form=converted.written_as,
        allowance=converted.allowance * exact.allowance,
        baseline=_BASELINE,
        static=converted.static,
    )


class Exact:
    """The original, in float64 and as it is.

    Attributes:
        allowance: 1, or, where ONNX Runtime has no float64 kernel for one of its ops, 8: then there is nothing to
            measure the original's own noise by.
    """

    def __init__(self, original: ir.Model):
        self._own = in_memory(original)
        self._wide: ort.OrtSession | None = None
        self.allowance = 1.0
        try:
            self._wide = in_memory(widened(original))
        except (ModelFileError, ConversionError):
            self.allowance = FACTOR

    def __call__(self, feeds: Mapping[str, np.ndarray]) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
        """The outputs in float64, and as the original gives them."""
        rounded = self._own.run(feeds)
        if self._wide is not None:
            wide = {name: a.astype(np.float64) if a.dtype.kind == "f" else a for name, a in feeds.items()}
            try:
                return self._wide.run(wide), rounded
            except ModelFileError:  # its LSTM loads in float64, and says only then that it does not run
                self._wide, self.allowance = None, FACTOR
        return rounded, rounded


def measured(original: ir.Model, data: Mapping[str, np.ndarray]) -> dict[str, float]:
    """The largest finite absolute value of each recurrence's state, and of what goes into it, on data; by layer.

    Args:
        data: inputs by name; states that are left out start from their initial values.
    """
    from sruexport.converters.base import recurrences

    model = ir.serde.deserialize_model(ir.serde.serialize_model(original))
    watched: dict[str, list[tuple[str, int]]] = {}
    for layer, node in recurrences(model):
        for value in _watched(node):
            if not value.is_graph_output() and not value.is_graph_input():
                model.graph.outputs.append(value)
            watched.setdefault(layer, []).append((value.name or "", 3 if node.op_type == "SRURecurrence" else 1))
    file = LoadedModel("the model", in_memory(model))
    feeds = file.bind(**data)
    outputs = file.run(**feeds)
    found: dict[str, float] = {}
    for layer, values in watched.items():
        for name, planes in values:
            array = outputs.get(name, feeds.get(name))
            if array is not None and array.size:
                # Of u only the first plane goes into the state.
                part = array[..., : array.shape[-1] // planes] if name == values[0][0] else array
                size = float(np.abs(part[np.isfinite(part)]).max(initial=0.0))
                found[layer] = max(found.get(layer, 0.0), size)
    return found


def _watched(node: ir.Node) -> list[ir.Value]:
    values = [node.inputs[0], node.inputs[4]] if node.op_type == "SRURecurrence" else [node.inputs[1], node.inputs[2]]
    if node.op_type == "LinearRecurrence":
        values.append(node.outputs[0])
    return [value for value in values if value is not None and value.const_value is None]


def _masks(metadata: Mapping[str, Any]) -> set[str]:
    """Inputs that are a bare layer's padding mask."""
    bare = [layer["family"] for layer in metadata.get("layers", []) if not layer.get("path")]
    families = [FAMILIES[name] for name in bare if name in FAMILIES]
    return {argument.name for family in families for argument in family.arguments if argument.kind == "mask"}


def in_memory(model: ir.Model) -> ort.OrtSession:
    """A model in ONNX Runtime, without a file.

    Raises:
        ModelFileError: ONNX Runtime does not take it.
    """
    return ort.load(ir.serde.serialize_model(model).SerializeToString())
