"""Arrays through a pipe: between this process and an engine's."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from typing import Any, BinaryIO

import numpy as np

_LENGTH = struct.Struct("<Q")


def send(stream: BinaryIO, header: Mapping[str, Any], arrays: Mapping[str, np.ndarray] | None = None) -> None:
    """Write a header of plain data, and arrays by name."""
    given = {name: np.asarray(array) for name, array in (arrays or {}).items()}  # a scalar array stays one
    table = [[name, array.dtype.str, list(array.shape)] for name, array in given.items()]
    text = json.dumps({**header, "arrays": table}).encode()
    stream.write(_LENGTH.pack(len(text)))
    stream.write(text)
    for array in given.values():
        stream.write(array.tobytes())
    stream.flush()


def receive(stream: BinaryIO) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Read what `send` wrote.

    Raises:
        EOFError: the other side is gone.
    """
    (length,) = _LENGTH.unpack(_read(stream, _LENGTH.size))
    header = json.loads(_read(stream, length))
    arrays = {}
    for name, dtype, shape in header.pop("arrays"):
        kind = np.dtype(dtype)
        count = int(np.prod(shape, dtype=np.int64))
        arrays[name] = np.frombuffer(_read(stream, count * kind.itemsize), kind).reshape(shape)
    return header, arrays


def _read(stream: BinaryIO, size: int) -> bytes:
    data = stream.read(size)
    if len(data) < size:
        raise EOFError
    return data
