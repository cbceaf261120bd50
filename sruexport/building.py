"""From an exported file to an engine's own file, built for GPUs that need not be here."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx_ir as ir

from sruexport.conversion import read_exported
from sruexport.converters import FORMS, convert, form_of, is_converted
from sruexport.engines import AS_EXPORTED, ENGINES
from sruexport.engines.base import DEFAULT_SIZES, BuildingEngine, Port, Progress
from sruexport.engines.environments import how_to_install, version
from sruexport.engines.process import TIME_LIMIT, build
from sruexport.engines.running import objections, ports
from sruexport.errors import ConversionError, EngineError, OptionError, closest
from sruexport.exporter.write import check_output, write_whole
from sruexport.metadata import unpack

_LARGEST = 2**31 - 1


@dataclass(frozen=True)
class Built:
    """An engine file that was written.

    Attributes:
        version: of the engine that built it, the only one that is sure to take it.
        form: that the recurrences were built in: a name in FORMS, or "as exported" for their function bodies.
        layers: what the form says of each recurrence, as in a `Conversion`.
        passed_over: forms that the engine runs faster, and why the file is not in them.
        capabilities: of the GPUs that it is for.
        dtype: of the model.
        sizes: by a dynamic dim's name the smallest, best and largest size that it takes.
        seconds: that the engine took to build it.
        not_run: why it was not run.
    """

    path: Path
    bytes: int
    engine: str
    version: str
    form: str
    layers: Sequence[Mapping[str, Any]]
    passed_over: Mapping[str, str]
    capabilities: Sequence[str]
    dtype: str
    sizes: Mapping[str, tuple[int, int, int]]
    inputs: Sequence[Port]
    outputs: Sequence[Port]
    seconds: float
    not_run: str

    def to_dict(self) -> dict[str, Any]:
        def plain(given: Iterable[Port]) -> list[dict[str, Any]]:
            return [{"name": port.name, "dtype": str(port.dtype), "shape": list(port.shape)} for port in given]

        return {
            "file": str(self.path),
            "bytes": self.bytes,
            "engine": self.engine,
            "version": self.version,
            "form": self.form,
            "layers": [dict(layer) for layer in self.layers],
            "passed_over": dict(self.passed_over),
            "capabilities": list(self.capabilities),
            "dtype": self.dtype,
            "sizes": {name: list(sizes) for name, sizes in self.sizes.items()},
            "inputs": plain(self.inputs),
            "outputs": plain(self.outputs),
            "seconds": self.seconds,
            "not_run": self.not_run,
        }


@dataclass(frozen=True)
class _Candidate:
    """A file in one form, or why there is none."""

    form: str
    model: ir.Model | None
    layers: Sequence[Mapping[str, Any]] = ()
    reason: str = ""


def build_file(
    source: str | os.PathLike[str],
    output: str | os.PathLike[str],
    *,
    engine: str,
    form: str | None = None,
    min_sizes: Mapping[str, int] | None = None,
    opt_sizes: Mapping[str, int] | None = None,
    max_sizes: Mapping[str, int] | None = None,
    capabilities: Sequence[str] = (),
    dtype: str | None = None,
    workspace: int | None = None,
    limit: float = TIME_LIMIT,
    progress: Progress = lambda step, share: None,
) -> Built:
    """Build an exported file for an engine, in the first of its forms that the engine's builder takes.

    Args:
        source: a file that `sruexport.export` or `sruexport.convert` wrote.
        output: the engine file. It appears whole or not at all.
        engine: the name of one that builds: "tensorrt-rtx".
        form: this form only: a name in `sruexport.converters.FORMS`, or "as exported".
        min_sizes, opt_sizes, max_sizes: of dynamic dims by their names: the smallest and largest that the engine file
            is to take, and the one that it is to be fastest with. Those left out are 1, 32 and 512, or nearest to it.
        capabilities: compute capabilities of the GPUs, without the dot. [the engine's own]
        dtype: that the file has to be in, since an engine file computes in the dtypes of the file it is built from.
        workspace: MiB of scratch memory that it may use at most.
        limit: seconds that a build may take.
        progress: told of the builder's steps.

    Raises:
        OptionError: an argument does not fit.
        EngineError: the engine is not installed, or builds the file in no form; with its first error.
        ConversionError: the model has no such form, or is not of sruexport.
        ModelFileError, OutputError: a file cannot be read or written.
    """
    path, target = Path(source), check_output(output)
    chosen = _engine(engine)
    targets = _capabilities(chosen, capabilities)
    if workspace is not None and not 0 < workspace <= _LARGEST:
        raise OptionError(f"workspace {workspace}: give a number of MiB from 1 up")
    model = read_exported(path, "build")
    own = str(unpack(model.metadata_props).get("dtype", ""))
    _check_dtype(path, chosen, own, dtype, targets)
    inputs, outputs = ports(model.graph.inputs, path), ports(model.graph.outputs, path)
    sizes = _sizes(path, inputs, min_sizes or {}, opt_sizes or {}, max_sizes or {})
    candidates = _candidates(path, model, chosen, form)
    found = version(chosen)
    if found is None:
        raise EngineError(f"{chosen.title} is not installed: {how_to_install(chosen)}")
    options = {"capability": ",".join(targets)} | ({"workspace": str(workspace)} if workspace else {})
    passed_over: dict[str, str] = {}
    refused: dict[str, str] = {}  # by the builder itself: what is most to the point
    for candidate in candidates:
        progress(f"form {candidate.form}", 0.0)
        reason = candidate.reason
        if candidate.model is not None:
            reason = next(iter(objections(chosen, candidate.model)), "")
        if candidate.model is None or reason:
            passed_over[candidate.form] = reason
            continue
        with tempfile.TemporaryDirectory(prefix="sruexport-") as folder:
            place = Path(folder) / "model.onnx"
            ir.save(candidate.model, place)
            try:
                content, seconds = build(
                    chosen, place, inputs, outputs, sizes=sizes, options=options, limit=limit, progress=progress
                )
            except EngineError as error:
                passed_over[candidate.form] = refused[candidate.form] = str(error)
                continue
        write_whole(target, content)
        return Built(
            target,
            len(content),
            chosen.name,
            found,
            candidate.form,
            candidate.layers,
            passed_over,
            targets,
            own,
            sizes,
            inputs,
            outputs,
            seconds,
            chosen.only_builds,
        )
    raise EngineError(f"{path}: {chosen.title} builds it in no form: {_together(refused | passed_over)}")


def _engine(name: str) -> BuildingEngine:
    building = [known.name for known in ENGINES.values() if isinstance(known, BuildingEngine)]
    found = ENGINES.get(name)
    if isinstance(found, BuildingEngine):
        return found
    if found is not None:
        raise OptionError(f"engine '{name}' has no files of its own to build (those that have: {', '.join(building)})")
    raise OptionError(f"engine '{name}' is not known{closest(name, building)} (to build for: {', '.join(building)})")


def _capabilities(engine: BuildingEngine, asked: Sequence[str]) -> tuple[str, ...]:
    for capability in asked:
        if capability not in engine.capabilities:
            raise OptionError(
                f"capability '{capability}': {engine.title} builds for {', '.join(engine.capabilities)}; give one of "
                "these (it is the compute capability without the dot: 86 for 8.6)"
            )
    return tuple(dict.fromkeys(asked)) or (engine.capability,)


def _check_dtype(path: Path, engine: BuildingEngine, own: str, asked: str | None, targets: Sequence[str]) -> None:
    """See that a file is in the dtype that was asked for, and in one that the engine builds.

    Raises:
        OptionError, EngineError: it is not.
    """
    if asked is not None and asked != own:
        raise OptionError(
            f"{path}: is in {own}, and {engine.title} builds what the file says: export the model with --dtype {asked}"
        )
    if own in engine.wrong:
        raise EngineError(
            f"{path}: is in {own}, which {engine.title} gets wrong: {engine.wrong[own]}; export the model with "
            "--dtype float32"
        )
    for capability in targets:
        allowed = engine.dtypes_for.get(capability, (own,))
        if own not in allowed:
            raise EngineError(
                f"{path}: is in {own}, which {engine.title} does not build for capability {capability}: export the "
                f"model with --dtype {allowed[0]}, or build for another (--capability)"
            )


def _sizes(
    path: Path, inputs: Iterable[Port], low: Mapping[str, int], best: Mapping[str, int], high: Mapping[str, int]
) -> dict[str, tuple[int, int, int]]:
    """The smallest, best and largest size of every dynamic dim; those that were not given nearest to the defaults.

    Raises:
        OptionError: a name is of no dynamic dim, or the three are not in order.
    """
    dims = list(dict.fromkeys(dim for port in inputs for dim in port.shape if isinstance(dim, str)))
    for kind, given in (("min", low), ("opt", best), ("max", high)):
        for name, size in given.items():
            if name not in dims:
                known = f"they are {', '.join(dims)}" if dims else "all are static: leave it out"
                raise OptionError(
                    f"{kind} {name}={size}: {path} has no such dynamic dim{closest(name, dims)} ({known})"
                )
            if not 0 < size <= _LARGEST:
                raise OptionError(f"{kind} {name}={size}: give a size from 1 to {_LARGEST:,}")
    found = {}
    for name in dims:
        ends = low.get(name, 1), high.get(name, max(DEFAULT_SIZES[2], low.get(name, 1), best.get(name, 1)))
        middle = best.get(name, min(max(DEFAULT_SIZES[1], ends[0]), ends[1]))
        if not ends[0] <= middle <= ends[1]:
            asked = (("min", low), ("opt", best), ("max", high))
            said = ", ".join(f"{kind} {name}={given[name]}" for kind, given in asked if name in given)
            raise OptionError(f"{said}: give sizes with min <= opt <= max")
        found[name] = (ends[0], middle, ends[1])
    return found


def _candidates(path: Path, model: ir.Model, engine: BuildingEngine, asked: str | None) -> Iterator[_Candidate]:
    """The file in every form that the engine builds, fastest first; or in the one that was asked for.

    Raises:
        OptionError, ConversionError: that is not known, or not to be had.
    """
    if asked is not None and asked != AS_EXPORTED and asked not in FORMS:
        known = [*FORMS, AS_EXPORTED]
        raise OptionError(f"form '{asked}' is not known{closest(asked, known)} (they are {', '.join(known)})")
    if is_converted(model):
        own = form_of(model)
        name = str(own.get("name", AS_EXPORTED))
        if asked not in (None, name):
            raise ConversionError(f"{path}: is converted already, to form {name}: build the exported file itself")
        return iter([_Candidate(name, model, own.get("layers", []))])
    if asked is not None:
        candidate = _written(model, asked)
        if candidate.model is None:
            raise ConversionError(
                f"{path}: {candidate.reason} (sruexport convert has options for it, and build takes what it writes)"
            )
        return iter([candidate])
    return (_written(model, form) for form in engine.forms)


def _written(model: ir.Model, form: str) -> _Candidate:
    if form == AS_EXPORTED:
        return _Candidate(form, model)
    try:
        converted = convert(model, FORMS[form])
    except ConversionError as error:
        return _Candidate(form, None, reason=str(error))
    return _Candidate(form, converted.model, converted.report)


def _together(reasons: Mapping[str, str]) -> str:
    """Each reason once, with the forms that it holds for."""
    forms: dict[str, list[str]] = {}
    for form, reason in reasons.items():
        forms.setdefault(reason, []).append(form)
    return "; ".join(f"{', '.join(names)}: {reason}" for reason, names in forms.items())
