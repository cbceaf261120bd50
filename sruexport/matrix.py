"""Every form on every installed engine: what works where, by running it."""

from __future__ import annotations

import platform
import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from datetime import date
from pathlib import Path
from statistics import median
from typing import Any

from sruexport import demo
from sruexport.converters import FORMS
from sruexport.engines import AS_EXPORTED, ENGINES, Engine
from sruexport.engines.environments import how_to_install, version
from sruexport.errors import ConversionError, EngineCrash, EngineError, OptionError, closest
from sruexport.examples import japanese_vowels
from sruexport.exporter import export
from sruexport.parity.programs import TORCH_LSTM
from sruexport.parity.validate import validate
from sruexport.sources import Source, from_checkpoint, from_code, parse_options, with_inputs

#: (T, B): one step of one row, where engines have gone wrong, and a sequence of several rows.
SIZES = ((1, 1), (17, 4))
_REPEATS = 7


@dataclass(frozen=True)
class Cell:
    """One form of one model on one engine.

    Attributes:
        status: "ok", "WRONG", "refused", "crashed", "builds", or "none": the model has no such form.
        error: the largest |engine - f64|, in parts of its bound.
        milliseconds: the median of several runs of the larger case.
        static: whether it took files with fixed sizes.
        reason: why not, or what the engine says.
        known: whether the engine's profile foresees it.
    """

    source: str
    form: str
    engine: str
    status: str
    error: float | None = None
    milliseconds: float | None = None
    static: bool = False
    reason: str = ""
    known: bool = True

    @property
    def shown(self) -> str:
        if self.status == "none":
            return "-"
        if self.status != "ok":
            return self.status
        static = ", static" if self.static else ""
        return f"ok {self.error:.2f}, {self.milliseconds:.2g} ms{static}"


@dataclass(frozen=True)
class Matrix:
    """Attributes:
    absent: engines that are not installed, each with how to install it.
    """

    cells: tuple[Cell, ...]
    versions: dict[str, str]
    absent: dict[str, str]
    day: str
    machine: str

    def to_dict(self) -> dict[str, Any]:
        return asdict(self) | {"cells": [asdict(cell) for cell in self.cells]}

    def tables(self) -> Iterable[tuple[str, list[str], list[list[str]]]]:
        """Per source: its name, the heading, and a row per form."""
        engines = list(self.versions)
        for source in dict.fromkeys(cell.source for cell in self.cells):
            own = {(cell.form, cell.engine): cell for cell in self.cells if cell.source == source}
            rows = [
                [form, *(own[form, engine].shown if (form, engine) in own else "" for engine in engines)]
                for form in dict.fromkeys(form for form, _ in own)
            ]
            yield source, ["form", *(ENGINES[name].title for name in engines)], rows

    def to_markdown(self) -> str:
        """The whole as a page."""
        lines = [
            "# What runs where",
            "",
            f"Made by `scripts/matrix` on {self.day}, on {self.machine}, from real runs of trained models. "
            "Do not edit: run it again.",
            "",
            "`ok 0.12, 1.5 ms`: right, with an error of 0.12 of what the parity rule allows, and how long a run of 17 "
            "steps and 4 rows took. `static`: with fixed sizes only. `refused`: it says so. `crashed`: its process "
            "died. `WRONG`: it says nothing, and its numbers are wrong. `-`: the model has no such form. `builds`: "
            "there is no run here.",
            "",
            "Versions: " + ", ".join(f"{ENGINES[name].title} {number}" for name, number in self.versions.items()) + ".",
            "",
        ]
        for source, heading, rows in self.tables():
            lines += [f"## {source}", "", _row(heading), _row(["---"] * len(heading)), *map(_row, rows), ""]
        lines += ["## Why not", ""]
        for cell in self.cells:
            if cell.status in ("refused", "crashed", "WRONG"):
                lines.append(f"- {cell.source}, {cell.form}, {ENGINES[cell.engine].title}: {_plain(cell.reason)}")
        lines += ["", "## What each engine takes", ""]
        for engine in ENGINES.values():
            lines += list(_about(engine, self.absent))
        return "\n".join(lines) + "\n"


def run(
    sources: Sequence[str],
    options: Sequence[str],
    engines: Sequence[str],
    forms: Sequence[str],
    *,
    limit: float,
    progress: Callable[[str], None] = lambda step: None,
) -> Matrix:
    """Try every form on every engine.

    Args:
        sources: checkpoints of a layer, or "package.module:factory"; none: the trained examples.
        options: of the checkpoints, as NAME=VALUE.
        engines, forms: only these; none: all.
        limit: seconds for an engine to load a file, and for each run.

    Raises:
        OptionError: there is no such engine or form.
        CheckpointError, ExportError: a source cannot be read or exported.
    """
    known = [*FORMS, AS_EXPORTED, TORCH_LSTM]
    for kind, names, table in (("engine", engines, list(ENGINES)), ("form", forms, known)):
        for name in names:
            if name not in table:
                raise OptionError(f"{kind} '{name}' is not known{closest(name, table)} (they are {', '.join(table)})")
    chosen = [engine for engine in ENGINES.values() if not engines or engine.name in engines]
    here = {engine.name: found for engine in chosen if (found := version(engine)) is not None}
    cells = []
    with tempfile.TemporaryDirectory(prefix="sruexport-") as folder:
        for index, (name, source) in enumerate(_sources(sources, options)):
            path = Path(folder) / f"{index}.onnx"
            progress(f"{name}: exporting")
            export(source.model, source.args, path, dynamic=source.dynamic)
            for engine in chosen:
                for form in forms or known:
                    if engine.name not in here or not _fits(engine, form):
                        continue
                    progress(f"{name}: {form} on {engine.title}")
                    cells.append(_try(name, source, path, engine, form, limit))
    absent = {engine.name: how_to_install(engine) for engine in chosen if engine.name not in here}
    machine = f"{platform.machine()} {platform.system()}"
    return Matrix(tuple(cells), here, absent, date.today().isoformat(), machine)


def _fits(engine: Engine, form: str) -> bool:
    """Forms of ONNX files for engines that take those, and of programs for the others."""
    return (form == TORCH_LSTM) == (engine.takes == "program")


def _foreseen(engine: Engine, form: str, status: str) -> bool:
    """Whether the profile says as much: a form that it runs is right, and one that goes wrong is known to.

    A form that it does not list may be right for a model that lacks what the engine gets wrong.
    """
    if form in engine.forms:
        return status in ("ok", "builds")
    return status != "WRONG" or bool(form in FORMS and set(FORMS[form].features) & engine.wrong.keys())


def _try(name: str, source: Source, path: Path, engine: Engine, form: str, limit: float) -> Cell:
    def cell(status: str, **more: Any) -> Cell:
        return Cell(name, form, engine.name, status, known=_foreseen(engine, form, status), **more)

    try:
        report = validate(
            source.model,
            path,
            example=source.args,
            engine=engine.name,
            form=form,
            force=True,
            limit=limit,
            sizes=SIZES,
            repeats=_REPEATS,
        )
    except ConversionError as error:
        return Cell(name, form, engine.name, "none", reason=str(error))
    except EngineCrash as error:
        return cell("crashed", reason=str(error))
    except EngineError as error:
        if engine.only_builds and engine.only_builds in str(error):
            return cell("builds", reason=engine.only_builds)
        return cell("refused", reason=str(error))
    if not report.outputs:
        return Cell(name, form, engine.name, "none", reason=report.cases[0].skipped)
    judged = [errors for case in report.cases if not case.refused for errors in case.outputs.values()]
    worst = max(judged, key=lambda errors: errors.ratio)
    if not worst.passed:
        return cell("WRONG", reason=worst.reason or f"off by {worst.engine_max:.1e}, allowed {worst.bound:.1e}")
    for case in report.cases:
        if case.refused:
            return cell("crashed" if case.crashed else "refused", reason=f"at {case.name}: {case.refused}")
    return cell("ok", error=worst.ratio, milliseconds=1e3 * median(report.seconds), static=report.static)


def _sources(texts: Sequence[str], options: Sequence[str]) -> Iterable[tuple[str, Source]]:
    if not texts:
        for example in japanese_vowels.EXAMPLES:
            source = from_code(example.model, example.checkpoint)
            recording, mask_pad, _ = japanese_vowels.recordings()
            source.args, source.dynamic = demo.arguments(recording, mask_pad), demo.DYNAMIC
            yield f"{example.name} speaker classifier", source
    for text in texts:
        if Path(text).exists() or ":" not in text:
            source = from_checkpoint(Path(text), None, parse_options(options))
            yield Path(text).name, with_inputs(source, [], False)
        else:
            yield text, with_inputs(from_code(text, None), [], False)


def _about(engine: Engine, absent: dict[str, str]) -> Iterable[str]:
    here = f"not installed here: `{absent[engine.name]}`" if engine.name in absent else ""
    yield f"### {engine.title} (`{engine.name}`)"
    yield ""
    yield f"Forms, fastest first: {', '.join(engine.forms) or 'none'}." + (
        " Static sizes only." if engine.static else ""
    )
    for text in (engine.only_builds, here, *engine.notes):
        if text:
            yield f"- {_plain(text)}"
    for feature, reason in engine.wrong.items():
        yield f"- {feature}: **wrong without a word**: {_plain(reason)}"
    for feature, reason in engine.refuses.items():
        yield f"- {feature}: refused: {_plain(reason)}"
    yield ""


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _plain(text: str) -> str:
    return " ".join(text.split()).replace("|", "/").replace("<", "(").replace(">", ")")[:300]
