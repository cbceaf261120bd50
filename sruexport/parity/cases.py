"""Which inputs a file is tried on: several lengths and batch sizes, masks, chunks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from sruexport.engines import Port

#: (T, B) for a file with both dynamic. T = 1 has no second step, B = 1 no second row: both have gone wrong elsewhere.
SIZES = ((1, 1), (1, 3), (2, 2), (17, 4), (64, 1))
_CHUNKS = (1, 4, 2)


@dataclass(frozen=True)
class Case:
    """One call of the file.

    Attributes:
        name: in words: "T=17 B=4 masked".
        feeds: arrays by input name, without states.
        chunks: lengths along time to run it in; empty: whole.
    """

    name: str
    feeds: dict[str, np.ndarray]
    chunks: tuple[int, ...] = field(default=())


def generated(
    inputs: tuple[Port, ...],
    metadata: Mapping[str, Any],
    masks: set[str],
    seed: int = 0,
    sizes: Sequence[tuple[int, int]] = SIZES,
    ranges: Mapping[str, tuple[float, float]] | None = None,
) -> Iterator[Case]:
    """Cases of random arrays that fit the file's inputs.

    Args:
        ranges: of float inputs: what lies outside is folded back into them. A converted file has its own.
        sizes: (T, B) to try, for a file with no other dynamic dims.
        masks: inputs that are padding masks. They are zero in half of the cases and random in the others. So are
            inputs of truth values that are all alike in the example, such as a mask without padding.
    """
    states = {state["input"] for state in metadata.get("states", [])}
    ports = [port for port in inputs if port.name not in states]
    varied = masks | {port.name for port in ports if _is_constant(port, metadata)}
    random = np.random.default_rng(seed)
    ranges = metadata.get("form", {}).get("ranges", {}) | dict(ranges or {})
    for chosen in _sizes(ports, metadata, sizes):
        shown = " ".join(f"{dim}={size}" for dim, size in chosen.items()) or "static"
        for masked in [False, True] if varied else [False]:
            feeds = {port.name: _array(port, chosen, metadata, masks, masked, random) for port in ports}
            feeds |= {name: _folded(feeds[name], *ends) for name, ends in ranges.items() if name in feeds}
            name = f"{shown} masked" if masked else shown
            yield Case(name, feeds)
            length = chosen.get(str(metadata.get("time")), 0)
            if states and length > 1:
                yield Case(f"{name} in chunks", feeds, chunk_lengths(length))


def given(data: Mapping[str, np.ndarray], metadata: Mapping[str, Any]) -> Iterator[Case]:
    """The caller's own arrays, whole and, for a file with states, in chunks."""
    yield Case("data", dict(data))
    length = time_length(data, metadata)
    if metadata.get("states") and length > 1:
        yield Case("data in chunks", dict(data), chunk_lengths(length))


def chunk_lengths(length: int) -> tuple[int, ...]:
    """Split a length into chunks of changing size, of 1 too."""
    chunks: list[int] = []
    while sum(chunks) < length:
        chunks.append(min(_CHUNKS[len(chunks) % len(_CHUNKS)], length - sum(chunks)))
    return tuple(chunks)


def time_axis(name: str, metadata: Mapping[str, Any]) -> int | None:
    """The axis of an input that the recurrences run along, if it has one."""
    axes = metadata.get("dynamic", {}).get(name, {})
    return next((int(axis) for axis, dim in axes.items() if dim == metadata.get("time")), None)


def time_length(feeds: Mapping[str, np.ndarray], metadata: Mapping[str, Any]) -> int:
    for name, array in feeds.items():
        axis = time_axis(name, metadata)
        if axis is not None:
            return int(array.shape[axis])
    return 0


def _folded(array: np.ndarray, low: float, high: float) -> np.ndarray:
    """What lies outside of [low, high], mirrored at its ends until it lies inside."""
    outside = (array < low) | (array > high)
    if array.dtype.kind != "f" or not outside.any():
        return array
    turns = np.mod(array[outside].astype(np.float64) - low, 2 * (high - low))
    folded = array.copy()
    folded[outside] = low + np.minimum(turns, 2 * (high - low) - turns)
    return folded


def _sizes(
    ports: list[Port], metadata: Mapping[str, Any], sizes: Sequence[tuple[int, int]]
) -> Iterator[dict[str, int]]:
    dims = list(dict.fromkeys(dim for port in ports for dim in port.shape if isinstance(dim, str)))
    if not dims:
        yield {}
    elif set(dims) <= {"T", "B"}:
        yield from ({dim: {"T": t, "B": b}[dim] for dim in dims} for t, b in sizes)
    else:
        example = _example_sizes(ports, metadata)
        yield example
        for dim in dims:
            yield example | {dim: 1}
            yield example | {dim: 2 * example[dim] + 1}


def _example_sizes(ports: list[Port], metadata: Mapping[str, Any]) -> dict[str, int]:
    examples = metadata.get("examples", {})
    return {
        dim: examples.get(port.name, {}).get("shape", [4] * len(port.shape))[axis]
        for port in ports
        for axis, dim in enumerate(port.shape)
        if isinstance(dim, str)
    }


def _is_constant(port: Port, metadata: Mapping[str, Any]) -> bool:
    """Whether the example has one truth value throughout: what the other does would never be seen.

    Integers that are all 0 or all 1 are taken for truth values too; where they are not, PyTorch may refuse the case.
    """
    known = metadata.get("examples", {}).get(port.name, {})
    if port.dtype.kind == "b":
        alike = known.get("true", 0.0) in (0.0, 1.0)
    else:
        alike = known.get("low") == known.get("high") and known.get("high") in (0, 1)
    return alike and port.dtype.kind in "bui" and len(port.shape) > 1


def _array(
    port: Port,
    sizes: Mapping[str, int],
    metadata: Mapping[str, Any],
    masks: set[str],
    masked: bool,
    random: np.random.Generator,
) -> np.ndarray:
    shape = [sizes[dim] if isinstance(dim, str) else dim for dim in port.shape]
    if port.name in masks:
        return (random.random(shape) < 0.3 * masked).astype(port.dtype)
    if port.dtype.kind == "f":
        return random.standard_normal(shape).astype(port.dtype)
    known = metadata.get("examples", {}).get(port.name, {})
    if port.dtype.kind == "b":
        usual = random.random(shape) < known.get("true", 0.0)
        return usual ^ (random.random(shape) < 0.3) if masked and _is_constant(port, metadata) else usual
    low, high = known.get("low", 0), known.get("high", 1)
    if masked and _is_constant(port, metadata):
        return (high ^ (random.random(shape) < 0.3)).astype(port.dtype)
    longest = known.get("longest")
    if longest in sizes:
        # Lengths: as long as the sequences of this case are, one of them all of it.
        array = random.integers(1, sizes[longest] + 1, shape)
        array.flat[0] = sizes[longest]
        return array.astype(port.dtype)
    return random.integers(low, high + 1, shape).astype(port.dtype)
