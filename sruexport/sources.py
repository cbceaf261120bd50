"""Where the model of a command comes from: a checkpoint of one layer, or code (`--model`) with weights."""

from __future__ import annotations

import importlib
import inspect
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn

from sruexport import stand_ins
from sruexport.checkpoint import Contents, build, open_checkpoint
from sruexport.errors import CheckpointError, OptionError, OutputError, SruExportError, closest
from sruexport.exporter import example_arguments
from sruexport.layers import FAMILIES, adapt, family_of

_INPUT = re.compile(r"^(?P<name>\w+)=(?P<dtype>\w+)\[(?P<dims>[^\]]*)\](:(?P<low>-?\d+)\.\.(?P<high>-?\d+))?$")
_INPUT_USAGE = "NAME=DTYPE[DIMS], such as 'tokens=int64[T,B]:0..999' or 'x=float32[B:2,T:50,40]'"
_DTYPES = ("float32", "float16", "bfloat16", "float64", "int64", "int32", "int16", "int8", "uint8", "bool")
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


def choose(
    source: Path | None, model: str | None, weights: Path | None, prefix: str | None, options: Sequence[str]
) -> Source:
    """The model that a command line names: a checkpoint, or code with weights.

    Raises:
        OptionError: it names neither or both, or an option that is for the other.
    """
    if source is None and model is None:
        raise OptionError("give a checkpoint, or --model package.module:factory with --weights FILE")
    if model is None:
        assert source is not None
        if weights is not None:
            raise OptionError("--weights is for --model package.module:factory; a checkpoint stands alone")
        return from_checkpoint(source, prefix, parse_options(options))
    if source is not None:
        raise OptionError(f"{source}: give either a checkpoint or --model; the weights for --model go to --weights")
    if prefix is not None or options:
        name = "--prefix" if prefix is not None else "--option"
        raise OptionError(f"{name} is for a checkpoint of a bare layer; the code of --model has its own")
    return from_code(model, weights)


def keep_apart(output: Path, *inputs: Path | None) -> None:
    """See that an output does not overwrite what it is made from.

    Raises:
        OutputError: it would.
    """
    kinds = {".onnx": "the file to convert", ".npz": "the data"}
    for path in inputs:
        if path is not None and path.exists() and output.exists() and path.samefile(output):
            raise OutputError(f"{output}: is {kinds.get(path.suffix, 'the checkpoint')} itself; give another name")


def another_checkpoint(source: Source, made_from: Mapping[str, Any]) -> str:
    """A note if an ONNX file was made from another checkpoint than `source`; empty if not, or if that is not known."""
    ours, theirs = source.origin.get("sha256"), made_from.get("sha256")
    if not ours or not theirs or ours == theirs:
        return ""
    return (
        f"the file was made from another checkpoint: {made_from.get('file')}, sha256 {theirs[:12]}..., "
        f"and not {source.origin.get('file')}, {ours[:12]}..."
    )


def from_checkpoint(path: Path, prefix: str | None, options: Mapping[str, Any]) -> Source:
    """A layer, or a pickled module, from a checkpoint file. Errors as for `read`."""
    contents = open_checkpoint(path)
    return Source(build(contents, prefix=prefix, options=options), origin=_origin(contents))


def from_code(spec: str, weights: Path | None) -> Source:
    """The model that a factory `package.module:factory` makes, with weights.

    The factory takes no arguments and returns the model, or (model, args), or (model, args, dynamic). Where the
    code imports a package of a known family that is not installed, it gets our layers under that name (`stand_ins.py`).

    Raises:
        OptionError: there is no such factory, or it fails.
        CheckpointError: the weights do not fit.
    """
    module_name, _, factory_name = spec.partition(":")
    if not factory_name or not module_name:
        raise OptionError(f"--model {spec}: write package.module:factory")
    stand_ins.install()
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        module = importlib.import_module(module_name)
    except Exception as error:
        raise OptionError(f"--model {spec}: cannot import {module_name}: {_one_line(error)}") from error
    if not hasattr(module, factory_name):
        raise OptionError(f"--model {spec}: {module_name} has no {factory_name}{closest(factory_name, dir(module))}")
    try:
        made = getattr(module, factory_name)()
    except SruExportError:
        raise
    except Exception as error:
        raise OptionError(f"--model {spec}: {factory_name}() fails: {_one_line(error)}") from error
    parts = made if isinstance(made, tuple) else (made,)
    if not parts or not isinstance(parts[0], nn.Module) or len(parts) > 3:
        raise OptionError(
            f"--model {spec}: {factory_name}() returns a {type(made).__name__}; let it return the torch.nn.Module, or "
            "(model, args), or (model, args, dynamic)"
        )
    source = Source(*parts)
    source.origin = {"model": spec}
    source.notes = stand_ins.notes()
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
    bare = family_of(layer) is not None
    if mask and (specs or not bare):
        raise OptionError("--mask is for a bare layer; here the mask is an input: --input 'mask=int32[T,B]:0..1'")
    if mask:
        source.args = example_arguments(layer, mask=True)
    parameters = inspect.signature(source.model.forward).parameters
    if specs:
        source.args, source.dynamic = {}, {}
        for text in specs:
            name, tensor, axes = _parse_input(text)
            if name not in parameters:
                raise OptionError(
                    f"--input {text}: forward takes no '{name}'{closest(name, parameters)} "
                    f"(it takes {', '.join(parameters)})"
                )
            if name in source.args:
                raise OptionError(f"--input {text}: '{name}' is given twice")
            source.args[name], source.dynamic[name] = tensor, axes
    elif source.args is None and not bare:
        needed = [name for name, p in parameters.items() if p.default is p.empty and p.kind is not p.VAR_KEYWORD]
        shown = " ".join(f"--input '{name}=float32[T,B,...]'" for name in needed or parameters)
        raise OptionError(f"say what the model takes, and which axes are dynamic by a name: {shown} ({_INPUT_USAGE})")
    elif source.dynamic is None and not bare:
        raise OptionError(
            "the factory does not say which axes are dynamic: let it return (model, args, dynamic), with dynamic such "
            'as {"x": {0: "T", 1: "B"}}, or {} for a static file; or give --input'
        )
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
    if match is None:
        raise OptionError(f"--input {text}: write {_INPUT_USAGE}")
    if match["dtype"] not in _DTYPES:
        raise OptionError(
            f"--input {text}: there is no dtype '{match['dtype']}'{closest(match['dtype'], _DTYPES)} "
            f"(there are {', '.join(_DTYPES)})"
        )
    dtype = getattr(torch, match["dtype"])
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
    if low > high:
        raise OptionError(f"--input {text}: the range ends below its start")
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


def _one_line(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}".rstrip(": ")


def parse_sizes(texts: Sequence[str], option: str = "--size") -> dict[str, int]:
    """``["T=50"]`` as ``{"T": 50}``; `option` is what they were given with.

    Raises:
        OptionError: one is not NAME=NUMBER.
    """
    sizes = {}
    for text in texts:
        name, _, number = text.partition("=")
        if not name or not (number.isascii() and number.isdigit()):
            raise OptionError(f"{option} {text}: write NAME=NUMBER, such as T=50")
        if name in sizes:
            raise OptionError(f"{option} {text}: '{name}' is given twice")
        sizes[name] = int(number)
    return sizes


def parse_profile(texts: Sequence[str], option: str) -> dict[str, int]:
    """As `parse_sizes`, with several in a text: ``["T=50,B=8"]``."""
    return parse_sizes([part.strip() for text in texts for part in text.split(",")], option)


def parse_ranges(texts: Sequence[str]) -> dict[str, tuple[float, float]]:
    """``["x=-4..4"]`` as ``{"x": (-4.0, 4.0)}``.

    Raises:
        OptionError: one is not NAME=LOW..HIGH.
    """
    ranges = {}
    for text in texts:
        name, _, ends = text.partition("=")
        low, _, high = ends.partition("..")
        if name in ranges:
            raise OptionError(f"--range {text}: '{name}' is given twice")
        try:
            ranges[name] = float(low), float(high)
        except ValueError:
            raise OptionError(f"--range {text}: write NAME=LOW..HIGH, such as x=-4..4") from None
    return ranges
