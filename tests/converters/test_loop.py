"""The form `loop`: one Loop for each recurrence, with nothing in it but the state."""

from __future__ import annotations

from collections import Counter

import pytest
from converted import bare, converted, sru


@pytest.mark.parametrize("masked", [0, 1], ids=["whole", "masked"])
@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
def test_only_what_depends_on_the_state_is_in_the_loop(direction, masked):
    made = converted(sru(direction=direction, masked=masked).file(), "loop").model
    (loop,) = (node for node in made.graph if node.op_type == "Loop")
    step = loop.attributes["body"].as_graph()
    wanted = Counter({"Gather": 2 + masked, "Sigmoid": 1, "Mul": 2, "Add": 2, "Sub": 1, "Identity": 2})
    assert Counter(node.op_type for node in step) == wanted + Counter({"Where": 1} if masked else {})
    assert "Scan" not in {node.op_type for node in made.graph.all_nodes()}


def test_the_inner_inputs_have_types():
    """Inference leaves them out, and some engines ask for them."""
    made = converted(bare(3).file(), "loop").model
    (loop,) = (node for node in made.graph if node.op_type == "Loop")
    t, going, state = loop.attributes["body"].as_graph().inputs
    assert [value.dtype.name for value in (t, going, state)] == ["INT64", "BOOL", "FLOAT"]
    assert [str(dim) for dim in state.shape] == ["B", "3"]
