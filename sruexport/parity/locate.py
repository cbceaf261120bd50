"""Names the first layer whose output departs from PyTorch's."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import torch
from torch import nn
from torch.utils import _pytree as pytree

from sruexport.engines import OnnxRuntime
from sruexport.exporter.model import borrowed
from sruexport.exporter.trace import MODULE_KEY

from .measure import FACTOR, floor

_FLOATS = {ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.DOUBLE}


def first_departure(
    model: nn.Module, path: Path, feeds: Mapping[str, np.ndarray], keywords: Mapping[str, torch.Tensor], dtype: str
) -> str | None:
    """The path of the first module, in the graph's order, whose output in the file is not PyTorch's in float64.

    A module's outputs in the graph are what its nodes make and others use; they are matched by shape.

    Args:
        feeds: the file's inputs, states too.
        keywords: forward's arguments.

    Returns:
        the module's path in the model ("" for the model itself), or None if every layer agrees.
    """
    exact = _module_outputs(model, keywords)
    values = _values_by_module(path, set(exact))
    engine = _run_with(path, {value for found in values.values() for value in found}, feeds)
    for module, names in values.items():
        candidates = [engine[name] for name in names if name in engine]
        for tensor in exact[module]:
            fitting = [array for array in candidates if array.shape == tensor.shape]
            if not fitting or not tensor.size:
                continue
            distance = min(float(np.nanmax(np.abs(array.astype(np.float64) - tensor))) for array in fitting)
            if not distance <= FACTOR * floor(dtype) * float(np.abs(tensor).max()):
                return module
    return None


def _module_outputs(model: nn.Module, keywords: Mapping[str, torch.Tensor]) -> dict[str, list[np.ndarray]]:
    """What every module returns, in float64, by path; of a module that runs more than once, nothing."""
    outputs: dict[str, list[np.ndarray]] = {}
    twice: set[str] = set()
    with borrowed(model, dtype=torch.float64) as ours:
        handles = []
        for name, module in ours.named_modules():

            def note(module: nn.Module, args: Any, output: Any, name: str = name) -> None:
                twice.update({name} & outputs.keys())
                leaves = [leaf for leaf in pytree.tree_leaves(output) if isinstance(leaf, torch.Tensor)]
                outputs[name] = [leaf.detach().numpy() for leaf in leaves if leaf.is_floating_point()]

            handles.append(module.register_forward_hook(note))
        try:
            ours(**{name: t.to(torch.float64) if t.is_floating_point() else t for name, t in keywords.items()})
        finally:
            for handle in handles:
                handle.remove()
    return {name: tensors for name, tensors in outputs.items() if name not in twice}


def _values_by_module(path: Path, modules: set[str]) -> dict[str, list[str]]:
    """Names of the values that leave each module, with the modules in the order in which the graph finishes them."""
    graph = ir.load(path).graph
    last: dict[str, int] = {}
    leaving: dict[str, list[str]] = {}
    for position, node in enumerate(graph):
        inside = [m for m in modules if _within(node.metadata_props.get(MODULE_KEY), m)]
        for module in inside:
            last[module] = position
            for value in node.outputs:
                users = [user.metadata_props.get(MODULE_KEY) for user in value.consumers()]
                leaves = value.is_graph_output() or any(not _within(user, module) for user in users)
                if leaves and value.name and value.dtype in _FLOATS:
                    leaving.setdefault(module, []).append(value.name)
    order = sorted(leaving, key=lambda module: (last[module], -module.count("."), -len(module)))
    return {module: leaving[module] for module in order}


def _within(path: str | None, module: str) -> bool:
    return path is not None and (not module or path == module or path.startswith(f"{module}."))


def _run_with(path: Path, names: set[str], feeds: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Run the file with more of its values as outputs."""
    model = ir.load(path)
    for node in model.graph:
        for value in node.outputs:
            if value.name in names and not value.is_graph_output():
                model.graph.outputs.append(value)
    return OnnxRuntime().load(ir.to_proto(model).SerializeToString()).run(feeds)
