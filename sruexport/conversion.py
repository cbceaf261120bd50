"""From an exported file to a file of standard ops: in a form, or in the one that suits an engine, and run before it is
called done."""

from __future__ import annotations

import math
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir

from sruexport.checkpoint import open_checkpoint
from sruexport.converters import FORMS, Converted, Settings, convert, fix_sizes, form_of, is_converted
from sruexport.engines import AS_EXPORTED, ENGINES, Engine
from sruexport.engines.environments import version
from sruexport.engines.process import TIME_LIMIT
from sruexport.engines.running import Choice, EngineSession, choices, no_form, objections, read_model
from sruexport.errors import (
    CheckpointError,
    ConversionError,
    EngineError,
    ModelFileError,
    OptionError,
    closest,
)
from sruexport.exporter.write import check_output, write_whole
from sruexport.metadata import pack, unpack
from sruexport.parity.files import compare_files, in_memory, measured
from sruexport.parity.report import Report
from sruexport.parity.validate import read_data
from sruexport.runtime import LoadedModel

_LSTM_DTYPES = {"float32": ir.DataType.FLOAT, "float16": ir.DataType.FLOAT16}
_16_BITS = ("float16", "bfloat16")
#: Ranges of inputs that are taken from data are widened by it, and so are states that are measured.
_MARGIN = {"range": 2.0, "state": 4.0}


@dataclass(frozen=True)
class Conversion:
    """A file that was written, or, where its numbers are not the original's, was not.

    Attributes:
        form: its name in FORMS.
        layers: what the form says of each recurrence: the scale k, the bound on |c|, the error that follows.
        passed_over: forms that the engine runs faster, and why the file is not in them.
        report: how it compared with the original on the engine; None where the engine is not installed.
        not_verified: why it was not run.
    """

    path: Path
    bytes: int
    opset: int
    form: str
    layers: Sequence[Mapping[str, Any]]
    engine: str
    passed_over: Mapping[str, str]
    report: Report | None
    not_verified: str = ""

    @property
    def passed(self) -> bool:
        return self.report is None or self.report.passed

    def to_dict(self) -> dict[str, Any]:
        return {
            "passed": self.passed,
            "file": str(self.path) if self.passed else None,
            "bytes": self.bytes,
            "opset": self.opset,
            "form": self.form,
            "layers": [dict(layer) for layer in self.layers],
            "engine": self.engine,
            "passed_over": dict(self.passed_over),
            "verified": self.report.to_dict() if self.report is not None else None,
            "not_verified": self.not_verified,
        }


def convert_file(
    source: str | os.PathLike[str],
    output: str | os.PathLike[str],
    *,
    form: str | None = None,
    engine: str | None = None,
    sizes: Mapping[str, int] | None = None,
    ranges: Mapping[str, tuple[float, float]] | None = None,
    data: Mapping[str, Any] | str | os.PathLike[str] | None = None,
    lstm_dtype: str = "float32",
    limit: float = TIME_LIMIT,
    progress: Callable[[str], None] = lambda step: None,
) -> Conversion:
    """Write an exported file in standard ops, and hold the result against the original.

    Args:
        source: a file that `sruexport.export` wrote.
        output: the file to write. It appears whole or not at all, and only if its numbers are the original's.
        form: a name in `sruexport.converters.FORMS`; or
        engine: a name in `sruexport.engines.ENGINES`, for the form that it runs, right and fastest. Where it is
            installed the result is run on it; else the file says "not verified".
        sizes: of dynamic dims, to make them static.
        ranges: of float inputs: the interval that their values lie in. The scale of an LSTM is chosen by it.
        data: inputs by name, or an .npz file of them, to compare on and to take ranges from that are not given.
        lstm_dtype: "float16" makes the LSTM itself compute in float16, in a file of 16 bits.
        limit: seconds for the engine to load the file, and for each run.

    Raises:
        ConversionError: the model has no such form, or none that the engine runs; with the reason.
        EngineError: the engine takes the result in no case.
        OptionError: an argument does not fit.
        ModelFileError, OutputError: a file cannot be read or written.
    """
    target = check_output(output)
    original = _original(Path(source), sizes or {})
    if (form is None) == (engine is None):
        raise OptionError("give either a form (--to FORM) or an engine (--engine NAME)")
    chosen = _named(engine or "onnxruntime", ENGINES, "engine")
    if chosen.takes == "program":
        raise ConversionError(
            f"{chosen.title} takes no ONNX file, but a PyTorch program: sruexport convert CHECKPOINT --to torch-lstm "
            "-o OUT.pt2"
        )
    arrays = _data(original, data, Path(source))
    settings = _settings(original, ranges or {}, arrays, lstm_dtype)
    progress("converting")
    if form is not None:
        candidates = iter([Choice(convert(original, _named(form, FORMS, "form"), settings), {})])
    else:
        candidates = choices(chosen, original, settings)
    return _first_right(original, target, chosen, candidates, arrays, settings.ranges, form is None, limit, progress)


def _first_right(
    original: ir.Model,
    target: Path,
    engine: Engine,
    candidates: Iterator[Choice],
    arrays: Mapping[str, np.ndarray] | None,
    ranges: Mapping[str, tuple[float, float]],
    several: bool,
    limit: float,
    progress: Callable[[str], None],
) -> Conversion:
    """The first of the candidates that has the original's numbers, written; or the last one, not written.

    Raises:
        EngineError: the engine takes none of them.
    """
    wrong: dict[str, str] = {}
    done: Conversion | None = None
    for choice in candidates:
        converted = choice.converted
        wrong = {**choice.passed_over, **wrong}
        # Inputs that are made up to try the file, here and later, lie in the ranges that it was made for.
        about = unpack(converted.model.metadata_props)["form"] | {"ranges": dict(ranges)}
        converted.model.metadata_props.update(pack({"form": about}))
        try:
            report, reason = _verify(original, converted, engine, target, arrays, limit, progress)
        except EngineError as error:
            if not several:
                raise
            wrong[converted.form] = str(error)
            continue
        note = {"engine": engine.name, "version": version(engine), "verified": bool(report and report.passed)}
        note |= {"not_verified": reason} if reason else {}
        converted.model.metadata_props.update(pack({"form": about | {"held_against_original": note}}))
        content = ir.serde.serialize_model(converted.model).SerializeToString()
        done = Conversion(
            target,
            len(content),
            converted.model.opset_imports[""],
            converted.form,
            converted.report,
            engine.name,
            dict(wrong),
            report,
            reason,
        )
        if done.passed:
            progress("writing")
            write_whole(target, content)
            return done
        wrong[converted.form] = _why_not(done)
        if not several:
            break
    if done is None:
        raise EngineError(f"{engine.title} runs no form of this model{no_form(original, wrong)}")
    return done


def _why_not(done: Conversion) -> str:
    assert done.report is not None
    worst = max(done.report.outputs.values(), key=lambda errors: errors.ratio)
    return (
        worst.reason
        or f"{done.report.engine} gives other numbers: off by {worst.engine_max:.1e}, allowed {worst.bound:.1e}"
    )


def _verify(
    original: ir.Model,
    converted: Converted,
    engine: Engine,
    target: Path,
    arrays: Mapping[str, np.ndarray] | None,
    limit: float,
    progress: Callable[[str], None],
) -> tuple[Report | None, str]:
    """How the result compares, or why it is not known."""
    if version(engine) is None:
        return None, f"{engine.title} is not installed here"
    reasons = objections(engine, converted.model)
    if reasons:
        return None, f"{engine.title} does not run it: {reasons[0]}"
    progress(f"running it on {engine.title}")
    with tempfile.TemporaryDirectory(prefix="sruexport-") as folder:
        path = Path(folder) / "converted.onnx"
        ir.save(converted.model, path)
        with closing(EngineSession(engine, path, AS_EXPORTED, fix=False, limit=limit)) as session:
            try:
                report = compare_files(
                    original,
                    session,
                    arrays,
                    path=target,
                    progress=lambda case: progress(f"running it on {engine.title}: {case}"),
                )
            except EngineError as error:
                if not engine.only_builds or engine.only_builds not in str(error):
                    raise
                return None, f"{engine.title} takes it, but {engine.only_builds}"
    return report, ""


def read_exported(source: Path, then: str) -> ir.Model:
    """Read a file that sruexport wrote.

    Args:
        then: what is to be done with it, in a word.

    Raises:
        ModelFileError: it cannot be read, or is a checkpoint.
        ConversionError: it was not written by sruexport.
    """
    try:
        model = read_model(source)
    except ModelFileError:
        if not _is_checkpoint(source):
            raise
        raise ModelFileError(
            f"{source}: is a checkpoint and no ONNX file: export it, and {then} what that writes "
            f"(sruexport export {source} -o M.onnx)"
        ) from None
    if not unpack(model.metadata_props, source):
        raise ConversionError(f"{source}: was not written by sruexport")
    return model


def _original(source: Path, sizes: Mapping[str, int]) -> ir.Model:
    model = read_exported(source, "convert")
    if is_converted(model):
        form = form_of(model).get("name")
        raise ConversionError(
            f"{source}: has no recurrence as a custom op: it is converted already{f' (form {form})' if form else ''}"
        )
    return fix_sizes(model, sizes) if sizes else model


def _is_checkpoint(path: Path) -> bool:
    try:
        open_checkpoint(path)
    except CheckpointError:
        return False
    return True


def _named(name: str, table: Mapping[str, Any], kind: str) -> Any:
    if name not in table:
        raise OptionError(f"{kind} '{name}' is not known{closest(name, table)} (they are {', '.join(table)})")
    return table[name]


def _data(original: ir.Model, data: Any, source: Path) -> dict[str, np.ndarray] | None:
    """The caller's own inputs, fitted to the file's."""
    if data is None:
        return None
    file = LoadedModel(source, in_memory(original))
    arrays = read_data(data, file)
    file.run(**arrays)  # what it does not run on, such as sequences without a step, is known now
    return arrays


def check_ranges(ranges: Mapping[str, tuple[float, float]], names: Sequence[str]) -> None:
    """See that every range is of an input, and has two ends.

    Raises:
        OptionError: one is not.
    """
    for name, (low, high) in ranges.items():
        if name not in names:
            raise OptionError(
                f"range of '{name}': no such input{closest(name, names)} (the inputs are {', '.join(names)})"
            )
        if not -math.inf < low < high < math.inf:
            raise OptionError(f"range of '{name}': {low:g}..{high:g}: give two numbers, the lower one first")


def _settings(
    original: ir.Model, ranges: Mapping[str, tuple[float, float]], arrays: Mapping[str, np.ndarray] | None, dtype: str
) -> Settings:
    check_ranges(ranges, [value.name or "" for value in original.graph.inputs])
    if dtype not in _LSTM_DTYPES:
        raise OptionError(f"lstm_dtype '{dtype}' is not one of {', '.join(_LSTM_DTYPES)}")
    own = unpack(original.metadata_props).get("dtype")
    if dtype == "float16" and own not in _16_BITS:
        raise OptionError(f"lstm_dtype float16 is for files of 16 bits, and this one is {own}: export it in float16")
    known = dict(ranges)
    states: dict[str, float] = {}
    if arrays is not None:
        for name, array in arrays.items():
            finite = array[np.isfinite(array)] if array.dtype.kind == "f" else array[:0]
            if name not in known and finite.any():
                size = _MARGIN["range"] * float(np.abs(finite).max())
                known[name] = (-size, size)
        states = {layer: _MARGIN["state"] * size for layer, size in measured(original, arrays).items()}
    return Settings(known, states, _LSTM_DTYPES[dtype])
