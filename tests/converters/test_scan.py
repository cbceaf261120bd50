"""The form `scan`: standard ops only, the same interface, the same numbers."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
import torch
from sruexport.converters import FORMS, convert
from torch import nn

import sruexport
from sruexport.layers import SRU

SIZES = ((6, 2), (1, 1), (3, 4))


class Mixed(nn.Module):
    """Three variants of two recurrences, with a mask."""

    def __init__(self):
        super().__init__()
        self.encoder = SRU(4, 3, num_layers=2, bidirectional=True)
        self.tanh = SRU(6, 4, num_layers=1, use_tanh=True)
        self.linear = SRU(4, 4, num_layers=1, v1=True)

    def forward(self, x, mask):
        h, c = self.encoder(x, mask_pad=mask)
        h, _ = self.tanh(h)
        return self.linear(h, mask_pad=mask)[0], c


@pytest.fixture(scope="module", params=[("float32", 18), ("float16", 21)], ids=lambda param: f"{param[0]}-{param[1]}")
def file(request, tmp_path_factory) -> sruexport.Exported:
    dtype, opset = request.param
    torch.manual_seed(0)
    path = tmp_path_factory.mktemp("scan") / "m.onnx"
    axes = {"x": {0: "T", 1: "B"}, "mask": {0: "T", 1: "B"}}
    args = (torch.zeros(5, 3, 4), torch.zeros(5, 3, dtype=torch.bool))
    return sruexport.export(Mixed().eval(), args, path, dynamic=axes, dtype=dtype, opset=opset)


@pytest.fixture(scope="module")
def plain(file) -> onnx.ModelProto:
    return ir.serde.serialize_model(convert(ir.load(file.path), FORMS["scan"]).model)


def nodes(graph: onnx.GraphProto) -> Iterator[onnx.NodeProto]:
    for node in graph.node:
        yield node
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.GRAPH:
                yield from nodes(attribute.g)


def interface(model: onnx.ModelProto) -> list[tuple]:
    return [
        (p.name, p.type.tensor_type.elem_type, [d.dim_param or d.dim_value for d in p.type.tensor_type.shape.dim])
        for p in (*model.graph.input, *model.graph.output)
    ]


def session(model: bytes) -> onnxruntime.InferenceSession:
    return onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])


def test_only_standard_ops_are_left(file, plain):
    assert not plain.functions
    assert {node.domain for node in nodes(plain.graph)} <= {"", "ai.onnx"}
    opset = file.metadata["opset"]
    assert {o.domain: o.version for o in plain.opset_import} == {"": opset}
    known = {schema.name for schema in onnx.defs.get_all_schemas() if schema.domain == ""}
    assert {node.op_type for node in nodes(plain.graph)} <= known
    assert [node.op_type for node in plain.graph.node].count("Scan") == 4  # one per layer
    onnx.checker.check_model(plain, full_check=True)


def test_names_types_dims_and_metadata_are_kept(file, plain):
    original = onnx.load(file.path)
    assert interface(plain) == interface(original)
    assert dict(interface_dims(plain)) == {"x": ["T", "B", 4], "mask": ["T", "B"]}
    kept = {p.key: p.value for p in plain.metadata_props if p.key != "sruexport.form"}
    assert kept == {p.key: p.value for p in original.metadata_props}


def interface_dims(model: onnx.ModelProto) -> list[tuple[str, list]]:
    return [(name, dims) for name, _, dims in interface(model)[: len(model.graph.input)]]


def test_numbers_are_the_same_at_every_size(file, plain):
    """To the last bit: ONNX Runtime inlines the same bodies when it loads the original."""
    before, after = session(file.path.read_bytes()), session(plain.SerializeToString())
    generator = np.random.default_rng(0)
    for steps, batch in SIZES:
        x = generator.standard_normal((steps, batch, 4)).astype(file.metadata["dtype"])
        feeds = {"x": x, "mask": generator.random((steps, batch)) < 0.3}
        for right, found in zip(before.run(None, feeds), after.run(None, feeds), strict=True):
            assert right.shape[-2:] == found.shape[-2:]
            np.testing.assert_array_equal(found, right)


def test_the_model_that_is_given_stays(file):
    model = ir.load(file.path)
    before = ir.serde.serialize_model(model).SerializeToString(deterministic=True)
    convert(model, FORMS["scan"])
    assert ir.serde.serialize_model(model).SerializeToString(deterministic=True) == before
