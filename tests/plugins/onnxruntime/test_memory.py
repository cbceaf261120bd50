"""A model with the native kernels needs no more memory than its matrix products: h takes the place of x."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from kernels_here import needs_kernels
from onnx import TensorProto, helper, numpy_helper

from sruexport import export
from sruexport.layers import SRU

LAYERS, UNITS, STEPS, BATCH = 4, 256, 1024, 8


def products(path: Path) -> None:
    """Layers of x = first third of x @ W."""
    weights = [
        numpy_helper.from_array(np.full((UNITS, 3 * UNITS), 0.01, np.float32), f"weight_{i}") for i in range(LAYERS)
    ]
    bounds = [numpy_helper.from_array(np.array([at]), name) for name, at in (("start", 0), ("end", UNITS), ("axis", 2))]
    nodes = []
    for i in range(LAYERS):
        nodes.append(helper.make_node("MatMul", [f"x_{i}", f"weight_{i}"], [f"u_{i}"]))
        nodes.append(helper.make_node("Slice", [f"u_{i}", "start", "end", "axis"], [f"x_{i + 1}"]))
    first, last = (helper.make_tensor_value_info(f"x_{i}", TensorProto.FLOAT, ["T", "B", UNITS]) for i in (0, LAYERS))
    graph = helper.make_graph(nodes, "products", [first], [last], [*weights, *bounds])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10), path)


def growth(model: Path, library: str) -> int:
    command = [sys.executable, str(Path(__file__).with_name("measure_memory.py")), str(model), library]
    done = subprocess.run([*command, str(STEPS), str(BATCH)], capture_output=True, text=True, check=True)
    return int(done.stdout)


@pytest.mark.skipif(not os.path.exists("/proc/self/clear_refs"), reason="peak memory is read as Linux has it")
def test_a_run_needs_at_most_a_tenth_more_than_the_products_alone(tmp_path):
    library = needs_kernels()
    torch.manual_seed(0)
    layer = SRU(UNITS, UNITS, num_layers=LAYERS)
    file = export(layer.eval(), None, tmp_path / "model.onnx").path
    products(tmp_path / "products.onnx")
    alone = growth(tmp_path / "products.onnx", "-")
    assert alone > 4 * 4 * STEPS * BATCH * UNITS / 1024 * 0.9, "u and x, at least"
    assert growth(file, str(library)) <= 1.1 * alone
