"""LinearRecurrence: the reference against a plain loop, the function body against the reference, and the signature."""

from __future__ import annotations

from collections import Counter
from itertools import product

import numpy as np
import one_node
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from one_node import DTYPES, Attributes, Tensors, feeds, one_node_model, state_dtype, words
from recurrence_inputs import DIRECTIONS
from recurrence_inputs import LINEAR_VARIANTS as VARIANTS
from recurrence_inputs import linear_inputs as example

from sruexport.recurrences import DOMAIN, DOMAIN_VERSION, LINEAR_RECURRENCE, RECURRENCES
from sruexport.recurrences.base import Variant

each_variant = pytest.mark.parametrize("attributes", VARIANTS, ids=words)
each_dtype = pytest.mark.parametrize("dtype", DTYPES)


def plain_loop(
    a: np.ndarray, b: np.ndarray, h0: np.ndarray, mask: np.ndarray, direction: str, masked: int
) -> tuple[np.ndarray, np.ndarray]:
    """h_t = a_t * h_{t-1} + b_t, one number at a time, in more than double precision where there is one."""
    steps, batch, channels = a.shape
    h = np.zeros((steps, batch, channels), np.longdouble)
    last = np.zeros((batch, channels), np.longdouble)
    for row, channel in product(range(batch), range(channels)):
        backward = direction == "reverse" or (direction == "bidirectional" and channel >= channels // 2)
        state = np.longdouble(h0[row, channel])
        for t in reversed(range(steps)) if backward else range(steps):
            if not (masked and mask[t, row]):
                state = np.longdouble(a[t, row, channel]) * state + np.longdouble(b[t, row, channel])
            h[t, row, channel] = state
        last[row, channel] = state
    return h, last


def loop_of(tensors: Tensors, attributes: Attributes) -> tuple[np.ndarray, np.ndarray]:
    return plain_loop(*(tensor.double().numpy() for tensor in tensors.values()), **attributes)


def session(attributes: Attributes, dtype: str, opset: int = 18) -> onnxruntime.InferenceSession:
    return one_node.session(LINEAR_RECURRENCE, attributes, dtype, opset)


def assert_engine_agrees(
    engine: onnxruntime.InferenceSession, attributes: Attributes, dtype: str, **sizes: int
) -> None:
    tensors = example(attributes, dtype, **sizes)
    one_node.assert_engine_agrees(engine, LINEAR_RECURRENCE, attributes, dtype, tensors, loop_of(tensors, attributes))


# The reference


@given(
    attributes=st.sampled_from(VARIANTS),
    dtype=st.sampled_from(list(DTYPES)),
    steps=st.integers(1, 6),
    batch=st.integers(1, 3),
    hidden=st.integers(1, 3),
    seed=st.integers(0, 2**20),
)
@settings(max_examples=150, deadline=None, derandomize=True)
def test_reference_is_the_equation(attributes, dtype, steps, batch, hidden, seed):
    tensors = example(attributes, dtype, steps, batch, hidden, seed)
    h, last = LINEAR_RECURRENCE.reference(*tensors.values(), **attributes)
    right_h, right_last = loop_of(tensors, attributes)
    assert (h.dtype, last.dtype) == (tensors["a"].dtype, state_dtype(dtype))
    assert (h.shape, last.shape) == (right_h.shape, right_last.shape)
    # Each step rounds twice, and since |a| <= 1 no earlier error grows: one epsilon of the state's type per step.
    largest = max(np.abs(right_h).max(), tensors["h0"].abs().max().item())
    carried = steps * torch.finfo(last.dtype).eps * largest
    assert np.abs(last.double().numpy() - right_last).max() <= carried
    assert np.abs(h.double().numpy() - right_h).max() <= carried + torch.finfo(h.dtype).eps * largest


@each_variant
@each_dtype
def test_without_steps_the_state_stays(attributes, dtype):
    tensors = example(attributes, dtype, steps=0)
    h, last = LINEAR_RECURRENCE.reference(*tensors.values(), **attributes)
    assert h.shape == tensors["a"].shape
    assert h.dtype == tensors["a"].dtype
    assert torch.equal(last, tensors["h0"])


@each_variant
def test_without_rows_there_is_nothing(attributes):
    tensors = example(attributes, batch=0)
    h, last = LINEAR_RECURRENCE.reference(*tensors.values(), **attributes)
    assert (h.shape, last.shape) == (tensors["a"].shape, tensors["h0"].shape)


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_padding_never_enters_the_state(direction):
    attributes = {"direction": direction, "masked": 1}
    tensors = example(attributes)
    assert tensors["a"].isnan().any()
    h, last = LINEAR_RECURRENCE.reference(*tensors.values(), **attributes)
    assert h.isfinite().all()
    assert last.isfinite().all()
    assert torch.equal(h[:, 0], tensors["h0"][0].expand(h.shape[0], -1))  # the row that is all padding
    assert torch.equal(last[0], tensors["h0"][0])


def test_a_state_is_kept_in_float32_whatever_the_tensors_are():
    """In bfloat16 the sum would stop at 256, where adding 1 rounds to nothing."""
    ones = torch.ones(300, 1, 1, dtype=torch.bfloat16)
    _, last = LINEAR_RECURRENCE.reference(
        ones, ones, torch.zeros(1, 1), torch.zeros(1, 1, dtype=torch.int32), direction="forward", masked=0
    )
    assert last.item() == 300


def test_an_unknown_attribute_value_is_refused():
    tensors = example(VARIANTS[0])
    with pytest.raises(ValueError, match="direction='backward'"):
        LINEAR_RECURRENCE(*tensors.values(), direction="backward", masked=0)


# The function body in ONNX Runtime


@each_dtype
@each_variant
def test_body_gives_the_reference_at_every_size(attributes, dtype):
    engine = session(attributes, dtype)
    for steps, batch in ((5, 3), (1, 2), (7, 1)):
        assert_engine_agrees(engine, attributes, dtype, steps=steps, batch=batch)


@each_variant
def test_body_runs_without_rows(attributes):
    tensors = example(attributes, batch=0)
    h, last = session(attributes, "float32").run(None, feeds(tensors))
    assert h.shape == tensors["a"].shape
    assert last.shape == tensors["h0"].shape


@each_variant
def test_body_refuses_a_sequence_without_steps(attributes):
    tensors = example(attributes, steps=0)
    with pytest.raises(Exception, match="Scan node"):
        session(attributes, "float32").run(None, feeds(tensors))


@pytest.mark.parametrize("opset", range(18, 26))
def test_body_is_right_in_every_opset(opset):
    attributes = {"direction": "bidirectional", "masked": 1}
    (stamp,) = one_node_model(LINEAR_RECURRENCE, attributes, "float32", opset).functions[0].opset_import
    assert (stamp.domain, stamp.version) == ("", opset)
    assert_engine_agrees(session(attributes, "float32", opset), attributes, "float32")


@each_dtype
@each_variant
def test_body_scans_only_what_depends_on_the_state(attributes, dtype):
    body = one_node_model(LINEAR_RECURRENCE, attributes, dtype).functions[0]
    (scan,) = (node for node in body.node if node.op_type == "Scan")
    assert not any(node.op_type in ("Loop", "If") for node in body.node)
    step = next(attribute.g for attribute in scan.attribute if attribute.name == "body")
    wanted = {"Mul": 1, "Add": 1, "Identity": 1} | ({"Where": 1} if attributes["masked"] else {})
    assert Counter(node.op_type for node in step.node) == wanted
    assert {node.domain for node in [*body.node, *step.node]} == {""}


# The signature


def test_signature_is_fixed():
    """Kernels, plugins and files that are out in the world rely on it."""
    assert LINEAR_RECURRENCE.op_type == "LinearRecurrence"
    assert [formal.name for formal in LINEAR_RECURRENCE.inputs] == ["a", "b", "h0", "mask"]
    assert [formal.name for formal in LINEAR_RECURRENCE.outputs] == ["h", "h_last"]
    assert [f.name for f in (*LINEAR_RECURRENCE.inputs, *LINEAR_RECURRENCE.outputs) if f.state] == ["h0", "h_last"]
    assert LINEAR_RECURRENCE.attributes == {"direction": DIRECTIONS, "masked": (0, 1)}
    assert RECURRENCES["LinearRecurrence"] is LINEAR_RECURRENCE
    assert (DOMAIN, DOMAIN_VERSION) == ("sruexport", 1)


def test_function_has_the_signature_of_the_op():
    body = one_node_model(LINEAR_RECURRENCE, VARIANTS[0], "float32").functions[0]
    assert (body.domain, body.name, body.overload) == ("sruexport", "LinearRecurrence", "")
    assert list(body.input) == ["a", "b", "h0", "mask"]
    assert list(body.output) == ["h", "h_last"]
    assert list(body.attribute) == ["direction", "masked"]


def test_op_name_is_none_of_the_standard_ones():
    """TensorRT dispatches by the op's name alone, whatever its domain."""
    assert "LinearRecurrence" not in {schema.name for schema in onnx.defs.get_all_schemas()}


class _Layer(torch.nn.Module):
    def forward(self, a, b, h0, mask):
        return LINEAR_RECURRENCE(a, b, h0, mask, direction="reverse", masked=1)


def test_a_trace_leaves_one_node_that_names_its_plugin():
    tensors = example({"direction": "reverse", "masked": 1}, "float16")
    program = torch.onnx.export(_Layer().eval(), tuple(tensors.values()), dynamo=True, verbose=False, opset_version=18)
    (node,) = program.model.graph
    assert (node.domain, node.op_type) == ("sruexport", "LinearRecurrence")
    assert {name: attribute.value for name, attribute in node.attributes.items()} == {
        "direction": "reverse",
        "masked": 1,
        "plugin_namespace": "sruexport",
        "plugin_version": "1",
    }
    assert [value.dtype for value in node.outputs] == [ir.DataType.FLOAT16, ir.DataType.FLOAT]
    assert LINEAR_RECURRENCE.variant(node) == Variant((("direction", "reverse"), ("masked", 1)), ir.DataType.FLOAT16)
