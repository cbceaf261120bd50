"""A file in float64: what it says, with next to no rounding."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest
import torch
from converted import DIRECTIONS, Eager, linear, run, sru
from sruexport.converters import widened

from sruexport.parity.measure import compare

#: Float64 rounds 2**-29 as coarsely as float32; what is left of that covers that errors do not scale exactly.
_FLOAT64_SHARE = 2.0**-20
NETS = {
    **{f"sru {d}": sru(6, 3, direction=d, masked=1, activation="tanh") for d in DIRECTIONS},
    "mingru": linear("mingru"),
    "qrnn": linear("qrnn"),
}


class Rounded(Eager):
    """Float64, with the weights of a file in another type."""

    def __init__(self, dtype: str):
        super().__init__(torch.float64)
        self.file_dtype = dtype

    def weight(self, array: np.ndarray) -> torch.Tensor:
        return super().weight(array.astype(self.file_dtype) if array.dtype.kind == "f" else array)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("net", NETS.values(), ids=NETS)
def test_the_numbers_are_float64s(net, dtype):
    """Of the weights as the file has them."""
    feeds = net.feeds(9, 3)
    wide = {name: array.astype(np.float64) if array.dtype.kind == "f" else array for name, array in feeds.items()}
    ops = Rounded(dtype)
    right = net.define(ops, {name: torch.from_numpy(array) for name, array in wide.items()})
    single = net.run(feeds)
    for name, array in run(widened(net.file(dtype)), wide).items():
        exact = right[name].numpy()
        assert array.dtype == np.float64
        noise = compare(single[name], single[name], net.run(feeds, torch.float64)[name], "float32").bound
        assert np.abs(array - exact).max() <= _FLOAT64_SHARE * noise


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_no_narrow_float_is_left(dtype):
    model = ir.serde.serialize_model(widened(sru(6, 3, direction="bidirectional", masked=1, norm=True).file(dtype)))
    onnx.checker.check_model(model, full_check=True)
    narrow = {onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16}
    ports = [*model.graph.input, *model.graph.output]
    assert not {port.type.tensor_type.elem_type for port in ports} & narrow
    assert not {weight.data_type for weight in model.graph.initializer} & narrow
    for node in model.graph.node:
        assert not {a.t.data_type for a in node.attribute if a.type == onnx.AttributeProto.TENSOR} & narrow
        if node.op_type == "Cast":
            assert node.attribute[0].i not in narrow


def test_the_model_that_is_given_stays():
    model = NETS["mingru"].file()
    before = ir.serde.serialize_model(model).SerializeToString(deterministic=True)
    widened(model)
    assert ir.serde.serialize_model(model).SerializeToString(deterministic=True) == before
