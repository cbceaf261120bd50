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
from sruexport.layers import adapt
from sruexport.layers.standard import for_graph
from sruexport.metadata import pack
from sruexport.recurrences import DOMAIN, DOMAIN_VERSION, state_type

from .call import Axes
from .finish import (
    check_dims,
    drop_full_lengths,
    exact_layer_norms,
    fold_weights,
    name_output_dims,
    name_weights,
    run_bfloat16_anywhere,
)
from .functions import attach_functions, recurrence_nodes
from .model import attributes, borrowed, holding, unwrapped
from .plan import Plan, check_tensors, make_plan
from .trace import trace
from .write import PROTOBUF_LIMIT, check_output, write_whole

DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16, "float64": torch.float64}
OPSETS = range(18, 26)
DEFAULT_OPSET = 18


@dataclass(frozen=True)
class Exported:
    """What was written: the file, its size in bytes, and the metadata in it."""

    path: Path
    bytes: int
    metadata: dict[str, Any]


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
    model = unwrapped(model)
    check_tensors(model)
    before = attributes(model)
    with borrowed(model) as ours:
        plan = make_plan(ours, args, dynamic, stateful)
        kept = {
            module: {name: value for name, value in held.items() if value is not before[module].get(name, before)}
            for module, held in attributes(model).items()
            if module in before
        }
    file_dtype = chosen_dtype or plan.dtype
    if chosen_dtype is not None:
        plan.call.cast(chosen_dtype)
    try:
        data, metadata = _written(model, plan, chosen_dtype, file_dtype, chosen_opset, source, progress)
    except ExportError:
        if not any(kept.values()):
            raise
        # Code that works out something in its first call, in ways that no graph can, and keeps it for those to come.
        with holding(kept):
            data, metadata = _written(model, plan, chosen_dtype, file_dtype, chosen_opset, source, progress)
        module, name = next((module, next(iter(values))) for module, values in kept.items() if values)
        warnings.warn(
            f"{type(module).__name__}.forward keeps {name} from one call to the next: the file has, in every call, "
            "the value that the example left",
            ModelWarning,
            stacklevel=2,
        )
    write_whole(target, data)
    return Exported(target, len(data), metadata)


def _written(
    model: nn.Module,
    plan: Plan,
    cast: torch.dtype | None,
    dtype: torch.dtype,
    opset: int,
    source: Mapping[str, Any] | None,
    progress: Callable[[str], None],
) -> tuple[bytes, dict[str, Any]]:
    """The file's bytes, and its metadata."""
    # The graph's weights are views of the borrowed model's: it is written out before the model goes back.
    with borrowed(model, dtype=cast, replace=lambda module: adapt(module) or for_graph(module)) as ours:
        graph, metadata = _build(ours, plan, dtype, opset, progress)
        metadata["source"] = {"class": f"{type(model).__module__}.{type(model).__qualname__}", **(source or {})}
        graph.metadata_props.update(pack(metadata))
        progress("checking and writing")
        return _checked(graph), metadata


def _build(
    ours: nn.Module, plan: Plan, dtype: torch.dtype, opset: int, progress: Callable[[str], None]
) -> tuple[ir.Model, dict[str, Any]]:
    """Trace and finish the graph; its metadata beside it."""
    batch = plan.batch
    states = _describe_states(plan, batch, dtype)
    axes = plan.axes | ({state["input"]: {0: batch} for state in states} if batch else {})
    cells = [
        (ours.get_submodule(cell), torch.zeros(size, dtype=state_type(dtype))) for cell, size in plan.cells.items()
    ]
    for state in states:
        if state["input"] in plan.call.names:
            raise OptionError(f"stateful: forward has an argument '{state['input']}', the name of a state: rename it")
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
    drop_full_lengths(graph)
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


def _time_name(graph: ir.Model, axes: Axes) -> str | None:
    """The dynamic dim that the recurrences run over, if it is an input's own."""
    names = {dim for by_axis in axes.values() for dim in by_axis.values()}
    for node in recurrence_nodes(graph):
        first = node.inputs[0]
        dim = first.shape[0] if first is not None and first.shape is not None else None
        if isinstance(dim, ir.SymbolicDim) and dim.value in names:
            return dim.value
    return None


def _describe_states(plan: Plan, batch: str | None, dtype: torch.dtype) -> list[dict[str, Any]]:
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
