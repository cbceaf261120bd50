"""What is in a file, a checkpoint or an ONNX model, as plain data."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import onnx_ir as ir

from sruexport.checkpoint import Contents, build, find_layers, open_checkpoint
from sruexport.engines.running import read_model
from sruexport.errors import OptionsNeeded, SruExportError
from sruexport.exporter.functions import recurrence_nodes
from sruexport.exporter.model import recurrent_layers
from sruexport.layers import FAMILIES, family_of
from sruexport.metadata import unpack


def inspect(path: Path) -> dict[str, Any]:
    """Look into a checkpoint or an ONNX file.

    Raises:
        CheckpointError, ModelFileError: it is neither, or damaged.
    """
    return inspect_onnx(path) if _is_onnx(path) else inspect_checkpoint(open_checkpoint(path))


def _is_onnx(path: Path) -> bool:
    """By the name, or by the first field of an ONNX file; a .safetensors file can begin with the same byte."""
    if path.suffix == ".onnx" or not path.is_file():
        return path.suffix == ".onnx"
    with path.open("rb") as stream:
        start = stream.read(9)
    return start[:1] == b"\x08" and start[8:] != b"{"


def inspect_checkpoint(contents: Contents) -> dict[str, Any]:
    tensors = [tensor for table in contents.tables.values() for tensor in table.values()]
    found: dict[str, Any] = {
        "file": str(contents.path),
        "kind": "checkpoint",
        "format": contents.format,
        "sha256": contents.sha256,
        "tensors": len(tensors),
        "parameters": sum(tensor.numel() for tensor in tensors),
        "not_finite": [
            name
            for name, (table, key) in contents.names.items()
            if contents.tables[table][key].is_floating_point()
            and not bool(contents.tables[table][key].isfinite().all())
        ],
        "layers": [],
    }
    for layer in find_layers(contents):
        entry: dict[str, Any] = {
            "family": layer.family.name,
            "prefix": layer.prefix,
            "other_tensors": len(layer.others),
        }
        found["layers"].append(entry | _options(contents, layer.prefix))
    if contents.modules:
        module = build(contents)
        found["layers"] = [
            {"family": family.name, "prefix": path, "other_tensors": 0, "options": family.describe(part), "needs": []}
            for path, part in recurrent_layers(module).items()
            if (family := family_of(part)) is not None
        ]
    found["families"] = sorted({layer["family"] for layer in found["layers"]})
    return found


def _options(contents: Contents, prefix: str) -> dict[str, Any]:
    """A layer's options, or which of them have to be given, or what is wrong with its tensors."""
    try:
        module = build(contents, prefix=prefix)
    except OptionsNeeded as error:
        return {"options": {}, "needs": error.options}
    except SruExportError as error:
        return {"options": {}, "needs": [], "error": str(error)}
    family = family_of(module)
    return {"options": family.describe(module) if family else {}, "needs": []}


def inspect_onnx(path: Path) -> dict[str, Any]:
    model = read_model(path)
    metadata = unpack(model.metadata_props, path)
    kinds: dict[str, int] = {}
    for node in recurrence_nodes(model):
        kinds[node.op_type] = kinds.get(node.op_type, 0) + 1
    return {
        "file": str(path),
        "kind": "onnx",
        "bytes": path.stat().st_size,
        "opset": model.opset_imports.get(""),
        "ir_version": model.ir_version,
        "inputs": [_port(value) for value in model.graph.inputs],
        "outputs": [_port(value) for value in model.graph.outputs],
        "recurrences": kinds,
        "functions": ["::".join(part for part in key if part) for key in model.functions],
        "nodes": len(list(model.graph)),
        "families": sorted({layer["family"] for layer in metadata.get("layers", []) if layer["family"] in FAMILIES}),
        "metadata": metadata,
    }


def _port(value: ir.Value) -> dict[str, Any]:
    shape = [dim.value if isinstance(dim, ir.SymbolicDim) else dim for dim in value.shape or ()]
    return {"name": value.name, "dtype": _dtype_name(value.dtype), "shape": shape}


def _dtype_name(dtype: ir.DataType | None) -> str | None:
    """As NumPy and the metadata have it: "float32", where ONNX says FLOAT."""
    if dtype is None:
        return None
    try:
        return str(dtype.numpy())
    except TypeError:
        return dtype.name.lower()
