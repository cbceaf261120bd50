"""The way through all cases of a parity check."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from sruexport.checkpoint import read
from sruexport.engines import ENGINES
from sruexport.errors import InputError, ModelFileError, SruExportError, closest
from sruexport.exporter.call import as_tuple, positional_names
from sruexport.layers import adapt, family_of
from sruexport.runtime import LoadedModel, load

from .cases import Case, generated, given, time_axis
from .locate import first_departure
from .measure import compare, failure
from .reference import Reference, keywords_of
from .report import CaseResult, Report


def validate(
    model_or_source: nn.Module | str | os.PathLike[str],
    path: str | os.PathLike[str],
    *,
    args: Any = None,
    data: Mapping[str, Any] | str | os.PathLike[str] | None = None,
    prefix: str | None = None,
    options: Mapping[str, Any] | None = None,
    progress: Callable[[str], None] = lambda case: None,
) -> Report:
    """Hold an exported file against PyTorch in float64, over several lengths and batch sizes, masks and chunks.

    Args:
        model_or_source: the model that was exported, or the checkpoint it was read from.
        path: the ONNX file, written by `export`.
        args: own inputs in place of generated ones: what forward is called with, as for `export`.
        data: the same by input name: a dict of arrays, or an .npz file.
        prefix, options: as for `read`, when a checkpoint is given.
        progress: called with the name of each case before it runs.

    Returns:
        a report; `report.passed` is the verdict.

    Raises:
        InputError: the data does not fit the file's inputs.
        ModelFileError: the file cannot be read, or was not written by sruexport.
        CheckpointError: the source cannot be read.
    """
    model = (
        model_or_source
        if isinstance(model_or_source, nn.Module)
        else read(model_or_source, prefix=prefix, options=options)
    )
    file = load(path)
    if not file.metadata:
        raise ModelFileError(f"{file.path}: was not written by sruexport, so that what it should compute is not known")
    metadata = file.metadata
    reference = Reference(model, metadata, [port.name for port in file.outputs])
    if args is not None:
        data = _by_name(model, args)
    if data is not None:
        cases = given(_read_data(data, file), metadata)
    else:
        cases = generated(file.inputs, metadata, _masks(model, file))
    results: list[CaseResult] = []
    failed: Case | None = None
    for case in cases:
        progress(case.name)
        outcome = _run(case, file, reference)
        if failed is None and not outcome.passed:
            failed = case
        results.append(outcome)
    departure = _locate(model, file, failed, reference) if failed is not None else None
    engine = ENGINES["onnxruntime"]
    return Report(file.path, f"{engine.name} {engine.version()}", metadata["dtype"], tuple(results), departure)


def _run(case: Case, file: LoadedModel, reference: Reference) -> CaseResult:
    try:
        exact, rounded = reference.exact(case.feeds), reference.rounded(case.feeds)
    except SruExportError:
        raise
    except Exception as error:
        return CaseResult(
            case.name, skipped=f"PyTorch refuses it: {type(error).__name__}: {str(error).splitlines()[0][:120]}"
        )
    try:
        engine = _in_chunks(case, file) if case.chunks else file.run(**case.feeds)
    except ModelFileError as error:
        return CaseResult(case.name, {name: failure(str(error)) for name in exact})
    return CaseResult(
        case.name,
        {name: compare(array, rounded[name], exact[name], file.metadata["dtype"]) for name, array in engine.items()},
    )


def _in_chunks(case: Case, file: LoadedModel) -> dict[str, np.ndarray]:
    """Run a case chunk by chunk, with each chunk's new states as the next one's states."""
    states: dict[str, np.ndarray] = {}
    collected: dict[str, list[np.ndarray]] = {}
    start = 0
    for length in case.chunks:
        part = {}
        for name, array in case.feeds.items():
            axis = time_axis(name, file.metadata)
            part[name] = array if axis is None else np.take(array, range(start, start + length), axis)
        start += length
        outputs = file.run(**part, **states)
        states = {state["input"]: outputs[state["output"]] for state in file.metadata["states"]}
        for name, array in outputs.items():
            collected.setdefault(name, []).append(array)
    time = file.metadata["time"]
    whole = {}
    for port in file.outputs:
        axis = port.shape.index(time) if time in port.shape else None
        whole[port.name] = collected[port.name][-1] if axis is None else np.concatenate(collected[port.name], axis)
    return whole


def _locate(model: nn.Module, file: LoadedModel, case: Case, reference: Reference) -> str | None:
    states = file.metadata.get("states", [])
    keywords = keywords_of(case.feeds, states, reference.dtype)
    feeds = file.bind(**case.feeds)
    return first_departure(model, file.path, feeds, keywords, file.metadata["dtype"])


def _masks(model: nn.Module, file: LoadedModel) -> set[str]:
    """Inputs that are a bare layer's padding mask."""
    family = family_of(model) or family_of(adapt(model) or model)
    names = {argument.name for argument in family.arguments if argument.kind == "mask"} if family else set()
    return names & {port.name for port in file.inputs}


def _by_name(model: nn.Module, args: Any) -> dict[str, Any]:
    values = args if isinstance(args, Mapping) else dict(zip(positional_names(model), as_tuple(args)))
    return {name: value for name, value in values.items() if value is not None}


def _read_data(data: Mapping[str, Any] | str | os.PathLike[str], file: LoadedModel) -> dict[str, np.ndarray]:
    shown = "data"
    if isinstance(data, (str, os.PathLike)):
        shown = str(data)
        try:
            with np.load(Path(data), allow_pickle=False) as archive:
                data = {name: archive[name] for name in archive.files}
        except (OSError, ValueError) as error:
            raise InputError(f"{shown}: cannot be read as an .npz file of arrays ({error})") from None
    states = {state["input"] for state in file.metadata.get("states", [])}
    names = [port.name for port in file.inputs if port.name not in states]
    for name in data:
        if name not in names:
            raise InputError(
                f"{shown}: '{name}' is no input of {file.path}{closest(name, names)} (they are {', '.join(names)})"
            )
    for name in names:
        if name not in data:
            raise InputError(f"{shown}: input '{name}' of {file.path} is missing")
    fitted = file.bind(**{name: np.asarray(value) for name, value in data.items()})
    return {name: fitted[name] for name in names}
