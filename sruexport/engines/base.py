"""What an engine is: something that runs an ONNX file. An engine file is data about it, and how to open a file in it.

Everything in an engine file but the engine's own package comes from the standard library and NumPy: the file also runs
in the engine's own process (`worker.py`), whose environment may have nothing else.
"""

from __future__ import annotations

import json
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

#: In `forms`: the file with custom ops and their function bodies, as it was exported.
AS_EXPORTED = "as exported"
#: Smallest, best and largest size of a dynamic dim that an engine is built for, where none are given.
DEFAULT_SIZES = (1, 32, 512)
#: Told of a step: its name, and which share of the whole is done, from 0 to 1.
Progress = Callable[[str, float], None]


@dataclass(frozen=True)
class Port:
    """An input or output of a loaded file: its name, its NumPy dtype, and its dims (a text is dynamic)."""

    name: str
    dtype: np.dtype
    shape: tuple[int | str, ...]


class Session(ABC):
    """A file that is loaded and can be run any number of times.

    Attributes:
        metadata: the file's own entries, as they are in it.
    """

    metadata: Mapping[str, str]
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]

    @abstractmethod
    def run(self, feeds: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Run on arrays that fit `inputs` exactly; all outputs by name, in order."""

    def close(self) -> None:  # noqa: B027  (most hold nothing)
        """Let go of what is held outside this process."""


@dataclass(frozen=True)
class Job:
    """What an engine's process is to open.

    Attributes:
        path: an ONNX file, or the program of an engine that takes those.
        inputs, outputs: of its graph, in order; engines tend to rename them.
        workdir: an empty folder for what the engine writes on its way; it is removed afterwards.
        options: of the engine, such as the GPU to build for.
        sizes: by a dynamic dim's name the smallest, best and largest size, for engines that are built for a range.
    """

    path: Path
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    workdir: Path
    options: Mapping[str, str]
    sizes: Mapping[str, tuple[int, int, int]] = field(default_factory=dict)

    def to_json(self) -> str:
        def plain(ports: Sequence[Port]) -> list[Any]:
            return [[port.name, port.dtype.str, list(port.shape)] for port in ports]

        content = {"path": str(self.path), "workdir": str(self.workdir), "options": dict(self.options)}
        content |= {"sizes": {name: list(sizes) for name, sizes in self.sizes.items()}}
        return json.dumps(content | {"inputs": plain(self.inputs), "outputs": plain(self.outputs)})

    @staticmethod
    def from_json(text: str) -> Job:
        content = json.loads(text)
        inputs, outputs = (
            tuple(Port(name, np.dtype(dtype), tuple(shape)) for name, dtype, shape in content[key])
            for key in ("inputs", "outputs")
        )
        sizes = {name: (low, best, high) for name, (low, best, high) in content["sizes"].items()}
        return Job(Path(content["path"]), inputs, outputs, Path(content["workdir"]), content["options"], sizes)


class Opened(ABC):
    """A file in the engine, inside the engine's own process."""

    @abstractmethod
    def run(self, feeds: Mapping[str, np.ndarray]) -> Sequence[np.ndarray]:
        """Run on arrays by the graph's input names; the outputs in the graph's order."""


class Engine(ABC):
    """One engine, as data, and how to open a file in it.

    Attributes:
        name: what the command line calls it.
        title: what its makers call it.
        packages: the Python distributions whose version is the engine's: the first that is there.
        requirements: what `sruexport engines install` puts into an environment of its own, with exact versions: those
            that this profile was measured with.
        forms: that it runs, fastest first; "as exported" is the file with functions itself.
        refuses: features of a graph that it answers with an error, and what it says.
        wrong: features of a graph that it accepts without a word and computes wrongly, and how it was measured.
        takes: "onnx", or "program": a PyTorch program (.pt2), so that it needs the model and not only the file.
        static: whether every dim must have a number.
        only_builds: why it cannot run here what it builds; empty if it can.
        notes: what its user should know.
    """

    name: ClassVar[str]
    title: ClassVar[str]
    packages: ClassVar[tuple[str, ...]]
    requirements: ClassVar[tuple[str, ...]] = ()
    forms: ClassVar[tuple[str, ...]]
    refuses: ClassVar[Mapping[str, str]] = {}
    wrong: ClassVar[Mapping[str, str]] = {}
    takes: ClassVar[str] = "onnx"
    static: ClassVar[bool] = False
    only_builds: ClassVar[str] = ""
    notes: ClassVar[tuple[str, ...]] = ()

    def absence(self) -> str:
        """Why it is not here although its package may be, and how to get it."""
        return ""

    def find(self, environment: Path) -> str | None:
        """The version in its own environment, for an engine that is no Python package."""
        return None

    def setup(self, environment: Path, run: Callable[[list[str], str], None]) -> None:
        """Fill an empty folder with its environment.

        Args:
            run: runs a command in that folder; with a few words on what it does.
        """
        run([sys.executable, "-m", "venv", str(environment)], "making an environment")
        pip = [str(python_in(environment)), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        # torch by its exact version first: what depends on it could otherwise take a build of several gigabytes.
        torch = [requirement for requirement in self.requirements if requirement.startswith("torch==")]
        for group in (torch, [requirement for requirement in self.requirements if requirement not in torch]):
            if group:
                run([*pip, *group], f"installing {', '.join(group)}")

    @abstractmethod
    def open(self, job: Job) -> Opened:
        """Load a file; called in the engine's own process.

        Raises:
            Exception: of any kind: the engine does not take the file.
        """


class BuildingEngine(Engine):
    """An engine whose own files can be built ahead of time, for GPUs that need not be here.

    Attributes:
        capabilities: the GPUs that it builds for, by compute capability without the dot.
        capability: the one where none is asked for.
        dtypes_for: capabilities that only files in some dtypes are built for, with those dtypes.
    """

    capabilities: ClassVar[tuple[str, ...]]
    capability: ClassVar[str]
    dtypes_for: ClassVar[Mapping[str, tuple[str, ...]]] = {}

    @abstractmethod
    def build(self, job: Job, progress: Progress) -> bytes:
        """An engine file; called in the engine's own process.

        Args:
            job: its options are "capability", several with commas between them, and "workspace", in MiB.

        Raises:
            Exception: of any kind: the engine does not take the file.
        """


def python_in(environment: Path) -> Path:
    """The interpreter of a virtual environment."""
    windows = environment / "Scripts" / "python.exe"
    return windows if windows.exists() else environment / "bin" / "python"
