"""The engines as plain data, for people and for JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sruexport.converters import FORMS
from sruexport.errors import OptionError, closest

from . import ENGINES
from .base import Engine
from .environments import folder, how_to_install, install, version

__all__ = ["install", "list_engines", "named", "version"]


def list_engines() -> list[dict[str, Any]]:
    """Every engine: is it here, which forms it runs, what it refuses, and what it gets wrong without a word."""
    return [_entry(engine) for engine in ENGINES.values()]


def _entry(engine: Engine) -> dict[str, Any]:
    found = version(engine)
    return {
        "name": engine.name,
        "title": engine.title,
        "installed": found is not None,
        "version": found,
        "install": how_to_install(engine),
        "folder": str(folder(engine)) if engine.requirements else None,
        "measured_with": list(engine.requirements),
        "takes": engine.takes,
        "forms": list(engine.forms),
        "wrong_forms": [name for name, form in FORMS.items() if set(form.features) & engine.wrong.keys()],
        "static": engine.static,
        "only_builds": engine.only_builds,
        "refuses": dict(engine.refuses),
        "wrong": dict(engine.wrong),
        "notes": list(engine.notes),
    }


def named(names: Sequence[str]) -> list[Engine]:
    """Engines by name; "all" are those that have an environment of their own.

    Raises:
        OptionError: there is no such engine.
    """
    if list(names) == ["all"]:
        return [engine for engine in ENGINES.values() if engine.requirements]
    for name in names:
        if name not in ENGINES:
            raise OptionError(f"engine '{name}' is not known{closest(name, ENGINES)} (they are {', '.join(ENGINES)})")
    return [ENGINES[name] for name in names]
