"""The way from a model to a file."""

from __future__ import annotations

import os
import platform
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx
import onnx_ir as ir
import torch
from torch import nn

from sruexport._version import __version__
from sruexport.errors import ExportError, ModelWarning, OptionError, closest
from sruexport.layers import adapt, family_of
from sruexport.layers.standard import for_graph
from sruexport.layers.states import StateBank, state_bank
from sruexport.metadata import pack
from sruexport.recurrences import DOMAIN, DOMAIN_VERSION, state_type

from .branches import Decisions, Recording
from .call import Axes, Call, check_axes, result
from .finish import (
    check_dims,
    exact_layer_norms,
    fold_weights,
    name_output_dims,
    name_weights,
    run_bfloat16_anywhere,
)
from .functions import attach_functions, recurrence_nodes
from .model import borrowed, recurrent_layers
from .trace import trace
from .write import PROTOBUF_LIMIT, check_output, write_whole

DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16, "float64": torch.float64}
OPSETS = range(18, 26)
DEFAULT_OPSET = 18
#: Sizes of the example that a bare layer is traced with.
_EXAMPLE = {"T": 5, "B": 3}


@dataclass(frozen=True)
class Exported:
    """What was written: the file, its size in bytes, and the metadata in it."""

    path: Path
    bytes: int
    metadata: dict[str, Any]


@dataclass(frozen=True)
class _Plan:
    """What one run of the model in PyTorch shows, before it is traced.

    Attributes:
        outputs: names of the tensors that the model returns.
        item_names: names for the items of the outermost tuple that it returns.
        cells: paths of the cells whose state is carried, in running order, with the sizes [B, C] of their states.
    """

    call: Call
    axes: Axes
    outputs: list[str]
    item_names: tuple[str, ...]
    cells: dict[str, tuple[int, int]]
    layers: list[dict[str, Any]]
    dtype: torch.dtype
    decisions: Decisions

    def sizes(self) -> dict[str, int]:
        """The example's size of each dynamic dim."""
        return {
            dim: tensor.shape[axis]
            for name, tensor in zip(self.call.names, self.call.tensors)
            for axis, dim in self.axes.get(name, {}).items()
        }


def export(
    model: nn.Module,
    args: Any,
    path: str | os.PathLike[str],
    *,
    dynamic: Mapping[str, Mapping[int, str]] | None = None,
    stateful: bool = False,
    dtype: str | torch.dtype | None = None,
    opset: int | None = None,
    source: Mapping[str, Any] | None = None,
    progress: Callable[[str], None] = lambda step: None,
) -> Exported:
    """Write a model as one ONNX file whose recurrences are custom ops that carry their own function bodies.

    Args:
        model: any nn.Module; layers of the `sru` package or of sruexport are found at any depth. It is left as it was.
        args: what forward is called with, as an example: a tuple of tensors, or a dict by argument name. Tensors
            become graph inputs under forward's argument names, all else is constant. None makes an example for a
            bare layer.
        path: the file. It appears whole or not at all.
        dynamic: ``{argument: {axis: name}}``. Left out, a bare recurrent layer gets its time and batch axes as "T" and
            "B"; any other model has to say, ``dynamic={}`` for a static file.
        stateful: add an input ``state_i`` [B, C] and an output ``new_state_i`` for every recurrent cell that starts
            from zeros, so that a stream can be run chunk by chunk. States are float32 also in files of 16 bits.
        dtype: "float32", "float16", "bfloat16" or "float64" for weights and tensors; left out, the model's own. A
            bfloat16 file takes and gives float32, since NumPy has no bfloat16.
        opset: 18 to 25; left out, 18, which most engines read.
        source: what to note, in the metadata, of where the model came from.
        progress: called with a few words before each long step.

    Raises:
        DynamicAxesError: it was not said which axes are dynamic, or they came out otherwise.
        ExportError: the model cannot be traced, or cannot be streamed.
        OptionError: an argument does not fit.
        OutputError: the file cannot be written.

    Example:
        >>> sruexport.export(sru.SRU(40, 128), (torch.zeros(50, 1, 40),), "model.onnx")
    """
    target = check_output(path)
    chosen_opset, chosen_dtype = _check_opset(opset), _check_dtype(dtype)
    progress("running the model once")
    with borrowed(model) as ours:
        plan = _plan(ours, args, dynamic, stateful)
    file_dtype = chosen_dtype or plan.dtype
    if chosen_dtype is not None:
        plan.call.cast(chosen_dtype)
    # The graph's weights are views of the borrowed model's: it is written out before the model goes back.
    with borrowed(model, dtype=chosen_dtype, replace=lambda module: adapt(module) or for_graph(module)) as ours:
        graph, metadata = _build(ours, plan, file_dtype, chosen_opset, progress)
        metadata["source"] = {"class": f"{type(model).__module__}.{type(model).__qualname__}", **(source or {})}
        graph.metadata_props.update(pack(metadata))
        progress("checking and writing")
        data = _checked(graph)
    write_whole(target, data)
    return Exported(target, len(data), metadata)


def _build(
    ours: nn.Module, plan: _Plan, dtype: torch.dtype, opset: int, progress: Callable[[str], None]
) -> tuple[ir.Model, dict[str, Any]]:
    """Trace and finish the graph; its metadata beside it."""
    batch = _batch_name(plan) if plan.cells else None
    states = _describe_states(plan, batch, dtype)
    axes = plan.axes | ({state["input"]: {0: batch} for state in states} if batch else {})
    cells = [
        (ours.get_submodule(cell), torch.zeros(size, dtype=state_type(dtype))) for cell, size in plan.cells.items()
    ]
    outputs = _distinct(plan.outputs, plan.call.names)
    progress("tracing")
    graph = trace(
        ours,
        plan.call,
        plan.axes,
        outputs=outputs,
        item_names=plan.item_names,
        states=cells,
        batch=batch,
        decisions=plan.decisions,
        opset=opset,
    )
    progress("finishing the graph")
    check_dims(graph, axes)
    name_output_dims(graph, sorted({dim for by_axis in axes.values() for dim in by_axis.values()}))
    fold_weights(graph)
    name_weights(graph)
    exact_layer_norms(graph)
    if dtype == torch.bfloat16:
        run_bfloat16_anywhere(graph)
    graph.opset_imports[DOMAIN] = DOMAIN_VERSION
    used = attach_functions(graph)
    if not used:
        raise ExportError("the model has no layer that sruexport knows; torch.onnx.export alone will do for it")
    graph.producer_name, graph.producer_version = "sruexport", __version__
    return graph, {
        "format": 1,
        "layers": plan.layers,
        "recurrences": used,
        "opset": opset,
        "dtype": _name(dtype),
        "dynamic": {name: {str(axis): dim for axis, dim in by_axis.items()} for name, by_axis in axes.items()},
        "time": _time_name(graph, axes),
        "states": states,
        "decided": sorted(plan.decisions.places()),
        "examples": {name: _example(t, plan.sizes()) for name, t in zip(plan.call.names, plan.call.tensors)},
        "versions": {
            "sruexport": __version__,
            "torch": torch.__version__,
            "onnx": onnx.__version__,
            "onnx_ir": ir.__version__,
            "python": platform.python_version(),
        },
    }


def example_arguments(
    layer: nn.Module, *, mask: bool = False, sizes: Mapping[str, int] | None = None
) -> dict[str, torch.Tensor]:
    """An example call of a bare recurrent layer, by argument name.

    Args:
        mask: whether to give the padding mask, INT32 [T, B].
        sizes: of the axes "T" and "B".

    Raises:
        OptionError: `layer` is no known layer, or takes no mask.
    """
    family = family_of(layer)
    if family is None:
        raise OptionError("args: give an example of the model's arguments, such as (torch.zeros(50, 2, 40),)")
    kinds = {"sequence", "mask"} if mask else {"sequence"}
    if mask and not any(argument.kind == "mask" for argument in family.arguments):
        raise OptionError(f"layers of family {family.name} take no mask")
    like = next((p for p in layer.parameters() if p.is_floating_point()), torch.zeros(()))
    call = {}
    for argument in family.arguments:
        if argument.kind in kinds:
            shape = [(sizes or _EXAMPLE)[dim] if isinstance(dim, str) else dim for dim in argument.shape(layer)]
            call[argument.name] = torch.zeros(shape, dtype=torch.int32 if argument.kind == "mask" else like.dtype)
    return call


def _plan(ours: nn.Module, args: Any, dynamic: Any, stateful: bool) -> _Plan:
    call = Call.of(ours, example_arguments(ours) if args is None else args)
    axes = check_axes(ours, call, dynamic)
    call.widen(axes)
    family = family_of(ours)
    item_names = family.outputs if family is not None else ()
    bank, recording = StateBank(), Recording()
    with state_bank(bank), recording:
        try:
            output = ours(**call.keywords())
        except Exception as error:
            raise ExportError(f"the model does not run on the example: {type(error).__name__}: {error}") from error
    paths = {module: path for path, module in ours.named_modules()}
    if stateful and bank.refused:
        module, why = next(iter(bank.refused.items()))
        raise ExportError(f"stateful: layer '{paths.get(module, '')}' cannot be carried from chunk to chunk: {why}")
    if stateful and not bank.last:
        raise ExportError("stateful: every layer is given its state by the model itself; there is none to add")
    _warn_of_weights(ours)
    cells = {paths[cell]: (last.shape[0], last.shape[1]) for cell, last in bank.last.items()} if stateful else {}
    layers = [
        {"path": path, "family": known.name, "options": known.describe(layer)}
        for path, layer in recurrent_layers(ours).items()
        if (known := family_of(layer)) is not None
    ]
    floats = [t.dtype for t in [*ours.parameters(), *ours.buffers()] if t.is_floating_point()]
    for place, truths in recording.decisions.places().items():
        way = " and ".join(str(truth) for truth in sorted(truths))
        warnings.warn(
            f"{place} decides by the values of a tensor: the file always goes the example's way ({way})",
            ModelWarning,
            stacklevel=3,
        )
    return _Plan(
        call,
        axes,
        list(result(output, item_names)),
        item_names,
        cells,
        layers,
        floats[0] if floats else torch.float32,
        recording.decisions,
    )


def _warn_of_weights(model: nn.Module) -> None:
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
            what = "NaN" if bool(torch.isnan(tensor).any()) else "infinite values"
            warnings.warn(f"tensor {name} has {what}", ModelWarning, stacklevel=4)


def _batch_name(plan: _Plan) -> str | None:
    """The dynamic dim that the states' batch axis is: the one whose size in the example is theirs."""
    batch = next(iter(plan.cells.values()))[0]
    names = {dim for dim, size in plan.sizes().items() if size == batch}
    if "B" in names:
        return "B"
    return min(names) if names else None


def _time_name(graph: ir.Model, axes: Axes) -> str | None:
    """The dynamic dim that the recurrences run over, if it is an input's own."""
    names = {dim for by_axis in axes.values() for dim in by_axis.values()}
    for node in recurrence_nodes(graph):
        first = node.inputs[0]
        dim = first.shape[0] if first is not None and first.shape is not None else None
        if isinstance(dim, ir.SymbolicDim) and dim.value in names:
            return dim.value
    return None


def _describe_states(plan: _Plan, batch: str | None, dtype: torch.dtype) -> list[dict[str, Any]]:
    return [
        {
            "input": f"state_{i}",
            "output": f"new_state_{i}",
            "layer": path,
            "shape": [batch or size[0], size[1]],
            "batch_axis": 0,
            "dtype": _name(state_type(dtype)),
            "initial": 0,
        }
        for i, (path, size) in enumerate(plan.cells.items())
    ]


def _example(tensor: torch.Tensor, sizes: Mapping[str, int]) -> dict[str, Any]:
    """Shape, type and range of an example input: what `validate` makes its own inputs by.

    Integers whose largest is the size of a dynamic dim are taken for lengths along it.
    """
    known: dict[str, Any] = {"shape": list(tensor.shape), "dtype": _name(tensor.dtype)}
    if tensor.dtype == torch.bool:
        known["true"] = float(tensor.double().mean()) if tensor.numel() else 0.0
    elif not tensor.is_floating_point() and tensor.numel():
        known |= {"low": int(tensor.min()), "high": int(tensor.max())}
        longest = [dim for dim, size in sizes.items() if size == known["high"]]
        if tensor.dim() == 1 and longest:
            known["longest"] = longest[0]
    return known


def _distinct(outputs: list[str], taken: list[str]) -> list[str]:
    names: list[str] = []
    for name in outputs:
        while name in taken or name in names:
            name += "_out"
        names.append(name)
    return names


def _checked(model: ir.Model) -> bytes:
    size = sum(value.const_value.nbytes for value in model.graph.initializers.values() if value.const_value is not None)
    if size > PROTOBUF_LIMIT:
        raise ExportError(f"the weights take {size} bytes, and one ONNX file holds 2 GiB; try dtype='float16'")
    proto = ir.serde.serialize_model(model)
    try:
        onnx.checker.check_model(proto, full_check=True)
    except Exception as error:
        raise ExportError(f"the graph does not pass onnx.checker: {str(error).splitlines()[0]}") from error
    return proto.SerializeToString()


def _check_opset(opset: int | None) -> int:
    if opset is None:
        return DEFAULT_OPSET
    if opset not in OPSETS:
        raise OptionError(f"opset {opset}: give one from {OPSETS[0]} to {OPSETS[-1]}")
    return opset


def _check_dtype(dtype: str | torch.dtype | None) -> torch.dtype | None:
    if dtype is None:
        return None
    if isinstance(dtype, torch.dtype) and dtype in DTYPES.values():
        return dtype
    if str(dtype) not in DTYPES:
        raise OptionError(f"dtype '{dtype}' is not one of {', '.join(DTYPES)}{closest(str(dtype), DTYPES)}")
    return DTYPES[str(dtype)]


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
