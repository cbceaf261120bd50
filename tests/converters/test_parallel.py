"""The form `parallel`: linear recurrences in log2(T) elementwise steps, or in chunks of a dynamic T."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest
from converted import DIRECTIONS, assert_form_is_right, bare, converted, linear, sru
from sruexport.converters.parallel import CHUNK

from sruexport.errors import ConversionError

LOOPS = ("Scan", "Loop", "LSTM")


def kinds(model: ir.Model) -> list[str]:
    return [node.op_type for node in model.graph.all_nodes()]


@pytest.mark.parametrize(("length", "steps"), [(1, 0), (2, 1), (3, 2), (4, 2), (5, 3), (33, 6)])
def test_a_static_length_takes_the_logarithm_of_it_in_steps_and_no_loop(length, steps):
    net = linear("sru v1", direction="bidirectional", masked=1)
    made = assert_form_is_right(net, "parallel", [net.feeds(length, 2)], static=True)
    assert not set(kinds(made.model)) & set(LOOPS)
    assert made.report == [{"layer": "layer", "recurrence": "LinearRecurrence", "steps": steps}]


def test_a_dynamic_length_is_cut_into_chunks_that_one_scan_goes_over():
    made = converted(bare().file(), "parallel")
    assert kinds(made.model).count("Scan") == 1
    assert made.report[0]["chunk"] == CHUNK
    assert 2 ** made.report[0]["steps"] == CHUNK


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("length", [1, CHUNK - 1, CHUNK, CHUNK + 1, 2 * CHUNK, 3 * CHUNK + 5])
def test_chunks_need_not_divide_the_length(length, direction):
    net = linear("mingru", direction=direction, masked=1)
    assert_form_is_right(net, "parallel", [net.feeds(length, 2)])


@pytest.mark.parametrize("static", [False, True], ids=["dynamic", "static"])
def test_a_decay_may_be_negative_zero_and_above_one(static):
    """There is no logarithm of it, and nothing is divided by it."""
    net = bare(4)
    feeds = net.feeds(70, 2)
    feeds["a"] = np.random.default_rng(0).choice([-1.1, -0.5, 0, 1, 1.05], feeds["a"].shape).astype(np.float32)
    assert_form_is_right(net, "parallel", [feeds], static=static)


def test_a_recurrence_whose_gates_read_the_state_is_refused():
    with pytest.raises(ConversionError, match="no parallel scan of it is exact; take scan or lstm"):
        converted(sru().file(), "parallel")
