"""An exported file as a Python callable."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from sruexport.engines import ENGINES, Port, Session
from sruexport.engines import onnxruntime as ort
from sruexport.engines.environments import version
from sruexport.engines.onnxruntime_kernels import OnnxRuntimeKernels, library, missing, without
from sruexport.errors import EngineError, InputError, closest
from sruexport.metadata import unpack


class LoadedModel:
    """Arrays in, arrays out.

    Args:
        session: the file in another engine; left out, ONNX Runtime in this process.
        kernels: whether the recurrences run in sruexport's native kernels; None: where they are installed.

    Attributes:
        ran_on: the engine with its version, and whether with native kernels or why without; empty for a `session`.
        inputs, outputs: names, dtypes and dims, in the graph's order; a text is a dynamic dim.
        metadata: what sruexport wrote into the file; empty for a file that is not its own.
    """

    def __init__(self, path: str | os.PathLike[str], session: Session | None = None, *, kernels: bool | None = None):
        self.path = Path(path)
        found = _kernels(kernels) if session is None else None
        self._session = ort.load(self.path, kernels=found) if session is None else session
        self.inputs, self.outputs = self._session.inputs, self._session.outputs
        self.metadata = unpack(self._session.metadata, self.path)
        self.ran_on = _ran_on(found, kernels, self.metadata) if session is None else ""
        self._time = _time_inputs(self.metadata)

    def __repr__(self) -> str:
        return f"<{self.path}{f' on {self.ran_on}' if self.ran_on else ''}>"

    def __call__(self, *arrays: Any, **named: Any) -> list[np.ndarray]:
        """Run the file.

        Args:
            arrays: in the graph's order; or `named`: by input name. They are cast as NumPy's ``same_kind`` allows
                (never a float to an integer), and only if the file's dtype holds every value. States (``state_i``)
                that are left out start from zeros.

        Returns:
            all outputs, in the graph's order.

        Raises:
            InputError: an input is missing, unknown, or has a wrong type or shape; a sequence of length 0, which
                ONNX's Scan does not run.
        """
        return list(self.run(*arrays, **named).values())

    def run(self, *arrays: Any, **named: Any) -> dict[str, np.ndarray]:
        """As a call, with the outputs by name."""
        feeds = self.bind(*arrays, **named)
        for name, axis in self._time:
            if feeds[name].shape[axis] == 0:
                raise InputError(f"{self.path}: '{name}' has no steps on axis {axis}; give 1 or more")
        return self._session.run(feeds)

    def bind(self, *arrays: Any, **named: Any) -> dict[str, np.ndarray]:
        """The arrays by input name, cast and checked as a call does it, with states filled in."""
        feeds = self._by_name(arrays, named)
        sizes: dict[str, int] = {}
        for port in self.inputs:
            if port.name in feeds:
                feeds[port.name] = _fit(port, feeds[port.name], sizes, self.path)
        for state in self.metadata.get("states", []):
            if state["input"] not in feeds:
                shape = [sizes.get(dim, 1) if isinstance(dim, str) else dim for dim in state["shape"]]
                feeds[state["input"]] = np.full(shape, state["initial"], dtype=state["dtype"])
        missing = [port.name for port in self.inputs if port.name not in feeds]
        if missing:
            raise InputError(f"{self.path}: input '{missing[0]}' is missing (the inputs are {self._names()})")
        return feeds

    def _by_name(self, arrays: tuple[Any, ...], named: Mapping[str, Any]) -> dict[str, np.ndarray]:
        names = [port.name for port in self.inputs]
        if len(arrays) > len(names):
            raise InputError(f"{self.path}: {len(arrays)} arrays for {len(names)} inputs ({self._names()})")
        feeds = {name: np.asarray(array) for name, array in zip(names, arrays)}
        for name, array in named.items():
            if name not in names:
                raise InputError(
                    f"{self.path}: no input '{name}'{closest(name, names)} (the inputs are {self._names()})"
                )
            if name in feeds:
                raise InputError(f"{self.path}: input '{name}' is given twice")
            feeds[name] = np.asarray(array)
        return feeds

    def _names(self) -> str:
        return ", ".join(port.name for port in self.inputs)


def load(path: str | os.PathLike[str], *, kernels: bool | None = None) -> LoadedModel:
    """Load an ONNX file as a callable, in ONNX Runtime.

    Args:
        kernels: whether its recurrences run in sruexport's native kernels (True, False), or where those are installed
            (None). Without them the function bodies in the file run: the same numbers, more slowly.

    Raises:
        EngineError: kernels are asked for and there are none, or ONNX Runtime is too old for them.
        ModelFileError: there is no such file, or ONNX Runtime does not take it.

    Example:
        >>> model = sruexport.load("model.onnx")
        >>> h, c = model(np.zeros((50, 1, 40), np.float32))
        >>> model
        <model.onnx on ONNX Runtime with native kernels 1.32.0, AVX-512>
    """
    return LoadedModel(path, kernels=kernels)


def _kernels(wanted: bool | None) -> Path | None:
    found = None if wanted is False else library()
    if wanted and found is None:
        raise EngineError(f"there are no native kernels here: {missing()}")
    return found


def _ran_on(kernels: Path | None, wanted: bool | None, metadata: Mapping[str, Any]) -> str:
    plain = f"{ort.OnnxRuntime.title} {version(ENGINES[ort.OnnxRuntime.name])}"
    if "form" in metadata or not metadata:
        return plain  # it has no custom ops
    if kernels is not None:
        engine = ENGINES[OnnxRuntimeKernels.name]
        return f"{engine.title} {version(engine)}"
    return f"{plain} {without() or 'without native kernels'}"


def _fit(port: Port, array: np.ndarray, sizes: dict[str, int], path: Path) -> np.ndarray:
    """The array in the port's dtype, with its shape checked against the port's dims and the sizes seen so far."""
    if array.dtype != port.dtype:
        if not np.can_cast(array.dtype, port.dtype, "same_kind"):
            raise InputError(f"{path}: '{port.name}' is {array.dtype}, the file takes {port.dtype}")
        with np.errstate(over="ignore"):
            cast = array.astype(port.dtype)
        if array.dtype.kind in "iu" and not np.array_equal(cast, array):
            raise InputError(f"{path}: '{port.name}' holds integers that {port.dtype} cannot")
        if array.dtype.kind == "f" and bool((np.isinf(cast) & ~np.isinf(array)).any()):
            raise InputError(f"{path}: '{port.name}' holds values that are infinite in {port.dtype}")
        array = cast
    if array.ndim != len(port.shape):
        raise InputError(f"{path}: '{port.name}' has shape {list(array.shape)}, the file takes {_dims(port)}")
    for axis, (size, dim) in enumerate(zip(array.shape, port.shape)):
        wanted = sizes.setdefault(dim, size) if isinstance(dim, str) else dim
        if size != wanted:
            raise InputError(
                f"{path}: '{port.name}' has shape {list(array.shape)}, the file takes {_dims(port)}: "
                f"axis {axis} is {size} and should be {wanted}"
            )
    return array


def _dims(port: Port) -> str:
    return f"[{', '.join(map(str, port.shape))}]"


def _time_inputs(metadata: Mapping[str, Any]) -> list[tuple[str, int]]:
    """Inputs with an axis of time, by the dim that the recurrences run over."""
    time = metadata.get("time")
    dynamic = metadata.get("dynamic", {})
    return [(name, int(axis)) for name, axes in dynamic.items() for axis, dim in axes.items() if time and dim == time]
