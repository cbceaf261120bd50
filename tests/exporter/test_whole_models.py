"""Models that have SRUs deep among other layers: exported in one call, run at other sizes, equal to the original."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import sru
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

import sruexport
from sruexport.errors import ExportError, ModelWarning
from sruexport.exporter.call import result
from sruexport.exporter.model import borrowed
from sruexport.layers import SRU, SRUCell
from sruexport.parity.measure import compare

EXAMPLE = (5, 3)
SIZES = ((4, 2), (1, 1), (9, 4))
SEQUENCE = {"x": {0: "T", 1: "B"}}
ROWS = {"x": {0: "B", 1: "T"}}


def normal(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(shape[0]))


def sequence(steps: int, batch: int) -> dict[str, Any]:
    return {"x": normal(steps, batch, 4)}


def rows(steps: int, batch: int) -> dict[str, Any]:
    return {"x": normal(batch, steps, 4)}


def tokens(steps: int, batch: int) -> dict[str, Any]:
    return {"x": torch.arange(batch * steps).reshape(batch, steps) % 11}


def with_lengths(steps: int, batch: int) -> dict[str, Any]:
    """The longest has all steps."""
    return {"x": normal(batch, steps, 4), "lengths": torch.tensor([max(1, steps - i) for i in range(batch)])}


def assert_same_as_original(
    path: Path, model: nn.Module, dynamic: dict[str, dict[int, str]] = SEQUENCE, arguments: Any = sequence
) -> dict[str, np.ndarray]:
    """Export, and run the file at every size beside the model, as it is and in float64. Gives the last outputs."""
    torch.manual_seed(1)
    model.eval()
    sruexport.export(model, arguments(*EXAMPLE), path, dynamic=dynamic)
    onnx.checker.check_model(onnx.load(path), full_check=True)
    engine = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    names = [port.name for port in engine.get_outputs()]
    found: dict[str, list[list[np.ndarray]]] = {name: [] for name in names}
    outputs: dict[str, np.ndarray] = {}
    for steps, batch in SIZES:
        call = arguments(steps, batch)
        feeds = {name: value.numpy() for name, value in call.items() if isinstance(value, Tensor)}
        outputs = dict(zip(names, engine.run(None, feeds)))
        wide = {n: v.double() if isinstance(v, Tensor) and v.is_floating_point() else v for n, v in call.items()}
        with torch.no_grad():
            original = result(model(**call))
        with borrowed(model, dtype=torch.float64) as ours:
            exact = result(ours(**wide))
        for name, got, rounded, right in zip(names, outputs.values(), original.values(), exact.values(), strict=True):
            assert got.shape == tuple(rounded.shape), name
            found[name].append([array.ravel() for array in (got, rounded.numpy(), right.numpy())])
    for name, runs in found.items():
        errors = compare(*(np.concatenate([run[i] for run in runs]) for i in range(3)), "float32")
        assert errors.passed, (name, errors)
    return outputs


@pytest.fixture
def path(tmp_path) -> Path:
    return tmp_path / "m.onnx"


# Deep among other layers


class Tagger(nn.Module):
    """Embedding, convolution, SRU, attention, linear; the output layer tied to the embedding; a dict of results."""

    def __init__(self, recurrent: nn.Module):
        super().__init__()
        self.embedding = nn.Embedding(1100, 8)
        self.blocks = nn.ModuleDict({"deep": nn.Sequential(nn.Conv1d(8, 8, 3, padding=1), nn.ReLU())})
        self.recurrent = nn.ModuleList([recurrent])
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.head = nn.Linear(8, 1100, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, x, scale: float = 1.0):
        e = self.embedding(x) * scale
        h = self.blocks["deep"](e.transpose(1, 2)).permute(2, 0, 1)
        h, c = self.recurrent[0](h)
        h = h.transpose(0, 1)
        a, _ = self.attention(h, h, h, need_weights=False)
        return {"scores": self.head(a), "inner": {"c": c, "pair": (h, a.mean(1))}, "nothing": None}


@pytest.mark.parametrize(
    "recurrent",
    [
        lambda: SRU(8, 4, num_layers=2, bidirectional=True, layer_norm=True),
        lambda: sru.SRU(8, 4, num_layers=2, bidirectional=True, use_tanh=True, rescale=True),
        lambda: sru.SRU(8, 8, num_layers=2, projection_size=3, has_skip_term=False, highway_bias=-1.0),
    ],
    ids=["ours", "sru-bidirectional", "sru-projected"],
)
def test_sru_among_embedding_convolution_and_attention(path, recurrent):
    outputs = assert_same_as_original(path, Tagger(recurrent()), ROWS, tokens)
    assert list(outputs) == ["scores", "inner_c", "inner_pair_0", "inner_pair_1"]
    tied = [tensor.dims for tensor in onnx.load(path).graph.initializer if np.prod(tensor.dims) == 8 * 1100]
    assert tied == [[1100, 8]]


class Beside(nn.Module):
    def __init__(self, recurrent: nn.Module, other: nn.Module, batch_first: bool = False):
        super().__init__()
        self.recurrent, self.other, self.batch_first = recurrent, other, batch_first

    def forward(self, x):
        h, c = self.recurrent(x)
        if self.batch_first:
            h, last = self.other(h.transpose(0, 1))
            return h, c, last
        h, last = self.other(h)
        return h, c, last


STANDARD = {
    "LSTM": lambda: nn.LSTM(4, 3),
    "LSTM-bidirectional-2-layers-batch_first": lambda: nn.LSTM(4, 3, 2, bidirectional=True, batch_first=True),
    "GRU-bidirectional-2-layers": lambda: nn.GRU(4, 3, 2, bidirectional=True),
    "RNN-no-bias": lambda: nn.RNN(4, 3, bias=False),
    "RNN-relu-bidirectional": lambda: nn.RNN(4, 3, nonlinearity="relu", bidirectional=True),
}


@pytest.mark.parametrize("other", STANDARD.values(), ids=STANDARD.keys())
def test_torch_rnn_keeps_its_dynamic_axes_beside_an_sru(path, other):
    torch.manual_seed(0)
    rnn = other()
    assert_same_as_original(path, Beside(SRU(4, 4, num_layers=1), rnn, rnn.batch_first))
    standard = [node for node in onnx.load(path).graph.node if node.op_type in ("LSTM", "GRU", "RNN")]
    assert [node.op_type for node in standard] == [rnn.mode.split("_")[0]] * rnn.num_layers
    # Engines that take no sequence_lens take these: they would say T in every row.
    assert [node.input[4] for node in standard if len(node.input) > 4] == [""] * rnn.num_layers


# Packed sequences


class Packed(nn.Module):
    """Packs, runs two layers, unpacks."""

    def __init__(self, first: nn.Module, second: nn.Module, is_sorted: bool):
        super().__init__()
        self.first, self.second, self.is_sorted = first, second, is_sorted

    def forward(self, x, lengths):
        packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=self.is_sorted)
        h, c = self.first(packed)
        h, _ = self.second(h)
        h, found = pad_packed_sequence(h, batch_first=True, padding_value=-1.0)
        return h, c, found


PACKED_AXES = {"x": {0: "B", 1: "T"}, "lengths": {0: "B"}}


def test_packed_sequences_go_through_sru_and_lstm(path):
    model = Packed(sru.SRU(4, 3, bidirectional=True), nn.LSTM(6, 3, bidirectional=True), is_sorted=True)
    outputs = assert_same_as_original(path, model, PACKED_AXES, with_lengths)
    assert outputs["output_2"].tolist() == [9, 8, 7, 6]


def test_lengths_in_any_order(path):
    model = Packed(nn.GRU(4, 3), SRU(3, 3, num_layers=1), is_sorted=False)

    def unsorted(steps: int, batch: int) -> dict[str, Any]:
        call = with_lengths(steps, batch)
        return call | {"lengths": call["lengths"].flip(0)}

    assert_same_as_original(path, model, PACKED_AXES, unsorted)


class Tags(nn.Module):
    """A mean over the steps that unpacking gives, which are as many as the longest sequence has."""

    def __init__(self, total: bool):
        super().__init__()
        self.sru = sru.SRU(4, 4, bidirectional=True)
        self.total = total

    def forward(self, x, lengths):
        packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        total = x.shape[1] if self.total else None
        h, _ = pad_packed_sequence(self.sru(packed)[0], batch_first=True, total_length=total)
        return h, h.mean(1)


@pytest.mark.parametrize("total", [False, True])
def test_unpacking_gives_as_many_steps_as_in_pytorch(path, total):
    def short(steps: int, batch: int) -> dict[str, Any]:
        return {"x": normal(batch, steps, 4), "lengths": torch.tensor([max(1, steps - 1 - i) for i in range(batch)])}

    outputs = assert_same_as_original(path, Tags(total), PACKED_AXES, short)
    assert outputs["output_0"].shape[1] == (9 if total else 8)


class Fills(Tags):
    def forward(self, x, lengths):
        h, _ = super().forward(x, lengths)
        return F.pad(h, (0, 0, 0, 1))[:, :-1] if h.shape[1] != x.shape[1] else h


def test_where_unpacked_steps_cannot_be_traced_all_steps_are_given_and_it_is_said(path):
    with pytest.warns(ModelWarning, match="packed sequences are unpacked to as many steps as the input has"):
        assert_same_as_original(path, Fills(False), PACKED_AXES, with_lengths)


# What models ask of their layers, do to them and keep on them


class Asks(nn.Module):
    def __init__(self, shared: bool = False):
        super().__init__()
        self.sru, self.lstm = sru.SRU(4, 4), nn.LSTM(4, 4)
        if shared:
            self.again = self.sru

    def forward(self, x):
        h, c = self.sru(x) if isinstance(self.sru, sru.SRU) else (x, x)
        h, c = self.lstm(h)
        if isinstance(self.lstm, nn.LSTM):
            c = c[0]
        return h + c[-1]


@pytest.mark.parametrize("shared", [False, True])
def test_a_replaced_layer_is_an_instance_of_its_class(path, shared):
    assert_same_as_original(path, Asks(shared))


def test_hooks_of_a_torch_rnn_are_kept(path):
    model = Asks()
    model.lstm.register_forward_hook(lambda module, args, output: (output[0] * 2, output[1]))
    model.lstm.register_forward_pre_hook(lambda module, args: (args[0] + 1, *args[1:]))
    assert_same_as_original(path, model)


class Remembers(nn.Module):
    """Goes on from its last state, as an attribute or in a buffer; its first call starts from zeros."""

    def __init__(self, buffer: bool):
        super().__init__()
        self.sru = sru.SRU(4, 4)
        self.hidden = None
        if buffer:
            del self.hidden
            self.register_buffer("hidden", torch.zeros(2, 3, 4))

    def forward(self, x):
        h, c = self.sru(x, self.hidden)
        if self.hidden is None:
            self.hidden = c
        else:
            self.hidden.copy_(c)
        return h


@pytest.mark.parametrize("buffer", [False, True])
@pytest.mark.filterwarnings("ignore::sruexport.errors.ModelWarning")
def test_what_the_example_leaves_in_a_model_is_not_in_the_file_nor_in_the_model(path, buffer):
    model = Remembers(buffer).eval()
    x = normal(5, 3, 4)
    sruexport.export(model, x, path, dynamic={})
    assert model.hidden is None if not buffer else not model.hidden.any()
    with torch.no_grad():
        torch.testing.assert_close(torch.from_numpy(sruexport.load(path)(x.numpy())[0]), model(x))


def test_a_buffer_that_forward_changes_is_told(path):
    with pytest.warns(ModelWarning, match="forward changes the buffer hidden"):
        sruexport.export(Remembers(True), normal(5, 3, 4), path, dynamic={})


class Compiles(nn.Module):
    """Works out which of its weights are used in its first call, and keeps that."""

    def __init__(self):
        super().__init__()
        self.sru = sru.SRU(4, 4)
        self.used = None

    def forward(self, x):
        if self.used is None:
            self.used = self.sru.rnn_lst[0].weight.sum(1).nonzero().view(-1).tolist()
        return self.sru(x)[0][..., self.used]


def test_what_a_model_works_out_in_its_first_call_may_be_kept_and_is_told(path):
    with pytest.warns(ModelWarning, match="Compiles.forward keeps used from one call to the next"):
        assert_same_as_original(path, Compiles())


def test_outputs_whose_places_give_one_name_are_all_there(path):
    class Twice(Asks):
        def forward(self, x):
            h = super().forward(x)
            return {"a_b": h, "a": {"b": h * 2}}

    assert list(assert_same_as_original(path, Twice())) == ["a_b", "a_b_again"]


# What goes in and out


class Choosy(nn.Module):
    def __init__(self):
        super().__init__()
        self.sru = SRU(4, 4, num_layers=1)

    def forward(self, x, c0=None, *, gain=None, mask=None, double: bool = False):
        h, c = self.sru(x, c0, mask)
        h = h if gain is None else h * gain
        return (h + h if double else h), c, x


def test_arguments_left_out_are_no_inputs(path):
    """One of the results is the input itself, which needs a name of its own."""
    outputs = assert_same_as_original(path, Choosy())
    assert list(outputs) == ["output_0", "output_1", "output_2"]
    assert [port.name for port in onnx.load(path).graph.input] == ["x"]


def test_keyword_arguments_are_inputs_where_they_are_tensors(path):
    def arguments(steps: int, batch: int) -> dict[str, Any]:
        mask = torch.arange(steps * batch).reshape(steps, batch) % 3 == 1
        return {"x": normal(steps, batch, 4), "gain": torch.ones(batch, 1) / 3, "mask": mask, "double": True}

    axes = {"x": {0: "T", 1: "B"}, "gain": {0: "B"}, "mask": {0: "T", 1: "B"}}
    assert_same_as_original(path, Choosy(), axes, arguments)
    assert [port.name for port in onnx.load(path).graph.input] == ["x", "gain", "mask"]


class Nested(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell = SRUCell(4, 4)

    def forward(self, batch, memory):
        h, c = self.cell(batch["x"], memory[1])
        return {"h": h, "memory": [memory[0], c]}


def test_tensors_inside_arguments_get_names_of_their_place(path):
    call = {"batch": {"x": normal(5, 3, 4)}, "memory": (normal(3, 4), normal(3, 4))}
    axes = {"batch_x": {0: "T", 1: "B"}, "memory_0": {0: "B"}, "memory_1": {0: "B"}}
    model = Nested().eval()
    sruexport.export(model, call, path, dynamic=axes)
    engine = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    assert [port.name for port in engine.get_inputs()] == ["batch_x", "memory_0", "memory_1"]
    assert [port.name for port in engine.get_outputs()] == ["h", "memory_0_out", "memory_1_out"]
    x, first, second = normal(2, 1, 4), normal(1, 4), normal(1, 4) * 2
    found = engine.run(None, {"batch_x": x.numpy(), "memory_0": first.numpy(), "memory_1": second.numpy()})
    np.testing.assert_array_equal(found[1], first.numpy())
    with torch.no_grad():
        h, c = model.cell(x, second)
    torch.testing.assert_close(torch.from_numpy(found[0]), h)
    torch.testing.assert_close(torch.from_numpy(found[2]), c)


# Shapes of models


class Residual(nn.Module):
    """A list of bare cells, run in a loop, with a norm and a skip around each; the first of them runs twice."""

    def __init__(self):
        super().__init__()
        self.cells = nn.ModuleList([sru.SRUCell(4, 4), sru.SRUCell(4, 2, bidirectional=True), sru.SRUCell(4, 4)])
        self.norms = nn.ModuleList(nn.LayerNorm(4) for _ in self.cells)

    def forward(self, x):
        for cell, norm in zip(self.cells, self.norms):
            h, c = cell(norm(x))
            x = x + h
        return self.cells[0](x)[0], c


def test_cells_in_a_list_one_of_which_runs_twice(path):
    assert_same_as_original(path, Residual())
    assert [node.op_type for node in onnx.load(path).graph.node].count("SRURecurrence") == 4


class SharedLayer(nn.Module):
    """One layer under two names."""

    def __init__(self):
        super().__init__()
        self.first = sru.SRU(4, 4, num_layers=1)
        self.second = self.first

    def forward(self, x):
        return self.second(self.first(x)[0])


def test_one_layer_under_two_names_has_its_weights_once(path):
    assert_same_as_original(path, SharedLayer())
    weights = [t for t in onnx.load(path).graph.initializer if list(t.dims) == [4, 12]]
    assert len(weights) == 1


class Normed(nn.Module):
    def __init__(self, recurrent: nn.Module, linear: nn.Module):
        super().__init__()
        self.recurrent, self.linear = recurrent, linear

    def forward(self, x):
        return self.linear(self.recurrent(x)[0])


def test_weight_norm_on_any_layer(path):
    stack = sru.SRU(4, 4, num_layers=1)
    nn.utils.parametrizations.weight_norm(stack.rnn_lst[0])
    model = Normed(stack, nn.utils.parametrizations.weight_norm(nn.Linear(4, 3)))
    assert_same_as_original(path, model)
    assert nn.utils.parametrize.is_parametrized(stack.rnn_lst[0], "weight")


def test_old_weight_norm(path):
    with pytest.warns(FutureWarning, match="weight_norm"):
        linear = nn.utils.weight_norm(nn.Linear(4, 4))
    assert_same_as_original(path, Normed(SRU(4, 4, num_layers=1), linear))


# Subclasses


class OwnForward(sru.SRU):
    """Scales what goes in, and returns h alone."""

    def forward(self, x, gain: float = 2.0):
        return super().forward(x * gain)[0]


class OwnCell(sru.SRUCell):
    """Its own forward over the package's recurrence: a projection of the residual, and no LayerNorm."""

    def forward(self, input, c0=None, mask_pad=None):
        if c0 is None:
            c0 = torch.zeros(input.shape[1], self.output_size, dtype=input.dtype)
        u, v = self.compute_UV(input * 0.5, c0, mask_pad)
        return self.apply_recurrence(u, v, input.tanh(), c0, None, None, mask_pad)


class OwnRecurrence(sru.SRUCell):
    def apply_recurrence(self, *args):
        return super().apply_recurrence(*args)


class Around(nn.Module):
    def __init__(self, inner: nn.Module):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return self.inner(x)


@pytest.mark.parametrize(
    "inner",
    [
        lambda: OwnForward(4, 3, bidirectional=True),
        lambda: OwnCell(4, 3, bidirectional=True),
    ],
    ids=["stack", "cell"],
)
def test_a_subclass_keeps_its_own_forward(path, inner):
    assert_same_as_original(path, Around(inner()))
    assert any(node.op_type == "SRURecurrence" for node in onnx.load(path).graph.node)


def test_a_subclass_with_its_own_recurrence_is_refused(path):
    with pytest.raises(ExportError, match=r"OwnRecurrence overrides apply_recurrence .* write it as a recurrence"):
        sruexport.export(Around(OwnRecurrence(4, 4)), sequence(*EXAMPLE), path, dynamic=SEQUENCE)
    assert not path.exists()


# Branches


class Branch(nn.Module):
    def __init__(self):
        super().__init__()
        self.sru = sru.SRU(4, 4, num_layers=1)

    def forward(self, x, mask):
        if mask.any():
            return self.sru(x, mask_pad=mask)[0]
        return self.sru(x)[0] * 0


def test_a_branch_on_values_goes_the_examples_way_and_says_so(path):
    def arguments(steps: int, batch: int) -> dict[str, Any]:
        mask = torch.zeros(steps, batch, dtype=torch.bool)
        mask[-1] = True
        return {"x": normal(steps, batch, 4), "mask": mask}

    with pytest.warns(ModelWarning, match=r"test_whole_models\.py:\d+ decides by the values .* \(True\)"):
        assert_same_as_original(path, Branch(), {"x": {0: "T", 1: "B"}, "mask": {0: "T", 1: "B"}}, arguments)
