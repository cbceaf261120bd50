"""Where the model of a command comes from: a checkpoint of one layer, or code (`--model`) with weights."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import re
import sys
import types
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn

from sruexport.checkpoint import Contents, build, open_checkpoint
from sruexport.errors import CheckpointError, OptionError, SruExportError, closest
from sruexport.exporter import example_arguments
from sruexport.layers import FAMILIES, adapt, family_of

_INPUT = re.compile(r"^(?P<name>\w+)=(?P<dtype>\w+)\[(?P<dims>[^\]]*)\](:(?P<low>-?\d+)\.\.(?P<high>-?\d+))?$")
_INPUT_USAGE = "NAME=DTYPE[DIMS], such as 'tokens=int64[T,B]:0..999' or 'x=float32[B:2,T:50,40]'"
#: Sizes in the example of dynamic dims that have none given.
_SIZES = {"B": 2}
_SIZE = 16


@dataclass
class Source:
    """A model, with what is known of its arguments and of its origin.

    Attributes:
        args: an example call by argument name, or None for a bare layer's own.
        dynamic: as for `export`.
        origin: for the metadata: file, sha256, format, model.
        notes: what its user should know.
    """

    model: nn.Module
    args: Any = None
    dynamic: dict[str, dict[int, str]] | None = None
    origin: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


def from_checkpoint(path: Path, prefix: str | None, options: Mapping[str, Any]) -> Source:
    """A layer, or a pickled module, from a checkpoint file. Errors as for `read`."""
    contents = open_checkpoint(path)
    return Source(build(contents, prefix=prefix, options=options), origin=_origin(contents))


def from_code(spec: str, weights: Path | None) -> Source:
    """The model that a factory `package.module:factory` makes, with weights.

    The factory takes no arguments and returns the model, or (model, args), or (model, args, dynamic). Where the
    code imports `sru` and that is not installed, it gets the layers of sruexport under that name.

    Raises:
        OptionError: there is no such factory, or it fails.
        CheckpointError: the weights do not fit.
    """
    module_name, _, factory_name = spec.partition(":")
    if not factory_name:
        raise OptionError(f"--model {spec}: write package.module:factory")
    notes = _stand_in_for_sru()
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        module = importlib.import_module(module_name)
    except Exception as error:
        raise OptionError(f"--model {spec}: cannot import {module_name}: {type(error).__name__}: {error}") from error
    if not hasattr(module, factory_name):
        raise OptionError(f"--model {spec}: {module_name} has no {factory_name}{closest(factory_name, dir(module))}")
    try:
        made = getattr(module, factory_name)()
    except SruExportError:
        raise
    except Exception as error:
        raise OptionError(f"--model {spec}: {factory_name}() fails: {type(error).__name__}: {error}") from error
    parts = made if isinstance(made, tuple) else (made,)
    if not parts or not isinstance(parts[0], nn.Module) or len(parts) > 3:
        raise OptionError(f"--model {spec}: {factory_name}() must return a torch.nn.Module, or (model, args, dynamic)")
    source = Source(*parts)
    source.origin, source.notes = {"model": spec}, notes
    if weights is not None:
        contents = open_checkpoint(weights)
        _load_weights(source.model, contents)
        source.origin |= _origin(contents)
    return source


def with_inputs(source: Source, specs: Sequence[str], mask: bool) -> Source:
    """Settle the example call: from `--input` texts, from `--mask`, or from what the source brings.

    Raises:
        OptionError: a text cannot be read, names no argument, or some are missing.
    """
    layer = adapt(source.model) or source.model
    if mask:
        source.args = example_arguments(layer, mask=True)
    if specs:
        source.args, source.dynamic = {}, {}
        names = list(inspect.signature(source.model.forward).parameters)
        for text in specs:
            name, tensor, axes = _parse_input(text)
            if name not in names:
                raise OptionError(
                    f"--input {text}: forward takes no '{name}'{closest(name, names)} (it takes {', '.join(names)})"
                )
            source.args[name], source.dynamic[name] = tensor, axes
    elif source.args is None and family_of(layer) is None:
        names = list(inspect.signature(source.model.forward).parameters)
        shown = " ".join(f"--input '{name}=float32[T,B,...]'" for name in names)
        raise OptionError(f"say what the model takes, and which axes are dynamic by a name: {shown} ({_INPUT_USAGE})")
    return source


def parse_options(texts: Sequence[str]) -> dict[str, Any]:
    """`--option name=value` texts as values, by the families' own types.

    Raises:
        OptionError: no family has such an option, or the value does not fit.
    """
    known = {option.name: option for family in FAMILIES.values() for option in family.options}
    values = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals:
            raise OptionError(f"--option {text}: write NAME=VALUE")
        if name not in known:
            raise OptionError(
                f"--option {text}: there is no option '{name}'{closest(name, known)} (there are {', '.join(known)})"
            )
        values[name] = known[name].parse(value)
    return values


def _parse_input(text: str) -> tuple[str, torch.Tensor, dict[int, str]]:
    match = _INPUT.match(text.replace(" ", ""))
    dtype = getattr(torch, match["dtype"], None) if match else None
    if match is None or not isinstance(dtype, torch.dtype):
        raise OptionError(f"--input {text}: write {_INPUT_USAGE}")
    sizes, axes = [], {}
    for axis, dim in enumerate(filter(None, match["dims"].split(","))):
        name, _, size = dim.partition(":")
        if name.isdecimal():
            sizes.append(int(name))
        elif name.isidentifier() and (not size or size.isdecimal()):
            axes[axis] = name
            sizes.append(int(size) if size else _SIZES.get(name, _SIZE))
        else:
            raise OptionError(f"--input {text}: '{dim}' is neither a size nor a name; write {_INPUT_USAGE}")
    if match["low"] is None:
        return match["name"], torch.zeros(sizes, dtype=dtype), axes
    low, high = int(match["low"]), int(match["high"])
    span = torch.arange(torch.Size(sizes).numel()) % (high - low + 1) + low
    span[-1:] = high
    return match["name"], span.reshape(sizes).to(dtype), axes


def _load_weights(model: nn.Module, contents: Contents) -> None:
    """Load the state_dict in a checkpoint that fits the model, whatever it is nested under."""
    expected = model.state_dict()
    if contents.modules:
        raise CheckpointError(f"{contents.path}: is a pickled module; give a state_dict with --model")
    best: dict[str, torch.Tensor] = {}
    for tensors in contents.tables.values():
        prefixes = {name.removesuffix(key) for key in expected for name in tensors if name.endswith(key)} | {""}
        for prefix in prefixes:
            cut = {name.removeprefix(prefix): t for name, t in tensors.items() if name.startswith(prefix)}
            if len(cut.keys() & expected.keys()) > len(best.keys() & expected.keys()):
                best = cut
    for key in expected:
        if key not in best:
            raise CheckpointError(f"{contents.path}: key {key} of the model is missing{closest(key, best)}")
        if best[key].shape != expected[key].shape:
            raise CheckpointError(
                f"{contents.path}: key {key} has shape {list(best[key].shape)}, "
                f"the model's is {list(expected[key].shape)}"
            )
    unknown = sorted(best.keys() - expected.keys())
    if unknown:
        raise CheckpointError(f"{contents.path}: key {unknown[0]} is not in the model{closest(unknown[0], expected)}")
    model.load_state_dict(best)


def _origin(contents: Contents) -> dict[str, Any]:
    return {"file": contents.path.name, "sha256": contents.sha256, "format": contents.format}


def _stand_in_for_sru() -> list[str]:
    """Let code that imports `sru` run without it. The package compiles C++ when it is imported; ours does not."""
    if "sru" in sys.modules or importlib.util.find_spec("sru") is not None:
        return []
    from sruexport.layers import SRU, SRUCell

    package, modules = types.ModuleType("sru"), types.ModuleType("sru.modules")
    vars(modules).update(SRU=SRU, SRUCell=SRUCell)
    vars(package).update(SRU=SRU, SRUCell=SRUCell, modules=modules, __version__="2.6.0", __path__=[])
    sys.modules.update({"sru": package, "sru.modules": modules})
    return ["sru is not installed: the code gets sruexport's own SRU layers under that name"]
