"""A file of sruexport on any engine: in a form that the engine runs, and in the sizes that it is given."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import onnx_ir as ir

from sruexport.converters import FORMS, Converted, Settings, convert, fix_sizes, form_of, is_converted
from sruexport.errors import ConversionError, EngineCrash, EngineError, ModelFileError

from . import ENGINES
from .base import AS_EXPORTED, Engine, Port, Session
from .environments import how_to_install, version
from .features import features
from .onnxruntime import OnnxRuntime
from .onnxruntime_kernels import OnnxRuntimeKernels
from .process import TIME_LIMIT, EngineProcess


def read_model(path: Path) -> ir.Model:
    """Read an ONNX file.

    Raises:
        ModelFileError: there is none, or it is damaged.
    """
    if not path.is_file():
        raise ModelFileError(f"{path}: is a folder" if path.is_dir() else f"{path}: there is no such file")
    if path.stat().st_size == 0:  # which protobuf takes for a model with nothing in it
        raise ModelFileError(f"{path}: is empty")
    try:
        return ir.load(path)
    except Exception as error:
        raise ModelFileError(f"{path}: is cut off, damaged or no ONNX file ({type(error).__name__})") from error


def default_engine(path: Path) -> str:
    """What `sruexport.load` runs a file in: ONNX Runtime, with native kernels where there are any and it has a use."""
    plain, kernels = OnnxRuntime.name, OnnxRuntimeKernels.name
    if version(ENGINES[kernels]) is None or is_converted(read_model(path)):
        return plain
    return kernels


def ports(values: Iterable[ir.Value], path: object) -> tuple[Port, ...]:
    """Inputs or outputs of a graph, as engines have them."""
    found = []
    for value in values:
        if value.dtype is None or value.shape is None:
            raise ModelFileError(f"{path}: '{value.name}' has no type or no shape")
        dtype = np.dtype(value.dtype.numpy())
        if dtype.kind not in "biuf":
            raise ModelFileError(f"{path}: '{value.name}' is {value.dtype}, which NumPy has no type for")
        dims = (dim.value if isinstance(dim, ir.SymbolicDim) else dim for dim in value.shape)
        found.append(Port(value.name or "", dtype, tuple("?" if dim is None else dim for dim in dims)))
    return tuple(found)


def objections(engine: Engine, model: ir.Model) -> list[str]:
    """Why an engine must not be given a graph: what it refuses, and what it computes wrongly without a word."""
    found = features(model)
    if engine.static and "dynamic" in found:
        return [f"{engine.title} needs static sizes, and '{found['dynamic']}' has dynamic ones"]
    refused = [
        f"{feature} ({node}): {engine.refuses[feature]}" for feature, node in found.items() if feature in engine.refuses
    ]
    wrong = [
        f"{feature} ({node}) gives wrong numbers there: {engine.wrong[feature]}"
        for feature, node in found.items()
        if feature in engine.wrong
    ]
    return [*wrong, *refused]


@dataclass(frozen=True)
class Choice:
    """A form for an engine, and why not one of those before it.

    Attributes:
        passed_over: forms that the engine runs faster, each with the reason why this model is not in it.
    """

    converted: Converted
    passed_over: Mapping[str, str]


def choices(engine: Engine, model: ir.Model, settings: Settings | None = None) -> Iterator[Choice]:
    """The forms of a model that an engine runs, fastest first.

    Raises:
        ConversionError: there is none; with the reason for each.
    """
    passed_over: dict[str, str] = {}
    found = False
    for name in engine.forms:
        if name == AS_EXPORTED:
            continue
        try:
            converted = convert(model, FORMS[name], settings)
        except ConversionError as error:
            passed_over[name] = str(error)
            continue
        reasons = objections(engine, converted.model)
        if reasons:
            passed_over[name] = reasons[0]
        else:
            found = True
            yield Choice(converted, dict(passed_over))
    if not found:
        raise ConversionError(f"{engine.title} runs no form of this model{no_form(model, passed_over)}")


def no_form(model: ir.Model, reasons: Mapping[str, str]) -> str:
    """The end of a sentence: what may help an engine that runs no form of a model, and why not each."""
    dims = [str(dim) for value in model.graph.inputs for dim in value.shape or () if not isinstance(dim, int)]
    hint = " ".join(f"--size {dim}=..." for dim in dict.fromkeys(dims))
    way_out = f"; with fixed sizes ({hint}) it may run one" if hint else ""
    return f"{way_out}: {'; '.join(f'{name}: {reason}' for name, reason in reasons.items())}"


@dataclass
class EngineSession(Session):
    """A file in an engine's own process, in one form.

    Where the engine or the form needs static sizes, there is a process for every size that it is run with.

    Attributes:
        form: a form's name, or "as exported": with custom ops. Left out: a file that the engine takes is run as it is,
            another in the first form that fits.
        force: run what the profile says is wrong too, to see whether it still is.
        fix: whether sizes may be fixed, where the engine does not take the file with dynamic ones.
        static: whether the last run was with sizes that had been fixed.
        seconds: that the last run took in the engine.

    Raises:
        EngineError: the engine is not installed, or does not take the file.
        ConversionError: the model has no such form.
        ModelFileError: the file cannot be read.
    """

    engine: Engine
    path: Path
    form: str = ""
    force: bool = False
    fix: bool = True
    settings: Settings | None = None
    limit: float = TIME_LIMIT
    options: Mapping[str, str] = field(default_factory=dict)
    static: bool = field(default=False, init=False)
    seconds: float = field(default=0.0, init=False)

    def __post_init__(self) -> None:
        if version(self.engine) is None:
            raise EngineError(f"{self.engine.title} is not installed: {how_to_install(self.engine)}")
        self._model = read_model(self.path)
        self.inputs = ports(self._model.graph.inputs, self.path)
        self.outputs = ports(self._model.graph.outputs, self.path)
        self.metadata = dict(self._model.metadata_props)
        own = str(form_of(self._model).get("name", ""))
        if self.form not in ("", AS_EXPORTED, own) and is_converted(self._model):
            raise ConversionError(f"{self.path}: is in form {own or 'of its own'} already, and not in {self.form}")
        if is_converted(self._model) or (not self.form and AS_EXPORTED in self.engine.forms):
            self.form = AS_EXPORTED
        self._folder = tempfile.TemporaryDirectory(prefix="sruexport-")
        self._processes: dict[frozenset[tuple[str, int]], EngineProcess] = {}

    @property
    def ran_on(self) -> str:
        return f"{self.engine.title} {version(self.engine)}"

    @property
    def written_as(self) -> str:
        """The form of the recurrences; empty for custom ops."""
        if self.form == AS_EXPORTED:
            return str(form_of(self._model).get("name", ""))
        return self.form

    @property
    def allowance(self) -> float:
        """What the parity rule's bound is multiplied with in this form."""
        return FORMS[self.written_as].allowance if self.written_as in FORMS else 1.0

    def run(self, feeds: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        process = self._process(self._sizes(feeds))
        try:
            outputs = process.run(feeds)
        except EngineCrash:
            # The next run begins anew.
            self._processes = {sizes: other for sizes, other in self._processes.items() if other is not process}
            process.close()
            raise
        self.seconds = process.seconds
        return {port.name: outputs[port.name] for port in self.outputs}

    def close(self) -> None:
        for process in self._processes.values():
            process.close()
        self._processes.clear()
        self._folder.cleanup()

    def _process(self, sizes: Mapping[str, int]) -> EngineProcess:
        """The process for these sizes: one for all of them, where the engine takes the form with dynamic sizes."""
        key = frozenset(sizes.items())
        for known in (frozenset[tuple[str, int]](), key):
            if known in self._processes:
                return self._processes[known]
        why: list[str] = []
        kind: type[ConversionError | EngineError] = ConversionError
        tries = [False] if not sizes or not self.fix else [True] if self.engine.static else [False, True]
        for static in tries:
            try:
                model = self._written(sizes if static else {})
            except ConversionError as error:
                why.append(str(error))
                continue
            reasons = objections(self.engine, model)
            if reasons and not (self.force and static == tries[-1]):
                kind = EngineError
                why += reasons
                continue
            self.static = static
            place = Path(self._folder.name) / f"{len(self._processes)}.onnx"
            ir.save(model, place)
            inputs, outputs = (ports(values, self.path) for values in (model.graph.inputs, model.graph.outputs))
            try:
                process = EngineProcess(self.engine, place, inputs, outputs, limit=self.limit, options=self.options)
            except EngineError as refused:
                if static == tries[-1]:
                    raise
                kind = type(refused)
                why.append(str(refused))
                continue
            self._processes[key if static else frozenset()] = process
            return process
        raise kind(f"{self.engine.title}, {self.form}: {why[-1]}" if self.form else why[-1])

    def _written(self, sizes: Mapping[str, int]) -> ir.Model:
        """The model in the form, and with fixed sizes where there are any."""
        model = fix_sizes(self._model, sizes) if sizes else self._model
        if self.form == AS_EXPORTED:
            return model
        if not self.form:
            choice = next(choices(self.engine, model, self.settings))
            self.form = choice.converted.form
            return choice.converted.model
        return convert(model, FORMS[self.form], self.settings).model

    def _sizes(self, feeds: Mapping[str, np.ndarray]) -> dict[str, int]:
        return {
            dim: feeds[port.name].shape[axis]
            for port in self.inputs
            for axis, dim in enumerate(port.shape)
            if isinstance(dim, str) and port.name in feeds
        }
