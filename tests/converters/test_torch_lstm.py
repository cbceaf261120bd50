"""The form `torch-lstm`: the layers with a torch.nn.LSTM inside, called as before and with the same numbers.

The layers themselves are the oracle, which is held against third-party code elsewhere: in float64 they are exact, in
float32 they are what rounding is measured by.
"""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sruexport.converters import FORMS
from sruexport.converters.torch_lstm import EmbeddedLSTM, LinearLSTM, LstmSRUCell, torch_lstm
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence

import sruexport
from sruexport.errors import ConversionError
from sruexport.layers import SRU, SRUCell, SRUpp
from sruexport.layers.mingru import MinGRU, MinLSTM
from sruexport.layers.qrnn import QRNN, FastaiQRNN, FastaiQRNNLayer, QRNNLayer
from sruexport.layers.states import StateBank, state_bank
from sruexport.parity.measure import compare

#: For states up to 300 in float32.
K = 20
_quick = settings(max_examples=60, derandomize=True, deadline=None, database=None)


@pytest.fixture(autouse=True)
def _the_same_numbers_every_time() -> None:
    torch.manual_seed(0)


def trained(module: nn.Module, seed: int = 0, scale: float = 0.7) -> nn.Module:
    """The module with every parameter random; weight_c stays 0 for v1."""
    generator = torch.Generator().manual_seed(seed)
    for parameter in module.parameters():
        if parameter.requires_grad:
            parameter.data = scale * torch.randn(parameter.shape, generator=generator)
    return module.eval()


def flat(result: Any) -> list[Tensor]:
    parts = result if isinstance(result, tuple) and not isinstance(result, PackedSequence) else (result,)
    return [part.data if isinstance(part, PackedSequence) else part for part in parts]


def double(value: Any) -> Any:
    if isinstance(value, PackedSequence):
        return value.double()
    return value.double() if isinstance(value, Tensor) and value.is_floating_point() else value


@torch.no_grad()
def assert_same(module: nn.Module, *arguments: Any, k: int = K, **keywords: Any) -> nn.Module:
    """Its LSTM form has the module's numbers, by the rule. Gives that form."""
    made = torch_lstm(module, {"": k})
    wide = copy.deepcopy(module).double()
    exact = flat(wide(*(double(a) for a in arguments), **{n: double(a) for n, a in keywords.items()}))
    rounded, found = flat(module(*arguments, **keywords)), flat(made(*arguments, **keywords))
    assert len(found) == len(exact)
    for got, own, right in zip(found, rounded, exact):
        assert got.dtype == own.dtype
        errors = compare(got.numpy(), own.numpy(), right.numpy(), "float32", FORMS["lstm"].allowance)
        assert errors.passed, errors
    return made


# SRU


_sru_options = st.fixed_dictionaries(
    {
        "input_size": st.integers(1, 6),
        "hidden_size": st.integers(1, 4),
        "num_layers": st.integers(1, 3),
        "bidirectional": st.booleans(),
        "use_tanh": st.booleans(),
        "highway_bias": st.sampled_from([0.0, -1.5]),
        "has_skip_term": st.booleans(),
        "layer_norm": st.booleans(),
        "normalize_after": st.booleans(),
        "rescale": st.booleans(),
        "v1": st.booleans(),
        "projection_size": st.integers(0, 3),
        "nn_rnn_compatible_return": st.booleans(),
        "proj_input_to_hidden_first": st.booleans(),
    }
)
_calls = st.fixed_dictionaries(
    {
        "steps": st.sampled_from([1, 2, 9]),
        "batch": st.sampled_from([1, 3, 7]),
        "state": st.booleans(),
        "mask": st.sampled_from([None, torch.bool, torch.int64, torch.float32]),
        "seed": st.integers(0, 2**16),
    }
)


@_quick
@given(_sru_options, _calls)
def test_sru_has_its_numbers_for_every_option(options, call):
    module = trained(SRU(**options), call["seed"])
    random = torch.Generator().manual_seed(call["seed"])
    steps, batch = call["steps"], call["batch"]
    x = torch.randn(steps, batch, options["input_size"], generator=random)
    channels = options["hidden_size"] * (2 if options["bidirectional"] else 1)
    c0 = torch.randn(options["num_layers"], batch, channels, generator=random) if call["state"] else None
    mask = None
    if call["mask"] is not None:
        mask = (torch.rand(steps, batch, generator=random) < 0.4).to(call["mask"])
    made = assert_same(module, x, c0, mask)
    assert [type(cell) for cell in made.rnn_lst] == [LstmSRUCell] * options["num_layers"]


def test_a_cell_alone_takes_a_single_step():
    module = trained(SRUCell(4, 3, bidirectional=True))
    assert type(assert_same(module, torch.randn(2, 4))) is LstmSRUCell


def test_a_packed_sequence_comes_back_packed():
    module = trained(SRU(4, 3, bidirectional=True))
    packed = pack_padded_sequence(torch.randn(5, 3, 4), torch.tensor([5, 1, 3]), enforce_sorted=False)
    made = assert_same(module, packed)
    assert isinstance(made(packed)[0], PackedSequence)


@pytest.mark.parametrize("bidirectional", [False, True])
def test_padding_does_not_leak_even_if_it_is_nan(bidirectional):
    module = trained(SRU(4, 3, bidirectional=bidirectional, num_layers=1, layer_norm=True))
    x, mask = torch.randn(6, 3, 4), torch.rand(6, 3) < 0.5
    mask[:, 0] = True
    made = assert_same(module, x.masked_fill(mask.unsqueeze(-1), torch.nan), mask_pad=mask)
    h, c = made(x.masked_fill(mask.unsqueeze(-1), torch.nan), mask_pad=mask)
    assert not h[mask].any()
    assert not c[0, 0].any()  # all padding: the state stays


@pytest.mark.parametrize("bias", [-50.0, 50.0])
def test_saturated_gates_and_large_states_are_right(bias):
    module = trained(SRU(4, 3, bidirectional=True, num_layers=1))
    cell = module.rnn_lst[0]
    cell.bias.data[:6] += bias
    mask = torch.rand(20, 7) < 0.3
    assert_same(module, 1000 * torch.randn(20, 7, 4), 1000 * torch.randn(1, 7, 6), mask, k=28)


def test_two_thousand_steps_are_right():
    module = trained(SRU(4, 3, num_layers=1, highway_bias=-1.0))
    module.rnn_lst[0].bias.data[:3] += 4
    assert_same(module, torch.randn(2000, 2, 4))


@torch.no_grad()
def test_in_float64_the_embedding_is_exact():
    module = trained(SRU(5, 3, bidirectional=True, layer_norm=True)).double()
    x = torch.randn(9, 3, 5, dtype=torch.float64)
    made = torch_lstm(module, {"": 34})
    assert {parameter.dtype for parameter in made.parameters()} == {torch.float64}
    for found, right in zip(made(x), module(x)):
        torch.testing.assert_close(found, right, rtol=0, atol=1e-13)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@torch.no_grad()
def test_in_16_bits_the_lstm_and_its_state_are_float32(dtype):
    module = trained(SRU(5, 3, bidirectional=True, num_layers=1)).to(dtype)
    made, x = torch_lstm(module, {"": K}), torch.randn(9, 3, 5).to(dtype)
    assert {parameter.dtype for parameter in made.rnn_lst[0].embedded.parameters()} == {torch.float32}
    exact = copy.deepcopy(module).double()(x.double())
    for found, own, right in zip(made(x), module(x), exact):
        assert found.dtype == dtype
        name = str(dtype).removeprefix("torch.")
        errors = compare(found.double().numpy(), own.double().numpy(), right.numpy(), name)
        assert errors.passed, errors


# Linear families


@pytest.mark.parametrize("steps", [1, 9])
@pytest.mark.parametrize("cls", [MinGRU, MinLSTM])
def test_mingru_and_minlstm_have_their_numbers(cls, steps):
    module = trained(cls(4, expansion_factor=1.5), seed=steps)
    made = assert_same(module, torch.randn(3, steps, 4), torch.randn(3, 1, 6).abs(), True)
    assert type(made.recurrence) is LinearLSTM
    assert_same(module, torch.randn(3, steps, 4))


@_quick
@given(
    fastai=st.booleans(),
    options=st.fixed_dictionaries(
        {
            "window": st.sampled_from([1, 2]),
            "zoneout": st.sampled_from([0.0, 0.3]),
            "output_gate": st.booleans(),
            "batch_first": st.booleans(),
            "bidirectional": st.booleans(),
        }
    ),
    layers=st.integers(1, 3),
    size=st.sampled_from([(1, 1), (1, 7), (9, 3)]),
    state=st.booleans(),
    seed=st.integers(0, 2**16),
)
def test_qrnn_has_its_numbers_for_every_option(fastai, options, layers, size, state, seed):
    number = {"n_layers" if fastai else "num_layers": layers}
    module = trained((FastaiQRNN if fastai else QRNN)(4, 3, **number, **options), seed)
    random = torch.Generator().manual_seed(seed)
    x = torch.randn(*(size[::-1] if options["batch_first"] else size), 4, generator=random)
    directions = 2 if options["bidirectional"] else 1
    hidden = torch.randn(layers * directions, size[1], 3, generator=random) if state else None
    made = assert_same(module, x, hidden)
    assert {type(layer.recurrence) for layer in made.layers} == {LinearLSTM}


@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize("cls", [QRNNLayer, FastaiQRNNLayer])
def test_a_qrnn_layer_alone_has_its_numbers_in_either_direction(cls, backward):
    module = trained(cls(4, 3, window=2, backward=backward))
    assert_same(module, torch.randn(6, 2, 4), torch.randn(2, 3))


@pytest.mark.parametrize("bias", [-50.0, 50.0])
def test_a_decay_that_is_zero_or_one_is_right(bias):
    module = trained(MinGRU(4))
    module.to_hidden_and_gate.weight.data[4:] = 0
    x = torch.randn(3, 9, 4)
    x[..., 0] = 1
    module.to_hidden_and_gate.weight.data[4:, 0] = bias
    assert_same(module, x, torch.rand(3, 1, 4))


# What is in the place of the layer


def test_there_is_a_torch_lstm_inside_and_nothing_of_the_recurrence():
    module = trained(nn.ModuleDict({"sru": SRU(4, 3), "gru": MinGRU(3), "qrnn": FastaiQRNN(3, 3)}))
    made = torch_lstm(module, {"": K})
    lstms = [name for name, inner in made.named_modules() if type(inner) is nn.LSTM]
    assert lstms == [
        "sru.rnn_lst.0.embedded.lstm",
        "sru.rnn_lst.1.embedded.lstm",
        "gru.recurrence.embedded.lstm",
        "qrnn.layers.0.recurrence.embedded.lstm",
    ]
    assert not [inner for inner in made.modules() if type(inner) is SRUCell]
    keys = made.state_dict()
    assert not [key for key in keys if key.endswith(("weight_c", "rnn_lst.0.weight", "rnn_lst.0.bias"))]
    assert {"sru.rnn_lst.0.reset.weight", "sru.rnn_lst.0.reset.bias", "sru.rnn_lst.0.skip.weight"} <= keys.keys()
    assert not [name for name, parameter in made.named_parameters() if ".lstm." in name and parameter.requires_grad]


def test_the_lstms_input_weights_are_those_of_the_gates():
    cell = trained(SRUCell(4, 3))
    made = torch_lstm(cell, {"": 3})
    by_unit = cell.weight.detach().reshape(4, 3, 4)  # [input, unit, matrix]; here k = 4
    candidate, forget, reset, skip = by_unit.unbind(-1)
    i, f, g, o = made.embedded.lstm.weight_ih_l0[:, :4].chunk(4)
    torch.testing.assert_close(f, forget.t(), rtol=0, atol=0)
    torch.testing.assert_close(i, -forget.t(), rtol=0, atol=0)
    torch.testing.assert_close(g, candidate.t() / 8, rtol=0, atol=0)
    assert not o.any()
    torch.testing.assert_close(made.reset.weight, reset.t(), rtol=0, atol=0)
    torch.testing.assert_close(made.skip.weight, skip.t(), rtol=0, atol=0)


@torch.no_grad()
@pytest.mark.parametrize("make", [lambda: SRU(5, 3, bidirectional=True, layer_norm=True), lambda: MinLSTM(5)])
def test_a_state_dict_goes_into_a_second_instance(make):
    """Even of another scale."""
    one, other = (torch_lstm(trained(make(), seed), {"": K + seed}) for seed in (1, 2))
    x = torch.randn(6, 3, 5)
    assert not torch.equal(flat(one(x))[0], flat(other(x))[0])
    other.load_state_dict(one.state_dict())
    assert torch.equal(flat(one(x))[0], flat(other(x))[0])


def test_the_model_that_is_given_stays():
    module = trained(nn.Sequential(SRU(4, 3), nn.Linear(3, 3)))
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    torch_lstm(module, {"0": K})
    assert {type(cell) for cell in module[0].rnn_lst} == {SRUCell}
    assert before.keys() == module.state_dict().keys()
    assert all(torch.equal(tensor, before[name]) for name, tensor in module.state_dict().items())


@torch.no_grad()
def test_chunks_with_a_streamed_state_equal_the_whole():
    module = torch_lstm(trained(SRU(4, 3, layer_norm=True)), {"": K})
    x = torch.randn(7, 2, 4)
    whole, _ = module(x)
    parts, given = [], {}
    for chunk in x.split([1, 4, 2]):
        with state_bank(StateBank(given)) as bank:
            parts.append(module(chunk)[0])
        given = bank.last
    assert set(given) == set(module.rnn_lst)
    errors = compare(torch.cat(parts).numpy(), whole.numpy(), whole.numpy(), "float32")
    assert errors.passed, errors


class Twice(nn.Module):
    """Layers that are in the model under two names each."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.gru = SRUCell(4, 4), MinGRU(4)
        self.second, self.other = self.first, self.gru
        self.unused = nn.ModuleList([self.first])

    def forward(self, x: Tensor) -> Tensor:
        h = self.second(self.first(x)[0])[0].transpose(0, 1)
        return self.other(self.gru(h))


def test_a_layer_under_several_names_is_replaced_under_all_of_them():
    made = assert_same(trained(Twice()), torch.randn(5, 2, 4))
    assert type(made.first) is LstmSRUCell
    assert made.first is made.second is made.unused[0]
    assert made.gru is made.other
    assert not [inner for inner in made.modules() if type(inner) is SRUCell]


def test_a_layer_under_several_names_has_the_largest_k_of_them():
    made = torch_lstm(trained(Twice()), {"first": 12, "second": 15, "gru": 18, "other": 17})
    assert (made.first.embedded.k, made.gru.recurrence.embedded.k) == (15, 18)


def test_a_layer_has_the_k_of_its_path_or_else_of_what_it_is_in():
    module = nn.ModuleDict({"a": SRU(4, 4), "b": SRU(4, 4)})
    made = torch_lstm(module, {"a.rnn_lst.0": 11, "a.rnn_lst.1": 12, "b": 13})
    found = [cell.embedded.k for cell in made.modules() if isinstance(cell, LstmSRUCell)]
    assert found == [11, 12, 13, 13]


def test_what_is_converted_stays_as_it_is():
    made = torch_lstm(trained(SRU(4, 3)), {"": K})
    again = torch_lstm(made, {})
    assert [type(cell) for cell in again.rnn_lst] == [LstmSRUCell] * 2


def test_a_whole_model_is_converted_from_python():
    """With the arguments in the order in which `export` has them; k comes from the bound that the file proves."""
    found = sruexport.torch_lstm(trained(Twice()), (torch.zeros(5, 2, 4),), dynamic={})
    assert found.passed
    assert {layer["layer"] for layer in found.layers} == {"first", "second", "gru", "other"}
    largest = {layer["layer"]: layer["k"] for layer in found.layers}
    assert found.module.first.embedded.k == max(largest["first"], largest["second"])


@pytest.mark.filterwarnings("ignore:The tensor attributes")
@torch.no_grad()
def test_torch_export_takes_the_module():
    """As the engines that convert from PyTorch do."""
    made = torch_lstm(trained(SRU(4, 3, bidirectional=True, num_layers=1)), {"": K})
    arguments = (torch.randn(5, 2, 4), torch.randn(1, 2, 6), torch.rand(5, 2) < 0.3)
    program = torch.export.export(made, arguments)
    for found, right in zip(program.module()(*arguments), made(*arguments)):
        np.testing.assert_array_equal(found, right)


@torch.no_grad()
def test_an_embedded_lstm_alone_gives_the_states_and_those_before():
    """In the directions that its channels run."""
    cell = torch_lstm(trained(SRUCell(4, 3, bidirectional=True)), {"": K})
    embedded: EmbeddedLSTM = cell.embedded
    x, c0 = torch.randn(5, 2, 4), torch.randn(2, 6)
    c, before, last = embedded(x, c0, None)
    assert torch.equal(before[0, :, :3], c0[:, :3])
    assert torch.equal(before[1:, :, :3], c[:-1, :, :3])
    assert torch.equal(before[-1, :, 3:], c0[:, 3:])
    assert torch.equal(before[:-1, :, 3:], c[1:, :, 3:])
    ends = torch.cat([c[-1, :, :3], c[0, :, 3:]], dim=-1).numpy()
    # The LSTM's own last state is not behind a second tanh, as those at every step are.
    errors = compare(last.numpy(), ends, ends, "float32")
    assert errors.passed, errors


# Refusals


def test_sruplusplus_is_refused():
    with pytest.raises(ConversionError, match=r"rnn_lst.0: SRUppCell computes its gates in a way of its own, and has"):
        torch_lstm(SRUpp(4, 4, 2), {"": K})


def test_a_custom_m_is_refused():
    with pytest.raises(ConversionError, match=r"the layer: SRUCell computes its gates in a way of its own.*--to lstm"):
        torch_lstm(SRUCell(4, 4, custom_m=nn.Linear(4, 12)), {"": K})


def test_a_layer_that_the_file_does_not_run_is_refused():
    with pytest.raises(ConversionError, match=r"b.rnn_lst.0: the exported file has no recurrence of it"):
        torch_lstm(nn.ModuleDict({"a": SRU(4, 4), "b": SRU(4, 4)}), {"a": K})
