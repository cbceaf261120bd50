"""What one run of a model in PyTorch shows, before it is traced; and what its user should know of it."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from sruexport.errors import ExportError, ModelWarning, OptionError
from sruexport.layers import family_of
from sruexport.layers.states import StateBank, state_bank

from .branches import Decisions, Recording
from .call import Axes, Call, check_axes, result
from .model import recurrent_layers

#: Sizes of the example that a bare layer is traced with.
_EXAMPLE = {"T": 5, "B": 3}


@dataclass(frozen=True)
class Plan:
    """What one run of the model in PyTorch shows, before it is traced.

    Attributes:
        outputs: names of the tensors that the model returns.
        item_names: names for the items of the outermost tuple that it returns.
        cells: paths of the cells whose state is carried, in running order, with the sizes [B, C] of their states.
        batch: the dynamic dim that the states' batch axis is, if it is one.
    """

    call: Call
    axes: Axes
    outputs: list[str]
    item_names: tuple[str, ...]
    cells: dict[str, tuple[int, int]]
    batch: str | None
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


def make_plan(ours: nn.Module, args: Any, dynamic: Any, stateful: bool) -> Plan:
    """Run a borrowed model once on the example.

    Args:
        args, dynamic, stateful: as for `export`.

    Raises:
        ExportError: it does not run, or cannot be streamed.
        DynamicAxesError, OptionError: the arguments do not fit.
    """
    call = Call.of(ours, example_arguments(ours) if args is None else args)
    axes = check_axes(ours, call, dynamic)
    call.widen(axes)
    family = family_of(ours)
    item_names = family.outputs if family is not None else ()
    bank, recording, buffers = StateBank(), Recording(), _versions(ours)
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
    _warn_of_state(ours, buffers, bank if stateful else None)
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
    return Plan(
        call,
        axes,
        list(result(output, item_names)),
        item_names,
        cells,
        _batch_name(ours, call, axes, bank) if stateful else None,
        layers,
        floats[0] if floats else torch.float32,
        recording.decisions,
    )


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
    if mask and not any(argument.kind == "mask" for argument in family.arguments_of(layer)):
        raise OptionError(f"layers of family {family.name} take no mask")
    like = next((p for p in layer.parameters() if p.is_floating_point()), torch.zeros(()))
    call = {}
    for argument in family.arguments_of(layer):
        if argument.kind in kinds:
            shape = [(sizes or _EXAMPLE)[dim] if isinstance(dim, str) else dim for dim in argument.shape(layer)]
            call[argument.name] = torch.zeros(shape, dtype=torch.int32 if argument.kind == "mask" else like.dtype)
    return call


def check_tensors(model: nn.Module) -> None:
    for path, module in model.named_modules():
        if isinstance(module, torch.jit.ScriptModule):
            raise ExportError(f"module '{path}' is TorchScript, which is compiled code: give the Python module")
        if type(module).__module__.startswith(("torch.ao.nn.quantized", "torch.ao.nn.intrinsic.quantized")):
            raise ExportError(f"module '{path}' is quantized: give the model as it was before")
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        if tensor.device.type == "meta":
            raise ExportError(f"tensor {name} is on the meta device and has no values: load the weights first")
        if tensor.layout != torch.strided or tensor.is_quantized:
            raise ExportError(f"tensor {name} is sparse or quantized: make it dense first")


def _warn_of_weights(model: nn.Module) -> None:
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
            what = "NaN" if bool(torch.isnan(tensor).any()) else "infinite values"
            warnings.warn(f"tensor {name} has {what}", ModelWarning, stacklevel=4)


def _versions(model: nn.Module) -> dict[str, tuple[int, int]]:
    """What changes where forward writes into a buffer or puts another in its place."""
    return {name: (id(b), b._version) for name, b in model.named_buffers() if not b.is_inference()}


def _warn_of_state(model: nn.Module, buffers: Mapping[str, tuple[int, int]], bank: StateBank | None) -> None:
    """Tell what a model keeps from one call to the next and its file does not."""
    now = _versions(model)
    for name in (name for name, version in buffers.items() if now.get(name) != version):
        warnings.warn(
            f"forward changes the buffer {name}: the file starts from its present value in every call",
            ModelWarning,
            stacklevel=4,
        )
    for path, module in model.named_modules() if bank is not None else ():
        leaf = not any(family_of(part) for part in module.modules() if part is not module)
        if bank is not None and leaf and family_of(module) is not None and module not in bank.last:
            warnings.warn(
                f"stateful: layer '{path}' is given its state by the model itself: no state is added for it",
                ModelWarning,
                stacklevel=4,
            )


def _batch_name(ours: nn.Module, call: Call, axes: Axes, bank: StateBank) -> str | None:
    """The dynamic dim that the states' batch axis is: the one that, twice as large, makes them twice as large."""
    size = next(iter(bank.last.values())).shape[0]
    unknown = []
    for dim in sorted({dim for by_axis in axes.values() for dim in by_axis.values()}):
        tensors = list(call.tensors)
        for i, name in enumerate(call.names):
            for axis in (axis for axis, named in axes.get(name, {}).items() if named == dim):
                tensors[i] = torch.cat([tensors[i]] * 2, axis)
        wider = StateBank()
        try:
            with state_bank(wider):
                ours(**call.keywords(tensors))
        except Exception:  # the model's own limits, such as a longest position
            unknown.append(dim)
            continue
        if next(iter(wider.last.values())).shape[0] == 2 * size:
            return dim
    return unknown[0] if len(unknown) == 1 else None
