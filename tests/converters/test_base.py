"""Every form of every recurrence: right in ONNX Runtime, of standard ops, with the model's own interface."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
import torch
from converted import (
    DIRECTIONS,
    LINEAR,
    LINEAR_FORMS,
    SRU_FORMS,
    Arrays,
    Net,
    SRULayer,
    Values,
    assert_form_is_right,
    assert_right,
    bare,
    converted,
    linear,
    run,
    session,
    sru,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import helper
from sruexport.converters import FORMS, Converted, convert, fix_sizes, form_of, is_converted
from torch import nn

import sruexport
from sruexport.errors import ConversionError
from sruexport.layers import SRU
from sruexport.layers.mingru import MinLSTM
from sruexport.layers.qrnn import FastaiQRNN
from sruexport.metadata import unpack
from sruexport.parity.measure import compare

#: One step, one row, a chunk and a bit of `parallel`: the sizes at which a form can go wrong.
SIZES = ((5, 3), (1, 1), (1, 7), (70, 2))
_few = settings(max_examples=40, derandomize=True, deadline=None, database=None)


def test_the_rule_is_widened_only_where_the_scaled_tanh_costs_accuracy():
    widened = {"lstm": 4.0, "lstm-forward": 4.0, "lstm-peephole-tanh": 4.0}
    assert {form.name: form.allowance for form in FORMS.values()} == {name: widened.get(name, 1.0) for name in FORMS}


# Numbers: every variant


@pytest.mark.parametrize("masked", [0, 1], ids=["whole", "masked"])
@pytest.mark.parametrize("activation", ["identity", "tanh"])
@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("form", [*SRU_FORMS, "unrolled"])
def test_sru_is_right(form, direction, activation, masked):
    """States go in and out; padding is NaN and anywhere. k = 4, with the products that a trained layer has in front."""
    net = sru(5, 3, direction=direction, activation=activation, masked=masked, norm=not masked, project=2 * masked)
    sizes = SIZES[:3] if form == "unrolled" else SIZES
    cases = [net.feeds(steps, batch, seed) for seed, (steps, batch) in enumerate(sizes)]
    assert_form_is_right(net, form, cases, static=form == "unrolled")


@pytest.mark.parametrize("highway", ["input", "none"])
@pytest.mark.parametrize("form", [*SRU_FORMS, "unrolled"])
def test_sru_is_right_with_three_matrices_and_without_a_skip_term(form, highway):
    net = sru(6, 3, direction="bidirectional", masked=1, highway=highway, norm=True, activation="tanh")
    assert_form_is_right(net, form, [net.feeds(5, 3), net.feeds(1, 2, seed=1)], static=form == "unrolled")


@pytest.mark.parametrize("masked", [0, 1], ids=["whole", "masked"])
@pytest.mark.parametrize("family", LINEAR)
@pytest.mark.parametrize("form", [*LINEAR_FORMS, "unrolled"])
def test_linear_recurrences_are_right(form, family, masked):
    direction = DIRECTIONS[(LINEAR.index(family) + masked + list(FORMS).index(form)) % 3]
    net = linear(family, direction=direction, masked=masked, scale=0.5)
    sizes = SIZES[:2] if form == "unrolled" else SIZES
    cases = [net.feeds(steps, batch, seed) for seed, (steps, batch) in enumerate(sizes)]
    assert_form_is_right(net, form, cases, static=form == "unrolled")


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("form", LINEAR_FORMS)
def test_a_decay_may_be_exactly_zero_and_exactly_one(form, direction):
    net = bare(4, direction=direction, masked=1)
    feeds = net.feeds(70, 2)
    random = np.random.default_rng(3)
    decay = random.random(feeds["a"].shape).astype(np.float32)
    decay[..., 0], decay[..., 1] = 0, 1
    decay[..., 2] = random.choice([0, 1e-7, 1 - 2**-24, 1], decay.shape[:2])
    feeds["a"] = np.where(np.isnan(feeds["a"]), np.nan, decay).astype(np.float32)
    assert_form_is_right(net, form, [feeds], ranges={"a": (0.0, 1.0)}, measured={"layer": 100.0})


@pytest.mark.parametrize("size", [(1, 1), (1, 3), (5, 2)], ids=str)
@pytest.mark.parametrize("form", LINEAR_FORMS)
def test_forms_are_right_with_static_sizes_too(form, size):
    """Some ops are other ones there."""
    layers = [linear("qrnn", direction="bidirectional"), linear("mingru", direction="reverse", masked=1)]
    layers += [sru(direction="bidirectional", masked=1)] if form in SRU_FORMS else []
    for net in layers:
        assert_form_is_right(net, form, [net.feeds(*size)], static=True)


@pytest.mark.parametrize("opset", range(19, 26))
def test_forms_are_right_in_every_opset(opset):
    net = linear("sru v1", direction="bidirectional", masked=1)
    for form in ("lstm", "scan", "parallel"):
        made = converted(net.file(opset=opset), form).model
        assert made.opset_imports[""] == opset
        assert_right(run(made, net.feeds()), net, net.feeds(), FORMS[form].allowance)


# Numbers: what is drawn at random


@_few
@given(
    form=st.sampled_from([*SRU_FORMS, "unrolled"]),
    options=st.fixed_dictionaries(
        {
            "hidden": st.integers(1, 4),
            "direction": st.sampled_from(DIRECTIONS),
            "activation": st.sampled_from(["identity", "tanh"]),
            "masked": st.integers(0, 1),
            "norm": st.booleans(),
            "project": st.integers(0, 2),
            "scale": st.sampled_from([0.1, 0.7, 3.0]),
            "forget_bias": st.sampled_from([-50.0, 0.0, 4.0, 50.0]),
        }
    ),
    inputs=st.integers(1, 6),
    highway=st.sampled_from(["product", "input", "none"]),
    size=st.sampled_from([(1, 1), (1, 7), (2, 3), (9, 7), (31, 1)]),
    large=st.sampled_from([1.0, 1000.0]),
    seed=st.integers(0, 2**16),
)
def test_sru_is_right_at_every_size_with_large_states_and_with_saturated_gates(
    form, options, inputs, highway, size, large, seed
):
    channels = options["hidden"] * (2 if options["direction"] == "bidirectional" else 1)
    net = sru(channels if highway == "input" else inputs, highway=highway, seed=seed, **options)
    # Behind a LayerNorm candidates are small: beside a c0 of 1000 an output of theirs is less than its rounding.
    large = 1.0 if options["norm"] else large
    feeds = net.feeds(*size, seed=seed, scale=large)
    ranges = {"x": (-5 * large, 5 * large), "c0": (-5 * large, 5 * large)}
    assert_form_is_right(net, form, [feeds], static=form == "unrolled", extreme=True, ranges=ranges)


@_few
@given(
    form=st.sampled_from([*LINEAR_FORMS, "unrolled"]),
    family=st.sampled_from(LINEAR[:-1]),
    options=st.fixed_dictionaries(
        {
            "inputs": st.integers(1, 5),
            "hidden": st.integers(1, 4),
            "direction": st.sampled_from(DIRECTIONS),
            "masked": st.integers(0, 1),
            "scale": st.sampled_from([0.1, 0.7, 3.0]),
            "gate_bias": st.sampled_from([-50.0, 0.0, 4.0, 50.0]),
        }
    ),
    size=st.sampled_from([(1, 1), (1, 7), (2, 3), (9, 7), (64, 1), (65, 2), (31, 1)]),
    large=st.sampled_from([1.0, 1000.0]),
    seed=st.integers(0, 2**16),
)
def test_linear_recurrences_are_right_at_every_size_with_large_states_and_with_saturated_gates(
    form, family, options, size, large, seed
):
    net = linear(family, seed=seed, **options)
    feeds = net.feeds(*size, seed=seed, scale=large)
    ranges = {"x": (-5 * large, 5 * large), "h0": (-5 * large, 5 * large)}
    assert_form_is_right(net, form, [feeds], static=form == "unrolled", extreme=True, ranges=ranges)


@pytest.mark.parametrize("form", SRU_FORMS)
def test_two_thousand_steps_are_right(form):
    net = sru(4, 3, direction="bidirectional", forget_bias=4.0)
    assert_form_is_right(net, form, [net.feeds(2000, 2)])


@pytest.mark.parametrize("form", LINEAR_FORMS)
def test_two_thousand_steps_of_a_linear_recurrence_are_right(form):
    net = linear("sru v1", direction="bidirectional", gate_bias=6.0)
    assert_form_is_right(net, form, [net.feeds(2000, 2)])


@pytest.mark.parametrize("form", SRU_FORMS)
def test_a_state_so_large_that_it_opens_and_shuts_every_gate_goes_through_padding(form):
    """weight_c times c is more than 10000 in either direction."""
    net = sru(4, 3, direction="bidirectional", masked=1, scale=3.0)
    feeds = net.feeds(20, 3, scale=3000.0)
    assert np.abs(net.run(feeds, torch.float64)["c"]).max() > 10_000
    assert_form_is_right(net, form, [feeds], ranges={"x": (-15e3, 15e3), "c0": (-15e3, 15e3)})


@pytest.mark.parametrize("net", [sru(masked=1), linear("free", masked=1, scale=0.3)], ids=["sru", "linear"])
@pytest.mark.parametrize("form", SRU_FORMS)
def test_a_state_goes_through_two_thousand_steps_of_padding(form, net):
    feeds = net.feeds(2000, 2)
    feeds["mask"][:] = 1
    feeds["mask"][:3] = feeds["mask"][-3:] = 0
    feeds["x"] = np.where(feeds["mask"][..., None] == 0, np.ones(4), np.nan).astype(np.float32)
    assert_form_is_right(net, form, [feeds])


# Models with several recurrences


def shared() -> Net:
    """Three recurrences: one layer twice, and one with the name that its second use would get. A linear one follows."""
    once = SRULayer(4, 4, highway="input", seed=1)
    other = SRULayer(4, 2, "bidirectional", "tanh", highway="input", norm=True, seed=2)

    def define(ops: Any, given: Values) -> Values:
        h, first = once(ops, given["x"], given["c0"], given["mask"], module="rnn")
        h, second = once(ops, ops("Tanh", h), first, given["mask"], module="rnn")
        h, third = other(ops, h, second, None, module="rnn_2")
        decay = ops("Sigmoid", ops("MatMul", h, ops.weight(np.eye(4, dtype=np.float32))))
        one = ops.weight(np.array(1, np.float32))
        added = ops("Mul", ops("Sub", one, decay), h)
        no_mask = ops.weight(np.zeros((1, 1), np.int32))
        h, last = ops.recurrence(
            "LinearRecurrence", decay, added, third, no_mask, direction="reverse", masked=0, module="decoder"
        )
        return {"h": h, "second": second, "last": last}

    taken = {"x": ("float", ["T", "B", 4]), "c0": ("state", ["B", 4]), "mask": ("int32", ["T", "B"])}
    return Net(define, taken)


@pytest.mark.parametrize("form", [*SRU_FORMS, "unrolled"])
def test_several_recurrences_are_each_written_once_and_right(form):
    net = shared()
    # NaN at padding would not stay there: a second layer, without a mask, reads all steps.
    cases = [{n: np.nan_to_num(a) for n, a in net.feeds(*size).items()} for size in ((5, 3), (1, 2))]
    made = assert_form_is_right(net, form, cases, static=form == "unrolled")
    layers = [(layer["layer"], layer["recurrence"]) for layer in made.report]
    assert layers == [
        ("rnn", "SRURecurrence"),
        ("rnn_3", "SRURecurrence"),
        ("rnn_2", "SRURecurrence"),
        ("decoder", "LinearRecurrence"),
    ]


class Encoder(nn.Module):
    """Trained layers, k = 4 and then k = 3, with LayerNorm, in both directions."""

    def __init__(self):
        super().__init__()
        self.rnn = SRU(5, 3, num_layers=2, bidirectional=True, layer_norm=True, rescale=True, highway_bias=-1.0)

    def forward(self, x, c0, mask):
        h, c = self.rnn(x, c0, mask_pad=mask)
        return {"h": h, "c": c}


class Linears(nn.Module):
    """Linear families one after the other: weight_c = 0, minLSTM, QRNN with a window of 2."""

    def __init__(self):
        super().__init__()
        self.first = SRU(5, 2, num_layers=1, bidirectional=True, v1=True, use_tanh=True)
        self.second = MinLSTM(4, expansion_factor=1.5)
        self.third = FastaiQRNN(4, 3, n_layers=2, bidirectional=True)

    def forward(self, x, mask):
        h, c = self.first(x, mask_pad=mask)
        h = self.third(self.second(h.transpose(0, 1)))[0]
        return {"h": h, "c": c}


class Exported:
    """A trained model, and its file."""

    def __init__(self, model: nn.Module, args: Sequence[torch.Tensor], path: Any):
        torch.manual_seed(0)
        for parameter in model.parameters():
            if parameter.requires_grad:  # weight_c of v1 stays 0
                parameter.data += 0.4 * torch.randn(parameter.shape)
        self.model, names = model.eval(), ("x", "c0", "mask")
        given = [name for name in names if name in model.forward.__code__.co_varnames]
        axes = {"x": {0: "T", 1: "B"}, "c0": {1: "B"}, "mask": {0: "T", 1: "B"}}
        sruexport.export(self.model, tuple(args), path, dynamic={name: axes[name] for name in given})
        self.file = ir.load(path)
        self._made: dict[str, tuple[ir.Model, Converted]] = {}

    def in_form(self, form: str) -> tuple[ir.Model, Converted]:
        """What was converted, and the result."""
        if form not in self._made:
            given = fix_sizes(self.file, STATIC) if form == "unrolled" else self.file
            self._made[form] = given, convert(given, FORMS[form])
        return self._made[form]

    def feeds(self, steps: int, batch: int) -> Arrays:
        random, sizes = np.random.default_rng(steps), {"T": steps, "B": batch}
        arrays: Arrays = {}
        for value in self.file.graph.inputs:
            shape = [sizes[dim.value] if isinstance(dim, ir.SymbolicDim) else dim for dim in value.shape]
            mask = value.name == "mask"
            arrays[value.name] = random.random(shape) < 0.3 if mask else random.standard_normal(shape).astype("f")
        return arrays

    @torch.no_grad()
    def run(self, feeds: Arrays, dtype: torch.dtype = torch.float32) -> Arrays:
        tensors = [torch.from_numpy(array) for array in feeds.values()]
        model = self.model.to(dtype)
        outputs = model(*(tensor.to(dtype) if tensor.is_floating_point() else tensor for tensor in tensors))
        self.model.float()
        return {name: value.numpy() for name, value in outputs.items()}


@pytest.fixture(scope="module")
def encoder(tmp_path_factory) -> Exported:
    args = (torch.randn(5, 2, 5), torch.randn(2, 2, 6), torch.zeros(5, 2, dtype=torch.bool))
    return Exported(Encoder(), args, tmp_path_factory.mktemp("encoder") / "m.onnx")


@pytest.fixture(scope="module")
def linears(tmp_path_factory) -> Exported:
    args = (torch.randn(5, 2, 5), torch.zeros(5, 2, dtype=torch.bool))
    return Exported(Linears(), args, tmp_path_factory.mktemp("linears") / "m.onnx")


#: What `unrolled` is tried at.
STATIC = {"T": 6, "B": 3}
CASES = [*(("encoder", form) for form in (*SRU_FORMS, "unrolled"))]
CASES += [("linears", form) for form in FORMS]


@pytest.fixture(params=CASES, ids=lambda param: "-".join(param))
def case(request) -> tuple[Exported, str]:
    model, form = request.param
    return request.getfixturevalue(model), form


def test_an_exported_model_is_right_in_every_form(case):
    exported, form = case
    _, made = exported.in_form(form)
    engine = session(made.model)
    for steps, batch in (tuple(STATIC.values()), (1, 1), (67, 7))[: 1 if form == "unrolled" else 3]:
        feeds = exported.feeds(steps, batch)
        exact, rounded = exported.run(feeds, torch.float64), exported.run(feeds)
        for output, found in zip(engine.get_outputs(), engine.run(None, feeds), strict=True):
            errors = compare(found, rounded[output.name], exact[output.name], "float32", FORMS[form].allowance)
            assert errors.passed, (output.name, errors)


# What the result is


def nodes(graph: onnx.GraphProto) -> Iterator[onnx.NodeProto]:
    for node in graph.node:
        yield node
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.GRAPH:
                yield from nodes(attribute.g)


def interface(model: ir.Model) -> list[tuple]:
    return [(v.name, v.dtype, [str(dim) for dim in v.shape]) for v in (*model.graph.inputs, *model.graph.outputs)]


def test_the_result_has_standard_ops_only_and_the_interface_of_the_original(case):
    exported, form = case
    given, made = exported.in_form(form)
    proto = ir.serde.serialize_model(made.model)
    onnx.checker.check_model(proto, full_check=True)
    assert not proto.functions
    opset = max(18, FORMS[form].opset)
    assert {entry.domain: entry.version for entry in proto.opset_import} == {"": opset}
    for node in nodes(proto.graph):
        assert not node.domain
        assert onnx.defs.has(node.op_type, opset, "")
    assert interface(made.model) == interface(given)
    assert is_converted(made.model)
    assert not is_converted(given)


def test_the_result_keeps_the_metadata_and_says_what_form_it_is_in(case):
    exported, form = case
    given, made = exported.in_form(form)
    before, after = unpack(given.metadata_props), unpack(made.model.metadata_props)
    assert after == before | {"form": after["form"], "opset": max(18, FORMS[form].opset)}
    assert "form" not in before
    assert form_of(made.model) == after["form"]
    assert form_of(given) == {}
    assert after["form"]["name"] == made.form == form
    assert after["form"]["allowance"] == FORMS[form].allowance
    assert after["form"]["layers"] == made.report
    recurrences = [node for node in given.graph if node.domain]
    assert [layer["recurrence"] for layer in made.report] == [node.op_type for node in recurrences]
    for layer, node in zip(made.report, recurrences):
        assert layer["layer"].startswith(node.metadata_props["sruexport.module"])


def test_no_weight_is_left_that_nothing_uses(case):
    exported, form = case
    assert not [name for name, value in exported.in_form(form)[1].model.graph.initializers.items() if not value.uses()]


def test_the_nodes_of_a_form_name_the_module_that_they_come_from(encoder):
    made = converted(encoder.file, "lstm").model
    found = {node.metadata_props.get("sruexport.module") for node in made.graph if node.op_type == "LSTM"}
    assert found == {"rnn.rnn_lst.0", "rnn.rnn_lst.1"}


@pytest.mark.parametrize("form", [*SRU_FORMS, "unrolled"])
def test_the_model_that_is_given_stays(encoder, form):
    given = fix_sizes(encoder.file, STATIC) if form == "unrolled" else encoder.file
    before = ir.serde.serialize_model(given).SerializeToString(deterministic=True)
    convert(given, FORMS[form])
    assert ir.serde.serialize_model(given).SerializeToString(deterministic=True) == before


@pytest.mark.parametrize("form", ["parallel", "linear-attention"])
def test_a_linear_model_that_is_given_stays(linears, form):
    before = ir.serde.serialize_model(linears.file).SerializeToString(deterministic=True)
    convert(linears.file, FORMS[form])
    assert ir.serde.serialize_model(linears.file).SerializeToString(deterministic=True) == before


@pytest.mark.parametrize("dtype", ["float16", "float64"])
@pytest.mark.parametrize("form", ["scan", "loop", "parallel"])
def test_a_file_of_another_type_keeps_it(form, dtype):
    """And its states are float32, or float64."""
    net = linear("sru v1", direction="bidirectional", masked=1)
    file = net.file(dtype)
    made = converted(file, form).model
    assert interface(made) == interface(file)
    feeds = net.feeds(9, 3)
    feeds = {n: a.astype(v.dtype.numpy()) for (n, a), v in zip(feeds.items(), file.graph.inputs, strict=True)}
    exact, rounded = net.run(feeds, torch.float64), net.run(feeds, getattr(torch, dtype))
    for output, found in zip(made.graph.outputs, session(made).run(None, feeds), strict=True):
        assert found.dtype == output.dtype.numpy()
        errors = compare(found, rounded[output.name], exact[output.name], dtype)
        assert errors.passed, errors


# A branch of an If


def test_a_recurrence_inside_a_branch_is_written_anew_there():
    net = sru(4, 3, masked=1)
    file = ir.serde.serialize_model(net.file())
    branches = [_branch(file.graph, name) for name in ("then", "else")]
    choice = helper.make_node("If", ["flag"], ["h", "c"], then_branch=branches[0], else_branch=branches[1])
    flag = helper.make_tensor_value_info("flag", onnx.TensorProto.BOOL, [])
    graph = helper.make_graph(
        [choice], "chosen", [*file.graph.input, flag], file.graph.output, list(file.graph.initializer)
    )
    proto = helper.make_model(graph, opset_imports=file.opset_import, functions=file.functions, ir_version=10)
    model = ir.serde.deserialize_model(onnx.shape_inference.infer_shapes(proto))
    feeds = net.feeds()
    for form in SRU_FORMS:
        engine = session(convert(model, FORMS[form]).model)
        for taken in (True, False):
            found = engine.run(None, {**feeds, "flag": np.array(taken)})
            assert_right(dict(zip(("h", "c"), found)), net, feeds, FORMS[form].allowance)


def _branch(graph: onnx.GraphProto, name: str) -> onnx.GraphProto:
    """The nodes of a graph, with names of their own, as a branch."""
    made = {value for node in graph.node for value in node.output}
    branch = onnx.GraphProto(name=name)
    for node in graph.node:
        copied = branch.node.add()
        copied.CopyFrom(node)
        copied.input[:] = [f"{name}_{value}" if value in made else value for value in node.input]
        copied.output[:] = [f"{name}_{value}" for value in node.output]
    for values, copies in ((graph.output, branch.output), (graph.value_info, branch.value_info)):
        for value in values:
            copied = copies.add()
            copied.CopyFrom(value)
            copied.name = f"{name}_{value.name}"
    return branch


# Refusals


@pytest.mark.parametrize("form", ["parallel", "linear-attention"])
def test_a_trained_weight_c_is_refused_where_only_linear_recurrences_go(form):
    with pytest.raises(ConversionError, match=r"^cell: SRURecurrence: its gates read the state \(weight_c is not 0\)"):
        converted(sru().file(), form)


def test_a_graph_that_the_checker_does_not_take_is_refused(monkeypatch):
    def refuse(*arguments: Any, **keywords: Any) -> None:
        raise onnx.checker.ValidationError("bad graph\nand more")

    file = sru().file()
    monkeypatch.setattr(onnx.checker, "check_model", refuse)
    with pytest.raises(ConversionError, match=r"does not pass onnx.checker: bad graph$"):
        converted(file, "scan")
