"""A call of a model as a flat list of named tensors, and its result likewise: what a graph can express."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.utils.rnn import PackedSequence
from torch.utils import _pytree as pytree

from sruexport.errors import DynamicAxesError, ExportError, OptionError, closest
from sruexport.layers import family_of

#: Dynamic axes: {input name: {axis: dim name}}.
Axes = dict[str, dict[int, str]]


@dataclasses.dataclass
class Call:
    """The arguments of one call of `model`, with every tensor in them named.

    Attributes:
        names: of the tensors, in the order of forward's arguments; the argument's own name where it is a tensor, with
            the place inside it appended ("memory_0") where it holds several.
        tensors: in the same order.
    """

    names: list[str]
    tensors: list[torch.Tensor]
    _leaves: list[Any]
    _spec: Any
    _places: list[int]

    @classmethod
    def of(cls, model: nn.Module, args: Any) -> Call:
        """Bind `args`, a tuple (or a tensor, or a dict by argument name), to the model's forward.

        Raises:
            OptionError: the arguments do not fit forward, or hold no tensor.
        """
        positional, named = ((), dict(args)) if isinstance(args, Mapping) else (as_tuple(args), {})
        try:
            signature = inspect.signature(model.forward)
            bound = signature.bind(*positional, **named)
        except TypeError as error:
            names = list(inspect.signature(model.forward).parameters)
            raise OptionError(f"args: {error} (forward takes {', '.join(names)})") from None
        keyed = {
            name: value
            for name, value in bound.arguments.items()
            if signature.parameters[name].kind is not inspect.Parameter.VAR_KEYWORD
        }
        for name, parameter in signature.parameters.items():
            if parameter.kind is inspect.Parameter.VAR_KEYWORD:
                keyed |= bound.arguments.get(name, {})
        for name, value in keyed.items():
            if isinstance(value, PackedSequence):
                raise OptionError(
                    f"args: {name} is a PackedSequence, which no graph takes: give the padded tensor and its mask"
                )
        keyed = pytree.tree_map(lambda leaf: torch.from_numpy(leaf) if isinstance(leaf, np.ndarray) else leaf, keyed)
        paths, spec = pytree.tree_flatten_with_path(keyed)
        leaves = [leaf for _, leaf in paths]
        places = [i for i, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]
        if not places:
            raise OptionError("args: there is no tensor among the arguments, so that the graph would have no input")
        var_positional = {n for n, p in signature.parameters.items() if p.kind is inspect.Parameter.VAR_POSITIONAL}
        if var_positional & keyed.keys():
            raise OptionError(f"forward takes *{min(var_positional)}: wrap the model in one whose arguments have names")
        return cls([_name(paths[i][0]) for i in places], [leaves[i] for i in places], leaves, spec, places)

    def keywords(self, tensors: Sequence[torch.Tensor] | None = None) -> dict[str, Any]:
        """The arguments by name, with other tensors in the places of the example's."""
        leaves = list(self._leaves)
        for place, tensor in zip(self._places, self.tensors if tensors is None else tensors, strict=True):
            leaves[place] = tensor
        return pytree.tree_unflatten(leaves, self._spec)

    def cast(self, dtype: torch.dtype) -> None:
        """Cast the floating tensors."""
        self.tensors = [t.to(dtype) if t.is_floating_point() else t for t in self.tensors]

    def widen(self, axes: Axes) -> None:
        """Double the dynamic axes of size 1, which a trace would take for constants.

        Raises:
            DynamicAxesError: an axis of size 0, or one name on axes of different sizes.
        """
        sizes: dict[str, tuple[int, str]] = {}
        for i, name in enumerate(self.names):
            for axis, dim in axes.get(name, {}).items():
                size = self.tensors[i].shape[axis]
                if size == 0:
                    raise DynamicAxesError(f"args: {name} has size 0 on axis {axis}; give an example with 2 or more")
                known, where = sizes.setdefault(dim, (size, name))
                if known != size:
                    raise DynamicAxesError(f"dynamic: '{dim}' is {known} in {where} but {size} in {name} axis {axis}")
                if size == 1:
                    self.tensors[i] = torch.cat([self.tensors[i]] * 2, dim=axis)


def as_tuple(args: Any) -> tuple[Any, ...]:
    return tuple(args) if isinstance(args, (tuple, list)) and not isinstance(args, PackedSequence) else (args,)


def result(output: Any, names: Sequence[str] = ()) -> dict[str, torch.Tensor]:
    """The tensors in what a model returns, by name, in order.

    Names are the keys of dicts and the fields of named tuples and dataclasses, joined by "_"; "output" for a single
    tensor, "output_i" for an item of a tuple or list.

    Args:
        names: for the items of the outermost tuple, in place of "output_i".

    Raises:
        ExportError: something in it is neither a tensor, a container nor a constant.
    """
    if isinstance(output, torch.Tensor):
        return {names[0] if names else "output": output}
    if dataclasses.is_dataclass(output) and not isinstance(output, type):
        output = {f.name: getattr(output, f.name) for f in dataclasses.fields(output)}
    named: dict[str, torch.Tensor] = {}
    for path, leaf in pytree.tree_flatten_with_path(output)[0]:
        if isinstance(leaf, (type(None), bool, int, float, str)):
            continue
        if not isinstance(leaf, torch.Tensor):
            raise ExportError(
                f"forward returns a {type(leaf).__name__}: let it return tensors in tuples, lists or dicts"
            )
        first = path[0]
        if isinstance(first, pytree.SequenceKey):
            head = names[first.idx] if first.idx < len(names) else f"output_{first.idx}"
            name = "_".join([head, *([_name(path[1:])] if path[1:] else [])])
        else:
            name = _name(path)
        while name in named:  # {"a_b": ..., "a": {"b": ...}}
            name += "_again"
        named[name] = leaf
    if not named:
        raise ExportError("forward returns no tensor, so that the graph would have no output")
    return named


def check_axes(model: nn.Module, call: Call, dynamic: Mapping[str, Mapping[int, str]] | None) -> Axes:
    """The dynamic axes by input, non-negative; for a bare layer that says nothing, its time and batch axes.

    Raises:
        DynamicAxesError: nothing was said for a whole model, or a name or an axis does not exist.
    """
    if dynamic is None:
        family = family_of(model)
        if family is None:
            raise DynamicAxesError(
                "say which axes are dynamic, for example "
                f"dynamic={{{', '.join(_suggestion(n, t) for n, t in zip(call.names, call.tensors))}}}, "
                "or dynamic={} for a static file"
            )
        shapes = {argument.name: argument.shape(model) for argument in family.arguments}
        return {
            name: {axis: dim for axis, dim in enumerate(shapes[name]) if isinstance(dim, str)}
            for name in call.names
            if name in shapes
        }
    axes: Axes = {}
    for name, wanted in dynamic.items():
        if name not in call.names:
            raise DynamicAxesError(
                f"dynamic: '{name}' is not an input{closest(name, call.names)} (the inputs are {', '.join(call.names)})"
            )
        rank = call.tensors[call.names.index(name)].dim()
        for axis, dim in wanted.items():
            if not isinstance(axis, int) or not -rank <= axis < rank:
                raise DynamicAxesError(f"dynamic: {name} has {rank} axes, there is no axis {axis}")
            dim = getattr(dim, "__name__", dim)  # a torch.export.Dim
            if not isinstance(dim, str) or not dim.isidentifier():
                raise DynamicAxesError(f"dynamic: {name} axis {axis}: '{dim}' is not a name such as 'T'")
            axes.setdefault(name, {})[axis % rank] = dim
    return axes


def _suggestion(name: str, tensor: torch.Tensor) -> str:
    names = ("B", "T")
    return f'"{name}": {{{", ".join(f"{i}: {chr(34)}{names[i]}{chr(34)}" for i in range(min(2, tensor.dim())))}}}'


def _name(path: Sequence[Any]) -> str:
    parts = []
    for key in path:
        part = getattr(key, "key", getattr(key, "idx", getattr(key, "name", None)))
        parts.append(str(part))
    return "_".join(parts)
