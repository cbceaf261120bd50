"""What is in a checkpoint file, whatever its format, before anyone knows what it means."""

from __future__ import annotations

import ast
import hashlib
import json
import os
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import torch
from torch import nn

from sruexport.errors import CheckpointError, SruExportError

from .unpickler import RESTRICTED

_PLAIN_VALUES = (bool, int, float, str, type(None))


@dataclass
class Contents:
    """A checkpoint, taken apart.

    Attributes:
        format: "safetensors", "torch" or "pickled module".
        sha256: of the file.
        tables: state_dicts by where they are ("" or "model_state."), each {name: tensor}.
        settings: dicts of plain values, which may be constructor arguments.
        modules: pickled modules by where they are.
    """

    path: Path
    format: str
    sha256: str
    tables: dict[str, dict[str, torch.Tensor]] = field(default_factory=dict)
    settings: list[dict[str, Any]] = field(default_factory=list)
    modules: dict[str, nn.Module] = field(default_factory=dict)

    @property
    def names(self) -> dict[str, tuple[str, str]]:
        """Every tensor's full name, with its table and its name there."""
        return {f"{table}{name}": (table, name) for table, tensors in self.tables.items() for name in tensors}


def open_checkpoint(path: str | os.PathLike[str]) -> Contents:
    """Read a .pt, .pth, .ckpt, .bin or .safetensors file, going by its content. No code in it is run.

    Raises:
        UnsafeCheckpointError: a pickle asks for code.
        CheckpointError: there is no such file, it is damaged, or it is no checkpoint.
    """
    file = Path(path)
    if not file.is_file():
        raise CheckpointError(f"{file}: there is no such file" if not file.is_dir() else f"{file}: is a folder")
    with file.open("rb") as stream:
        digest = _digest(stream)
        stream.seek(0)
        start = stream.read(16)
    if not start:
        raise CheckpointError(f"{file}: is empty")
    if start[8:9] == b"{":
        return _read_safetensors(file, digest)
    _refuse_others(file, start)
    try:
        loaded = torch.load(file, map_location="cpu", pickle_module=RESTRICTED, weights_only=False)
    except SruExportError as error:
        raise type(error)(f"{file}: {error}") from None
    except Exception as error:
        raise CheckpointError(
            f"{file}: cannot be read as a checkpoint; it is cut off, damaged or something else ({_short(error)})"
        ) from error
    contents = Contents(file, "torch", digest)
    if isinstance(loaded, nn.Module):
        contents.format = "pickled module"
        contents.modules[""] = loaded
    elif isinstance(loaded, Mapping):
        _take_apart(loaded, "", contents)
    else:
        raise CheckpointError(f"{file}: holds a {type(loaded).__name__}, not a state_dict or a module")
    return contents


def _read_safetensors(file: Path, digest: str) -> Contents:
    from safetensors import SafetensorError, safe_open

    contents = Contents(file, "safetensors", digest)
    try:
        with safe_open(file, framework="pt") as opened:
            contents.tables[""] = {name: opened.get_tensor(name) for name in list(opened.keys())}
            metadata = opened.metadata() or {}
    except (SafetensorError, OSError, ValueError) as error:
        raise CheckpointError(f"{file}: is cut off or damaged ({_short(error)})") from error
    values = {name: _value(text) for name, text in metadata.items()}
    contents.settings += [value for value in values.values() if isinstance(value, dict)]
    contents.settings.append({name: value for name, value in values.items() if isinstance(value, _PLAIN_VALUES)})
    return contents


def _take_apart(mapping: Mapping[Any, Any], where: str, contents: Contents) -> None:
    tensors = {str(key): value for key, value in mapping.items() if isinstance(value, torch.Tensor)}
    if tensors:
        contents.tables[where] = tensors
    plain = {str(key): value for key, value in mapping.items() if isinstance(value, _PLAIN_VALUES)}
    if plain:
        contents.settings.append(plain)
    for key, value in mapping.items():
        if hasattr(value, "__dict__") and type(value).__name__ == "Namespace":
            value = vars(value)
        if isinstance(value, nn.Module):
            contents.modules[f"{where}{key}"] = value
        elif isinstance(value, Mapping):
            _take_apart(value, f"{where}{key}.", contents)


def _refuse_others(file: Path, start: bytes) -> None:
    if zipfile.is_zipfile(file):
        with zipfile.ZipFile(file) as archive:
            if any(name.split("/", 1)[-1].startswith("code/") for name in archive.namelist()):
                raise CheckpointError(
                    f"{file}: is a TorchScript archive, whose layers are compiled code; save model.state_dict() instead"
                )
    elif file.suffix == ".onnx" or start[:1] == b"\x08":
        raise CheckpointError(f"{file}: looks like an ONNX file; a checkpoint is needed here")


def _digest(stream: BinaryIO) -> str:
    state = hashlib.sha256()  # hashlib.file_digest needs Python 3.11
    while block := stream.read(2**20):
        state.update(block)
    return state.hexdigest()


def _value(text: str) -> Any:
    """What a text of metadata stands for: JSON, or a Python value such as ``False`` or ``{'hidden_size': 4}``."""
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        pass
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return text


def _short(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:160]}"
