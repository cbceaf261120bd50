"""SRURecurrence: the reference against a plain loop, the function body against the reference, and the signature."""

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
from recurrence_inputs import SRU_VARIANTS as VARIANTS
from recurrence_inputs import sru_inputs as example

from sruexport.recurrences import DOMAIN, DOMAIN_VERSION, RECURRENCES, SRU_RECURRENCE
from sruexport.recurrences.base import Variant

FULLEST: Attributes = {"direction": "bidirectional", "activation": "tanh", "masked": 1, "v_per_step": 1}


each_variant = pytest.mark.parametrize("attributes", VARIANTS, ids=words)
each_dtype = pytest.mark.parametrize("dtype", DTYPES)


def plain_loop(
    u: np.ndarray,
    x: np.ndarray,
    v: np.ndarray,
    bias: np.ndarray,
    c0: np.ndarray,
    mask: np.ndarray,
    direction: str,
    activation: str,
    masked: int,
    v_per_step: int,
) -> tuple[np.ndarray, np.ndarray]:
    """One number at a time, in more than double precision where there is one:

    f = sigmoid(u1 + b_f + v_f * c),  r = sigmoid(u2 + b_r + v_r * c),  new c = (c - u0) * f + u0
    h = (g(new c) - x) * r + x
    """
    steps, batch, channels = u.shape[0], u.shape[1], c0.shape[1]
    u, v, bias, c0 = (array.astype(np.longdouble) for array in (u, v, bias, c0))
    x = np.broadcast_to(x.astype(np.longdouble), (steps, batch, channels))
    h = np.zeros((steps, batch, channels), np.longdouble)
    ends = np.zeros((batch, channels), np.longdouble)
    for row, i in product(range(batch), range(channels)):
        backward = direction == "reverse" or (direction == "bidirectional" and i >= channels // 2)
        c = c0[row, i]
        for t in reversed(range(steps)) if backward else range(steps):
            if masked and mask[t, row]:
                continue
            v_f, v_r = (v[t, row] if v_per_step else v[0, 0])[[i, channels + i]]
            f = 1 / (1 + np.exp(-(u[t, row, channels + i] + bias[i] + v_f * c)))
            r = 1 / (1 + np.exp(-(u[t, row, 2 * channels + i] + bias[channels + i] + v_r * c)))
            c = (c - u[t, row, i]) * f + u[t, row, i]
            g = np.tanh(c) if activation == "tanh" else c
            h[t, row, i] = (g - x[t, row, i]) * r + x[t, row, i]
        ends[row, i] = c
    return h, ends


def loop_of(tensors: Tensors, attributes: Attributes) -> tuple[np.ndarray, np.ndarray]:
    return plain_loop(*(tensor.double().numpy() for tensor in tensors.values()), **attributes)


def session(attributes: Attributes, dtype: str, opset: int = 18) -> onnxruntime.InferenceSession:
    return one_node.session(SRU_RECURRENCE, attributes, dtype, opset)


def assert_engine_agrees(
    engine: onnxruntime.InferenceSession, attributes: Attributes, dtype: str, **sizes: int
) -> None:
    tensors = example(attributes, dtype, **sizes)
    one_node.assert_engine_agrees(engine, SRU_RECURRENCE, attributes, dtype, tensors, loop_of(tensors, attributes))


# The reference


@given(
    attributes=st.sampled_from(VARIANTS),
    dtype=st.sampled_from(list(DTYPES)),
    steps=st.integers(1, 6),
    batch=st.integers(1, 3),
    hidden=st.integers(1, 3),
    highway=st.booleans(),
    seed=st.integers(0, 2**20),
)
@settings(max_examples=250, deadline=None, derandomize=True)
def test_reference_is_the_equation(attributes, dtype, steps, batch, hidden, highway, seed):
    tensors = example(attributes, dtype, steps, batch, hidden, highway, seed)
    h, c = SRU_RECURRENCE.reference(*tensors.values(), **attributes)
    right_h, right_c = loop_of(tensors, attributes)
    assert (h.dtype, c.dtype) == (tensors["u"].dtype, state_dtype(dtype))
    assert (h.shape, c.shape) == (right_h.shape, right_c.shape)
    # c and h lie between numbers of the input. A step rounds about ten times, a gate's own error counting for four,
    # numbers of up to twice the largest of them: 8 epsilons of the state's type per step.
    largest = max(tensors[name].nan_to_num().abs().max().item() for name in ("u", "x", "c0"))
    carried = 8 * steps * torch.finfo(c.dtype).eps * largest
    assert np.abs(c.double().numpy() - right_c).max() <= carried
    assert np.abs(h.double().numpy() - right_h).max() <= carried + torch.finfo(h.dtype).eps * largest


@each_variant
@each_dtype
def test_without_steps_the_state_stays(attributes, dtype):
    tensors = example(attributes, dtype, steps=0)
    h, c = SRU_RECURRENCE.reference(*tensors.values(), **attributes)
    assert h.shape == (*tensors["u"].shape[:2], tensors["c0"].shape[1])
    assert h.dtype == tensors["u"].dtype
    assert torch.equal(c, tensors["c0"])


@each_variant
def test_without_rows_there_is_nothing(attributes):
    tensors = example(attributes, batch=0)
    h, c = SRU_RECURRENCE.reference(*tensors.values(), **attributes)
    assert (h.shape, c.shape) == ((*tensors["u"].shape[:2], tensors["c0"].shape[1]), tensors["c0"].shape)


@pytest.mark.parametrize("attributes", [a for a in VARIANTS if a["masked"]], ids=words)
def test_padding_never_enters_the_state_and_gives_zero(attributes):
    tensors = example(attributes)
    assert tensors["u"].isnan().any()
    h, c = SRU_RECURRENCE.reference(*tensors.values(), **attributes)
    assert h.isfinite().all()
    assert c.isfinite().all()
    assert not h[tensors["mask"] != 0].any()
    assert torch.equal(c[0], tensors["c0"][0])  # the row that is all padding


def test_a_state_is_kept_in_float32_whatever_the_tensors_are():
    """In bfloat16 this slow mean of ones would stop at about 0.39, where a step rounds to nothing."""
    steps = 300
    u = torch.tensor([1.0, 6.0, 0.0]).expand(steps, 1, 3).bfloat16()
    zeros = [torch.zeros(shape, dtype=torch.bfloat16) for shape in ((1, 1, 1), (1, 1, 2), (2,))]
    _, c = SRU_RECURRENCE.reference(
        u,
        *zeros,
        torch.zeros(1, 1),
        torch.zeros(1, 1, dtype=torch.int32),
        direction="forward",
        activation="identity",
        masked=0,
        v_per_step=0,
    )
    assert c.item() == pytest.approx(1 - torch.tensor(6.0).sigmoid().item() ** steps, rel=1e-4)


def test_an_unknown_attribute_value_is_refused():
    tensors = example(VARIANTS[0])
    with pytest.raises(ValueError, match="activation='relu'"):
        SRU_RECURRENCE(*tensors.values(), **VARIANTS[0] | {"activation": "relu"})


# The function body in ONNX Runtime


@each_dtype
@each_variant
def test_body_gives_the_reference_at_every_size(attributes, dtype):
    engine = session(attributes, dtype)
    for steps, batch in ((5, 3), (1, 2), (7, 1)):
        assert_engine_agrees(engine, attributes, dtype, steps=steps, batch=batch)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("direction", DIRECTIONS)
def test_body_takes_one_highway_for_all_steps(direction, dtype):
    """As a layer without a skip term has it."""
    attributes = FULLEST | {"direction": direction}
    assert_engine_agrees(session(attributes, dtype), attributes, dtype, highway=False)


@each_variant
def test_body_runs_without_rows(attributes):
    tensors = example(attributes, batch=0)
    h, c = session(attributes, "float32").run(None, feeds(tensors))
    assert h.shape == (*tensors["u"].shape[:2], tensors["c0"].shape[1])
    assert c.shape == tensors["c0"].shape


@each_variant
def test_body_refuses_a_sequence_without_steps(attributes):
    tensors = example(attributes, steps=0)
    with pytest.raises(Exception, match="Scan node"):
        session(attributes, "float32").run(None, feeds(tensors))


@pytest.mark.parametrize("opset", range(18, 26))
def test_body_is_right_in_every_opset(opset):
    (stamp,) = one_node_model(SRU_RECURRENCE, FULLEST, "float32", opset).functions[0].opset_import
    assert (stamp.domain, stamp.version) == ("", opset)
    assert_engine_agrees(session(FULLEST, "float32", opset), FULLEST, "float32")


@each_dtype
@each_variant
def test_body_scans_only_what_depends_on_the_state(attributes, dtype):
    body = one_node_model(SRU_RECURRENCE, attributes, dtype).functions[0]
    (scan,) = (node for node in body.node if node.op_type == "Scan")
    assert not any(node.op_type in ("Loop", "If") for node in body.node)
    step = next(attribute.g for attribute in scan.attribute if attribute.name == "body")
    wanted = {"Sigmoid": 1, "Mul": 2, "Add": 2, "Sub": 1, "Identity": 1} | (
        {"Where": 1} if attributes["masked"] else {}
    )
    assert Counter(node.op_type for node in step.node) == wanted
    assert {node.domain for node in [*body.node, *step.node]} == {""}


# The signature


def test_signature_is_fixed():
    """Kernels, plugins and files that are out in the world rely on it."""
    assert SRU_RECURRENCE.op_type == "SRURecurrence"
    assert [formal.name for formal in SRU_RECURRENCE.inputs] == ["u", "x", "v", "bias", "c0", "mask"]
    assert [formal.name for formal in SRU_RECURRENCE.outputs] == ["h", "c"]
    assert [f.name for f in (*SRU_RECURRENCE.inputs, *SRU_RECURRENCE.outputs) if f.state] == ["c0", "c"]
    assert SRU_RECURRENCE.attributes == {
        "direction": ("forward", "reverse", "bidirectional"),
        "activation": ("identity", "tanh"),
        "masked": (0, 1),
        "v_per_step": (0, 1),
    }
    assert RECURRENCES["SRURecurrence"] is SRU_RECURRENCE
    assert (DOMAIN, DOMAIN_VERSION) == ("sruexport", 1)


def test_function_has_the_signature_of_the_op():
    body = one_node_model(SRU_RECURRENCE, VARIANTS[0], "float32").functions[0]
    assert (body.domain, body.name, body.overload) == ("sruexport", "SRURecurrence", "")
    assert list(body.input) == ["u", "x", "v", "bias", "c0", "mask"]
    assert list(body.output) == ["h", "c"]
    assert list(body.attribute) == ["direction", "activation", "masked", "v_per_step"]


def test_op_name_is_none_of_the_standard_ones():
    """TensorRT dispatches by the op's name alone, whatever its domain."""
    assert "SRURecurrence" not in {schema.name for schema in onnx.defs.get_all_schemas()}


class _Layer(torch.nn.Module):
    def forward(self, u, x, v, bias, c0, mask):
        return SRU_RECURRENCE(u, x, v, bias, c0, mask, **FULLEST)


def test_a_trace_leaves_one_node_that_names_its_plugin():
    tensors = example(FULLEST, "float16")
    program = torch.onnx.export(_Layer().eval(), tuple(tensors.values()), dynamo=True, verbose=False, opset_version=18)
    (node,) = program.model.graph
    assert (node.domain, node.op_type) == ("sruexport", "SRURecurrence")
    assert {name: attribute.value for name, attribute in node.attributes.items()} == {
        **FULLEST,
        "plugin_namespace": "sruexport",
        "plugin_version": "1",
    }
    assert [value.dtype for value in node.outputs] == [ir.DataType.FLOAT16, ir.DataType.FLOAT]
    assert SRU_RECURRENCE.variant(node) == Variant(tuple(FULLEST.items()), ir.DataType.FLOAT16)
