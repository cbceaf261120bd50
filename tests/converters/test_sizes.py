"""A model with fixed sizes, or in a newer opset, and all that it says of itself."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
import torch
from converted import linear, run, sru
from sruexport.converters import FORMS, convert, fix_sizes, raise_opset
from torch import nn

import sruexport
from sruexport.errors import ConversionError, OptionError
from sruexport.layers import SRU
from sruexport.metadata import unpack


def dims(values: Any) -> dict[str, list[str]]:
    return {value.name: [str(dim) for dim in value.shape] for value in values}


@pytest.fixture(scope="module")
def file(tmp_path_factory) -> ir.Model:
    """A streaming export, which has states and an output whose length is an expression."""

    class Subsampled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rnn = SRU(4, 3, num_layers=1, layer_norm=True)

        def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
            h, _ = self.rnn(x)
            return {"h": h, "half": h[::2]}

    path = tmp_path_factory.mktemp("sizes") / "m.onnx"
    torch.manual_seed(0)
    axes = {"x": {0: "T", 1: "B"}}
    sruexport.export(Subsampled().eval(), (torch.zeros(6, 2, 4),), path, dynamic=axes, stateful=True)
    return ir.load(path)


# Sizes


def test_the_dims_of_inputs_and_outputs_get_their_size(file):
    assert dims(file.graph.inputs) == {"x": ["T", "B", "4"], "state_0": ["B", "3"]}
    fixed = fix_sizes(file, {"T": 7, "B": 2})
    assert dims(fixed.graph.inputs) == {"x": ["7", "2", "4"], "state_0": ["2", "3"]}
    assert dims(fixed.graph.outputs) == {"h": ["7", "2", "3"], "half": ["4", "2", "3"], "new_state_0": ["2", "3"]}


def test_one_size_may_stay_dynamic(file):
    fixed = fix_sizes(file, {"B": 2})
    assert dims(fixed.graph.inputs) == {"x": ["T", "2", "4"], "state_0": ["2", "3"]}
    assert dims(fixed.graph.outputs)["h"] == ["T", "2", "3"]


def test_the_values_in_between_have_their_size_too(file):
    fixed = fix_sizes(file, {"T": 7, "B": 2})
    (node,) = (node for node in fixed.graph if node.domain)
    assert [str(dim) for dim in node.inputs[0].shape] == ["7", "2", "9"]


def test_the_metadata_say_what_was_fixed_and_what_is_left(file):
    before, after = unpack(file.metadata_props), unpack(fix_sizes(file, {"T": 7}).metadata_props)
    assert after["sizes"] == {"T": 7}
    assert (before["time"], after["time"]) == ("T", None)
    assert before["dynamic"] == {"x": {"0": "T", "1": "B"}, "state_0": {"0": "B"}}
    assert after["dynamic"] == {"x": {"1": "B"}, "state_0": {"0": "B"}}
    after = unpack(fix_sizes(file, {"B": 2}).metadata_props)
    assert after["time"] == "T"
    assert after["states"][0]["shape"] == [2, 3]
    changed = {"sizes", "time", "dynamic", "states"}
    assert {k: v for k, v in after.items() if k not in changed} == {k: v for k, v in before.items() if k not in changed}


def test_a_file_of_fixed_sizes_gives_the_same_numbers(file):
    feeds = {
        "x": np.random.default_rng(0).standard_normal((7, 2, 4)).astype(np.float32),
        "state_0": np.zeros((2, 3), np.float32),
    }
    for name, array in run(file, feeds).items():
        np.testing.assert_array_equal(run(fix_sizes(file, {"T": 7, "B": 2}), feeds)[name], array)


@pytest.mark.parametrize("change", [lambda m: fix_sizes(m, {"T": 7, "B": 2}), lambda m: raise_opset(m, 21)])
def test_the_model_that_is_given_stays(file, change):
    before = ir.serde.serialize_model(file).SerializeToString(deterministic=True)
    change(file)
    assert ir.serde.serialize_model(file).SerializeToString(deterministic=True) == before


def test_a_dim_that_no_input_has_is_refused(file):
    with pytest.raises(OptionError, match=r"size 'Time': no input has this dynamic dim \(they are T, B\)"):
        fix_sizes(file, {"Time": 7})
    with pytest.raises(OptionError, match=r"size 'T': no input has this dynamic dim \(all are static\)"):
        fix_sizes(fix_sizes(file, {"T": 7, "B": 1}), {"T": 8})


@pytest.mark.parametrize("size", [0, -3])
def test_a_size_below_one_is_refused(file, size):
    with pytest.raises(OptionError, match=f"size T={size}: give 1 or more"):
        fix_sizes(file, {"T": size})


# The opset


@pytest.mark.parametrize("opset", [21, 24, 27])
def test_a_newer_opset_keeps_the_recurrences_with_their_modules_and_all_metadata(opset):
    net = sru(4, 3, direction="bidirectional", norm=True, masked=1)
    model = net.file()
    raised = raise_opset(model, opset)
    assert raised.opset_imports[""] == opset
    assert raised.ir_version >= model.ir_version
    assert not raised.functions
    old, new = ([node for node in m.graph if node.domain] for m in (model, raised))
    for before, after in zip(old, new, strict=True):
        assert after.op_type == before.op_type
        assert {n: a.value for n, a in after.attributes.items()} == {n: a.value for n, a in before.attributes.items()}
        assert after.metadata_props["sruexport.module"] == before.metadata_props["sruexport.module"] == "cell"
    assert unpack(raised.metadata_props) == unpack(model.metadata_props) | {"opset": opset}
    assert dims(raised.graph.inputs) == dims(model.graph.inputs)
    assert dims(raised.graph.outputs) == dims(model.graph.outputs)


def test_what_was_raised_gives_the_same_numbers():
    net = linear("mingru", direction="bidirectional", masked=1)
    model, feeds = net.file(), net.feeds()
    raised = convert(raise_opset(model, 27), FORMS["scan"]).model
    for name, array in run(convert(model, FORMS["scan"]).model, feeds).items():
        np.testing.assert_array_equal(run(raised, feeds)[name], array)


def test_an_op_that_cannot_be_raised_is_refused():
    proto = ir.serde.serialize_model(sru().file())
    proto.graph.node.append(onnx.helper.make_node("NoSuchOp", ["x"], ["strange"]))
    with pytest.raises(ConversionError, match="onnx cannot raise its opset to 27: "):
        raise_opset(ir.serde.deserialize_model(proto), 27)
