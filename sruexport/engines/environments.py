"""Where an engine is: in this Python, or in an environment of its own under the user's cache folder."""

from __future__ import annotations

import importlib.metadata
import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Callable
from pathlib import Path

import platformdirs

from sruexport.errors import EngineError

from .base import Engine, python_in


def folder(engine: Engine) -> Path:
    """Its own environment, whether it is there or not. SRUEXPORT_ENGINES names another place than the cache."""
    root = os.environ.get("SRUEXPORT_ENGINES") or platformdirs.user_cache_path("sruexport") / "engines"
    return Path(root).expanduser().resolve() / engine.name


def version(engine: Engine) -> str | None:
    """The installed version, or None."""
    if engine.absence():
        return None
    return (
        engine.find(folder(engine))
        or _version_in(engine, [sysconfig.get_path("purelib")])
        or _version_in(engine, _site_packages(engine))
    )


def interpreter(engine: Engine) -> str:
    """The Python to run an engine with.

    Raises:
        EngineError: it is not installed.
    """
    if version(engine) is None:
        raise EngineError(f"{engine.title} is not installed: {how_to_install(engine)}")
    if _version_in(engine, [sysconfig.get_path("purelib")]) is None and _site_packages(engine):
        return str(python_in(folder(engine)))
    return sys.executable


def how_to_install(engine: Engine) -> str:
    if engine.absence():
        return engine.absence()
    return f"sruexport engines install {engine.name}" if engine.requirements else f"pip install {engine.packages[0]}"


def install(engine: Engine, progress: Callable[[str], None] = lambda step: None) -> Path:
    """Put an engine, in the versions that its profile was measured with, into an environment of its own.

    Returns:
        its folder.

    Raises:
        EngineError: it has no such environment, or pip or npm fails. Nothing is left behind.
    """
    if not engine.requirements:
        raise EngineError(f"{engine.title} runs in this Python: {how_to_install(engine)}")
    target = folder(engine)
    # Beside it, then renamed: an environment is there whole or not at all. Its scripts name the old folder, but nothing
    # here calls them: only its Python.
    building = target.with_name(f".{target.name}.part-{os.getpid()}")
    shutil.rmtree(building, ignore_errors=True)
    building.parent.mkdir(parents=True, exist_ok=True)
    try:
        building.mkdir()

        def run(command: list[str], step: str) -> None:
            progress(step)
            _call(engine, command, building)

        engine.setup(building, run)
        shutil.rmtree(target, ignore_errors=True)
        building.rename(target)
    finally:
        shutil.rmtree(building, ignore_errors=True)
    return target


def _call(engine: Engine, command: list[str], cwd: Path) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, cwd=cwd)
    except OSError as error:
        raise EngineError(f"{engine.title}: {command[0]} cannot be run: {error.strerror}") from error
    if done.returncode:
        said = (done.stderr.strip() or done.stdout.strip()).splitlines()
        raise EngineError(f"{engine.title} cannot be installed: {said[-1] if said else f'exit code {done.returncode}'}")


def _version_in(engine: Engine, places: list[str]) -> str | None:
    if not places:
        return None
    for package in engine.packages:
        for distribution in importlib.metadata.distributions(name=package, path=places):
            return distribution.version
    return None


def _site_packages(engine: Engine) -> list[str]:
    environment = folder(engine)
    found = [*environment.glob("lib/python*/site-packages"), *environment.glob("Lib/site-packages")]
    return [str(path) for path in found]
