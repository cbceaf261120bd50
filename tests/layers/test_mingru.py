"""MinGRU and MinLSTM hold the keys of mingru-pytorch 0.2.1 and give its numbers: loaded, adapted from it, exported.

The oracle is the package itself. It scans in log space from two steps up and steps plainly at one. In float32 it is
what PyTorch's rounding is measured by; our layers in float64 are the exact values.
"""

from __future__ import annotations

import copy
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from minGRU_pytorch.minGRU import minGRU
from minGRU_pytorch.minLM import minLM
from minGRU_pytorch.minLSTM import minLSTM
from safetensors.torch import save_file
from torch import Tensor, nn

import sruexport
from sruexport.errors import CheckpointError, ExportError, OptionError
from sruexport.exporter.model import borrowed
from sruexport.inspection import inspect
from sruexport.layers import FAMILIES, adapt, family_of
from sruexport.layers.mingru import FAMILY, MinGRU, MinLSTM
from sruexport.parity.measure import compare

#: Float64 rounds 2**-29 as coarsely as float32; what is left of that covers that errors do not scale exactly.
_FLOAT64_SHARE = 2.0**-20
OURS: dict[type[nn.Module], type[Any]] = {minGRU: MinGRU, minLSTM: MinLSTM}
BOTH = pytest.mark.parametrize("package", list(OURS), ids=lambda cls: cls.__name__)
ROWS = {"x": {0: "B", 1: "T"}}

_quick = settings(max_examples=200, derandomize=True, deadline=None, database=None)


# What a layer is made of, and what it is called with

_packages = st.sampled_from(list(OURS))
_options = st.fixed_dictionaries(
    {
        "dim": st.integers(2, 6),
        "expansion_factor": st.sampled_from([1.0, 0.5, 1.5, 2.0]),
        "proj_out": st.sampled_from([None, True, False]),
    }
)
_calls = st.fixed_dictionaries(
    {
        "steps": st.one_of(st.just(1), st.integers(2, 9)),
        "batch": st.integers(1, 3),
        "state": st.booleans(),
        "return_state": st.booleans(),
        "seed": st.integers(0, 2**16),
    }
)


def trained(module: nn.Module, scale: float = 0.7) -> nn.Module:
    """The module with every parameter random, as training leaves it."""
    for parameter in module.parameters():
        parameter.data = torch.randn(parameter.shape) * scale
    return module.eval()


def layer(package: type[nn.Module], *arguments: Any, seed: int = 0, **options: Any) -> nn.Module:
    torch.manual_seed(seed)
    return trained(package(*arguments, **options))


def inner(module: nn.Module) -> int:
    (weight,) = [tensor for name, tensor in module.state_dict().items() if name.startswith("to_hidden")]
    return weight.shape[0] // (2 if isinstance(module, minGRU) else 3)


def hidden_state(module: nn.Module, batch: int) -> Tensor:
    """A state that may be given [B, 1, D']. A minGRU takes its logarithm; a minLSTM takes any."""
    state = torch.randn(batch, 1, inner(module))
    return state.abs() + 0.01 if isinstance(module, minGRU) else state


def flat(result: Any) -> list[Tensor]:
    return list(result) if isinstance(result, tuple) else [result]


def double(arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(a.double() if isinstance(a, Tensor) and a.is_floating_point() else a for a in arguments)


def exact(theirs: nn.Module, arguments: tuple[Any, ...]) -> list[Tensor]:
    """Our layers in float64, in place of the package's."""
    with borrowed(theirs, dtype=torch.float64) as ours:
        return flat(ours(*double(arguments)))


@torch.no_grad()
def assert_same_numbers(ours: nn.Module, theirs: nn.Module, arguments: tuple[Any, ...]) -> None:
    """Ours gives what the package does: in float32 by the rule, in float64 to float64's rounding."""
    right = exact(theirs, arguments)
    single, package = flat(ours(*arguments)), flat(theirs(*arguments))
    wide = flat(copy.deepcopy(theirs).double()(*double(arguments)))
    assert [t.shape for t in single] == [t.shape for t in package]
    for mine, other, other_wide, value in zip(single, package, wide, right, strict=True):
        assert mine.dtype == torch.float32
        errors = compare(mine.numpy(), other.numpy(), value.numpy(), "float32")
        assert errors.passed, errors
        assert np.abs(other_wide.numpy() - value.numpy()).max() <= _FLOAT64_SHARE * errors.bound


def shapes(module: nn.Module) -> dict[str, torch.Size]:
    return {key: tensor.shape for key, tensor in module.state_dict().items()}


def assert_shares(ours: nn.Module, theirs: nn.Module) -> None:
    """Every parameter of ours is the very object that theirs has under that name, and there are no others."""
    tensors = dict(theirs.named_parameters())
    assert dict(ours.named_parameters()).keys() == tensors.keys()
    for name, parameter in ours.named_parameters():
        assert parameter is tensors[name]


# Parity, over every option


@_quick
@given(_packages, _options, _calls)
def test_a_layer_has_the_keys_and_the_numbers_of_the_package_for_every_option(package, options, call):
    theirs = layer(package, **options, seed=call["seed"])
    ours = OURS[package](**options)
    assert shapes(ours) == shapes(theirs)
    ours.load_state_dict(theirs.state_dict())
    x = torch.randn(call["batch"], call["steps"], options["dim"])
    state = hidden_state(theirs, call["batch"]) if call["state"] else None
    arguments = (x, state, call["return_state"])
    assert_same_numbers(ours.eval(), theirs, arguments)

    adapted = adapt(theirs)
    assert type(adapted) is OURS[package]
    assert shapes(adapted) == shapes(theirs)
    assert_shares(adapted, theirs)
    assert family_of(adapted) is FAMILY
    assert FAMILY.describe(adapted) == FAMILY.describe(ours)
    with torch.no_grad():
        for mine, other in zip(flat(ours(*arguments)), flat(adapted(*arguments)), strict=True):
            assert torch.equal(mine, other)


@BOTH
def test_the_keys_are_those_that_are_written_down(package):
    gates = {minGRU: "to_hidden_and_gate", minLSTM: "to_hidden_and_f_i_gate"}[package]
    rows = {minGRU: 12, minLSTM: 18}[package]
    assert shapes(OURS[package](4, 1.5)) == {f"{gates}.weight": (rows, 4), "to_out.weight": (4, 6)}
    assert list(shapes(OURS[package](4))) == [f"{gates}.weight"]
    assert {key for cls in OURS for key in shapes(cls(4, 1.5))} == set(FAMILY.keys)


@BOTH
@pytest.mark.parametrize("options", [{}, {"expansion_factor": 1.5}], ids=["plain", "expanded"])
def test_hundreds_of_steps(package, options):
    theirs = layer(package, 4, **options)
    assert_same_numbers(adapt(theirs), theirs, (torch.randn(2, 400, 4), None, True))


@BOTH
def test_adapt_leaves_the_package_as_it_was_and_follows_later_changes(package):
    theirs = layer(package, 3, 2.0)
    before = {name: id(parameter) for name, parameter in theirs.named_parameters()}
    ours, x = adapt(theirs), torch.randn(1, 4, 3)
    assert {name: id(parameter) for name, parameter in theirs.named_parameters()} == before
    assert type(theirs) is package
    with torch.no_grad():
        earlier = ours(x)
        theirs.to_out.weight.mul_(2)
        torch.testing.assert_close(ours(x), 2 * earlier)


# The traps


def g(x: Tensor) -> Tensor:
    return torch.where(x >= 0, x + 0.5, torch.sigmoid(x))


def by_the_equations(weight: Tensor, x: Tensor, h: Tensor, gates: int) -> Tensor:
    """The states [B, T, D'] from `h` [B, D'], one step after the other."""
    found = []
    for step in x.unbind(1):
        hidden, *raw = (step @ weight.t()).chunk(gates, dim=-1)
        first, last = torch.sigmoid(raw[0]), torch.sigmoid(raw[-1])
        keep, take = (1 - first, first) if gates == 2 else (first / (first + last), last / (first + last))
        h = keep * h + take * g(hidden)
        found.append(h)
    return torch.stack(found, dim=1)


@pytest.mark.parametrize("steps", [1, 2, 5])
def test_minlstm_puts_g_on_a_given_state_from_two_steps_up_and_not_at_one(steps):
    theirs = layer(minLSTM, 3).double()
    x, state = torch.randn(2, steps, 3).double(), torch.tensor([[[-1.0, 0.2, 2.0]], [[0.0, -3.0, 0.7]]]).double()
    weight = theirs.to_hidden_and_f_i_gate.weight
    plain, through_g = (by_the_equations(weight, x, start, 3) for start in (state[:, 0], g(state[:, 0])))
    expected, other = (plain, through_g) if steps == 1 else (through_g, plain)
    with torch.no_grad():
        for module in (theirs, adapt(theirs)):
            found = module(x, state)
            torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-13)
            assert not torch.isclose(found, other, atol=1e-3).all()


@pytest.mark.parametrize("steps", [1, 2, 5])
def test_mingru_takes_a_given_state_as_it_is_at_any_length(steps):
    theirs = layer(minGRU, 3).double()
    x, state = torch.randn(2, steps, 3).double(), torch.tensor([[[1.0, 0.2, 2.0]], [[0.1, 3.0, 0.7]]]).double()
    expected = by_the_equations(theirs.to_hidden_and_gate.weight, x, state[:, 0], 2)
    with torch.no_grad():
        for module in (theirs, adapt(theirs)):
            torch.testing.assert_close(module(x, state), expected, rtol=1e-12, atol=1e-13)


def test_a_negative_state_which_log_space_has_no_room_for_is_what_the_steps_of_the_package_make_of_it():
    theirs = layer(minGRU, 3).double()
    x, state = torch.randn(2, 4, 3).double(), -torch.rand(2, 1, 3).double()
    with torch.no_grad():
        assert theirs(x, state).isnan().all()
        stepped, h = [], state
        for t in range(4):
            out, h = theirs(x[:, t : t + 1], h, True)
            stepped.append(out)
        torch.testing.assert_close(adapt(theirs)(x, state), torch.cat(stepped, 1), rtol=1e-12, atol=1e-13)


def test_the_order_of_mingru_is_hidden_then_gate():
    theirs = minGRU(1).eval()
    theirs.to_hidden_and_gate.weight.data = torch.tensor([[2.0], [30.0]])
    with torch.no_grad():
        for module in (theirs, adapt(theirs)):
            torch.testing.assert_close(module(torch.ones(1, 2, 1)), torch.full((1, 2, 1), 2.5))


def test_the_order_of_minlstm_is_hidden_then_forget_then_input():
    theirs = minLSTM(1).eval()
    theirs.to_hidden_and_f_i_gate.weight.data = torch.tensor([[2.0], [30.0], [-30.0]])
    kept = torch.full((1, 1, 1), 0.75)
    with torch.no_grad():
        for module in (theirs, adapt(theirs)):
            torch.testing.assert_close(module(torch.ones(1, 1, 1), kept), kept)
            torch.testing.assert_close(module(-torch.ones(1, 1, 1), kept), g(-2 * torch.ones(1, 1, 1)))


@BOTH
@pytest.mark.parametrize("seed", [1, 2])
def test_the_scan_in_log_space_and_plain_steps_give_the_same_from_zeros(package, seed):
    theirs = layer(package, 4, 1.5, seed=seed)
    x, h, stepped = torch.randn(2, 6, 4), None, []
    with torch.no_grad():
        for t in range(6):
            out, h = theirs(x[:, t : t + 1], h, True)
            stepped.append(out)
        right = exact(theirs, (x,))[0].numpy()
        for package_numbers in (theirs(x), torch.cat(stepped, 1)):
            assert compare(adapt(theirs)(x).numpy(), package_numbers.numpy(), right, "float32").passed


@BOTH
@pytest.mark.parametrize("steps", [1, 2, 40])
def test_saturated_gates_stay_finite_and_right(package, steps):
    gates = 2 if package is minGRU else 3
    theirs = package(8).eval()
    signs = torch.cartesian_prod(*[torch.tensor([-60.0, 60.0])] * 3)[:, :gates]  # hidden, then the gates
    weight = torch.zeros(gates, 8, 8)
    for plane in range(gates):
        weight[plane] = torch.diag(signs[:, plane])
    getattr(theirs, OURS[package].gates_name).weight.data = weight.reshape(gates * 8, 8)
    for state in (None, torch.full((1, 1, 8), 0.5)):
        for sign in (1.0, -1.0):
            x = torch.full((1, steps, 8), sign)
            with torch.no_grad():
                assert adapt(theirs)(x, state).isfinite().all()
            assert_same_numbers(adapt(theirs), theirs, (x, state, True))


def test_minlstm_gates_that_are_zero_in_float32_share_alike_where_the_package_divides_zero_by_zero():
    theirs = minLSTM(1).eval()
    theirs.to_hidden_and_f_i_gate.weight.data = torch.tensor([[2.0], [-120.0], [-120.0]])
    x = torch.ones(1, 1, 1)
    with torch.no_grad():
        assert theirs(x).isnan().all()
        torch.testing.assert_close(adapt(theirs)(x), torch.full((1, 1, 1), 1.25))


@BOTH
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_sixteen_bits_are_rounded_to_outside_the_recurrence_only(package, dtype):
    theirs = layer(package, 4, 1.5)
    gates = getattr(theirs, OURS[package].gates_name).weight
    gates.data[-6:, 0] = -9.0  # with ones in channel 0: a decay that 16 bits would round to 1
    theirs.to(dtype)
    x = torch.cat([torch.ones(2, 300, 1), 0.3 * torch.randn(2, 300, 3)], -1).to(dtype)
    right, last = exact(theirs, (x, None, True))
    with torch.no_grad():
        out, end = adapt(theirs)(x, None, True)
    assert out.dtype == end.dtype == dtype
    # The products and the output are rounded once, and a product is a gate's logarithm: 9 * eps / 2 of the gate.
    for mine, value in ((out, right), (end, last)):
        assert (mine.double() - value).abs().max() <= 6 * torch.finfo(dtype).eps * value.abs().max()


@BOTH
@pytest.mark.parametrize("steps", [1, 3])
def test_no_rows_give_no_rows(package, steps):
    theirs = layer(package, 4, 1.5)
    call = (torch.zeros(0, steps, 4), torch.zeros(0, 1, 6), True)
    with torch.no_grad():
        assert [t.shape for t in adapt(theirs)(*call)] == [t.shape for t in theirs(*call)]


# Subclasses and hooks


class Renamed(minGRU):
    """A subclass that changes nothing of what is computed."""

    def total(self) -> int:
        return sum(p.numel() for p in self.parameters())


class OwnForward(minLSTM):
    def forward(self, x, prev_hidden=None, return_next_prev_hidden=False):
        return super().forward(x * 0.5, prev_hidden, return_next_prev_hidden)


def test_a_subclass_that_computes_the_same_becomes_ours():
    assert type(adapt(Renamed(4))) is MinGRU


def test_a_subclass_with_a_forward_of_its_own_is_refused_by_name():
    with pytest.raises(ExportError, match=r"test_mingru\.OwnForward overrides forward of minLSTM"):
        adapt(OwnForward(4))


def test_a_forward_hook_is_not_lost():
    theirs = minGRU(4)
    theirs.register_forward_hook(lambda module, args, out: out * 2)
    with pytest.raises(ExportError, match="minGRU has a forward hook"):
        adapt(theirs)


# A bare layer as a file


def options_of(theirs: nn.Module) -> dict[str, Any]:
    projected = isinstance(theirs.to_out, nn.Linear)
    return {"cell": OURS[type(theirs)].__name__, "dim": 4, "inner": inner(theirs), "to_out": projected}


def assert_says_the_family(path: Path, metadata: dict[str, Any], theirs: nn.Module) -> None:
    assert metadata["layers"] == [{"path": "", "family": "mingru", "options": options_of(theirs)}]
    found = inspect(path)
    assert found["families"] == ["mingru"]
    assert found["recurrences"] == {"LinearRecurrence": 1}
    assert found["metadata"]["layers"] == metadata["layers"]


@pytest.fixture
def path(tmp_path) -> Path:
    return tmp_path / "m.onnx"


def ports(path: Path) -> tuple[dict[str, list], dict[str, list]]:
    graph = onnx.load(path).graph
    return tuple(
        {p.name: [d.dim_param or d.dim_value for d in p.type.tensor_type.shape.dim] for p in side}
        for side in (graph.input, graph.output)
    )


def judge(found: list[list[np.ndarray]]) -> None:
    """Engine, package and exact values of one output over all runs together."""
    errors = compare(*(np.concatenate([run[i].ravel() for run in found]) for i in range(3)), "float32")
    assert errors.passed, errors


@pytest.mark.parametrize(
    ("package", "options"),
    [(minGRU, {"expansion_factor": 2.0, "proj_out": False}), (minLSTM, {"expansion_factor": 1.5})],
)
def test_a_bare_layer_has_dynamic_rows_and_steps(path, package, options):
    theirs = layer(package, 4, **options)
    exported = sruexport.export(theirs, None, path)
    onnx.checker.check_model(onnx.load(path), full_check=True)
    assert_says_the_family(path, exported.metadata, theirs)
    width = 8 if options.get("proj_out") is False else 4
    assert ports(path) == ({"x": ["B", "T", 4]}, {"out": ["B", "T", width]})
    assert exported.metadata["dynamic"] == {"x": {"0": "B", "1": "T"}}
    assert exported.metadata["time"] == "T"
    assert exported.metadata["recurrences"] == ["LinearRecurrence"]
    run, found = sruexport.load(path), []
    for batch, steps in ((2, 4), (1, 1), (3, 1), (1, 2), (4, 9)):
        x = torch.randn(batch, steps, 4)
        with torch.no_grad():
            found.append([run(x.numpy())[0], theirs(x).numpy(), exact(theirs, (x,))[0].numpy()])
    judge(found)
    report = sruexport.validate(theirs, path)
    assert report.passed, report


@pytest.mark.parametrize(("package", "example"), [(minLSTM, 1), (minLSTM, 5), (minGRU, 5)])
def test_a_given_state_is_treated_by_the_length_at_run_time_not_by_the_example_s(path, package, example):
    """The trap of minLSTM, in the file: g is put on the state from two steps up."""
    theirs = layer(package, 4, 1.5)
    arguments = {
        "x": torch.randn(2, example, 4),
        "prev_hidden": hidden_state(theirs, 2),
        "return_next_prev_hidden": True,
    }
    sruexport.export(theirs, arguments, path, dynamic={**ROWS, "prev_hidden": {0: "B"}})
    assert ports(path) == (
        {"x": ["B", "T", 4], "prev_hidden": ["B", 1, 6]},
        {"out": ["B", "T", 4], "next_prev_hidden": ["B", 1, 6]},
    )
    run = sruexport.load(path)
    for batch, steps in ((2, 1), (2, 2), (1, 1), (3, 5)):
        call = (torch.randn(batch, steps, 4), hidden_state(theirs, batch), True)
        with torch.no_grad():
            package_numbers = theirs(*call)
        got = run(call[0].numpy(), call[1].numpy())
        for engine, pytorch, value in zip(got, package_numbers, exact(theirs, call), strict=True):
            errors = compare(engine, pytorch.numpy(), value.numpy(), "float32")
            assert errors.passed, (steps, errors)


@pytest.mark.parametrize(("package", "options"), [(minGRU, {}), (minLSTM, {"expansion_factor": 1.5})])
def test_chunks_of_every_size_are_the_whole(path, package, options):
    theirs = layer(package, 4, **options)
    exported = sruexport.export(theirs, None, path, stateful=True)
    size = inner(theirs)
    assert ports(path) == (
        {"x": ["B", "T", 4], "state_0": ["B", size]},
        {"out": ["B", "T", 4], "new_state_0": ["B", size]},
    )
    assert len(exported.metadata["states"]) == 1
    model, x = sruexport.load(path), torch.randn(2, 7, 4)
    with torch.no_grad():
        package_numbers = theirs(x).numpy()
    value = exact(theirs, (x,))[0].numpy()
    for chunk in range(1, 8):
        state: dict[str, np.ndarray] = {}
        parts = []
        for start in range(0, 7, chunk):
            outputs = model.run(x[:, start : start + chunk].numpy(), **state)
            state = {"state_0": outputs["new_state_0"]}
            parts.append(outputs["out"])
        errors = compare(np.concatenate(parts, 1), package_numbers, value, "float32")
        assert errors.passed, (chunk, errors)
    assert sruexport.validate(theirs, path).passed


def test_float16(path):
    theirs = layer(minLSTM, 4, 1.5)
    sruexport.export(theirs, None, path, dtype="float16", stateful=True)
    model = sruexport.load(path)
    assert {port.name: port.dtype for port in model.inputs} == {"x": np.float16, "state_0": np.float32}
    rounded, x = copy.deepcopy(theirs).half(), torch.randn(2, 6, 4).half()
    with torch.no_grad():
        pytorch = adapt(rounded)(x)
    out = model.run(x.numpy())["out"]
    assert out.dtype == np.float16
    assert compare(out, pytorch.numpy(), exact(rounded, (x,))[0].numpy(), "float16").passed
    assert sruexport.validate(theirs, path).passed


# Checkpoints


def state_of(package: type[nn.Module], prefix: str = "", **options: Any) -> tuple[nn.Module, dict[str, Tensor]]:
    theirs = layer(package, 4, **options)
    return theirs, {f"{prefix}{name}": tensor for name, tensor in theirs.state_dict().items()}


def assert_read(read: nn.Module, theirs: nn.Module) -> None:
    assert type(read) is OURS[type(theirs)]
    assert shapes(read) == shapes(theirs)
    assert_same_numbers(read, theirs, (torch.randn(2, 5, 4), None, True))


@BOTH
@pytest.mark.parametrize("options", [{}, {"expansion_factor": 1.5}, {"expansion_factor": 2.0, "proj_out": False}])
def test_a_state_dict_tells_everything(tmp_path, package, options):
    theirs, state = state_of(package, **options)
    torch.save(state, tmp_path / "c.pt")
    assert_read(sruexport.read(tmp_path / "c.pt"), theirs)


@BOTH
def test_a_nested_state_dict_with_a_prefix(tmp_path, package):
    theirs, state = state_of(package, "encoder.rnns.0.", expansion_factor=1.5)
    _, other = state_of(package, "encoder.rnns.1.", expansion_factor=1.5)
    torch.save({"epoch": 3, "model_state": state | {"head.weight": torch.zeros(2, 4)}}, tmp_path / "one.pt")
    torch.save({"model_state": state | other}, tmp_path / "two.pt")
    for name in ("one.pt", "two.pt"):
        assert_read(sruexport.read(tmp_path / name, prefix="model_state.encoder.rnns.0"), theirs)
    with pytest.raises(CheckpointError, match=r"holds more than the recurrent layer .*head\.weight"):
        sruexport.read(tmp_path / "one.pt")
    with pytest.raises(CheckpointError, match="holds 2 recurrent layers"):
        sruexport.read(tmp_path / "two.pt")


@BOTH
def test_safetensors(tmp_path, package):
    theirs, state = state_of(package, "rnn.", expansion_factor=1.5)
    save_file(state, tmp_path / "c.safetensors")
    assert_read(sruexport.read(tmp_path / "c.safetensors"), theirs)


def test_a_pickled_layer_is_read_without_the_package(tmp_path):
    """In a process of its own, where the package cannot be imported."""
    x = torch.randn(2, 5, 4)
    for package in OURS:
        theirs = layer(package, 4, 1.5)
        torch.save(theirs, tmp_path / f"{package.__name__}.pt")
        with torch.no_grad():
            torch.save({"x": x, "out": theirs(x)}, tmp_path / f"{package.__name__}-numbers.pt")
    code = """
import sys
sys.modules["minGRU_pytorch"] = None
import torch, sruexport
for name in ("minGRU", "minLSTM"):
    numbers = torch.load(name + "-numbers.pt")
    module = sruexport.read(name + ".pt")
    assert type(module).__module__ == "sruexport.layers.mingru", type(module)
    with torch.no_grad():
        torch.testing.assert_close(module(numbers["x"]), numbers["out"])
assert not [name for name in sys.modules if name.startswith("minGRU_pytorch.")]
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"bias": torch.zeros(4)}, r"key bias is none of a MinGRU's \(to_hidden_and_gate\.weight, to_out\.weight\)"),
        ({"to_hidden_and_f_i_gate.weight": torch.zeros(9, 3)}, "key to_hidden_and_f_i_gate.weight is none of a MinGRU"),
        ({"to_hidden_and_gate.weight": torch.zeros(7, 4)}, r"to_hidden_and_gate\.weight has shape \[7, 4\].* 2 rows"),
        ({"to_hidden_and_gate.weight": torch.zeros(12)}, r"to_hidden_and_gate\.weight has shape \[12\]"),
        ({"to_out.weight": torch.zeros(4, 5)}, r"key to_out\.weight has shape \[4, 5\], expected \[4, 6\]"),
        ({"to_out.weight": torch.zeros(4)}, r"key to_out\.weight has shape \[4\], expected \[4, 6\]"),
    ],
)
def test_keys_and_shapes_that_do_not_fit_are_named(changes, message):
    state = minGRU(4, 1.5).state_dict()
    with pytest.raises(CheckpointError, match=message):
        FAMILY.read({**state, **changes}, {})


def test_a_wrong_number_of_rows_of_minlstm_is_named(tmp_path):
    torch.save({"to_hidden_and_f_i_gate.weight": torch.zeros(8, 4)}, tmp_path / "c.pt")
    with pytest.raises(CheckpointError, match=r"c\.pt: key to_hidden_and_f_i_gate\.weight has shape \[8, 4\].* 3 rows"):
        sruexport.read(tmp_path / "c.pt")


def test_gates_that_are_missing_are_named(tmp_path):
    with pytest.raises(CheckpointError, match=r"to_hidden_and_gate\.weight or to_hidden_and_f_i_gate\.weight is miss"):
        FAMILY.read({"to_out.weight": torch.zeros(4, 6)}, {})
    torch.save({"layer.to_out.weight": torch.zeros(4, 6)}, tmp_path / "c.pt")
    with pytest.raises(CheckpointError, match=r"of no known family .*the nearest is \w+"):
        sruexport.read(tmp_path / "c.pt")


def test_only_whole_names_are_a_layer_s():
    names = ["to_hidden_and_gate.weight", "a.to_hidden_and_f_i_gate.weight", "into_hidden_and_gate.weight"]
    assert FAMILY.prefixes(names) == ["", "a."]
    assert FAMILY.prefixes(FAMILY.keys) == [""], "once, though the keys of both are there"


def test_no_options_are_asked_for_and_none_are_taken(tmp_path):
    assert FAMILY.options == ()
    _, state = state_of(minGRU, expansion_factor=1.5)
    torch.save({"state_dict": state, "kwargs": {"dim": 4, "expansion_factor": 1.5}}, tmp_path / "c.pt")
    sruexport.read(tmp_path / "c.pt")
    assert inspect(tmp_path / "c.pt")["layers"][0]["needs"] == []
    with pytest.raises(OptionError, match="family mingru has no option 'dim'"):
        sruexport.read(tmp_path / "c.pt", options={"dim": 4})


# Whole models


class Tagger(nn.Module):
    """Layers of the package in a list, each after a LayerNorm and with a skip around it."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Linear(5, 4)
        self.norms = nn.ModuleList(nn.LayerNorm(4) for _ in range(3))
        self.layers = nn.ModuleList([minGRU(4), minLSTM(4, 1.5), minGRU(4, 0.5)])
        self.head = nn.Linear(4, 3)

    def forward(self, x):
        h = self.embedding(x)
        for norm, recurrent in zip(self.norms, self.layers):
            h = h + recurrent(norm(h))
        return {"scores": self.head(h)}


def assert_whole_model(path: Path, model: nn.Module, inputs: Callable[[int, int], Tensor], **options: Any) -> dict:
    """Export it with the package's layers in it; the file beside the model as it is, and by the parity check."""
    exported = sruexport.export(model, (inputs(2, 5),), path, dynamic=ROWS, **options)
    onnx.checker.check_model(onnx.load(path), full_check=True)
    run, found = sruexport.load(path), []
    for batch, steps in ((3, 4), (1, 1), (2, 9)):
        x = inputs(batch, steps)
        with torch.no_grad():
            pytorch = model(x)
        with borrowed(model, dtype=torch.float64) as ours:
            value = ours(*double((x,)))
        tensors = [next(iter(t.values())) if isinstance(t, dict) else t for t in (pytorch, value)]
        found.append([run(x.numpy())[0], *(tensor.numpy() for tensor in tensors)])
    judge(found)
    report = sruexport.validate(model, path)
    assert report.passed, report
    return exported.metadata


def test_layers_in_a_list_between_norms_and_linear(path):
    torch.manual_seed(0)
    model = Tagger().eval()
    metadata = assert_whole_model(path, model, lambda b, t: torch.randn(b, t, 5), stateful=True)
    assert [type(recurrent) for recurrent in model.layers] == [minGRU, minLSTM, minGRU], "the model is left alone"
    assert [state["shape"] for state in metadata["states"]] == [["B", 4], ["B", 6], ["B", 2]]


@pytest.mark.parametrize(("package", "enable_conv", "depth"), [(minGRU, False, 2), (minLSTM, True, 1)])
def test_the_language_model_of_the_package(path, package, enable_conv, depth):
    torch.manual_seed(0)
    model = minLM(num_tokens=11, dim=8, depth=depth, use_lstm=package is minLSTM, enable_conv=enable_conv).eval()
    metadata = assert_whole_model(path, model, lambda b, t: torch.arange(b * t).reshape(b, t) % 11)
    assert ports(path)[0] == {"x": ["B", "T"]}
    assert ports(path)[1].popitem()[1] == ["B", "T", 11]
    assert [entry["family"] for entry in metadata["layers"]] == ["mingru"] * depth
    assert [node.op_type for node in onnx.load(path).graph.node].count("LinearRecurrence") == depth


# What is said of it


def test_the_family_is_in_the_table():
    assert FAMILIES["mingru"] is FAMILY


@BOTH
def test_inspect_says_the_family_of_a_checkpoint(tmp_path, package):
    theirs, state = state_of(package, "rnn.", expansion_factor=1.5)
    torch.save(state, tmp_path / "c.pt")
    found = inspect(tmp_path / "c.pt")
    assert found["families"] == ["mingru"]
    (entry,) = found["layers"]
    assert (entry["family"], entry["prefix"], entry["options"]) == ("mingru", "rnn.", options_of(theirs))
