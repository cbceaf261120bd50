"""A recurrence alone in a file: one node with its function body, run in ONNX Runtime."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import torch
from onnx import helper

from sruexport.parity.measure import compare
from sruexport.recurrences import DOMAIN, DOMAIN_VERSION, Recurrence
from sruexport.recurrences.base import Variant
from sruexport.recurrences.body import function

Attributes = dict[str, "str | int"]
Tensors = dict[str, torch.Tensor]

DTYPES = {
    "float32": ir.DataType.FLOAT,
    "float64": ir.DataType.DOUBLE,
    "float16": ir.DataType.FLOAT16,
    "bfloat16": ir.DataType.BFLOAT16,
}


def words(attributes: Attributes) -> str:
    return "-".join(f"{name}={value}" for name, value in attributes.items())


def state_dtype(dtype: str) -> torch.dtype:
    return torch.float64 if dtype == "float64" else torch.float32


def one_node_model(recurrence: Recurrence, attributes: Attributes, dtype: str, opset: int = 18) -> onnx.ModelProto:
    """One node with its function body, and casts around it: NumPy has no bfloat16, so float32 goes in and out."""
    variant = Variant(tuple((name, attributes[name]) for name in recurrence.attributes), DTYPES[dtype])
    wide = ir.DataType.DOUBLE if dtype == "float64" else ir.DataType.FLOAT
    inputs, outputs, before, after = [], [], [], []
    for formal in (*recurrence.inputs, *recurrence.outputs):
        name, inward = formal.name, formal in recurrence.inputs
        kind = ir.DataType.INT32 if name == "mask" else wide if formal.state else DTYPES[dtype]
        shown = ir.DataType.FLOAT if kind == ir.DataType.BFLOAT16 else kind
        rank = {"mask": 2, "bias": 1}.get(name, 2 if formal.state else 3)
        (inputs if inward else outputs).append(helper.make_tensor_value_info(name, shown, [None] * rank))
        if inward:
            before.append(helper.make_node("Cast", [name], [f"{name}_own"], to=kind))
        else:
            after.append(helper.make_node("Cast", [f"{name}_own"], [name], to=shown))
    node = helper.make_node(
        recurrence.op_type,
        [f"{port.name}_own" for port in inputs],
        [f"{port.name}_own" for port in outputs],
        domain=DOMAIN,
        **attributes,
    )
    model = helper.make_model(
        helper.make_graph([*before, node, *after], "one_node", inputs, outputs),
        opset_imports=[helper.make_opsetid("", opset), helper.make_opsetid(DOMAIN, DOMAIN_VERSION)],
        functions=[ir.serde.serialize_function(function(recurrence, variant, opset))],
        ir_version=10,
    )
    onnx.checker.check_model(model, full_check=True)
    return model


def session(
    recurrence: Recurrence,
    attributes: Attributes,
    dtype: str,
    opset: int = 18,
    *,
    kernels: Path | None = None,
    threads: int = 0,
) -> onnxruntime.InferenceSession:
    """Plain ONNX Runtime with no library registered, or with the library of `kernels`."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = threads
    if kernels is not None:
        options.register_custom_ops_library(str(kernels))
    model = one_node_model(recurrence, attributes, dtype, opset).SerializeToString()
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def feeds(tensors: Tensors) -> dict[str, np.ndarray]:
    return {n: (t.float() if t.dtype == torch.bfloat16 else t).numpy() for n, t in tensors.items()}


def assert_engine_agrees(
    engine: onnxruntime.InferenceSession,
    recurrence: Recurrence,
    attributes: Attributes,
    dtype: str,
    tensors: Tensors,
    exact: Sequence[np.ndarray],
) -> None:
    """Judge what an engine makes of `tensors` against `exact`, by the rule, with the reference as PyTorch."""
    found = engine.run(None, feeds(tensors))
    pytorch = recurrence.reference(*tensors.values(), **attributes)
    rules = (dtype, str(state_dtype(dtype)).removeprefix("torch."))
    for got, rounded, right, rule in zip(found, pytorch, exact, rules, strict=True):
        errors = compare(got, rounded.double().numpy(), right, rule)
        assert errors.passed, errors
