"""The forms `lstm`: a real LSTM with the gates' weights in it, its scale from a bound that holds, in float16 too."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir
import onnx_ir.passes.common as passes
import pytest
import torch
from converted import (
    DIRECTIONS,
    LINEAR,
    Arrays,
    Eager,
    Net,
    SRULayer,
    Values,
    assert_right,
    bare,
    converted,
    linear,
    run,
    sru,
)
from sruexport.converters import FORMS
from sruexport.converters.gates import ONNX_ORDER, TORCH_ORDER
from torch import nn

from sruexport.errors import ConversionError
from sruexport.parity.measure import compare

PLAIN = ("lstm", "lstm-forward")
PEEPHOLE = ("lstm-peephole", "lstm-peephole-tanh")


def lstms(model: ir.Model) -> list[ir.Node]:
    return [node for node in model.graph if node.op_type == "LSTM"]


def constants(node: ir.Node) -> dict[str, np.ndarray]:
    """W, R, B and P of an LSTM that has them."""
    places = {"W": 1, "R": 2, "B": 3, "P": 7}
    given = {name: node.inputs[i] for name, i in places.items() if i < len(node.inputs) and node.inputs[i] is not None}
    return {name: value.const_value.numpy() for name, value in given.items()}


def products(model: ir.Model) -> list[np.ndarray]:
    """The constant matrices of a graph's products."""
    return [node.inputs[1].const_value.numpy() for node in model.graph if node.op_type == "MatMul"]


# What the LSTM is


@pytest.mark.parametrize("form", PLAIN)
def test_the_plain_forms_need_nothing_but_the_lstm_that_every_engine_has(form):
    made = converted(sru(direction="bidirectional", masked=1).file(), form).model
    for node in lstms(made):
        assert set(node.attributes) == {"hidden_size", "direction"}
        assert len(node.inputs) == 7  # no peepholes
        assert node.inputs[4] is None  # no sequence_lens
        assert set(constants(node)) == {"W", "R", "B"}


@pytest.mark.parametrize("form", PEEPHOLE)
def test_with_peepholes_the_lstm_has_no_recurrent_weights(form):
    (node,) = lstms(converted(sru().file(), form).model)
    found = constants(node)
    assert not found["R"].any()
    assert found["P"].any()
    identity = form == "lstm-peephole"
    assert set(node.attributes) == {"hidden_size", "direction"} | (
        {"activations", "activation_alpha"} if identity else set()
    )
    if identity:
        # LeakyRelu with alpha 1; Affine without alpha is 0 in ONNX Runtime.
        assert list(node.attributes["activations"].as_strings()) == ["Sigmoid", "LeakyRelu", "LeakyRelu"]
        assert list(node.attributes["activation_alpha"].as_floats()) == [1.0, 1.0]


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("form", [*PLAIN, *PEEPHOLE])
def test_both_directions_are_one_lstm_but_where_only_forward_ones_may_be(form, direction):
    nodes = lstms(converted(sru(direction=direction).file(), form).model)
    flipped = ["forward"] * (2 if direction == "bidirectional" else 1)
    wanted = flipped if form == "lstm-forward" else [direction]
    assert [node.attributes["direction"].as_string() for node in nodes] == wanted


@pytest.mark.parametrize("highway", ["product", "input", "none"])
@pytest.mark.parametrize("form", [*PLAIN, *PEEPHOLE])
def test_candidate_and_forget_gate_are_in_the_lstms_own_weights(form, highway):
    """Outside are the reset gate's columns, which the LSTM has no place for, and the highway's."""
    net = sru(6, 3, direction="bidirectional", highway=highway, masked=1)
    weights = SRULayer(6, 3, "bidirectional").weights()
    made = converted(net.file(), form).model
    left = [weights["gates"][:, 12:18], *([weights["skip"]] if highway == "product" else [])]
    found = products(made)
    assert len(found) == len(left)
    for matrix in left:
        assert any(np.array_equal(matrix, other) for other in found)
    forget = np.concatenate([constants(node)["W"][:, 6:9, :6] for node in lstms(made)])
    np.testing.assert_array_equal(np.concatenate(list(forget)).T, weights["gates"][:, 6:12])


@pytest.mark.parametrize(
    ("family", "left"), [("mingru", 1), ("minlstm", 3), ("qrnn", 2), ("sru v1", 1)], ids=lambda value: str(value)
)
def test_of_linear_recurrences_only_what_is_no_product_stays_outside(family, left):
    """minGRU: the candidate behind its g. minLSTM: all gates, behind softplus. QRNN: the candidate behind tanh, and the
    output gate. SRU with weight_c = 0: the reset gate."""
    made = converted(linear(family, 4, 3).file(), "lstm").model
    assert sum(matrix.shape[1] for matrix in products(made)) == 3 * left


# A torch.nn.LSTM with its weights


def through_torch(model: ir.Model, feeds: Arrays, dtype: torch.dtype) -> Arrays:
    """What a model with one LSTM gives if torch.nn.LSTM, with the weights of the LSTM, runs in its place."""
    before, node = _copied(model)
    module = torch_lstm(constants(node), dtype)
    before.graph.outputs[:] = [node.inputs[i] for i in (0, 5, 6)]
    for value in before.graph.outputs:
        value.dtype = ir.DataType.from_numpy(np.dtype(str(dtype).removeprefix("torch.")))
    passes.RemoveUnusedNodesPass()(before)
    x, h0, c0 = (torch.from_numpy(array) for array in run(before, feeds).values())
    with torch.no_grad():
        outputs, _ = module(x, (h0, c0))
    y = outputs.unflatten(-1, (len(h0), -1)).transpose(1, 2)

    after, node = _copied(model)
    taken = ir.Value(name="y", type=ir.TensorType(node.outputs[0].dtype), shape=ir.Shape([None] * 4))
    after.graph.inputs.append(taken)
    ir.convenience.replace_all_uses_with(node.outputs[0], taken)
    passes.RemoveUnusedNodesPass()(after)
    return run(after, {**feeds, "y": y.numpy()})


def _copied(model: ir.Model) -> tuple[ir.Model, ir.Node]:
    copied = ir.serde.deserialize_model(ir.serde.serialize_model(model))
    (node,) = lstms(copied)
    return copied, node


def torch_lstm(weights: dict[str, np.ndarray], dtype: torch.dtype) -> nn.LSTM:
    """PyTorch's own, with the weights of an ONNX LSTM: gates i, o, f, c become i, f, c, o."""
    w, r, b = (weights[name] for name in "WRB")
    module = nn.LSTM(w.shape[2], r.shape[2], bidirectional=len(w) == 2, dtype=dtype)
    for direction, suffix in zip(range(len(w)), ("", "_reverse")):
        input_bias, hidden_bias = np.split(b[direction], 2)
        parts = {"weight_ih": w[direction], "weight_hh": r[direction], "bias_ih": input_bias, "bias_hh": hidden_bias}
        for name, array in parts.items():
            blocks = dict(zip(ONNX_ORDER, np.split(array, 4)))
            parameter = torch.from_numpy(np.concatenate([blocks[gate] for gate in TORCH_ORDER]))
            assert parameter.dtype == dtype
            getattr(module, f"{name}_l0{suffix}").data = parameter
    return module


@pytest.mark.parametrize(
    "net",
    [
        sru(4, 3, direction="bidirectional", masked=1, norm=True),
        sru(6, 6, highway="input", activation="tanh"),
        linear("sru v1", direction="bidirectional", masked=1),
        linear("mingru"),
    ],
    ids=["sru", "sru tanh", "sru v1", "mingru"],
)
def test_the_plain_form_is_a_torch_lstm_with_mapped_weights(net):
    made = converted(net.file(), "lstm").model
    for steps, batch in ((9, 3), (1, 2)):
        feeds = net.feeds(steps, batch)
        found = through_torch(made, feeds, torch.float32)
        assert_right(found, net, feeds, FORMS["lstm"].allowance)


def test_the_wrong_order_of_gates_is_seen():
    """So that the test above can fail."""
    net = sru(4, 3)
    made = converted(net.file(), "lstm").model
    weights = lstms(made)[0].inputs[1]
    i, o, f, c = np.split(weights.const_value.numpy(), 4, axis=1)
    weights.const_value = ir.tensor(np.concatenate([i, f, o, c], axis=1), name=weights.name)
    with pytest.raises(AssertionError):
        assert_right(through_torch(made, net.feeds(), torch.float32), net, net.feeds(), 4.0)


# float16


@pytest.mark.parametrize("masked", [0, 1], ids=["whole", "masked"])
@pytest.mark.parametrize("direction", ["forward", "bidirectional"])
@pytest.mark.parametrize("norm", [True, False], ids=["norm", "plain"])
def test_in_float16_the_lstm_stays_within_float16s_own_rounding(direction, masked, norm):
    """Of the float64 result; PyTorch in half precision, state in float32, is what rounding is measured by."""
    net = sru(8, 5, direction=direction, masked=masked, norm=norm, scale=0.3)
    made = converted(net.file("float16"), "lstm", lstm_dtype=ir.DataType.FLOAT16)
    (node,) = lstms(made.model)
    assert {array.dtype for array in constants(node).values()} == {np.dtype(np.float16)}
    assert made.report[0]["dtype"] == "float16"
    for steps, batch in ((40, 7), (1, 2)):
        feeds = net.feeds(steps, batch)
        feeds = {n: a.astype(np.float16) if net.inputs[n][0] == "float" else a for n, a in feeds.items()}
        exact, rounded = net.run(feeds, torch.float64), net.run(feeds, torch.float16)
        for name, array in through_torch(made.model, feeds, torch.float16).items():
            errors = compare(array, rounded[name], exact[name], "float16", FORMS["lstm"].allowance)
            assert errors.passed, (name, errors)


def test_k_is_chosen_for_the_type_that_the_lstm_runs_in():
    file = sru(norm=True).file("float16")
    single = converted(file, "lstm").report[0]
    half = converted(file, "lstm", lstm_dtype=ir.DataType.FLOAT16).report[0]
    assert (single["dtype"], half["dtype"]) == ("float32", "float16")
    assert single["bound"] == half["bound"]
    assert single["k"] > half["k"]
    assert half["relative_error"] <= np.finfo(np.float16).eps / 4


def test_a_state_that_float16_cannot_hold_is_refused():
    file = sru(scale=20.0).file("float16")
    with pytest.raises(ConversionError, match=r"does not fit float16: give a narrower range of the inputs, or run"):
        converted(file, "lstm", lstm_dtype=ir.DataType.FLOAT16)
    assert converted(file, "lstm").report[0]["dtype"] == "float32"


# The scale, and what is said of it


def states(net: Net, feeds: Arrays) -> np.ndarray:
    """The candidates of an SRU layer, and c at every step, in float64."""
    seen: list[np.ndarray] = []

    class Watched(Eager):
        def recurrence(self, op_type: str, u: torch.Tensor, *rest: Any, module: str = "", **attributes: Any) -> Any:
            seen.append(u.chunk(3, dim=-1)[0].numpy())
            for steps in range(1, u.shape[0] + 1):
                _, c = super().recurrence(op_type, u[:steps], *rest, **attributes)
                seen.append(c.numpy())
            return super().recurrence(op_type, u, *rest, **attributes)

    ops = Watched(torch.float64)
    with torch.no_grad():
        net.define(ops, {name: ops.weight(array) for name, array in feeds.items()})
    return np.concatenate([array.reshape(-1) for array in seen])


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("norm", [False, True])
def test_the_reported_bound_is_never_exceeded(norm, seed):
    """Whatever is fed: here the ends of the declared range, and with LayerNorm numbers of any size."""
    net = sru(6, 4, norm=norm, highway="none", seed=seed)
    low, high = -2.0, 3.0
    report = converted(net.file(), "lstm", ranges={"x": (low, high), "c0": (-1.0, 1.0)}).report[0]
    random = np.random.default_rng(seed)
    for _ in range(10):
        x = random.choice([low, high], (6, 3, 6)) if not norm else 10.0 ** random.uniform(-3, 6, (6, 3, 6))
        c0 = random.choice([-1.0, 1.0], (3, 4))
        assert np.abs(states(net, {"x": x, "c0": c0})).max() <= report["bound"] * (1 + 1e-12)


def test_the_reported_bound_is_reached_by_the_worst_input():
    """It is the largest candidate that there is, and no larger."""
    net, weights = sru(6, 4, highway="none"), SRULayer(6, 4, highway="none").weights()
    report = converted(net.file(), "lstm", ranges={"x": (-2.0, 2.0), "c0": (-1.0, 1.0)}).report[0]
    worst = 2 * np.sign(weights["gates"][:, :4]).T.astype(np.float64)
    found = np.abs(states(net, {"x": worst[None], "c0": np.zeros((4, 4))})).max()
    assert found == pytest.approx(report["bound"], rel=1e-6)


def test_a_declared_range_narrows_the_bound_and_k():
    file = sru(norm=False).file()
    wide = converted(file, "lstm").report[0]
    narrow = converted(file, "lstm", ranges={"x": (-1.0, 1.0), "c0": (-1.0, 1.0)}).report[0]
    assert wide["bound"] == pytest.approx(16 * narrow["bound"])
    assert wide["k"] == narrow["k"] + 4
    assert wide["bound_from"] == ("proven from the weights and c0 in [-16, 16], assumed, x in [-16, 16], assumed")
    assert narrow["bound_from"] == "proven from the weights and c0 in [-1, 1], x in [-1, 1]"


def test_behind_a_layer_norm_and_from_a_streamed_state_the_inputs_do_not_matter():
    net = sru(norm=True)
    streamed = Net(net.define, net.inputs, {"states": [{"input": "c0", "output": "c"}]})
    found = converted(streamed.file(), "lstm").report[0]
    assert found["bound_from"] == "proven from the weights"
    assert found == converted(streamed.file(), "lstm", ranges={"x": (-1e6, 1e6)}).report[0]


def test_the_report_says_what_error_follows_from_k():
    report = converted(sru(scale=3.0).file(), "lstm").report[0]
    assert report["relative_error"] == pytest.approx((report["bound"] * 2.0 ** -report["k"]) ** 2 / 3)
    assert report["relative_error"] <= np.finfo(np.float32).eps / 4
    assert report["absolute_error"] == pytest.approx(report["relative_error"] * report["bound"])


def test_the_embedding_with_identity_activations_needs_no_scale():
    report = converted(bare().file(), "lstm-peephole", ranges={"a": (0.0, 1.0)}).report[0]
    assert report["scale"] == "none: the embedding is exact"
    assert "k" not in report


def test_a_bound_is_measured_where_none_can_be_proven():
    report = converted(bare().file(), "lstm", ranges={"a": (0.0, 1.0)}, measured={"layer": 12.0}).report[0]
    assert (report["bound"], report["bound_from"]) == (12.0, "measured on data, times 4")


def test_a_proven_bound_counts_more_than_a_smaller_measured_one():
    file = sru().file()
    proven = converted(file, "lstm").report[0]
    assert converted(file, "lstm", measured={"cell": 1e-3}).report[0] == proven
    assert converted(file, "lstm", measured={"cell": 1e4}).report[0]["bound"] == 1e4


def test_of_several_layers_each_has_a_bound_of_its_own():
    first, second = SRULayer(4, 3, seed=1), SRULayer(3, 2, norm=True, seed=2)

    def define(ops: Any, given: Values) -> Values:
        h, _ = first(ops, given["x"], given["c0"], module="first")
        return {"h": second(ops, h, ops.state(np.zeros((1, 2), np.float32)), module="second")[0]}

    net = Net(define, {"x": ("float", ["T", 1, 4]), "c0": ("state", [1, 3])})
    made = converted(net.file(), "lstm").report
    assert [layer["layer"] for layer in made] == ["first", "second"]
    assert made[1]["bound_from"] == "proven from the weights"
    alone = converted(sru(4, 3, seed=1).file(), "lstm").report[0]
    assert made[0]["bound"] == alone["bound"]


# Refusals


@pytest.mark.parametrize("form", [*PLAIN, *PEEPHOLE])
def test_a_v_that_changes_from_step_to_step_is_refused(form):
    with pytest.raises(ConversionError, match=r"cell: SRURecurrence: what c weighs in its gates changes from step to"):
        converted(sru(v_per_step=1).file(), form)


@pytest.mark.parametrize("form", [*PLAIN, *PEEPHOLE])
@pytest.mark.parametrize("high", [1.5, np.inf])
def test_a_decay_outside_zero_to_one_is_refused(form, high):
    with pytest.raises(
        ConversionError, match=r"layer: LinearRecurrence: an LSTM's forget gate is between 0 and 1, and"
    ):
        converted(bare().file(), form, ranges={"a": (0.0, high)})
    with pytest.raises(ConversionError, match=r"only known to be in \[-0\.5, 1\]"):
        converted(bare().file(), form, ranges={"a": (-0.5, 1.0)})


@pytest.mark.parametrize("form", [*PLAIN, "lstm-peephole-tanh"])
def test_a_state_without_a_bound_is_refused(form):
    """h_t = h_{t-1} + b grows without end."""
    with pytest.raises(ConversionError, match=r"layer: LinearRecurrence: no bound on its state can be proven from the"):
        converted(bare().file(), form, ranges={"a": (0.0, 1.0)})


def test_weights_that_are_computed_in_the_graph_are_refused():
    def define(ops: Any, given: Values) -> Values:
        zeros = ops.weight(np.zeros((1, 1, 3), np.float32))
        no_mask = ops.weight(np.zeros((1, 1), np.int32))
        options = {"direction": "forward", "activation": "identity", "masked": 0, "v_per_step": 0}
        u, v, bias, c0 = (given[name] for name in ("u", "v", "bias", "c0"))
        h, _ = ops.recurrence("SRURecurrence", u, zeros, v, bias, c0, no_mask, **options)
        return {"h": h}

    taken: dict[str, tuple[str, Sequence[str | int]]] = {
        "u": ("float", ["T", "B", 9]),
        "v": ("float", [1, 1, 6]),
        "bias": ("float", [6]),
        "c0": ("state", ["B", 3]),
    }
    with pytest.raises(ConversionError, match="its weight_c and bias are computed in the graph"):
        converted(Net(define, taken).file(), "lstm")


# What is in front of it


@pytest.mark.parametrize("form", [*PLAIN, *PEEPHOLE])
def test_gates_that_are_no_product_go_in_as_they_are(form):
    """As those of SRU++ do, or of a custom_m: the LSTM's weights only pass them on."""

    def define(ops: Any, given: Values) -> Values:
        weight = ops.weight(np.random.default_rng(0).standard_normal((4, 9)).astype(np.float32))
        u = ops("Tanh", ops("MatMul", given["x"], weight))
        row = ops.weight(np.linspace(-2, 2, 6, dtype=np.float32))
        v = ops.weight(np.linspace(1, -1, 6, dtype=np.float32).reshape(1, 1, 6))
        zeros, no_mask = ops.weight(np.zeros((1, 1, 3), np.float32)), ops.weight(np.zeros((1, 1), np.int32))
        options = {"direction": "reverse", "activation": "identity", "masked": 0, "v_per_step": 0}
        h, c = ops.recurrence("SRURecurrence", u, zeros, v, row, given["c0"], no_mask, **options)
        return {"h": h, "c": c}

    net = Net(define, {"x": ("float", ["T", "B", 4]), "c0": ("state", ["B", 3])})
    made = converted(net.file(), form)
    assert_right(run(made.model, net.feeds()), net, net.feeds(), FORMS[form].allowance)
    assert [matrix.shape for matrix in products(made.model)] == [(4, 9)]


@pytest.mark.parametrize("family", LINEAR)
def test_a_decay_and_an_input_that_share_a_sequence_read_it_once(family):
    (node,) = lstms(converted(linear(family, 4, 3, scale=0.3).file(), "lstm").model)
    inputs = {"mingru": 4 + 3, "minlstm": 3 + 3, "qrnn": 4 + 3, "sru v1": 4, "free": 4 + 3}[family]
    assert constants(node)["W"].shape == (1, 12, inputs)
