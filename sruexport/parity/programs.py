"""The form `torch-lstm` of a model, in PyTorch itself or as a program on an engine that takes those."""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import torch
from torch import Tensor, nn

from sruexport.converters import FORMS, Settings, convert, is_converted
from sruexport.converters.torch_lstm import NAME as TORCH_LSTM
from sruexport.converters.torch_lstm import torch_lstm
from sruexport.engines import Engine, Session
from sruexport.engines.environments import how_to_install, version
from sruexport.engines.process import TIME_LIMIT, EngineProcess
from sruexport.engines.running import ports, read_model
from sruexport.errors import ConversionError, EngineCrash, EngineError
from sruexport.exporter.call import Call, result
from sruexport.exporter.model import borrowed
from sruexport.layers import family_of
from sruexport.layers.states import StateBank, state_bank
from sruexport.metadata import unpack
from sruexport.quiet import quiet

#: Of the plain embedding in ONNX, whose scales are used.
_TWIN = FORMS["lstm"]


def to_torch_lstm(
    model: nn.Module, exported: ir.Model, settings: Settings | None = None, dtype: torch.dtype | None = None
) -> tuple[nn.Module, list[Any]]:
    """A copy of a model with its recurrent layers as torch.nn.LSTM.

    Args:
        model: as the caller has it; left as it was.
        exported: the file that was exported from it: the bounds on the states are proven on its graph.
        dtype: of the copy; left out, the model's own.

    Returns:
        the copy, and what is to be known of each layer (k, the bound, the error).

    Raises:
        ConversionError: a layer has no such form.
    """
    report = convert(exported, _TWIN, settings).report
    scales: dict[str, int] = {}
    for node, layer in zip((n for n in exported.graph.all_nodes() if n.domain), report):
        path = node.metadata_props.get("sruexport.module", "")
        scales[path] = max(scales.get(path, 0), int(layer["k"]))
    with borrowed(model, dtype=dtype) as ours:
        return torch_lstm(ours, scales), report


class Positional(nn.Module):
    """A model that takes its file's inputs, and gives its outputs, in the file's order, states too.

    Args:
        model: of our own layers.
        names: of the file's inputs.
        states: what the metadata say of them.
        example: a call of forward whose arguments are more than a tensor each.
        dtype: what the model computes in, where its floating inputs are of another one: NumPy has no bfloat16.
    """

    def __init__(
        self,
        model: nn.Module,
        names: Sequence[str],
        states: Sequence[Mapping[str, Any]],
        example: Call | None,
        dtype: torch.dtype | None = None,
    ):
        super().__init__()
        self.model = model
        self._names, self._states, self._example, self._dtype = list(names), list(states), example, dtype

    def forward(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        given = dict(zip(self._names, tensors))
        states = {state["input"]: given.pop(state["input"]) for state in self._states}
        bank = StateBank()
        for state in self._states:
            bank.given[self.model.get_submodule(state["layer"])] = states[state["input"]]
        if self._dtype is not None:
            given = {n: tensor.to(self._dtype) if tensor.is_floating_point() else tensor for n, tensor in given.items()}
        keywords = given if self._example is None else self._example.keywords([given[n] for n in self._example.names])
        with state_bank(bank):
            output = self.model(**keywords)
        family = family_of(self.model)
        values = list(result(output, family.outputs if family else ()).values())
        if self._dtype == torch.bfloat16:
            values = [value.float() if value.dtype == torch.bfloat16 else value for value in values]
        return (*values, *(bank.last[self.model.get_submodule(state["layer"])] for state in self._states))


@dataclass
class ProgramSession(Session):
    """The torch-lstm form of a model, as a program in an engine's own process.

    Attributes:
        engine: one that takes programs; PyTorch itself is one.
        path: the file that was exported from the model.
        static: a program has fixed sizes: there is a process for each.
    """

    engine: Engine
    path: Path
    model: nn.Module
    example: Call | None = None
    limit: float = TIME_LIMIT
    settings: Settings | None = None
    written_as: str = field(default=TORCH_LSTM, init=False)
    allowance: float = field(default=_TWIN.allowance, init=False)
    seconds: float = field(default=0.0, init=False)
    static: bool = field(default=True, init=False)

    def __post_init__(self) -> None:
        if version(self.engine) is None:
            raise EngineError(f"{self.engine.title} is not installed: {how_to_install(self.engine)}")
        exported = read_model(self.path)
        self.metadata = dict(exported.metadata_props)
        self.inputs = ports(exported.graph.inputs, self.path)
        self.outputs = ports(exported.graph.outputs, self.path)
        if is_converted(exported):
            raise ConversionError(
                f"{self.path}: its recurrences are written in standard ops already, and {self.engine.title} takes "
                f"PyTorch programs ({TORCH_LSTM}): give the file as it was exported"
            )
        known = unpack(self.metadata, self.path)
        dtype = getattr(torch, known.get("dtype", "float32"))
        self.converted, self.report = to_torch_lstm(self.model, exported, self.settings, dtype)
        names = [port.name for port in self.inputs]
        self._program = Positional(self.converted, names, known.get("states", []), self.example, dtype).eval()
        self._folder = tempfile.TemporaryDirectory(prefix="sruexport-")
        self._processes: dict[tuple[tuple[int, ...], ...], EngineProcess] = {}

    @property
    def ran_on(self) -> str:
        return f"{self.engine.title} {version(self.engine)}"

    def run(self, feeds: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        names = [port.name for port in self.outputs]
        sizes = tuple(feeds[port.name].shape for port in self.inputs)
        if sizes not in self._processes:
            self._processes[sizes] = self._process(feeds)
        process = self._processes[sizes]
        try:
            outputs = process.run(feeds)
        except EngineCrash:
            self._processes.pop(sizes).close()
            raise
        self.seconds = process.seconds
        return {name: outputs[name] for name in names}

    def close(self) -> None:
        for process in self._processes.values():
            process.close()
        self._processes.clear()
        self._folder.cleanup()

    def _process(self, feeds: Mapping[str, np.ndarray]) -> EngineProcess:
        place = Path(self._folder.name) / f"{len(self._processes)}.pt2"
        _write(self._program, self._tensors(feeds), place)
        return EngineProcess(self.engine, place, self.inputs, self.outputs, limit=self.limit)

    def _tensors(self, feeds: Mapping[str, np.ndarray]) -> tuple[Tensor, ...]:
        return tuple(torch.from_numpy(np.array(feeds[port.name], order="C")) for port in self.inputs)


def write_program(
    module: nn.Module, model: nn.Module, exported: Path, args: Any, place: Path
) -> dict[str, tuple[int, ...]]:
    """Write a torch-lstm module as a program, with the sizes of the example.

    Args:
        module: what `to_torch_lstm` made of `model`.
        exported: the file that was exported from the model; its inputs and outputs are the program's, in order.
        args: what forward is called with; None: the bare layer's own example.

    Returns:
        the shapes of its inputs, by name.

    Raises:
        ConversionError: torch.export does not take the module.
    """
    graph = read_model(exported).graph
    known = unpack(read_model(exported).metadata_props, exported)
    names = [value.name or "" for value in graph.inputs]
    call = Call.of(model, args) if args is not None else None
    examples = known["examples"]
    if call is not None:
        tensors = dict(zip(call.names, call.tensors))
    else:
        tensors = {
            name: torch.zeros(about["shape"], dtype=getattr(torch, about["dtype"])) for name, about in examples.items()
        }
    _write(Positional(module, names, [], call).eval(), tuple(tensors[name] for name in names), place)
    return {name: tuple(tensors[name].shape) for name in names}


def _write(program: nn.Module, tensors: tuple[Tensor, ...], place: Path) -> None:
    try:
        with torch.no_grad(), quiet(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.export.save(torch.export.export(program, tensors), place)
    except Exception as error:
        raise ConversionError(f"torch.export does not take the model: {str(error).splitlines()[0]}") from error
