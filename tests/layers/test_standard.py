"""torch.nn.LSTM, GRU and RNN beside an SRU come out as ONNX's own nodes, with dynamic axes and PyTorch's numbers.

Each kind of call is exported once, with every variant of the layer in one model, and run at lengths and batch sizes
that are not the example's. The weights of the bundle's SRU are beside the point: it makes the model one for `export`.
"""

from __future__ import annotations

import copy
import warnings
from pathlib import Path
from typing import Any

import onnx
import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

import sruexport
from sruexport.errors import ExportError, ModelWarning
from sruexport.layers import SRU
from sruexport.layers.standard import StandardRNN, for_graph
from sruexport.parity.measure import compare

_SIZE, _HIDDEN = 3, 4

PLAIN: dict[str, nn.RNNBase] = {}
torch.manual_seed(0)
PLAIN["lstm with dropout, which is off"] = nn.LSTM(_SIZE, _HIDDEN, 2, dropout=0.9)
PLAIN["lstm, both ways, two layers"] = nn.LSTM(_SIZE, _HIDDEN, 2, bidirectional=True)
PLAIN["lstm without bias"] = nn.LSTM(_SIZE, _HIDDEN, bias=False)
PLAIN["gru without bias"] = nn.GRU(_SIZE, _HIDDEN, bias=False)
PLAIN["gru, both ways, two layers"] = nn.GRU(_SIZE, _HIDDEN, 2, bidirectional=True)
PLAIN["tanh without bias, both ways"] = nn.RNN(_SIZE, _HIDDEN, bias=False, bidirectional=True)
PLAIN["relu, two layers"] = nn.RNN(_SIZE, _HIDDEN, 2, nonlinearity="relu")

BATCH_FIRST: dict[str, nn.RNNBase] = {
    "lstm": nn.LSTM(_SIZE, _HIDDEN, 2, batch_first=True),
    "gru, both ways": nn.GRU(_SIZE, _HIDDEN, batch_first=True, bidirectional=True),
}
STATE: dict[str, nn.RNNBase] = {
    "lstm, both ways, two layers": nn.LSTM(_SIZE, _HIDDEN, 2, bidirectional=True),
    "gru, both ways, two layers": nn.GRU(_SIZE, _HIDDEN, 2, bidirectional=True),
    "relu, both ways, two layers": nn.RNN(_SIZE, _HIDDEN, 2, nonlinearity="relu", bidirectional=True),
}
PACKED: dict[str, nn.RNNBase] = {
    "lstm, both ways, two layers": nn.LSTM(_SIZE, _HIDDEN, 2, bidirectional=True),
    "gru": nn.GRU(_SIZE, _HIDDEN),
}


def _flat(nested: Any) -> list[Tensor]:
    return [nested] if isinstance(nested, Tensor) else [tensor for item in nested for tensor in _flat(item)]


class Bundle(nn.Module):
    """All layers of one table on the same input, and an SRU."""

    def __init__(self, layers: dict[str, nn.RNNBase]):
        super().__init__()
        self.layers = nn.ModuleList(layers.values())
        self.sru = SRU(_SIZE, 2, num_layers=1)

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        return (*(t for layer in self.layers for t in _flat(layer(x))), self.sru(x)[0])


class WithState(Bundle):
    def forward(self, x: Tensor, state: Tensor) -> tuple[Tensor, ...]:
        outputs: list[Tensor] = []
        for layer in self.layers:
            outputs += _flat(layer(x, (state, state * 0.5) if layer.mode == "LSTM" else state))
        return (*outputs, self.sru(x)[0])


class WithLengths(Bundle):
    def forward(self, x: Tensor, lengths: Tensor) -> tuple[Tensor, ...]:
        outputs: list[Tensor] = []
        packed = pack_padded_sequence(x, lengths, enforce_sorted=False)
        for layer in self.layers:
            h, last = layer(packed)
            outputs += [pad_packed_sequence(h)[0], *_flat(last)]
        return (*outputs, self.sru(x)[0])


def _slices(layers: dict[str, nn.RNNBase]) -> dict[str, slice]:
    """Where a layer's tensors are among the bundle's: three of an LSTM, two of the others."""
    found, start = {}, 0
    for name, layer in layers.items():
        stop = start + (3 if layer.mode == "LSTM" else 2)
        found[name], start = slice(start, stop), stop
    return found


class Exported:
    """A bundle and its file, run side by side."""

    def __init__(self, bundle: Bundle, arguments: tuple[Tensor, ...], dynamic: dict[str, Any], path: Path):
        self.bundle, self.path = bundle.eval(), path
        with warnings.catch_warnings():
            warnings.simplefilter("error", ModelWarning)  # no condition is put on a dynamic axis
            sruexport.export(bundle, arguments, path, dynamic=dynamic)
        self.run = sruexport.load(path)

    def agrees(self, part: slice, *arguments: Tensor) -> None:
        with torch.no_grad():
            single = self.bundle(*arguments)
            wide = [a.double() if a.is_floating_point() else a for a in arguments]
            exact = copy.deepcopy(self.bundle).double()(*wide)
        engine = self.run(*(a.numpy() for a in arguments))
        for mine, pytorch, right in zip(engine[part], single[part], exact[part], strict=True):
            judged = compare(mine, pytorch.numpy(), right.numpy(), "float32")
            assert judged.passed, judged


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Exported:
    example = (torch.zeros(5, 3, _SIZE),)
    path = tmp_path_factory.mktemp("plain") / "model.onnx"
    return Exported(Bundle(PLAIN), example, {"x": {0: "T", 1: "B"}}, path)


@pytest.fixture(scope="module")
def batch_first(tmp_path_factory: pytest.TempPathFactory) -> Exported:
    example = (torch.zeros(3, 5, _SIZE),)
    path = tmp_path_factory.mktemp("batch_first") / "model.onnx"
    return Exported(Bundle(BATCH_FIRST), example, {"x": {0: "B", 1: "T"}}, path)


@pytest.fixture(scope="module")
def with_state(tmp_path_factory: pytest.TempPathFactory) -> Exported:
    example = (torch.zeros(5, 3, _SIZE), torch.zeros(4, 3, _HIDDEN))
    path = tmp_path_factory.mktemp("state") / "model.onnx"
    return Exported(WithState(STATE), example, {"x": {0: "T", 1: "B"}, "state": {1: "B"}}, path)


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Exported:
    example = (torch.zeros(5, 3, _SIZE), torch.tensor([5, 2, 4]))
    path = tmp_path_factory.mktemp("packed") / "model.onnx"
    return Exported(WithLengths(PACKED), example, {"x": {0: "T", 1: "B"}, "lengths": {0: "B"}}, path)


@pytest.mark.parametrize("name", PLAIN)
@pytest.mark.parametrize(("steps", "batch"), [(7, 2), (1, 1)])
def test_a_standard_layer_has_pytorchs_numbers_at_any_length_and_batch(plain, name, steps, batch):
    torch.manual_seed(1)
    plain.agrees(_slices(PLAIN)[name], torch.randn(steps, batch, _SIZE))


@pytest.mark.parametrize("name", BATCH_FIRST)
def test_a_batch_first_layer_keeps_its_axes(batch_first, name):
    torch.manual_seed(1)
    batch_first.agrees(_slices(BATCH_FIRST)[name], torch.randn(2, 7, _SIZE))


@pytest.mark.parametrize("name", STATE)
def test_a_given_state_is_where_it_starts_from(with_state, name):
    torch.manual_seed(1)
    with_state.agrees(_slices(STATE)[name], torch.randn(6, 2, _SIZE), torch.randn(4, 2, _HIDDEN))


@pytest.mark.parametrize("name", PACKED)
@pytest.mark.parametrize("lengths", [(6, 3), (2, 6), (1, 6, 4, 6)])
def test_a_packed_sequence_ends_at_its_own_length(packed, name, lengths):
    torch.manual_seed(1)
    x = torch.randn(6, len(lengths), _SIZE)
    packed.agrees(_slices(PACKED)[name], x, torch.tensor(lengths))


def test_there_is_one_node_for_each_layer_and_its_weights_are_constants(plain):
    graph = onnx.load(plain.path).graph
    nodes = [node for node in graph.node if node.op_type in ("LSTM", "GRU", "RNN")]
    assert len(nodes) == sum(layer.num_layers for layer in PLAIN.values())
    constants = {tensor.name for tensor in graph.initializer}
    for node in nodes:
        assert set(node.input[1:4]) <= constants


def test_the_model_has_its_own_layers_again_after_the_export(plain):
    assert [type(layer) for layer in plain.bundle.layers] == [type(layer) for layer in PLAIN.values()]


def test_a_sequence_without_a_batch_axis(tmp_path):
    torch.manual_seed(1)

    class Unbatched(nn.Module):
        def __init__(self):
            super().__init__()
            self.sru = SRU(_SIZE, _SIZE, num_layers=1)
            self.lstm, self.gru = nn.LSTM(_SIZE, _HIDDEN, batch_first=True), nn.GRU(_SIZE, _HIDDEN)

        def forward(self, x: Tensor, state: Tensor) -> tuple[Tensor, ...]:
            x = self.sru(x.unsqueeze(1))[0].squeeze(1)
            return (*_flat(self.lstm(x)), *_flat(self.gru(x, state)))

    bundle: Any = Unbatched()
    exported = Exported(bundle, (torch.zeros(5, _SIZE), torch.zeros(1, _HIDDEN)), {"x": {0: "T"}}, tmp_path / "m.onnx")
    exported.agrees(slice(None), torch.randn(7, _SIZE), torch.randn(1, _HIDDEN))


def test_only_torchs_own_classes_are_replaced():
    class Mine(nn.LSTM):
        def forward(self, input, hx=None):
            return super().forward(input * 2, hx)

    class Named(nn.LSTM):
        pass

    for layer in (nn.GRU(2, 2), Named(2, 2), nn.utils.parametrizations.weight_norm(nn.RNN(2, 2), "weight_hh_l0")):
        assert isinstance(for_graph(layer), StandardRNN)
    for module in (Mine(2, 2), nn.LSTMCell(2, 2), nn.Linear(2, 2), SRU(2, 2)):
        assert for_graph(module) is None


def test_a_projected_lstm_is_refused():
    with pytest.raises(ExportError, match="proj_size"):
        for_graph(nn.LSTM(4, 4, proj_size=2))


def test_what_a_model_asks_of_its_layer_is_answered_as_by_the_layer():
    original = nn.LSTM(3, 4, 2, bidirectional=True)
    standing_in = StandardRNN(original)
    assert (standing_in.hidden_size, standing_in.num_layers, standing_in.bidirectional) == (4, 2, True)
    assert dict(standing_in.named_parameters()).keys() == dict(original.named_parameters()).keys()
    assert all(mine is theirs for mine, theirs in zip(standing_in.parameters(), original.parameters(), strict=True))
    assert not hasattr(standing_in, "nothing_of_the_kind")
