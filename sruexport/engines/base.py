"""What an engine is: something that runs an ONNX file."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np


@dataclass(frozen=True)
class Port:
    """An input or output of a loaded file: its name, its NumPy dtype, and its dims (a text is dynamic)."""

    name: str
    dtype: np.dtype
    shape: tuple[int | str, ...]


class Session(ABC):
    """A file that is loaded and can be run any number of times."""

    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]

    @abstractmethod
    def run(self, feeds: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Run on arrays that fit `inputs` exactly; all outputs by name, in order."""


class Engine(ABC):
    """One engine: is it here, and can it load this file?"""

    name: str

    @abstractmethod
    def version(self) -> str | None:
        """The installed version, or None."""

    @abstractmethod
    def load(self, path: Path) -> Session:
        """Load a file.

        Raises:
            ModelFileError: it cannot be read, or the engine does not take it.
        """
