"""The way through all cases of a parity check."""

from __future__ import annotations

import dataclasses
import inspect
import os
import zipfile
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from sruexport.checkpoint import read
from sruexport.converters import FORMS, Settings
from sruexport.engines import AS_EXPORTED, ENGINES
from sruexport.engines.process import TIME_LIMIT
from sruexport.engines.running import EngineSession, default_engine
from sruexport.errors import (
    ConversionError,
    EngineCrash,
    EngineError,
    InputError,
    ModelFileError,
    OptionError,
    SruExportError,
    closest,
)
from sruexport.exporter.call import Call
from sruexport.exporter.model import unwrapped
from sruexport.layers import adapt, family_of
from sruexport.runtime import LoadedModel

from .cases import SIZES, Case, generated, given, time_axis
from .locate import first_departure
from .measure import Errors, compare, distance, failure
from .programs import TORCH_LSTM, ProgramSession
from .reference import Reference
from .report import CaseResult, Report


def validate(
    model_or_source: nn.Module | str | os.PathLike[str],
    path: str | os.PathLike[str],
    *,
    args: Any = None,
    example: Any = None,
    data: Mapping[str, Any] | str | os.PathLike[str] | None = None,
    prefix: str | None = None,
    options: Mapping[str, Any] | None = None,
    engine: str = "",
    form: str = "",
    force: bool = False,
    limit: float = TIME_LIMIT,
    ranges: Mapping[str, tuple[float, float]] | None = None,
    sizes: Sequence[tuple[int, int]] = SIZES,
    repeats: int = 0,
    progress: Callable[[str], None] = lambda case: None,
) -> Report:
    """Hold an exported file against PyTorch in float64, over several lengths and batch sizes, masks and chunks.

    Args:
        model_or_source: the model that was exported, or the checkpoint it was read from.
        path: the ONNX file, written by `export`.
        args: own inputs in place of generated ones: what forward is called with, as for `export`.
        example: the same, but the inputs are generated: only what is no tensor is taken from it. It is needed where
            the model was exported with tensors inside lists or dicts, or with constants that are not the defaults.
        data: the same by input name: a dict of arrays, or an .npz file.
        prefix, options: as for `read`, when a checkpoint is given.
        engine: a name in `sruexport.engines.ENGINES`; it runs in a process of its own. Left out, what `sruexport.load`
            runs a file in: ONNX Runtime, with the native kernels where they are installed.
        form: what the recurrences are written as for it; left out, the file as it is where the engine takes it, else
            the first form that the engine runs.
        force: run what the engine's profile says is wrong, too.
        limit: seconds for loading the file, and for each run.
        ranges: of float inputs: the interval that their values lie in. Generated ones do, and the scale of an LSTM is
            chosen by it.
        sizes: (T, B) of the generated inputs, for a file with no other dynamic dims.
        repeats: run the last case so often again, for the report's `seconds`.
        progress: called with the name of each case before it runs.

    Returns:
        a report; `report.passed` is the verdict.

    Raises:
        ConversionError: the model has no form that the engine runs.
        EngineError: the engine is not installed, or takes the file in no case.
        InputError: the data does not fit the file's inputs.
        ModelFileError: the file cannot be read, or was not written by sruexport.
        OptionError: the file's inputs are not what the model's forward takes.
        CheckpointError: the source cannot be read.
    """
    model = (
        model_or_source
        if isinstance(model_or_source, nn.Module)
        else read(model_or_source, prefix=prefix, options=options)
    )
    model = unwrapped(model)
    settings = Settings(ranges or {})
    with closing(
        _open(model, Path(path), engine, form, force, limit, settings, args if args is not None else example)
    ) as session:
        file = LoadedModel(path, session)
        if not file.metadata:
            raise ModelFileError(f"{file.path}: was not written by sruexport: what it should compute is not known")
        metadata = file.metadata
        call = (
            Call.of(model, args if args is not None else example) if args is not None or example is not None else None
        )
        _check_names(model, file, call)
        reference = Reference(model, metadata, [port.name for port in file.outputs], call)
        if args is not None and call is not None:
            data = {name: _numpy(tensor) for name, tensor in zip(call.names, call.tensors)}
        if data is not None:
            cases = given(read_data(data, file), metadata)
        else:
            cases = generated(file.inputs, metadata, _masks(model, file), sizes=sizes, ranges=ranges)
        results: list[CaseResult] = []
        failed: dict[float, Case] = {}
        refused: list[SruExportError] = []
        last: Case | None = None
        for case in cases:
            progress(case.name)
            outcome = _run(case, file, session, reference, refused)
            if not outcome.passed and not case.chunks:
                failed[max(errors.ratio for errors in outcome.outputs.values())] = case
            results.append(outcome)
            if outcome.passed and not case.chunks and not outcome.skipped:
                last = case
        if refused and len(refused) == sum(not result.skipped for result in results):
            raise refused[0]
        if metadata.get("states") and not metadata.get("time"):
            why = "the file's time axis is not the recurrences' own (subsampled, or static): chunks are not compared"
            results.append(CaseResult("in chunks", skipped=why))
        departure = None
        if failed:
            progress("looking for the layer that departs")
            departure = _locate(model, file, session, failed[max(failed)], reference)
        return Report(
            file.path,
            session.ran_on,
            metadata["dtype"],
            tuple(results),
            departure,
            metadata.get("source", {}),
            session.written_as,
            session.allowance,
            seconds=_seconds(last, file, session, repeats) if last is not None else (),
            static=session.static,
        )


_AnySession = EngineSession | ProgramSession


def _open(
    model: nn.Module,
    path: Path,
    engine: str,
    form: str,
    force: bool,
    limit: float,
    settings: Settings,
    example: Any,
) -> _AnySession:
    """A file on an engine, by names; for an engine that takes programs, the model's."""
    engine = engine or default_engine(path)
    if engine not in ENGINES:
        raise OptionError(f"engine '{engine}' is not known{closest(engine, ENGINES)} (they are {', '.join(ENGINES)})")
    forms = [*FORMS, AS_EXPORTED, TORCH_LSTM]
    if form and form not in forms:
        raise OptionError(f"form '{form}' is not known{closest(form, forms)} (they are {', '.join(forms)})")
    chosen = ENGINES[engine]
    if chosen.takes == "program":
        if form not in ("", TORCH_LSTM):
            raise ConversionError(f"{chosen.title} takes PyTorch programs: its form is {TORCH_LSTM}")
        call = Call.of(model, example) if example is not None else None
        return ProgramSession(chosen, path, model, call, limit, settings)
    if form == TORCH_LSTM:
        raise ConversionError(f"{chosen.title} takes ONNX files, and {TORCH_LSTM} is none")
    return EngineSession(chosen, path, form, force=force, settings=settings, limit=limit)


def _run(
    case: Case, file: LoadedModel, session: _AnySession, reference: Reference, refused: list[SruExportError]
) -> CaseResult:
    """Run one case; what the engine does not take is added to `refused`."""
    try:
        exact, rounded = reference.exact(case.feeds), reference.rounded(case.feeds)
    except SruExportError:
        raise
    except Exception as error:
        return CaseResult(
            case.name, skipped=f"PyTorch refuses it: {type(error).__name__}: {str(error).splitlines()[0][:120]}"
        )
    try:
        engine = _in_chunks(case, file, lambda feeds: file.run(**feeds)) if case.chunks else file.run(**case.feeds)
    except (EngineError, ConversionError) as error:
        refused.append(error)
        outputs = {name: failure(str(error)) for name in exact}
        return CaseResult(case.name, outputs, refused=str(error), crashed=isinstance(error, EngineCrash))
    dtype, allowance = file.metadata["dtype"], session.allowance
    outputs = {name: compare(array, rounded[name], exact[name], dtype, allowance) for name, array in engine.items()}
    if case.chunks and not all(errors.passed for errors in outputs.values()):
        outputs = _explain_chunks(outputs, exact, _in_chunks(case, file, reference.exact))
    return CaseResult(case.name, outputs)


def _seconds(case: Case, file: LoadedModel, session: _AnySession, repeats: int) -> tuple[float, ...]:
    """How long the engine takes for a case, once per repeat."""
    found = []
    for _ in range(repeats):
        file.run(**case.feeds)
        found.append(session.seconds)
    return tuple(found)


def _explain_chunks(
    outputs: dict[str, Errors], whole: Mapping[str, np.ndarray], chunked: Mapping[str, np.ndarray]
) -> dict[str, Errors]:
    """Say so where the model itself, in PyTorch and float64, is not the same chunk by chunk as it is whole."""
    reason = "PyTorch too gives other numbers chunk by chunk: a layer that carries no state looks across time"
    explained = {}
    for name, errors in outputs.items():
        same = chunked[name].shape == whole[name].shape
        itself = not same or distance(chunked[name], whole[name]).max(initial=0.0) > errors.bound
        explained[name] = dataclasses.replace(errors, reason=reason) if itself and not errors.passed else errors
    return explained


def _in_chunks(
    case: Case, file: LoadedModel, run: Callable[[dict[str, np.ndarray]], dict[str, np.ndarray]]
) -> dict[str, np.ndarray]:
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
        outputs = run(part | states)
        states = {state["input"]: outputs[state["output"]] for state in file.metadata["states"]}
        for name, array in outputs.items():
            collected.setdefault(name, []).append(array)
    time = file.metadata["time"]
    whole = {}
    for port in file.outputs:
        axis = port.shape.index(time) if time in port.shape else None
        whole[port.name] = collected[port.name][-1] if axis is None else np.concatenate(collected[port.name], axis)
    return whole


def _locate(model: nn.Module, file: LoadedModel, session: _AnySession, case: Case, reference: Reference) -> str | None:
    feeds = file.bind(**case.feeds)
    dtype = file.metadata["dtype"]

    if isinstance(session, ProgramSession):
        return None  # it has no graph whose values could be looked at

    def run(path: Path) -> dict[str, np.ndarray]:
        with closing(dataclasses.replace(session, path=path)) as more:
            return more.run(feeds)

    try:
        return first_departure(model, file.path, run, lambda to: reference.keywords(case.feeds, to), dtype)
    except EngineError:
        return None  # the engine does not take the file with more outputs


def _masks(model: nn.Module, file: LoadedModel) -> set[str]:
    """Inputs that are a bare layer's padding mask."""
    family = family_of(model) or family_of(adapt(model) or model)
    names = {argument.name for argument in family.arguments if argument.kind == "mask"} if family else set()
    return names & {port.name for port in file.inputs}


def _check_names(model: nn.Module, file: LoadedModel, call: Call | None) -> None:
    """See that the file's inputs are the model's arguments."""
    parameters = inspect.signature(model.forward).parameters
    takes: Iterable[str] = list(parameters) if call is None else call.names
    if call is None and any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
        return
    states = {state["input"] for state in file.metadata.get("states", [])}
    inputs = [port.name for port in file.inputs if port.name not in states]
    for name in inputs:
        if name not in takes:
            raise OptionError(
                f"{file.path}: its input '{name}' is no argument of {type(model).__name__} (which takes "
                f"{', '.join(takes)}): was it made from another model?"
            )
    for name in call.names if call is not None else ():
        if name not in inputs:
            raise OptionError(
                f"args: '{name}' is no input of {file.path}{closest(name, inputs)} (they are {', '.join(inputs)})"
            )


def _numpy(tensor: torch.Tensor) -> np.ndarray:
    return (tensor.float() if tensor.dtype == torch.bfloat16 else tensor).detach().cpu().numpy()


def read_data(data: Mapping[str, Any] | str | os.PathLike[str], file: LoadedModel) -> dict[str, np.ndarray]:
    states = {state["input"] for state in file.metadata.get("states", [])}
    names = [port.name for port in file.inputs if port.name not in states]
    shown = "data"
    if isinstance(data, (str, os.PathLike)):
        shown = str(data)
        if not Path(data).is_file():
            raise InputError(f"{shown}: is a folder" if Path(data).is_dir() else f"{shown}: there is no such file")
        try:
            with np.load(Path(data), allow_pickle=False) as archive:
                data = {name: archive[name] for name in archive.files}
        except (OSError, ValueError, TypeError, AttributeError, EOFError, zipfile.BadZipFile, zlib.error):
            raise InputError(
                f"{shown}: cannot be read as an .npz file; write one with numpy.savez(FILE, {names[0]}=array)"
            ) from None
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
