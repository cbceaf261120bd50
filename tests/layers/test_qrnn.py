"""QRNN in the layouts of salesforce and fastai, against the equations written out in float64.

The packages do not install with current PyTorch, so the expected values come from `expected` below, which shares
nothing with the product. Each trap of the two layouts is a test of its own.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import sruexport
from sruexport.errors import CheckpointError, ExportError, OptionsNeeded
from sruexport.layers import adapt, family_of
from sruexport.layers.qrnn import QRNN, FastaiQRNN, FastaiQRNNLayer, QRNNLayer
from sruexport.parity.measure import FACTOR, floor

_quick = settings(max_examples=60, derandomize=True, deadline=None, database=None)


def _sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


def expected_layer(
    x: np.ndarray,
    weight: np.ndarray,
    bias: np.ndarray,
    c: np.ndarray,
    *,
    window: int = 1,
    output_gate: bool = True,
    keep: float = 1.0,
    backward: bool = False,
    previous: np.ndarray | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """One layer, scalar time loop: x [T, B, I] to h [T, B, H] and the last c [B, H].

    Args:
        keep: what the forget gate is multiplied with: 1 - zoneout for salesforce.
        previous: the input before the first step that is run, [B, I]; zeros if left out.
    """
    hidden = c.shape[1]
    h = np.zeros((*x.shape[:2], hidden))
    before = np.zeros(x.shape[1:]) if previous is None else previous
    for t in reversed(range(len(x))) if backward else range(len(x)):
        source = x[t] if window == 1 else np.concatenate([x[t], before], axis=1)
        y = source @ weight.T + bias
        z, f = np.tanh(y[:, :hidden]), keep * _sigmoid(y[:, hidden : 2 * hidden])
        c = f * z + (1 - f) * c
        h[t] = _sigmoid(y[:, 2 * hidden :]) * c if output_gate else c
        before = x[t]
    return h, c


def expected(module: Any, x: np.ndarray, states: np.ndarray, keep: float) -> tuple[np.ndarray, np.ndarray]:
    """A whole stack on x [T, B, I] with initial states [layers * directions, B, H]."""
    stacks = [module.layers] + ([module.layers_bwd] if module.layers_bwd is not None else [])
    ends, last = [x for _ in stacks], []
    for i in range(module.num_layers):
        for j, stack in enumerate(stacks):
            layer = stack[i]
            ends[j], c = expected_layer(
                ends[j],
                layer.linear.weight.detach().double().numpy(),
                layer.linear.bias.detach().double().numpy(),
                states[len(stacks) * i + j],
                window=layer.window,
                output_gate=layer.output_gate,
                keep=keep,
                backward=j == 1,
            )
            last.append(c)
    return np.concatenate(ends, axis=-1), np.stack(last)


def _near(ours: torch.Tensor | np.ndarray, exact: np.ndarray) -> None:
    """Within rounding of float64: the float32 floor scaled to float64, times the factor of the rule."""
    bound = FACTOR * floor("float64") * max(1.0, float(np.abs(exact).max(initial=0.0)))
    np.testing.assert_allclose(np.asarray(ours), exact, rtol=0, atol=bound)


@_quick
@given(
    fastai=st.booleans(),
    window=st.sampled_from([1, 2]),
    output_gate=st.booleans(),
    zoneout=st.sampled_from([0.0, 0.25]),
    layers=st.integers(1, 3),
    bidirectional=st.booleans(),
    given_state=st.booleans(),
    length=st.integers(1, 6),
    batch=st.integers(1, 3),
)
def test_a_stack_computes_the_equations(
    fastai: bool,
    window: int,
    output_gate: bool,
    zoneout: float,
    layers: int,
    bidirectional: bool,
    given_state: bool,
    length: int,
    batch: int,
) -> None:
    torch.manual_seed(0)
    options = {"window": window, "output_gate": output_gate, "zoneout": zoneout}
    if fastai:
        module: QRNN = FastaiQRNN(4, 3, layers, batch_first=False, bidirectional=bidirectional, **options)
    else:
        module = QRNN(4, 3, layers, **options)
    module.double().eval()
    directions = 2 if module.layers_bwd is not None else 1
    x = torch.randn(length, batch, 4, dtype=torch.float64)
    states = torch.randn(layers * directions, batch, 3, dtype=torch.float64)
    start = states.numpy() if given_state else np.zeros(states.shape)
    with torch.no_grad():
        h, c = module(x, states if given_state else None)
    exact = expected(module, x.numpy(), start, 1.0 if fastai else 1 - zoneout)
    # The recurrence keeps its state in float64 for float64 tensors, so that nothing is rounded on the way.
    _near(h, exact[0])
    _near(c, exact[1])


def test_zoneout_scales_the_forget_gate_in_salesforces_layout_only() -> None:
    torch.manual_seed(0)
    salesforce, plain = QRNNLayer(3, 2, zoneout=0.5), QRNNLayer(3, 2)
    fastai = FastaiQRNNLayer(3, 2, zoneout=0.5)
    for other in (plain, fastai):
        other.load_state_dict(salesforce.state_dict())
    x = torch.randn(5, 1, 3)
    with torch.no_grad():
        assert not torch.allclose(salesforce(x)[0], plain(x)[0])
        assert torch.equal(fastai(x)[0], plain(x)[0])


def test_the_forget_gate_multiplies_the_new_value() -> None:
    layer = QRNNLayer(1, 1, output_gate=False)
    layer.linear.weight.data[:] = torch.tensor([[1.0], [0.0]])
    layer.linear.bias.data[:] = torch.tensor([0.0, 50.0])  # F = 1: all new, nothing kept
    with torch.no_grad():
        h, _ = layer(torch.tensor([[[0.5]], [[-0.25]]]), torch.tensor([[9.0]]))
    assert torch.allclose(h.flatten(), torch.tanh(torch.tensor([0.5, -0.25])))


def test_window_2_sees_this_step_first_and_the_one_before_second() -> None:
    layer = QRNNLayer(1, 1, window=2, output_gate=False)
    layer.linear.weight.data[:] = torch.tensor([[0.0, 1.0], [0.0, 0.0]])  # the candidate is the step before alone
    layer.linear.bias.data[:] = torch.tensor([0.0, 50.0])
    with torch.no_grad():
        h, _ = layer(torch.tensor([[[0.5]], [[-0.25]], [[1.0]]]))
    assert torch.allclose(h.flatten(), torch.tanh(torch.tensor([0.0, 0.5, -0.25])))


def test_fastais_backward_layer_sees_the_step_after() -> None:
    layer = FastaiQRNNLayer(1, 1, window=2, output_gate=False, backward=True)
    layer.linear.weight.data[:] = torch.tensor([[0.0, 1.0], [0.0, 0.0]])
    layer.linear.bias.data[:] = torch.tensor([0.0, 50.0])
    with torch.no_grad():
        h, last = layer(torch.tensor([[[0.5]], [[-0.25]], [[1.0]]]))
    assert torch.allclose(h.flatten(), torch.tanh(torch.tensor([-0.25, 1.0, 0.0])))
    assert torch.equal(last, h[0])


def test_a_layer_of_salesforce_gives_its_state_with_a_leading_axis_and_fastais_without() -> None:
    assert QRNNLayer(3, 2)(torch.zeros(4, 5, 3))[1].shape == (1, 5, 2)
    assert FastaiQRNNLayer(3, 2)(torch.zeros(4, 5, 3))[1].shape == (5, 2)


def test_fastais_window_is_2_in_the_first_layer_and_1_above() -> None:
    assert [layer.window for layer in FastaiQRNN(3, 2, 3).layers] == [2, 1, 1]


def test_fastai_puts_the_batch_first() -> None:
    torch.manual_seed(0)
    batch, time = FastaiQRNN(3, 2, 2), FastaiQRNN(3, 2, 2, batch_first=False)
    time.load_state_dict(batch.state_dict())
    x = torch.randn(4, 5, 3)
    with torch.no_grad():
        (first, c), (second, d) = batch(x.transpose(0, 1)), time(x)
    assert torch.equal(first.transpose(0, 1), second)
    assert torch.equal(c, d)


# Export


@pytest.mark.parametrize(
    "module",
    [
        QRNN(5, 4, 2, window=2, zoneout=0.2),
        QRNN(5, 4, 1, output_gate=False),
        FastaiQRNN(5, 4, 2),
        FastaiQRNN(5, 4, 2, window=2, bidirectional=True),
        QRNNLayer(5, 4, window=2),
    ],
    ids=["salesforce", "no-gate", "fastai", "bidirectional", "layer"],
)
def test_the_file_equals_pytorch_and_has_only_linear_recurrences(module: nn.Module, tmp_path: Path) -> None:
    done = sruexport.export(module, None, tmp_path / "q.onnx")
    assert done.metadata["recurrences"] == ["LinearRecurrence"]
    assert [layer["family"] for layer in done.metadata["layers"]] == ["qrnn"]
    report = sruexport.validate(module, tmp_path / "q.onnx")
    assert report.passed, report.to_dict()


@pytest.mark.parametrize("cls", [QRNN, FastaiQRNN])
def test_chunks_of_every_size_equal_the_whole_with_window_2(cls: type[QRNN], tmp_path: Path) -> None:
    torch.manual_seed(0)
    module = cls(3, 4, 2, window=2, batch_first=cls is FastaiQRNN)
    sruexport.export(module, None, tmp_path / "q.onnx", stateful=True)
    file = sruexport.load(tmp_path / "q.onnx")
    # Two states a layer: the recurrence's and the last input.
    assert [s["layer"] for s in file.metadata["states"]].count("layers.0.previous") == 1
    assert len(file.metadata["states"]) == 4
    time = 1 if cls is FastaiQRNN else 0
    x = np.random.default_rng(0).standard_normal((6, 6, 3)).astype(np.float32)
    whole = file.run(x)
    for size in range(1, 7):
        states: dict[str, np.ndarray] = {}
        parts = []
        for start in range(0, 6, size):
            chunk = np.take(x, range(start, min(start + size, 6)), time)
            outputs = file.run(chunk, **states)
            states = {s["input"]: outputs[s["output"]] for s in file.metadata["states"]}
            parts.append(outputs["h"])
        bound = FACTOR * floor("float32") * np.abs(whole["h"]).max()
        np.testing.assert_allclose(np.concatenate(parts, time), whole["h"], rtol=0, atol=bound)
    assert sruexport.validate(module, tmp_path / "q.onnx").passed


def test_a_backward_stack_cannot_be_streamed(tmp_path: Path) -> None:
    with pytest.raises(ExportError, match="it runs backward"):
        sruexport.export(FastaiQRNN(3, 4, 1, bidirectional=True), None, tmp_path / "q.onnx", stateful=True)


class _Model(nn.Module):
    """A language model with QRNN inside, as fastai's are."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(20, 6)
        self.rnn = FastaiQRNN(6, 6, 2)
        self.decoder = nn.Linear(6, 20)
        self.decoder.weight = self.embedding.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.decoder(self.rnn(self.embedding(tokens))[0])


def test_a_model_with_qrnn_inside(tmp_path: Path) -> None:
    model = _Model()
    tokens = torch.arange(10).reshape(2, 5)
    sruexport.export(model, (tokens,), tmp_path / "lm.onnx", dynamic={"tokens": {0: "B", 1: "T"}})
    assert sruexport.validate(model, tmp_path / "lm.onnx").passed


# Third-party objects, as far as they can be imitated: the attributes that the packages' own classes have


def _imitation(module: str, name: str) -> type[nn.Module]:
    return type(name, (nn.Module,), {"__module__": module, "__qualname__": name})


class _WeightDrop(nn.Module):
    """As the wrappers of fastai (raw weight in the wrapper) and of awd-lstm-lm (in the module inside) leave it."""

    def __init__(self, linear: nn.Linear, outside: bool):
        super().__init__()
        self.module = linear
        raw = nn.Parameter(linear.weight.detach().clone())
        (self if outside else linear).register_parameter("weight_raw", raw)
        linear.weight = nn.Parameter(torch.full_like(raw, 7.0))  # what dropout left of it last; not what counts
        if not outside:
            del linear.weight


def _imitate(ours: QRNN, package: str, drop: str = "") -> nn.Module:
    stack = _imitation(package, "QRNN")()
    stacks = [("layers", ours.layers)] + ([("layers_bwd", ours.layers_bwd)] if ours.layers_bwd is not None else [])
    for name, layers in stacks:
        made = nn.ModuleList()
        for layer in layers:
            theirs = _imitation(package, "QRNNLayer")()
            theirs.linear = nn.Linear(layer.linear.in_features, layer.linear.out_features)
            theirs.linear.load_state_dict(layer.linear.state_dict())
            if drop:
                theirs.linear = _WeightDrop(theirs.linear, drop == "outside")
            for attribute in ("window", "zoneout", "output_gate", "batch_first", "backward"):
                setattr(theirs, attribute, getattr(layer, attribute))
            theirs.prevX = None
            made.append(theirs)
        setattr(stack, name, made)
    return stack


@pytest.mark.parametrize("drop", ["", "outside", "inside"])
@pytest.mark.parametrize(
    ("ours", "package"),
    [
        (QRNN(4, 3, 2, window=2, zoneout=0.3), "torchqrnn.qrnn"),
        (FastaiQRNN(4, 3, 2, bidirectional=True, zoneout=0.3), "fastai.text.models.qrnn"),
    ],
    ids=["salesforce", "fastai"],
)
def test_third_party_stacks_are_replaced_with_their_own_parameters(ours: QRNN, package: str, drop: str) -> None:
    theirs = _imitate(ours, package, drop)
    adapted = adapt(theirs)
    assert type(adapted) is type(ours)
    assert family_of(adapted).name == "qrnn"
    x = torch.randn(3, 3, 4)
    with torch.no_grad():
        for one, other in zip(adapted(x), ours(x), strict=True):
            assert torch.equal(one, other)
    assert {id(p) for p in adapted.parameters()} <= {id(p) for p in theirs.parameters()}


def test_a_subclass_with_an_equation_of_its_own_is_refused_not_replaced() -> None:
    stack = _imitate(QRNN(4, 3, 2), "torchqrnn.qrnn")
    layer = stack.layers[1]
    layer.__class__ = type("Mine", (type(layer),), {"forward": lambda self, x, hidden=None: x})
    with pytest.raises(ExportError, match="Mine overrides forward of QRNNLayer"):
        adapt(stack)
    stack.layers[1] = nn.Linear(3, 3)
    with pytest.raises(ExportError, match=r"Linear, whose equation is not known"):
        adapt(stack)


def test_a_layer_that_holds_an_earlier_input_is_refused() -> None:
    theirs = _imitate(QRNN(4, 3, 1, window=2), "torchqrnn.qrnn")
    theirs.layers[0].prevX = torch.zeros(1, 1, 4)
    with pytest.raises(ExportError, match=r"reset\(\)"):
        adapt(theirs)


# Checkpoints


def _save(tensors: dict[str, torch.Tensor], tmp_path: Path, prefix: str = "") -> Path:
    file = tmp_path / "model.pt"
    torch.save({"state_dict": {f"{prefix}{name}": tensor for name, tensor in tensors.items()}}, file)
    return file


def _same(module: nn.Module, ours: QRNN) -> None:
    x = torch.randn(3, 3, ours.input_size)
    with torch.no_grad():
        for one, other in zip(module(x), ours(x), strict=True):
            assert torch.equal(one, other)


def test_salesforces_state_dict(tmp_path: Path) -> None:
    ours = QRNN(4, 3, 2, window=2, zoneout=0.3)
    file = _save(ours.state_dict(), tmp_path, "encoder.")
    options = {"fastai": False, "window": 2, "zoneout": 0.3}
    _same(sruexport.read(file, options=options), ours)
    with pytest.raises(OptionsNeeded) as asked:
        sruexport.read(file)
    assert asked.value.options == ["fastai", "window", "batch_first", "zoneout"]
    with pytest.raises(OptionsNeeded) as asked:
        sruexport.read(file, options={"fastai": False})
    assert asked.value.options == ["zoneout"]  # the second layer tells the window


def test_fastais_weight_raw_is_what_counts(tmp_path: Path) -> None:
    ours = FastaiQRNN(4, 3, 2)
    tensors = {}
    for i, layer in enumerate(ours.layers):
        tensors[f"layers.{i}.linear.weight_raw"] = layer.linear.weight.detach()
        tensors[f"layers.{i}.linear.module.weight"] = torch.full_like(layer.linear.weight, 7.0)
        tensors[f"layers.{i}.linear.module.bias"] = layer.linear.bias.detach()
    file = _save(tensors, tmp_path)
    _same(sruexport.read(file, options={"window": 2, "batch_first": True}), ours)
    with pytest.raises(OptionsNeeded) as asked:
        sruexport.read(file)
    assert asked.value.options == ["window", "batch_first"]


def test_a_backward_stack_tells_fastai(tmp_path: Path) -> None:
    ours = FastaiQRNN(4, 3, 2, bidirectional=True)
    _same(sruexport.read(_save(ours.state_dict(), tmp_path), options={"window": 2, "batch_first": True}), ours)


def test_sizes_that_fit_with_and_without_an_output_gate_are_asked_for(tmp_path: Path) -> None:
    with pytest.raises(OptionsNeeded) as asked:
        sruexport.read(_save(QRNN(6, 4, 1).state_dict(), tmp_path), options={"fastai": False})
    assert asked.value.options == ["output_gate", "window", "zoneout"]


def test_constructor_arguments_beside_the_tensors_tell_everything(tmp_path: Path) -> None:
    ours = FastaiQRNN(4, 3, 2, zoneout=0.5)
    file = tmp_path / "model.pt"
    torch.save({"model": ours.state_dict(), "kwargs": {"input_size": 4, "hidden_size": 3, "n_layers": 2}}, file)
    _same(sruexport.read(file), ours)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"layers.0.linear.bias": None}, "layers.0.linear.bias is missing"),
        ({"layers.1.linear.weight": torch.zeros(9, 5)}, "no QRNN is like that"),
        ({"layers.1.linear.bias": torch.zeros(8)}, "layers.1.linear.weight has shape"),
    ],
)
def test_tensors_that_do_not_fit_are_named(change: dict[str, Any], message: str, tmp_path: Path) -> None:
    tensors = QRNN(4, 3, 2).state_dict() | change
    file = _save({name: tensor for name, tensor in tensors.items() if tensor is not None}, tmp_path)
    with pytest.raises(CheckpointError, match=message):
        sruexport.read(file, options={"fastai": False, "window": 1, "zoneout": 0.0, "output_gate": True})
