"""Our layers under the names of third-party packages that are not installed, for code that imports those.

`sru` compiles C++ when it is imported, and torchqrnn needs a CUDA compiler of 2017: neither should be needed to export
a trained model. What stands in for what, the families say (`Family.stand_ins`).
"""

from __future__ import annotations

import importlib.util
import sys
import types
from collections.abc import Mapping
from typing import Any

from sruexport.layers import FAMILIES

_used: set[str] = set()


class _StandIn(types.ModuleType):
    """A module under the name of another. It notes whether its layers are asked for."""

    def __init__(self, name: str, layers: Mapping[str, Any]):
        super().__init__(name)
        # Python looks for submodules of a package only in a module that has a path.
        vars(self).update(__path__=[], _layers=dict(layers))

    def __getattr__(self, name: str) -> Any:
        layers = vars(self)["_layers"]
        if name not in layers:
            package = self.__name__.partition(".")[0]
            raise AttributeError(
                f"{package} is not installed, and sruexport stands in only for {', '.join(layers)}, not {name}"
            )
        _used.add(self.__name__.partition(".")[0])
        return layers[name]


def install() -> None:
    """Put stand-ins where a package of a known family cannot be found. What was asked for before is forgotten."""
    _used.clear()
    modules: dict[str, dict[str, Any]] = {}
    for family in FAMILIES.values():
        for name, layers in family.stand_ins.items():
            modules.setdefault(name, {}).update(layers)
    absent = {name for name in modules if "." not in name and not _is_there(name)}
    for name, layers in sorted(modules.items()):
        package, _, inner = name.partition(".")
        if package in absent:
            sys.modules[name] = _StandIn(name, layers)
            if inner and inner not in modules[package]:  # minGRU_pytorch has a class of the name of a module
                setattr(sys.modules[package], inner, sys.modules[name])


def notes() -> list[str]:
    """What to tell of the packages whose layers were asked for."""
    return [f"{name} is not installed: the code got sruexport's own layers under that name" for name in sorted(_used)]


def _is_there(package: str) -> bool:
    return package in sys.modules or importlib.util.find_spec(package) is not None
