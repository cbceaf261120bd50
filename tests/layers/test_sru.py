"""SRU and SRUCell hold the keys of `sru` 2.6.0 and give its numbers, for every option, loaded or adapted from it.

The oracle is the package itself. With gradients enabled it runs its Python loop, in any dtype; without, its C++ op,
which is float32 only and reads a custom V at the wrong step in the backward direction.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

from sruexport.errors import ExportError
from sruexport.layers import SRU, SRUCell, adapt
from sruexport.parity.measure import compare
from sruexport.recurrences import graph_tracing

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import sru

pytestmark = pytest.mark.filterwarnings("ignore")

#: Float64 rounds 2**-29 as coarsely as float32; what is left of that covers that errors do not scale exactly.
_FLOAT64_SHARE = 2.0**-20
_MASKS = {"bool": torch.bool, "uint8": torch.uint8, "int32": torch.int32, "int64": torch.int64, "float": torch.float32}

_quick = settings(max_examples=120, derandomize=True, deadline=None, database=None)
_few = settings(max_examples=60, derandomize=True, deadline=None, database=None)


class Transform(nn.Module):
    """A custom_m: U from a small network, and V beside it if asked for."""

    def __init__(self, inputs: int, u: int, v: int = 0):
        super().__init__()
        self.u, self.v = nn.Linear(inputs, u), nn.Linear(inputs, v) if v else None

    def forward(self, x: Tensor) -> Any:
        u = torch.tanh(self.u(x))
        return u if self.v is None else (u, self.v(x))


# What a layer is made of, and what it is called with

_cell_options = {
    "input_size": st.integers(1, 6),
    "hidden_size": st.integers(1, 4),
    "dropout": st.sampled_from([0.0, 0.3]),
    "rnn_dropout": st.sampled_from([0.0, 0.3]),
    "bidirectional": st.booleans(),
    "use_tanh": st.booleans(),
    "highway_bias": st.sampled_from([0.0, -1.5]),
    "has_skip_term": st.booleans(),
    "layer_norm": st.booleans(),
    "rescale": st.booleans(),
    "v1": st.booleans(),
    "amp_recurrence_fp16": st.booleans(),
    "normalize_after": st.booleans(),
    "weight_c_init": st.sampled_from([None, 0.5]),
}
_cells = st.fixed_dictionaries({**_cell_options, "n_proj": st.sampled_from([0, 1, 2, 3])})
_stacks = st.fixed_dictionaries(
    {
        **_cell_options,
        "num_layers": st.integers(1, 3),
        "projection_size": st.sampled_from([0, 1, 2, 3]),
        "nn_rnn_compatible_return": st.booleans(),
        "proj_input_to_hidden_first": st.booleans(),
    }
)
_custom = st.sampled_from(["none", "none", "u", "u and v"])
_calls = st.fixed_dictionaries(
    {
        "steps": st.integers(1, 5),
        "batch": st.integers(1, 3),
        "state": st.booleans(),
        "mask": st.sampled_from(["none", *_MASKS]),
        "seed": st.integers(0, 2**16),
    }
)


def _transform(kind: str, inputs: int, options: dict[str, Any]) -> nn.Module | None:
    outputs = options["hidden_size"] * (2 if options["bidirectional"] else 1)
    matrices = 4 if options["has_skip_term"] and inputs != outputs else 3
    if kind == "none":
        return None
    return Transform(inputs, outputs * matrices, 2 * outputs if kind == "u and v" else 0)


def _transforms(kind: str, options: dict[str, Any]) -> list[nn.Module] | None:
    """One custom_m for each layer of a stack."""
    outputs = options["hidden_size"] * (2 if options["bidirectional"] else 1)
    first = outputs if options["proj_input_to_hidden_first"] else options["input_size"]
    made = [_transform(kind, first if i == 0 else outputs, options) for i in range(options["num_layers"])]
    return None if kind == "none" else made


def _trained(module: nn.Module) -> nn.Module:
    """The module with every parameter random, as training leaves it; weight_c stays zero for v1."""
    for name, parameter in module.named_parameters():
        if not (name.endswith("weight_c") and not parameter.requires_grad):
            parameter.data = torch.randn(parameter.shape) * 0.7
    return module.eval()


def _mask(kind: str, steps: int, batch: int) -> Tensor | None:
    return None if kind == "none" else (torch.rand(steps, batch) < 0.4).to(_MASKS[kind])


@contextmanager
def _python_path(enabled: bool) -> Iterator[None]:
    """Make `sru` run its Python loop, or its C++ op."""
    with torch.set_grad_enabled(enabled):
        yield


def _flat(result: Any) -> list[Tensor]:
    return [part.data if isinstance(part, PackedSequence) else part for part in result]


def _double(arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(a.double() if isinstance(a, Tensor) and a.is_floating_point() else a for a in arguments)


def assert_same_numbers(ours: nn.Module, theirs: nn.Module, arguments: tuple[Any, ...], cpp: bool = True) -> None:
    """Ours in float32 and float64 gives what theirs does: their Python path in float64, both paths in float32."""
    with torch.no_grad():
        exact = _flat(copy.deepcopy(ours).double()(*_double(arguments)))
        single = _flat(ours(*arguments))
    with _python_path(True):
        double = _flat(copy.deepcopy(theirs).double()(*_double(arguments)))
        loop = _flat(theirs(*arguments))
    with _python_path(False):
        op = _flat(theirs(*arguments)) if cpp else loop
    assert [t.shape for t in single] == [t.shape for t in loop]
    for mine, right, wide, python, compiled in zip(single, exact, double, loop, op, strict=True):
        assert mine.dtype == torch.float32
        bound = compare(mine.numpy(), python.detach().numpy(), right.numpy(), "float32")
        assert bound.passed, bound
        for other in (python, compiled):
            judged = compare(other.detach().numpy(), mine.numpy(), right.numpy(), "float32")
            assert judged.engine_max <= max(bound.bound, judged.bound), judged
        assert np.abs(wide.detach().numpy() - right.numpy()).max(initial=0.0) <= _FLOAT64_SHARE * bound.bound


def _shapes(module: nn.Module) -> dict[str, torch.Size]:
    return {key: tensor.shape for key, tensor in module.state_dict().items()}


def assert_shares(ours: nn.Module, theirs: nn.Module) -> None:
    """Every parameter and buffer of ours is the very tensor that theirs has under that name."""
    assert dict(ours.named_parameters()).keys() == dict(theirs.named_parameters()).keys()
    tensors = dict(theirs.named_parameters()) | dict(theirs.named_buffers())
    for name, parameter in ours.named_parameters():
        assert parameter is tensors[name]
    for name, buffer in ours.named_buffers():
        assert buffer.data_ptr() == tensors[name].data_ptr()


def _pair(
    ours: Callable[..., nn.Module], theirs: Callable[..., nn.Module], options: dict[str, Any], custom: Any
) -> tuple[nn.Module, nn.Module]:
    """The package's module with random numbers, and ours of the same options with its state_dict loaded."""
    source = theirs(**options, custom_m=copy.deepcopy(custom))
    loaded = ours(**options, custom_m=copy.deepcopy(custom))
    assert _shapes(loaded) == _shapes(source)
    assert {n: p.requires_grad for n, p in loaded.named_parameters()} == {
        n: p.requires_grad for n, p in source.named_parameters()
    }
    loaded.load_state_dict(_trained(source).state_dict())
    return loaded.eval(), source


# Parity, over every option


@_quick
@given(_stacks, _custom, _calls)
def test_a_stack_has_the_keys_and_the_numbers_of_sru_for_every_option(options, custom, call):
    torch.manual_seed(call["seed"])
    ours, theirs = _pair(SRU, sru.SRU, options, _transforms(custom, options))
    x = torch.randn(call["steps"], call["batch"], options["input_size"])
    c0 = torch.randn(options["num_layers"], call["batch"], ours.output_size) if call["state"] else None
    arguments = (x, c0, _mask(call["mask"], call["steps"], call["batch"]))
    cpp = not (custom == "u and v" and options["bidirectional"])
    assert_same_numbers(ours, theirs, arguments, cpp)

    adapted = adapt(theirs)
    assert isinstance(adapted, SRU)
    assert _shapes(adapted) == _shapes(theirs)
    assert_shares(adapted, theirs)
    with torch.no_grad():
        for mine, other in zip(ours(*arguments), adapted(*arguments), strict=True):
            assert torch.equal(mine, other)


@_few
@given(_cells, _custom, _calls, st.booleans())
def test_a_cell_has_the_keys_and_the_numbers_of_sru_for_every_option(options, custom, call, single_step):
    torch.manual_seed(call["seed"])
    ours, theirs = _pair(SRUCell, sru.SRUCell, options, _transform(custom, options["input_size"], options))
    steps = 1 if single_step else call["steps"]
    x = torch.randn(steps, call["batch"], options["input_size"])
    c0 = torch.randn(call["batch"], ours.output_size) if call["state"] else None
    arguments = (x[0] if single_step else x, c0, _mask(call["mask"], steps, call["batch"]))
    cpp = not (custom == "u and v" and options["bidirectional"])
    assert_same_numbers(ours, theirs, arguments, cpp)

    adapted = adapt(theirs)
    assert isinstance(adapted, SRUCell)
    assert _shapes(adapted) == _shapes(theirs)
    assert_shares(adapted, theirs)
    with torch.no_grad():
        for mine, other in zip(ours(*arguments), adapted(*arguments), strict=True):
            assert torch.equal(mine, other)


@_few
@given(_cells)
def test_an_untrained_cell_starts_from_the_same_bias_and_scale_as_sru(options):
    ours, theirs = SRUCell(**options), sru.SRUCell(**options)
    assert torch.equal(ours.bias, theirs.bias)
    assert torch.equal(ours.scale_x, theirs.scale_x)
    assert bool(ours.weight_c.any()) == bool(theirs.weight_c.any())


def test_one_custom_m_is_copied_for_every_layer_of_a_stack():
    torch.manual_seed(0)
    options: dict[str, Any] = {"input_size": 4, "hidden_size": 2, "num_layers": 2, "bidirectional": True}
    ours, theirs = _pair(SRU, sru.SRU, options, Transform(4, 12))
    assert ours.rnn_lst[0].custom_m is not ours.rnn_lst[1].custom_m
    assert_same_numbers(ours, theirs, (torch.randn(4, 2, 4),))


def test_a_custom_v_is_read_at_its_own_step_in_the_backward_direction():
    torch.manual_seed(0)
    options: dict[str, Any] = {"input_size": 4, "hidden_size": 2, "num_layers": 1, "bidirectional": True}
    ours, theirs = _pair(SRU, sru.SRU, options, [Transform(4, 12, 8)])
    x, c0 = torch.randn(5, 2, 4), torch.randn(1, 2, 4)
    assert_same_numbers(ours, theirs, (x, c0), cpp=False)
    with torch.no_grad():
        wrong = theirs(x, c0)[0]
        assert not torch.allclose(ours(x, c0)[0], wrong, atol=1e-3), "sru's C++ op is right now: use it as an oracle"


@pytest.mark.parametrize("bidirectional", [False, True])
def test_any_value_but_zero_is_padding(bidirectional):
    torch.manual_seed(0)
    options: dict[str, Any] = {"input_size": 3, "hidden_size": 3, "num_layers": 2, "bidirectional": bidirectional}
    ours, theirs = _pair(SRU, sru.SRU, options, None)
    x = torch.randn(5, 2, 3)
    for mask in (
        torch.tensor([[0, 1], [-3, 0], [0, 0], [2, 2], [0, 255]]),
        torch.tensor([[0, 1], [0.25, 0], [0, 0], [-1, 2.5], [0, 9]]),
    ):
        with torch.no_grad():
            expected, plain = theirs(x, None, mask), ours(x, None, mask != 0)
            for mine, other, same in zip(ours(x, None, mask), expected, plain, strict=True):
                assert torch.equal(mine, same)
                assert compare(mine.numpy(), other.numpy(), mine.double().numpy(), "float32").pytorch_max <= 1e-5


@pytest.mark.parametrize("bidirectional", [False, True])
def test_padding_passes_the_state_on_and_gives_zero(bidirectional):
    torch.manual_seed(0)
    cell = _trained(SRUCell(3, 2, bidirectional=bidirectional))
    x, c0 = torch.randn(4, 2, 3), torch.randn(2, 4 if bidirectional else 2)
    everywhere = torch.ones(4, 2, dtype=torch.int32)
    with torch.no_grad():
        h, c = cell(x, c0, everywhere)
    assert torch.equal(h, torch.zeros_like(h))
    assert torch.equal(c, c0)


@pytest.mark.parametrize("make", [SRU, SRUCell])
def test_padded_rows_become_the_bias_of_a_layer_norm_that_comes_after(make):
    torch.manual_seed(0)
    layer = _trained(make(3, 4, layer_norm=True, normalize_after=True))
    norm = layer.rnn_lst[-1].layer_norm if make is SRU else layer.layer_norm
    mask = torch.tensor([[0, 1], [1, 0], [0, 1]])
    with torch.no_grad():
        h, _ = layer(torch.randn(3, 2, 3), None, mask)
    assert torch.equal(h[mask != 0], norm.bias.expand(3, 4))
    assert not torch.isclose(h[mask == 0], norm.bias).all()


@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("compatible", [False, True])
def test_no_steps_give_an_empty_output_and_the_state_as_it_was(bidirectional, compatible):
    torch.manual_seed(0)
    options: dict[str, Any] = {"input_size": 3, "hidden_size": 2, "num_layers": 2, "bidirectional": bidirectional}
    options |= {"nn_rnn_compatible_return": compatible, "layer_norm": True}
    ours, theirs = _pair(SRU, sru.SRU, options, None)
    x, c0 = torch.zeros(0, 2, 3), torch.randn(2, 2, ours.output_size)
    with torch.no_grad():
        h, c = ours(x, c0)
        expected_h, expected_c = theirs(x, c0)
    assert h.shape == expected_h.shape == (0, 2, ours.output_size)
    assert torch.equal(c, expected_c)


@pytest.mark.parametrize("bidirectional", [False, True])
def test_a_stream_in_chunks_is_the_whole_sequence(bidirectional):
    """Holds for forward layers only; a bidirectional one needs the whole sequence."""
    torch.manual_seed(0)
    layer = _trained(SRU(3, 4, bidirectional=bidirectional))
    x = torch.randn(7, 2, 3)
    with torch.no_grad():
        whole, last = layer(x)
        first, state = layer(x[:3])
        second, end = layer(x[3:], state)
    same = torch.allclose(torch.cat([first, second]), whole, atol=1e-6) and torch.allclose(end, last, atol=1e-6)
    assert same is not bidirectional


@pytest.mark.parametrize(
    ("make", "arguments"),
    [
        (SRU, (torch.zeros(2, 3),)),
        (SRU, (torch.zeros(2, 1, 3), torch.zeros(1, 4))),
        (SRUCell, (torch.zeros(2, 1, 3, 1),)),
    ],
)
def test_a_wrong_number_of_axes_is_refused_as_sru_refuses_it(make, arguments):
    with pytest.raises(ValueError, match="must be"):
        make(3, 4)(*arguments)
    with pytest.raises(ValueError, match="dim"):
        {SRU: sru.SRU, SRUCell: sru.SRUCell}[make](3, 4)(*arguments)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_sixteen_bits_are_rounded_to_outside_the_recurrence_only(dtype):
    torch.manual_seed(0)
    layer = _trained(SRU(3, 4)).to(dtype)
    x = torch.randn(6, 2, 3).to(dtype)
    with torch.no_grad():
        h, c = layer(x)
        exact, _ = copy.deepcopy(layer).double()(x.double())
    assert h.dtype == c.dtype == dtype
    # Products and outputs are rounded once in each of the two layers; a state of 16 bits would be at every step.
    assert (h.double() - exact).abs().max() <= 16 * torch.finfo(dtype).eps * exact.abs().max()


# PackedSequence


@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("compatible", [False, True])
@pytest.mark.parametrize("lengths", [(5, 3, 1), (1, 5, 3)])
@pytest.mark.parametrize("given_state", [False, True])
def test_packed_sequences_come_back_packed_as_from_sru(bidirectional, compatible, lengths, given_state):
    torch.manual_seed(0)
    options: dict[str, Any] = {"input_size": 3, "hidden_size": 2, "num_layers": 2, "bidirectional": bidirectional}
    options["nn_rnn_compatible_return"] = compatible
    ours, theirs = _pair(SRU, sru.SRU, options, None)
    ordered = list(lengths) == sorted(lengths, reverse=True)
    packed = pack_padded_sequence(torch.randn(5, 3, 3), torch.tensor(lengths), enforce_sorted=ordered)
    c0 = torch.randn(2, 3, ours.output_size) if given_state else None
    with torch.no_grad():
        (h, c), (expected_h, expected_c) = ours(packed, c0), theirs(packed, c0)
        exact_h, exact_c = copy.deepcopy(ours).double()(packed.double(), None if c0 is None else c0.double())
    assert isinstance(h, PackedSequence)
    assert torch.equal(h.batch_sizes, expected_h.batch_sizes)
    assert torch.equal(h.sorted_indices, expected_h.sorted_indices)
    assert torch.equal(h.unsorted_indices, expected_h.unsorted_indices)
    for mine, other, exact in ((h.data, expected_h.data, exact_h.data), (c, expected_c, exact_c)):
        assert compare(mine.numpy(), other.numpy(), exact.numpy(), "float32").passed
    assert pad_packed_sequence(h)[1].tolist() == list(lengths)


# The linear form


@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("use_tanh", [False, True])
@pytest.mark.parametrize("has_skip_term", [False, True])
@pytest.mark.parametrize("masked", [False, True])
def test_without_weight_c_the_linear_recurrence_gives_the_same(bidirectional, use_tanh, has_skip_term, masked):
    torch.manual_seed(0)
    cell = SRUCell(3, 2, bidirectional=bidirectional, use_tanh=use_tanh, has_skip_term=has_skip_term, v1=True)
    cell = _trained(cell).double()
    x, c0 = torch.randn(5, 2, 3).double(), torch.randn(2, cell.output_size).double()
    mask = _mask("int32", 5, 2) if masked else None
    with torch.no_grad():
        u, projected, _ = cell.compute_gates(x)
        highway = projected if projected is not None else torch.zeros(1, 1, cell.output_size).double()
        common = {"direction": "bidirectional" if bidirectional else "forward", "masked": int(masked)}
        linear = cell.run_linear(u, highway, c0, mask if masked else torch.zeros(1, 1).int(), common)
        for mine, other in zip(cell(x, c0, mask), linear, strict=True):
            torch.testing.assert_close(mine, other, rtol=1e-12, atol=1e-13)


def test_only_a_cell_whose_weight_c_is_zero_is_linear():
    cells = [
        SRUCell(3, 3, v1=True),
        SRUCell(3, 3),
        SRUCell(3, 3, weight_c_init=0.0),
        SRUCell(3, 3, v1=True, custom_m=Transform(3, 9)),
    ]
    for cell in cells:
        cell.choose_recurrence()
    assert [cell.linear for cell in cells] == [True, False, True, False]


# Adapting live modules


def test_adapt_follows_later_changes_of_the_parameters():
    theirs = _trained(sru.SRU(3, 4))
    ours = adapt(theirs)
    x = torch.randn(3, 2, 3)
    with torch.no_grad():
        before = ours(x)[0]
        theirs.rnn_lst[0].weight.mul_(2)
        assert not torch.equal(ours(x)[0], before)


def test_adapt_leaves_the_module_as_it_was():
    theirs = _trained(sru.SRU(3, 4, layer_norm=True))
    before = {name: id(parameter) for name, parameter in theirs.named_parameters()}
    kinds = [type(module) for module in theirs.modules()]
    adapt(theirs)
    assert {name: id(parameter) for name, parameter in theirs.named_parameters()} == before
    assert [type(module) for module in theirs.modules()] == kinds


def test_adapt_passes_over_all_else():
    for module in (nn.Linear(2, 2), nn.LSTM(2, 2), nn.Sequential(sru.SRU(2, 2)), SRU(2, 2), SRUCell(2, 2)):
        assert adapt(module) is None


class OwnForward(sru.SRUCell):
    """A forward of its own over the package's recurrence: a gain on what comes in, and twice what comes out."""

    def forward(self, input, c0=None, mask_pad=None):
        if c0 is None:
            c0 = torch.zeros(input.size(-2), self.output_size, dtype=input.dtype)
        u, v = self.compute_UV(input * 0.5, c0, mask_pad)
        h, c = self.apply_recurrence(u, v, input, c0, self.scale_x if self.rescale else None, None, mask_pad)
        return h * 2, c


class OwnProduct(sru.SRUCell):
    """Gates of its own, with a V for every step."""

    def compute_UV(self, input, c0, mask_pad):
        u, v = super().compute_UV(input, c0, mask_pad)
        u = u.view(*input.shape[:-1], -1)
        return u * 0.5, v + torch.tanh(u[..., : v.shape[-1]])


class OwnRecurrence(sru.SRUCell):
    def apply_recurrence(self, U, V, residual, c0, scale_val, mask_c, mask_pad):
        return U[..., : self.output_size], c0


class OwnStack(sru.SRU):
    def forward(self, input, c0=None, mask_pad=None):
        h, c = super().forward(input, c0, mask_pad)
        return h + 1, c


class Renamed(sru.SRU):
    """A subclass that changes nothing of what is computed."""

    def total(self) -> int:
        return sum(p.numel() for p in self.parameters())


class RenamedCell(sru.SRUCell):
    pass


@pytest.mark.parametrize("cell_class", [OwnForward, OwnProduct])
@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("input_size", [3, 4])
@pytest.mark.parametrize("masked", [False, True])
def test_a_cell_subclass_keeps_its_own_code_over_our_recurrence(cell_class, bidirectional, input_size, masked):
    torch.manual_seed(0)
    theirs = _trained(cell_class(input_size, 2 if bidirectional else 4, bidirectional=bidirectional, use_tanh=True))
    ours = adapt(theirs)
    assert isinstance(ours, cell_class)
    assert ours is not theirs
    assert_shares(ours, theirs)
    assert theirs.apply_recurrence.__func__ is sru.SRUCell.apply_recurrence, "the original is left alone"
    mask = _mask("bool", 5, 2) if masked else None
    arguments = (torch.randn(5, 2, input_size), torch.randn(2, 4), mask)
    with torch.no_grad():
        mine = ours(*arguments)
    with _python_path(True):
        theirs_single, exact = theirs(*arguments), copy.deepcopy(theirs).double()(*_double(arguments))
    for engine, pytorch, right in zip(mine, theirs_single, exact, strict=True):
        assert compare(engine.numpy(), pytorch.detach().numpy(), right.detach().numpy(), "float32").passed


def test_a_cell_subclass_runs_our_recurrence_in_a_graph():
    ours = adapt(OwnForward(3, 3).eval())

    class Graph(nn.Module):
        def __init__(self):
            super().__init__()
            self.cell = ours

        def forward(self, x):
            return self.cell(x)[0]

    with graph_tracing(), torch.no_grad():
        program = torch.export.export(Graph(), (torch.zeros(4, 2, 3),), strict=False)
    assert any("symbolic_multi_out" in str(node.target).lower() for node in program.graph.nodes)


def test_a_cell_subclass_with_a_recurrence_of_its_own_is_refused_by_name():
    with pytest.raises(ExportError, match=r"OwnRecurrence overrides apply_recurrence of SRUCell"):
        adapt(OwnRecurrence(3, 3))


def test_a_stack_of_cells_with_a_recurrence_of_their_own_is_refused():
    stack = sru.SRU(3, 3, num_layers=1)
    stack.rnn_lst[0] = OwnRecurrence(3, 3)
    with pytest.raises(ExportError, match="OwnRecurrence"):
        adapt(stack)


def test_a_stack_may_hold_cells_of_a_subclass():
    torch.manual_seed(0)
    theirs = sru.SRU(3, 3, num_layers=2)
    theirs.rnn_lst[1] = OwnForward(3, 3, rescale=False)
    _trained(theirs)
    ours = adapt(theirs)
    assert isinstance(ours, SRU)
    assert [type(cell) for cell in ours.rnn_lst] == [SRUCell, OwnForward]
    x = torch.randn(4, 2, 3)
    with torch.no_grad():
        mine = ours(x)
    with _python_path(True):
        expected, exact = theirs(x), copy.deepcopy(theirs).double()(x.double())
    for engine, pytorch, right in zip(mine, expected, exact, strict=True):
        assert compare(engine.numpy(), pytorch.detach().numpy(), right.detach().numpy(), "float32").passed


def test_a_stack_subclass_with_a_forward_of_its_own_keeps_it():
    stack = OwnStack(3, 3)
    assert adapt(stack) is None
    assert all(isinstance(adapt(cell), SRUCell) for cell in stack.rnn_lst), "its cells are replaced one by one"


def test_a_subclass_that_computes_the_same_becomes_ours():
    stack, cell = adapt(Renamed(3, 4, bidirectional=True)), adapt(RenamedCell(3, 4))
    assert type(stack) is SRU
    assert type(cell) is SRUCell


def test_a_computed_weight_is_taken_as_its_present_value():
    torch.manual_seed(0)
    theirs = _trained(sru.SRU(3, 4, num_layers=1))
    torch.nn.utils.parametrizations.weight_norm(theirs.rnn_lst[0], "weight")
    ours = adapt(theirs)
    x = torch.randn(4, 2, 3)
    with torch.no_grad():
        for mine, other in zip(ours(x), theirs(x), strict=True):
            torch.testing.assert_close(mine, other)
