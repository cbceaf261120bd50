"""The form `unrolled`: every step written out, so that the length must be static."""

from __future__ import annotations

import pytest
from converted import DIRECTIONS, bare, converted, linear, sru

from sruexport.errors import ConversionError


@pytest.mark.parametrize("net", [sru(masked=1), linear("mingru"), bare()], ids=["sru", "mingru", "bare"])
def test_a_dynamic_length_is_refused(net):
    with pytest.raises(ConversionError, match=r"its length must be static: fix it \(--size T=50\)"):
        converted(net.file(), "unrolled", {"B": 2})


@pytest.mark.parametrize("length", [1, 2, 9])
@pytest.mark.parametrize("direction", DIRECTIONS)
def test_the_graph_has_every_step_and_no_loop(direction, length):
    made = converted(bare(2, direction=direction).file(), "unrolled", {"T": length}).model
    kinds = [node.op_type for node in made.graph.all_nodes()]
    assert not {"Scan", "Loop", "LSTM"} & set(kinds)
    assert (kinds.count("Mul"), kinds.count("Add")) == (length, length)


def test_the_batch_may_be_dynamic():
    made = converted(sru(direction="bidirectional").file(), "unrolled", {"T": 3}).model
    assert [str(dim) for dim in made.graph.outputs[0].shape] == ["3", "B", "6"]
