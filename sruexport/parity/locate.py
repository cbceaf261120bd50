"""Names the first layer whose output departs from PyTorch's."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import torch
from torch import nn
from torch.utils import _pytree as pytree

from sruexport.exporter.model import borrowed
from sruexport.exporter.trace import MODULE_KEY

from .measure import FACTOR, distance, floor

_FLOATS = {ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.DOUBLE}


def first_departure(
    model: nn.Module,
    path: Path,
    run: Callable[[Path], dict[str, np.ndarray]],
    keywords: Callable[[torch.dtype], Mapping[str, Any]],
    dtype: str,
) -> str | None:
    """The path of the first module, in the graph's order, whose output in the file is not PyTorch's by the rule.

    A module's outputs in the graph are what its nodes make and others use; they are matched by shape.

    Args:
        run: runs a file like the one at `path`, but with more outputs.
        keywords: forward's arguments in a dtype.

    Returns:
        the module's path in the model ("" for the model itself), or None if every layer agrees.
    """
    exact = _module_outputs(model, keywords(torch.float64), torch.float64)
    own = getattr(torch, dtype)
    rounded = _module_outputs(model, keywords(own), own)
    values = _values_by_module(path, set(exact))
    engine = _run_with(path, {value for found in values.values() for value in found}, run)
    for module, names in values.items():
        candidates = [engine[name].astype(np.float64) for name in names if name in engine]
        if not _agree(candidates, exact[module], rounded.get(module, []), dtype):
            return module
    return None


def _agree(candidates: list[np.ndarray], exact: list[np.ndarray], rounded: list[np.ndarray], dtype: str) -> bool:
    """Whether every value has its partner. Where there are fewer candidates of a shape than outputs, since the graph
    makes no use of some outputs, it is the candidates that all need one."""
    bounds = [_bound(tensor, other, dtype) for tensor, other in zip(exact, rounded, strict=True)]
    for shape in {tensor.shape for tensor in exact if tensor.size}:
        ours = [i for i, tensor in enumerate(exact) if tensor.shape == shape]
        theirs = [i for i, array in enumerate(candidates) if array.shape == shape]
        near = {(i, j) for i in ours for j in theirs if distance(candidates[j], exact[i]).max() <= bounds[i]}
        matched = {i for i, _ in near}, {j for _, j in near}
        if min(len(ours), len(theirs)) > min(len(matched[0]), len(matched[1])):
            return False
    return True


def _bound(exact: np.ndarray, rounded: np.ndarray, dtype: str) -> float:
    scale = float(np.abs(exact[np.isfinite(exact)]).max(initial=0.0))
    return max(FACTOR * float(distance(rounded, exact).max(initial=0.0)), floor(dtype) * scale)


def _module_outputs(model: nn.Module, keywords: Mapping[str, Any], dtype: torch.dtype) -> dict[str, list[np.ndarray]]:
    """What every module returns, by path; of a module that runs more than once, nothing."""
    outputs: dict[str, list[np.ndarray]] = {}
    twice: set[str] = set()
    with borrowed(model, dtype=dtype) as ours:
        handles = []
        for name, module in ours.named_modules():

            def note(module: nn.Module, args: Any, output: Any, name: str = name) -> None:
                twice.update({name} & outputs.keys())
                leaves = [leaf for leaf in pytree.tree_leaves(output) if isinstance(leaf, torch.Tensor)]
                outputs[name] = [leaf.detach().double().numpy() for leaf in leaves if leaf.is_floating_point()]

            handles.append(module.register_forward_hook(note))
        try:
            ours(**keywords)
        finally:
            for handle in handles:
                handle.remove()
    return {name: tensors for name, tensors in outputs.items() if name not in twice}


def _values_by_module(path: Path, modules: set[str]) -> dict[str, list[str]]:
    """Names of the values that leave each module, with the modules in the order in which the graph finishes them."""
    graph = ir.load(path).graph
    data = _computed_from_inputs(graph)
    last: dict[str, int] = {}
    leaving: dict[str, list[str]] = {}
    for position, node in enumerate(graph):
        inside = [m for m in modules if _within(node.metadata_props.get(MODULE_KEY), m)]
        for module in inside:
            last[module] = position
            for value in node.outputs:
                users = [user.metadata_props.get(MODULE_KEY) for user in value.consumers()]
                leaves = value.is_graph_output() or any(not _within(user, module) for user in users)
                if leaves and value in data and value.name and value.dtype in _FLOATS:
                    leaving.setdefault(module, []).append(value.name)
    order = sorted(leaving, key=lambda module: (last[module], -module.count("."), -len(module)))
    return {module: leaving[module] for module in order}


def _computed_from_inputs(graph: ir.Graph) -> set[ir.Value]:
    """Values that depend on the inputs' numbers: not, say, the zeros that several layers start from."""
    found: set[ir.Value] = set(graph.inputs)
    for node in graph:
        if node.op_type not in ("Shape", "Size") and any(value in found for value in node.inputs):
            found.update(node.outputs)
    return found


def _within(path: str | None, module: str) -> bool:
    return path is not None and (not module or path == module or path.startswith(f"{module}."))


def _run_with(path: Path, names: set[str], run: Callable[[Path], dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
    """Run the file with more of its values as outputs."""
    model = ir.load(path)
    for node in model.graph:
        for value in node.outputs:
            if value.name in names and not value.is_graph_output():
                model.graph.outputs.append(value)
    with tempfile.TemporaryDirectory(prefix="sruexport-") as folder:
        ir.save(model, Path(folder) / "more.onnx")
        return run(Path(folder) / "more.onnx")
