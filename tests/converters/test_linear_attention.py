"""The form `linear-attention`: a linear recurrence with a decay above 0 as one op of opset 27."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest
from converted import DIRECTIONS, assert_form_is_right, bare, converted, linear, run, sru

from sruexport.errors import ConversionError
from sruexport.metadata import unpack


def test_each_recurrence_is_one_op_with_as_many_heads_as_channels():
    made = converted(linear("mingru", 4, 3).file(), "linear-attention").model
    (node,) = (node for node in made.graph if node.op_type == "LinearAttention")
    values = {name: attribute.value for name, attribute in node.attributes.items()}
    assert values == {"update_rule": "gated", "q_num_heads": 3, "kv_num_heads": 3, "scale": 1.0}
    assert not [node for node in made.graph.all_nodes() if node.op_type in ("Scan", "Loop", "LSTM")]


def test_the_opset_is_raised_to_the_one_that_has_it():
    file = linear("mingru").file()
    made = converted(file, "linear-attention").model
    assert (file.opset_imports[""], made.opset_imports[""]) == (18, 27)
    assert unpack(made.metadata_props)["opset"] == 27
    assert unpack(file.metadata_props)["opset"] == 18


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_a_state_that_is_given_goes_in_and_the_last_one_comes_out(direction):
    net = bare(3, direction=direction)
    feeds = net.feeds(7, 2)
    feeds["a"] = np.abs(feeds["a"])
    feeds["h0"] = feeds["h0"] * 100
    assert_form_is_right(net, "linear-attention", [feeds], ranges={"a": (0.0, 10.0)})


def test_a_decay_of_zero_forgets_everything():
    net = bare(2)
    feeds = {
        "a": np.zeros((3, 1, 2), np.float32),
        "b": np.full((3, 1, 2), 0.5, np.float32),
        "h0": np.full((1, 2), 1e30, np.float32),
    }
    found = run(converted(net.file(), "linear-attention", ranges={"a": (0.0, 1.0)}).model, feeds)
    np.testing.assert_allclose(found["h"], 0.5, rtol=1e-6)


def test_a_decay_that_may_be_negative_is_refused():
    with pytest.raises(
        ConversionError, match=r"takes the decay's logarithm, and it is only known to be in \[-16, 16\]"
    ):
        converted(bare().file(), "linear-attention")


def test_float64_is_refused():
    with pytest.raises(ConversionError, match="layer: LinearRecurrence: LinearAttention has no float64"):
        converted(linear("mingru").file("float64"), "linear-attention")


def test_a_number_of_channels_that_is_not_known_is_refused():
    file = linear("mingru").file()
    state = next(value for value in file.graph.inputs if value.name == "h0")
    state.shape = ir.Shape(["B", "C"])
    with pytest.raises(ConversionError, match="its number of channels is not known"):
        converted(file, "linear-attention")


def test_a_recurrence_whose_gates_read_the_state_is_refused():
    with pytest.raises(ConversionError, match=r"its gates read the state \(weight_c is not 0\), and LinearAttention's"):
        converted(sru().file(), "linear-attention")
