"""Which known layers are in a checkpoint, and the module of one of them."""

from __future__ import annotations

import inspect
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import nn

from sruexport.errors import CheckpointError, OptionError, OptionsNeeded, SruExportError, closest
from sruexport.layers import FAMILIES, Family, adapt, family_of

from .contents import Contents, open_checkpoint


@dataclass(frozen=True)
class Found:
    """A layer of a known family in a checkpoint.

    Attributes:
        prefix: what its tensors' full names begin with: "" or a text that ends in ".".
        others: names in the same state_dict that are not the layer's.
    """

    family: Family
    prefix: str
    table: str
    others: tuple[str, ...] = ()


def read(
    path: str | os.PathLike[str], *, prefix: str | None = None, options: Mapping[str, Any] | None = None
) -> nn.Module:
    """Read a checkpoint as a module, ready for `export`.

    Args:
        path: .pt, .pth, .ckpt, .bin (a state_dict, nested or beside its constructor arguments, or a pickled module) or
            .safetensors. No code in it is run and `sru` is not imported.
        prefix: which layer, where the file holds several or other layers too.
        options: what the tensors do not tell, such as ``{"bidirectional": True}``.

    Raises:
        OptionsNeeded: the tensors do not tell some options; exactly those are listed.
        UnsafeCheckpointError: a pickle asks for code.
        CheckpointError: the file is damaged, or holds no known layer, or several, or keys and shapes that do not fit.
    """
    return build(open_checkpoint(path), prefix=prefix, options=options)


def find_layers(contents: Contents) -> list[Found]:
    """The known layers among the state_dicts of a checkpoint."""
    found = []
    for table, tensors in contents.tables.items():
        for family in FAMILIES.values():
            for prefix in family.prefixes(tensors):
                others = tuple(name for name in tensors if not name.startswith(prefix))
                found.append(Found(family, f"{table}{prefix}", table, others))
    return found


def build(contents: Contents, *, prefix: str | None = None, options: Mapping[str, Any] | None = None) -> nn.Module:
    """The module in a checkpoint that is taken apart. Arguments and errors as for `read`."""
    try:
        if contents.modules:
            return _from_modules(contents, prefix)
        return _from_tensors(contents, prefix, dict(options or {}))
    except OptionsNeeded as error:
        raise OptionsNeeded(f"{contents.path}: {error}", error.options) from None
    except SruExportError as error:
        raise type(error)(f"{contents.path}: {error}") from None


def _from_tensors(contents: Contents, prefix: str | None, options: dict[str, Any]) -> nn.Module:
    layers = find_layers(contents)
    if not layers:
        raise CheckpointError(_nothing_known(contents))
    if prefix is not None:
        wanted = prefix if prefix in ("", *(layer.prefix for layer in layers)) else f"{prefix.rstrip('.')}."
        names = [found.prefix for found in layers]
        if wanted not in names:
            raise OptionError(
                f"no layer under prefix '{prefix}'{closest(wanted, names)} (there are {', '.join(map(repr, names))})"
            )
        layer = layers[names.index(wanted)]
    elif len(layers) > 1:
        listed = ", ".join(repr(found.prefix) for found in layers)
        raise CheckpointError(
            f"holds {len(layers)} recurrent layers: choose one with --prefix, of {listed}, or export the whole model "
            "with --model package.module:factory --weights FILE"
        )
    else:
        layer = layers[0]
        if layer.others:
            raise CheckpointError(
                f"holds more than the recurrent layer '{layer.prefix}', such as {layer.others[0]}: export the whole "
                "model with --model package.module:factory --weights FILE, or the layer alone with "
                f"--prefix '{layer.prefix}'"
            )
    for name in options:
        layer.family.option(name)
    cut = len(layer.prefix) - len(layer.table)
    below = layer.prefix[len(layer.table) :]
    tensors = {name[cut:]: t for name, t in contents.tables[layer.table].items() if name.startswith(below)}
    known = {**_settings(contents, layer.family), **options}
    for option in layer.family.options:
        value = known.get(option.name)
        if value is not None and not option.fits(value):
            raise OptionError(f"option {option.name}={value!r}: give {option.usage}")
    return layer.family.read(tensors, known)


def _settings(contents: Contents, family: Family) -> dict[str, Any]:
    """Constructor arguments that the file holds beside the tensors.

    A dict with nothing but constructor arguments is all of them, defaults left out. One with other things too tells
    only what it says.
    """
    accepted = {name for module in family.modules for name in inspect.signature(module).parameters}
    for settings in contents.settings:
        if set(family.required) <= settings.keys() <= accepted:
            return settings
    for settings in contents.settings:
        if set(family.required) <= settings.keys():
            return {option.name: settings[option.name] for option in family.options if option.name in settings}
    return {}


def _from_modules(contents: Contents, prefix: str | None) -> nn.Module:
    if len(contents.modules) > 1 and prefix is None:
        raise CheckpointError(
            f"holds {len(contents.modules)} modules: choose one with --prefix, of {', '.join(contents.modules)}"
        )
    root = next(iter(contents.modules.values()))
    if prefix:
        path = prefix.rstrip(".")
        root = contents.modules.get(path, root)
        if path not in contents.modules:
            try:
                root = root.get_submodule(path)
            except AttributeError:
                raise OptionError(f"the pickled module has no part '{path}'") from None
    replaced = adapt(root) or root
    _replace_placeholders(replaced)
    if not any(family_of(module) for module in replaced.modules()):
        raise CheckpointError(
            f"the pickled {type(root).__name__} has no layer of a known family ({', '.join(FAMILIES)})"
        )
    return replaced.eval()


def _replace_placeholders(parent: nn.Module) -> None:
    for name, child in parent._modules.items():
        if child is not None:
            parent._modules[name] = adapt(child) or child
            _replace_placeholders(parent._modules[name])  # type: ignore[arg-type]


def _nothing_known(contents: Contents) -> str:
    """Why no layer was found: what was seen, and the family whose names are nearest."""
    names = sorted(contents.names)
    if not names:
        return "holds no tensors"

    def nearness(family: Family) -> int:
        ends = {key.rsplit(".", 1)[-1] for key in family.keys}
        return sum(name.rsplit(".", 1)[-1] in ends for name in names)

    nearest = max(FAMILIES.values(), key=nearness)
    shown = ", ".join(names[:4]) + (", ..." if len(names) > 4 else "")
    return (
        f"holds {len(names)} tensors of no known family ({shown}); the nearest is {nearest.name}, whose keys are like "
        f"{', '.join(nearest.keys)}"
    )
