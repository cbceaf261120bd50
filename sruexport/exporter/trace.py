"""One call of a model as an ONNX graph, by torch.onnx.export(dynamo=True), with clean names."""

from __future__ import annotations

import re
import warnings
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import onnx_ir as ir
import torch
from torch import nn

from sruexport.errors import DynamicAxesError, ExportError, ModelWarning, SruExportError
from sruexport.layers import adapt
from sruexport.layers.packed import padded_packing
from sruexport.layers.standard import for_graph
from sruexport.layers.states import StateBank, state_bank
from sruexport.quiet import quiet
from sruexport.recurrences import graph_tracing

from .branches import Decisions, Replaying, noted_sizes
from .call import Axes, Call, result

#: Node metadata: the path of the module that a node comes from, in the caller's model.
MODULE_KEY = "sruexport.module"
_ROOT = "model"
#: A size in a condition that torch could not prove.
_SIZE = r"L\['tensors'\]\[(\d+)\]\.size\(\)\[(\d+)\]"
#: "size != 1", or the same times a number: "(4*size) != 4", "(4 + 4*(T // 2)) != 4".
_NOT_ONE = re.compile(r"^\((\d+) \+ \1\*.*\) != \1$|^\((\d+)\*.*\) != \2$|!= 1$")


class _Graph(nn.Module):
    """The model as a function from a flat list of tensors to one."""

    def __init__(
        self, model: nn.Module, call: Call, cells: Sequence[nn.Module], names: Sequence[str], decisions: Decisions
    ):
        super().__init__()
        self.model = model
        self._call, self._cells, self._names, self._decisions = call, cells, names, decisions

    def forward(self, *tensors: torch.Tensor) -> list[torch.Tensor]:
        inputs = len(self._call.names)
        keywords = self._call.keywords(tensors[:inputs])
        bank = StateBank(given=dict(zip(self._cells, tensors[inputs:], strict=True)))
        with state_bank(bank) if self._cells else nullcontext(), Replaying(self._decisions):
            outputs = result(self.model(**keywords), self._names)
        return [*outputs.values(), *(bank.last[cell] for cell in self._cells)]


def trace(
    model: nn.Module,
    call: Call,
    axes: Axes,
    *,
    outputs: Sequence[str],
    item_names: Sequence[str],
    states: Sequence[tuple[nn.Module, torch.Tensor]],
    batch: str | None,
    decisions: Decisions,
    opset: int,
) -> ir.Model:
    """Trace a borrowed model.

    Args:
        call: the example call, its inputs named.
        axes: dynamic axes by input name.
        outputs: names of all tensors that the model returns, in order.
        item_names: of the items of the outermost tuple that it returns (see `result`).
        states: cells whose state becomes an input and an output, with an example [B, size].
        batch: name of the dim of the states' axis 0, if it is dynamic.
        decisions: the branches that the model took on the example.

    Raises:
        DynamicAxesError: the model's own code fixes an axis that was to be dynamic.
        ExportError: the model cannot be traced.
    """
    graph = _Graph(model, call, [cell for cell, _ in states], item_names, decisions)
    dims = {name: torch.export.Dim(name) for name in {d for a in axes.values() for d in a.values()} | {batch} if name}
    shapes: list[dict[int, Any]] = [{axis: dims[d] for axis, d in axes.get(name, {}).items()} for name in call.names]
    shapes += [{0: dims[batch]} if batch else {}] * len(states)
    tensors = (*call.tensors, *(state for _, state in states))
    with quiet():
        try:
            program = _program(graph, tensors, shapes, opset)
        except SruExportError:
            raise
        except Exception as error:
            raise _explain(error, dims, model) from error
    _clean(program.model)
    _name_dims(program.model, [{axis: dim.__name__ for axis, dim in by_axis.items()} for by_axis in shapes])
    inputs = [*call.names, *(f"state_{i}" for i in range(len(states)))]
    _rename(program.model, inputs, [*outputs, *(f"new_state_{i}" for i in range(len(states)))])
    return program.model


def _program(
    graph: _Graph, tensors: tuple[torch.Tensor, ...], shapes: Sequence[dict[int, Any]], opset: int
) -> torch.onnx.ONNXProgram:
    """The traced graph as ONNX: with packed sequences as PyTorch unpacks them, or else padded to all T steps."""
    for exact in (True, False):
        with padded_packing(exact) as packing:
            try:
                captured = _capture(graph, tensors, shapes)
                program = torch.onnx.export(captured, dynamo=True, opset_version=opset, verbose=False)
            except Exception:
                if exact and packing.used:
                    continue
                raise
        break
    if packing.used and not exact:
        warnings.warn(
            "packed sequences are unpacked to as many steps as the input has, PyTorch's to as many as the longest "
            "sequence has: give the file inputs that are no longer than that",
            ModelWarning,
            stacklevel=4,
        )
    assert program is not None
    return program


def _capture(
    graph: _Graph, tensors: tuple[torch.Tensor, ...], shapes: Sequence[dict[int, Any]]
) -> torch.export.ExportedProgram:
    """torch.export, first with every condition on the dynamic axes proven, then, if that fails, with them assumed.

    Code such as `math.ceil(T / hop)` makes conditions that hold for every T but that torch cannot prove. What is
    assumed is told, since the file does not check it.
    """
    # As torch.onnx.export does: an axis is not taken for constant because the example has 0 or 1 there.
    oblivious = torch.fx.experimental._config.patch(backed_size_oblivious=True)  # type: ignore[attr-defined]
    with graph_tracing(), oblivious, noted_sizes() as decided:
        try:
            return torch.export.export(graph, tensors, dynamic_shapes={"tensors": tuple(shapes)}, strict=False)
        except torch._dynamo.exc.UserError as error:
            conditions = re.findall(r"satisfy the generated guard (.+?)\.?$", str(error), re.MULTILINE)
            if not conditions:
                raise
        captured = torch.export.export(
            graph,
            tensors,
            dynamic_shapes={"tensors": tuple(shapes)},
            strict=False,
            prefer_deferred_runtime_asserts_over_guards=True,
        )
    for place in sorted(decided):
        warnings.warn(
            f"{place} decides by whether a size is 1: the file always goes the example's way",
            ModelWarning,
            stacklevel=5,
        )
    # That a size is not 1 is otherwise the tracer's own condition; ONNX broadcasts by the sizes at run time.
    conditions = [condition for condition in conditions if not _NOT_ONE.search(condition)]
    if not conditions:
        return captured

    def name(match: re.Match[str]) -> str:
        dim = shapes[int(match[1])].get(int(match[2]))
        return dim.__name__ if dim is not None else match[0]

    warnings.warn(
        f"the model's code puts {len(conditions)} conditions on the dynamic axes that could not be proven; the file "
        f"takes them for granted, the first being {re.sub(_SIZE, name, conditions[0])}: "
        "validate it at the sizes that you need",
        ModelWarning,
        stacklevel=5,
    )
    return captured


def _clean(model: ir.Model) -> None:
    """Take the wrapper out of the names, and what tells of this machine out of the metadata."""
    for value in list(model.graph.initializers.values()):
        if value.name and value.name.startswith(f"{_ROOT}."):
            value.name = value.name.removeprefix(f"{_ROOT}.")
    for node in model.graph.all_nodes():
        scopes = re.findall(r"'([^']*)'", node.metadata_props.get("pkg.torch.onnx.name_scopes", ""))
        paths = [
            s.removeprefix(_ROOT).removeprefix(".") for s in scopes[:-1] if s == _ROOT or s.startswith(f"{_ROOT}.")
        ]
        node.metadata_props.clear()
        if paths:
            node.metadata_props[MODULE_KEY] = paths[-1]
        node.doc_string = None
    for value in [*model.graph.inputs, *model.graph.outputs, *model.graph.initializers.values()]:
        value.metadata_props.clear()
    for node in model.graph:
        for value in node.outputs:
            value.metadata_props.clear()
    model.graph.metadata_props.clear()
    model.metadata_props.clear()
    model.graph.name = "sruexport"


def _name_dims(model: ir.Model, asked: Sequence[dict[int, str]]) -> None:
    """Put the names that were asked for in place of the symbols that torch made up, everywhere.

    Raises:
        DynamicAxesError: two names came out as one symbol: the model's own code ties them.
    """
    names: dict[str, str] = {}
    for value, by_axis in zip(model.graph.inputs, asked):
        for axis, name in by_axis.items():
            dim = value.shape[axis] if value.shape is not None else None
            symbol = dim.value if isinstance(dim, ir.SymbolicDim) else None
            if symbol is not None and names.setdefault(symbol, name) != name:
                raise DynamicAxesError(
                    f"dynamic: the model's own code ties '{name}' to '{names[symbol]}': name them alike"
                )
    if not names:
        return
    pattern = re.compile(rf"\b({'|'.join(map(re.escape, names))})\b")
    values = [*model.graph.inputs, *model.graph.initializers.values()]
    values += [output for node in model.graph.all_nodes() for output in node.outputs]
    for value in values:
        for axis, dim in enumerate(value.shape or ()):
            if isinstance(dim, ir.SymbolicDim) and dim.value is not None:
                assert value.shape is not None
                value.shape[axis] = ir.SymbolicDim(pattern.sub(lambda match: names[match[1]], dim.value))


def _rename(model: ir.Model, inputs: Sequence[str], outputs: Sequence[str]) -> None:
    graph = model.graph
    if len(graph.inputs) != len(inputs) or len(graph.outputs) != len(outputs):
        raise ExportError(
            f"the graph has {len(graph.inputs)} inputs and {len(graph.outputs)} outputs, "
            f"the call {len(inputs)} and {len(outputs)}: an argument or result was lost in the trace"
        )
    _separate_outputs(graph)
    taken = set(inputs) | set(outputs)
    for value in [*graph.initializers.values(), *(v for node in graph.all_nodes() for v in node.outputs)]:
        if value.name in taken:
            value.name = f"{value.name}_value"
    for value, name in [*zip(graph.inputs, inputs), *zip(graph.outputs, outputs)]:
        value.name = name


def _separate_outputs(graph: ir.Graph) -> None:
    """Give every output a value of its own: not an input's, an initializer's or another output's."""
    seen: set[ir.Value] = set(graph.inputs) | set(graph.initializers.values())
    for i, value in enumerate(graph.outputs):
        if value in seen:
            copy = ir.node("Identity", [value])
            copy.outputs[0].shape, copy.outputs[0].type = value.shape, value.type
            graph.append(copy)
            graph.outputs[i] = copy.outputs[0]
        seen.add(graph.outputs[i])


def _explain(error: Exception, dims: dict[str, Any], model: nn.Module) -> ExportError:
    text = _root_cause(error)
    for module in model.modules():
        for name, value in vars(module).items():
            if not name.startswith("_") and isinstance(value, (list, tuple, dict)):
                for held in value.values() if isinstance(value, dict) else value:
                    if isinstance(held, nn.Module) and (adapt(held) is not None or for_graph(held) is not None):
                        return ExportError(
                            f"{type(module).__name__}.{name} holds a layer of class {type(held).__name__} in a plain "
                            f"{type(value).__name__}, where it cannot be found: use torch.nn.ModuleList or ModuleDict"
                        )
    for name in dims:
        if re.search(
            rf"(marked {name} as dynamic|Not all values of {name}|specialized|constant|\b{name} = \d+)", text
        ) and re.search(rf"\b{name}\b", text):
            return DynamicAxesError(f"the model's own code fixes or limits the axis '{name}': {_first_lines(text)}")
    return ExportError(f"the model cannot be traced: {_first_lines(text)}")


def _root_cause(error: BaseException) -> str:
    while error.__cause__ is not None:
        error = error.__cause__
    return f"{type(error).__name__}: {error}"


def _first_lines(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return " ".join(lines[:3])[:400]
