"""Reading a checkpoint: every container and layout gives the same layer, and only what is not told is asked for."""

from __future__ import annotations

import argparse
import itertools
import json
import subprocess
import sys
import types
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from sruexport.checkpoint import find_layers, open_checkpoint, read
from sruexport.errors import CheckpointError, ExportError, OptionError, OptionsNeeded
from sruexport.layers import SRU, SRUCell

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import sru

pytestmark = pytest.mark.filterwarnings("ignore")

KWARGS: dict[str, Any] = {"input_size": 3, "hidden_size": 2, "num_layers": 2, "bidirectional": True, "use_tanh": True}
OPTIONS = {"bidirectional": True, "use_tanh": True}
X = torch.linspace(-1, 1, 5 * 2 * 3).reshape(5, 2, 3)


def trained(module: nn.Module) -> Any:
    """The module with every parameter random, as training leaves it."""
    generator = torch.Generator().manual_seed(7)
    for parameter in module.parameters():
        if parameter.requires_grad:
            parameter.data = torch.randn(parameter.shape, generator=generator) * 0.7
    return module.eval()


@pytest.fixture
def layer() -> SRU:
    return trained(SRU(**KWARGS))


def assert_same(mine: nn.Module, source: nn.Module, x: Tensor = X) -> None:
    with torch.no_grad():
        for got, expected in zip(mine(x), source(x), strict=True):
            assert torch.equal(got, expected)


def prefixed(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {f"{prefix}{name}": tensor for name, tensor in tensors.items()}


# Containers


@pytest.mark.parametrize("suffix", [".pt", ".pth", ".ckpt", ".bin", ".anything"])
@pytest.mark.parametrize("zipped", [True, False])
def test_a_state_dict_is_read_whatever_its_suffix_and_serialization(layer, tmp_path, suffix, zipped):
    file = tmp_path / f"weights{suffix}"
    torch.save(layer.state_dict(), file, _use_new_zipfile_serialization=zipped)
    assert open_checkpoint(file).format == "torch"
    assert_same(read(file, options=OPTIONS), layer)
    assert_same(read(str(file), options=OPTIONS), layer)


@pytest.mark.parametrize("table", [None, "state_dict", "model", "model_state", "deeply.model"])
@pytest.mark.parametrize("prefix", ["", "module.", "encoder.rnn."])
def test_a_state_dict_is_found_however_deep_and_under_any_prefix(layer, tmp_path, table, prefix):
    content: Any = prefixed(layer.state_dict(), prefix)
    for key in reversed(table.split(".") if table else []):
        content = {key: content, "epoch": 3, "optimizer": {"state": {}, "param_groups": [{"lr": 0.1}]}}
    torch.save(content, tmp_path / "c.pt")
    full = f"{table}.{prefix}" if table else prefix
    assert [found.prefix for found in find_layers(open_checkpoint(tmp_path / "c.pt"))] == [full]
    for chosen in (None, full, full.rstrip(".")):
        assert_same(read(tmp_path / "c.pt", prefix=chosen, options=OPTIONS), layer)


@pytest.mark.parametrize("key", ["sru_kwargs", "config", "hparams"])
def test_constructor_arguments_beside_the_tensors_leave_nothing_to_ask(layer, tmp_path, key):
    torch.save({"state_dict": layer.state_dict(), key: KWARGS}, tmp_path / "c.pt")
    assert_same(read(tmp_path / "c.pt"), layer)


def test_constructor_arguments_alone_in_a_dict_are_all_and_what_is_left_out_has_its_default(tmp_path):
    source = trained(SRU(3, 3, layer_norm=True))
    kwargs = {"input_size": 3, "hidden_size": 3, "layer_norm": True}
    torch.save({"state_dict": source.state_dict(), "kwargs": kwargs}, tmp_path / "c.pt")
    assert_same(read(tmp_path / "c.pt"), source)


def test_constructor_arguments_among_others_tell_only_what_they_say(layer, tmp_path):
    config = {"input_size": 3, "hidden_size": 2, "bidirectional": True, "learning_rate": 0.1, "name": "run 3"}
    torch.save({"state_dict": layer.state_dict(), "config": config}, tmp_path / "c.pt")
    with pytest.raises(OptionsNeeded) as caught:
        read(tmp_path / "c.pt")
    assert caught.value.options == ["use_tanh"]
    assert_same(read(tmp_path / "c.pt", options={"use_tanh": True}), layer)


def test_constructor_arguments_in_an_argparse_namespace(layer, tmp_path):
    arguments = argparse.Namespace(input_size=3, hidden_size=2, bidirectional=True, use_tanh=1, gpus=[0, 1])
    torch.save({"state_dict": layer.state_dict(), "args": arguments}, tmp_path / "c.pt")
    assert_same(read(tmp_path / "c.pt"), layer)


def test_a_given_option_goes_before_what_the_file_says(tmp_path):
    source = trained(SRU(3, 3, use_tanh=True))
    kwargs = {"input_size": 3, "hidden_size": 3, "use_tanh": False}
    torch.save({"model": source.state_dict(), "kwargs": kwargs}, tmp_path / "c.pt")
    assert_same(read(tmp_path / "c.pt", options={"use_tanh": True}), source)


def test_arguments_that_contradict_the_tensors_are_refused_by_name(layer, tmp_path):
    for name, wrong in (("input_size", 4), ("hidden_size", 3), ("bidirectional", False), ("layer_norm", True)):
        torch.save({"state_dict": layer.state_dict(), "kwargs": {**KWARGS, name: wrong}}, tmp_path / "c.pt")
        with pytest.raises(CheckpointError, match=r"contradicts|hidden_size") as caught:
            read(tmp_path / "c.pt")
        assert str(tmp_path / "c.pt") in str(caught.value)


@pytest.mark.parametrize("prefix", ["", "encoder.rnn."])
def test_safetensors_without_metadata(layer, tmp_path, prefix):
    file = tmp_path / "model.safetensors"
    save_file(prefixed(layer.state_dict(), prefix), file)
    assert open_checkpoint(file).format == "safetensors"
    with pytest.raises(OptionsNeeded):
        read(file)
    assert_same(read(file, options=OPTIONS), layer)


@pytest.mark.parametrize(
    "metadata",
    [
        {"format": "pt", "sru_kwargs": json.dumps(KWARGS)},
        {"config": repr(KWARGS)},
        {name: json.dumps(value) for name, value in KWARGS.items()},
        {name: str(value) for name, value in KWARGS.items()},
        {"format": "pt", "by": "someone: {", **{name: str(value) for name, value in KWARGS.items()}},
    ],
    ids=["json", "python", "flat json", "flat python", "flat among others"],
)
def test_safetensors_with_the_arguments_in_its_metadata(layer, tmp_path, metadata):
    file = tmp_path / "renamed.bin"
    save_file(layer.state_dict(), file, metadata)
    assert_same(read(file), layer)


def test_an_option_in_the_metadata_that_says_false_is_false(tmp_path):
    source = trained(SRU(4, 4))
    options = {"input_size": 4, "hidden_size": 4, "bidirectional": False, "use_tanh": False, "has_skip_term": True}
    save_file(source.state_dict(), tmp_path / "m.safetensors", {name: str(value) for name, value in options.items()})
    assert_same(read(tmp_path / "m.safetensors"), source, torch.zeros(2, 1, 4) + 0.5)


@pytest.mark.parametrize("value", ["no idea", 2, [True]])
def test_an_option_of_a_wrong_type_is_refused(layer, tmp_path, value):
    torch.save(layer.state_dict(), tmp_path / "c.pt")
    with pytest.raises(OptionError, match=r"--option bidirectional=true\|false"):
        read(tmp_path / "c.pt", options={"bidirectional": value, "use_tanh": True})


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_the_tensors_keep_their_dtype(layer, tmp_path, dtype):
    torch.save(layer.to(dtype).state_dict(), tmp_path / "c.pt")
    mine = read(tmp_path / "c.pt", options=OPTIONS)
    assert {tensor.dtype for tensor in mine.state_dict().values()} == {dtype}
    assert_same(mine, layer, X.to(dtype))


def test_a_bare_cell(tmp_path):
    source = trained(SRUCell(3, 4, n_proj=2, layer_norm=True))
    torch.save(source.state_dict(), tmp_path / "c.pt")
    mine = read(tmp_path / "c.pt", options={"bidirectional": False, "use_tanh": False})
    assert type(mine) is SRUCell
    assert_same(mine, source)


def test_one_layer_of_several_by_its_prefix(tmp_path):
    first, second = trained(SRU(3, 3)), trained(SRU(3, 5))
    tensors = prefixed(first.state_dict(), "encoder.") | prefixed(second.state_dict(), "decoder.rnn.")
    torch.save(tensors | {"head.weight": torch.ones(2, 2)}, tmp_path / "c.pt")
    options = {"bidirectional": False, "use_tanh": False}
    assert_same(read(tmp_path / "c.pt", prefix="decoder.rnn", options=options), second)
    assert_same(read(tmp_path / "c.pt", prefix="encoder.", options={**options, "has_skip_term": True}), first)


# Pickled modules


PICKLED = {
    "stack": lambda: sru.SRU(3, 2, bidirectional=True, layer_norm=True, use_tanh=True, nn_rnn_compatible_return=True),
    "cell": lambda: sru.SRUCell(3, 4, n_proj=2, highway_bias=-1.0),
    "projected": lambda: sru.SRU(3, 4, proj_input_to_hidden_first=True, normalize_after=True, layer_norm=True),
    "custom": lambda: sru.SRU(3, 3, num_layers=1, custom_m=[nn.Linear(3, 9)], rescale=True, v1=True),
    "list": lambda: nn.ModuleList([nn.Linear(3, 3), sru.SRU(3, 4)]),
    "sequential": lambda: nn.Sequential(nn.Linear(3, 3), sru.SRUCell(3, 4)),
}


@pytest.mark.parametrize("name", PICKLED)
@pytest.mark.parametrize("zipped", [True, False])
def test_a_pickled_module_of_sru_becomes_ours_with_its_options(tmp_path, name, zipped):
    source = trained(PICKLED[name]())
    torch.save(source, tmp_path / "m.pt", _use_new_zipfile_serialization=zipped)
    mine: Any = read(tmp_path / "m.pt")
    assert open_checkpoint(tmp_path / "m.pt").format == "pickled module"
    assert not any(type(module).__module__.startswith("sru.") for module in mine.modules())
    assert not mine.training
    assert mine.state_dict().keys() == source.state_dict().keys()
    run = (lambda m: m[1](m[0](X))) if isinstance(source, nn.ModuleList) else (lambda m: m(X))
    with torch.no_grad():
        got, expected = run(mine), run(source)
    for engine, theirs in zip(got, expected, strict=True):
        assert torch.allclose(engine, theirs, rtol=1e-5, atol=1e-6)


def test_a_pickled_module_in_a_dict_or_deeper_is_found_by_its_path(tmp_path):
    model = nn.Sequential(nn.Linear(3, 3), trained(sru.SRU(3, 4)))
    torch.save({"model": model, "other": nn.Linear(1, 1), "epoch": 3}, tmp_path / "m.pt")
    assert isinstance(read(tmp_path / "m.pt", prefix="model"), nn.Sequential)
    torch.save(model, tmp_path / "m.pt")
    assert isinstance(read(tmp_path / "m.pt", prefix="1"), SRU)
    with pytest.raises(OptionError, match="no part '7'"):
        read(tmp_path / "m.pt", prefix="7")


def test_several_pickled_modules_need_a_prefix(tmp_path):
    torch.save({"a": sru.SRU(3, 4), "b": sru.SRU(3, 4)}, tmp_path / "m.pt")
    with pytest.raises(CheckpointError, match="holds 2 modules: choose one with --prefix, of a, b"):
        read(tmp_path / "m.pt")


def test_reading_never_imports_sru(tmp_path):
    files = []
    for name, make in PICKLED.items():
        files.append(tmp_path / f"{name}.pt")
        torch.save(trained(make()), files[-1])
    torch.save({"state_dict": trained(sru.SRU(**KWARGS)).state_dict(), "kwargs": KWARGS}, tmp_path / "tensors.pt")
    code = (
        "import sys\n"
        "from sruexport.checkpoint import read\n"
        "for file in sys.argv[1:]:\n"
        "    read(file)\n"
        "found = [name for name in sys.modules if name.partition('.')[0] == 'sru']\n"
        "assert not found, found\n"
    )
    command = [sys.executable, "-c", code, *map(str, files), str(tmp_path / "tensors.pt")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


# What is asked for


@pytest.mark.parametrize("stacked", [True, False])
@pytest.mark.parametrize("bidirectional", [True, False])
@pytest.mark.parametrize("has_skip_term", [True, False])
@pytest.mark.parametrize("normalize_after", [None, True, False])
def test_exactly_the_options_that_no_tensor_tells_are_asked_for(
    tmp_path, stacked, bidirectional, has_skip_term, normalize_after
):
    """bidirectional unless the output size is odd; has_skip_term and the place of LayerNorm unless a size tells."""
    file = tmp_path / "c.pt"
    for same_size, odd, use_tanh, projection in itertools.product([True, False], repeat=4):
        hidden = 3 if odd else 4
        output = hidden * (2 if bidirectional else 1)
        inputs = output if same_size else 5
        options: dict[str, Any] = {
            "bidirectional": bidirectional,
            "use_tanh": use_tanh,
            "has_skip_term": has_skip_term,
            "layer_norm": normalize_after is not None,
            "normalize_after": bool(normalize_after),
            ("projection_size" if stacked else "n_proj"): 2 if projection else 0,
        }
        source = trained((SRU if stacked else SRUCell)(inputs, hidden, **options))
        torch.save(source.state_dict(), file)
        asked = [] if output % 2 else ["bidirectional"]
        asked.append("use_tanh")
        if same_size:
            asked.append("has_skip_term")
            if normalize_after is not None:
                asked.append("normalize_after")
        with pytest.raises(OptionsNeeded) as caught:
            read(file)
        assert caught.value.options == asked
        assert str(caught.value).startswith(f"{file}: ")
        assert all(f"--option {name}=true|false" in str(caught.value) for name in asked)
        mine = read(file, options={name: options[name] for name in asked})
        assert_same(mine, source, torch.linspace(-1, 1, 4 * 2 * inputs).reshape(4, 2, inputs))


def test_a_stack_behind_its_input_projection_is_asked_for_its_skip_term(tmp_path):
    source = trained(SRU(3, 4, proj_input_to_hidden_first=True))
    torch.save(source.state_dict(), tmp_path / "c.pt")
    with pytest.raises(OptionsNeeded) as caught:
        read(tmp_path / "c.pt")
    assert caught.value.options == ["bidirectional", "use_tanh", "has_skip_term"]
    options = {"bidirectional": False, "use_tanh": False, "has_skip_term": True}
    assert_same(read(tmp_path / "c.pt", options=options), source)


def test_given_options_are_not_asked_for_again(layer, tmp_path):
    torch.save(layer.state_dict(), tmp_path / "c.pt")
    with pytest.raises(OptionsNeeded) as caught:
        read(tmp_path / "c.pt", options={"use_tanh": True})
    assert caught.value.options == ["bidirectional"]


@pytest.mark.parametrize(
    ("make", "options"),
    [
        (lambda: SRU(5, 3), {"bidirectional": True}),
        (lambda: SRU(5, 4), {"has_skip_term": False}),
        (lambda: SRU(5, 4, has_skip_term=False), {"has_skip_term": True}),
        (lambda: SRU(5, 4, layer_norm=True), {"normalize_after": True}),
        (lambda: SRU(5, 4, layer_norm=True, normalize_after=True), {"normalize_after": False}),
    ],
)
def test_an_option_that_contradicts_the_tensors_is_refused(tmp_path, make, options):
    torch.save(make().state_dict(), tmp_path / "c.pt")
    name, value = next(iter(options.items()))
    said = f"option {name}={value} contradicts the tensors, which say {name}={not value}"
    with pytest.raises(CheckpointError, match=said):
        read(tmp_path / "c.pt", options={"bidirectional": False, "use_tanh": False, **options})


def test_an_unknown_option_gets_the_closest_one(layer, tmp_path):
    torch.save(layer.state_dict(), tmp_path / "c.pt")
    with pytest.raises(OptionError, match="has no option 'bidirectinal'; did you mean 'bidirectional'"):
        read(tmp_path / "c.pt", options={"bidirectinal": True})


def test_options_that_change_only_what_is_returned(tmp_path):
    source = trained(SRU(**KWARGS, nn_rnn_compatible_return=True))
    torch.save(source.state_dict(), tmp_path / "c.pt")
    assert_same(read(tmp_path / "c.pt", options={**OPTIONS, "nn_rnn_compatible_return": True}), source)


def test_rescale_is_on_where_the_scale_is_not_one_and_can_be_turned_off(tmp_path):
    source = trained(SRU(4, 4, rescale=True))
    torch.save(source.state_dict(), tmp_path / "c.pt")
    options = {"bidirectional": False, "use_tanh": False, "has_skip_term": True}
    x = torch.ones(3, 1, 4)
    assert_same(read(tmp_path / "c.pt", options=options), source, x)
    off = SRU(4, 4)
    off.load_state_dict(source.state_dict())
    assert_same(read(tmp_path / "c.pt", options={**options, "rescale": False}), off, x)


# Layouts of all versions, from one set of numbers, against the equations written out


class Numbers:
    """A trained stack in float64, and what it gives by the plain equations (reference/sru.md), step by step."""

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        *,
        layers: int = 2,
        bidirectional: bool = False,
        projection: tuple[int, ...] = (0, 0),
        linear: bool = False,
        scaled: bool = True,
        post_norm: bool = False,
        gain: bool = False,
    ):
        draw = np.random.default_rng(3).standard_normal
        self.directions = 2 if bidirectional else 1
        self.hidden, self.input_size, self.post_norm, self.linear = hidden_size, input_size, post_norm, linear
        output = hidden_size * self.directions
        self.layers: list[dict[str, np.ndarray]] = []
        for i in range(layers):
            inputs = input_size if i == 0 else output
            k = 3 if inputs == output else 4
            layer = {"bias": draw(2 * output), "weight_c": draw(2 * output) * (not linear)}
            if projection[i]:
                layer["weight_proj"] = draw((inputs, projection[i]))
            layer["weight"] = draw((projection[i] or inputs, output * k))
            layer["scale_x"] = np.array([1.5]) if scaled else np.ones(1)
            if gain:
                layer["gain"] = draw(output * k)
            if post_norm:
                layer["a"], layer["b"] = draw(output), draw(output)
            self.layers.append(layer)

    def state_dict(self, names: dict[str, str], transposed: bool = False) -> dict[str, Tensor]:
        """The tensors under the names of one version: by our names, "" for those that it does not have."""
        tensors = {}
        for i, layer in enumerate(self.layers):
            for name, array in layer.items():
                key = names.get(name, name)
                if name == "weight" and transposed:
                    key = "transform_module.1.weight" if "weight_proj" in layer else "transform_module.weight"
                if not key:
                    continue
                turned = array.T if transposed and name in ("weight", "weight_proj") else array
                tensors[f"ln_lst.{i}.{key}" if name in "ab" else f"rnn_lst.{i}.{key}"] = torch.tensor(turned.copy())
        return tensors

    def __call__(self, x: np.ndarray) -> np.ndarray:
        for layer in self.layers:
            x = self._layer(layer, x)
        return x

    def _layer(self, layer: dict[str, np.ndarray], x: np.ndarray) -> np.ndarray:
        weight = layer["weight"]
        if "gain" in layer:
            weight = layer["gain"] * weight / np.sqrt((weight**2).sum(0))
        if "weight_proj" in layer:
            weight = layer["weight_proj"] @ weight
        steps, batch, inputs = x.shape
        k = 3 if inputs == self.hidden * self.directions else 4
        u = (x @ weight).reshape(steps, batch, self.directions, self.hidden, k)
        v_forget, v_reset = layer["weight_c"].reshape(2, self.directions, self.hidden)
        b_forget, b_reset = layer["bias"].reshape(2, self.directions, self.hidden)
        h = np.zeros((steps, batch, self.directions, self.hidden))
        for direction in range(self.directions):
            c = np.zeros((batch, self.hidden))
            for t in range(steps) if direction == 0 else reversed(range(steps)):
                part = u[t, :, direction]
                f = 1 / (1 + np.exp(-(part[..., 1] + v_forget[direction] * c + b_forget[direction])))
                r = 1 / (1 + np.exp(-(part[..., 2] + v_reset[direction] * c + b_reset[direction])))
                c = f * c + (1 - f) * part[..., 0]
                if k == 4:
                    highway = part[..., 3]
                else:
                    highway = layer["scale_x"] * x[t].reshape(batch, self.directions, self.hidden)[:, direction]
                h[t, :, direction] = r * np.tanh(c) + (1 - r) * highway
        h = h.reshape(steps, batch, -1)
        if self.post_norm and h.shape[-1] > 1:  # LayerNorm of 2.0: the unbiased variance; nothing for one unit
            centred = h - h.mean(-1, keepdims=True)
            variance = (centred**2).sum(-1, keepdims=True) / (h.shape[-1] - 1)
            h = layer["a"] * centred / np.sqrt(variance + 1e-6) + layer["b"]
        return h


def check_layout(numbers: Numbers, tensors: dict[str, Tensor], tmp_path: Path, asked: list[str]) -> nn.Module:
    """The tensors are read, after asking for exactly `asked`, as the layer that the plain equations describe."""
    torch.save({"model": tensors}, tmp_path / "c.pt")
    with pytest.raises(OptionsNeeded) as caught:
        read(tmp_path / "c.pt")
    assert caught.value.options == asked
    options = {"bidirectional": numbers.directions == 2, "use_tanh": True, "has_skip_term": True}
    mine = read(tmp_path / "c.pt", options={name: options[name] for name in asked})
    x = np.random.default_rng(5).standard_normal((5, 2, numbers.input_size))
    with torch.no_grad():
        h, _ = mine(torch.tensor(x))
    np.testing.assert_allclose(h.numpy(), numbers(x), rtol=1e-11, atol=1e-12)
    return mine


@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("input_size", [3, 4])
class TestLayouts:
    def asked(self, input_size: int) -> list[str]:
        return ["bidirectional", "use_tanh"] + (["has_skip_term"] if input_size == 4 else [])

    def numbers(self, input_size: int, bidirectional: bool, **options: Any) -> Numbers:
        return Numbers(input_size, 2 if bidirectional else 4, bidirectional=bidirectional, **options)

    def test_2_6(self, tmp_path, input_size, bidirectional):
        numbers = self.numbers(input_size, bidirectional)
        check_layout(numbers, numbers.state_dict({}), tmp_path, self.asked(input_size))

    def test_2_6_projected(self, tmp_path, input_size, bidirectional):
        numbers = self.numbers(input_size, bidirectional, projection=(2, 2))
        check_layout(numbers, numbers.state_dict({}), tmp_path, self.asked(input_size))

    def test_2_0_with_weight_norm(self, tmp_path, input_size, bidirectional):
        numbers = self.numbers(input_size, bidirectional, gain=True)
        check_layout(numbers, numbers.state_dict({}), tmp_path, self.asked(input_size))

    def test_2_0_with_its_own_layer_norm(self, tmp_path, input_size, bidirectional):
        numbers = self.numbers(input_size, bidirectional, post_norm=True, gain=True)
        mine = check_layout(numbers, numbers.state_dict({}), tmp_path, self.asked(input_size))
        assert mine.rnn_lst[0].normalize_after

    def test_2017_without_weight_c_and_scale(self, tmp_path, input_size, bidirectional):
        numbers = self.numbers(input_size, bidirectional, linear=True, scaled=False)
        tensors = numbers.state_dict({"weight_c": "", "scale_x": ""})
        assert {name.rsplit(".", 1)[1] for name in tensors} == {"weight", "bias"}
        mine = check_layout(numbers, tensors, tmp_path, self.asked(input_size))
        mine.rnn_lst[0].choose_recurrence()
        assert mine.rnn_lst[0].linear

    def test_3_0_dev(self, tmp_path, input_size, bidirectional):
        numbers = self.numbers(input_size, bidirectional)
        check_layout(numbers, numbers.state_dict({}, transposed=True), tmp_path, self.asked(input_size))

    @pytest.mark.parametrize("projection", [(2, 2), (0, 3), (2, 1), (9, 6)])
    def test_3_0_dev_projected_to_any_size_in_each_layer(self, tmp_path, input_size, bidirectional, projection):
        numbers = self.numbers(input_size, bidirectional, projection=projection)
        tensors = numbers.state_dict({"weight_proj": "transform_module.0.weight"}, transposed=True)
        mine = check_layout(numbers, tensors, tmp_path, self.asked(input_size))
        assert [cell.projection_size for cell in mine.rnn_lst] == list(projection)


def test_the_layer_norm_of_2_0_does_nothing_to_a_single_unit(tmp_path):
    numbers = Numbers(3, 1, post_norm=True)
    check_layout(numbers, numbers.state_dict({}), tmp_path, ["use_tanh"])


# Pickled objects of old versions: the attributes that theirs have, on classes of the same name


def old_classes() -> types.ModuleType:
    """`sru.sru_functional` as 2.0 to 2.3 have it, in so far as a pickle tells: names of classes."""
    module = types.ModuleType("sru.sru_functional")
    for name in ("SRU", "SRUCell", "LayerNorm"):
        setattr(module, name, type(name, (nn.Module,), {"__module__": module.__name__, "__qualname__": name}))
    return module


def old_stack(numbers: Numbers, old: Any, *, weight_norm: bool, activation_type: int = 1) -> nn.Module:
    bidirectional = numbers.directions == 2
    common = {"bidirectional": bidirectional, "has_skip_term": True, "n_out": numbers.hidden, "dropout": 0.1}
    stack = old.SRU()
    stack.__dict__.update(common, n_in=numbers.input_size, depth=2, n_proj=0, use_weight_norm=weight_norm)
    stack.__dict__.update(use_layer_norm=numbers.post_norm, out_size=numbers.hidden * numbers.directions)
    stack.rnn_lst, stack.ln_lst = nn.ModuleList(), nn.ModuleList()
    for i, held in enumerate(numbers.layers):
        cell = old.SRUCell()
        inputs = numbers.input_size if i == 0 else stack.out_size
        cell.__dict__.update(common, n_in=inputs, k=3 if inputs == stack.out_size else 4, rescale=True, v1=False)
        cell.__dict__.update(activation_type=activation_type, activation="tanh", weight_norm=weight_norm, n_proj=0)
        for name in ("weight", "weight_c", "bias", "scale_x", "weight_proj", "gain"):
            if name in held:
                setattr(cell, name, nn.Parameter(torch.tensor(held[name]), requires_grad=name != "scale_x"))
        if "weight_proj" in held:
            cell.n_proj = stack.n_proj = held["weight_proj"].shape[1]
        stack.rnn_lst.append(cell)
        if numbers.post_norm:
            norm = old.LayerNorm()
            norm.eps = 1e-6
            norm.a, norm.b = nn.Parameter(torch.tensor(held["a"])), nn.Parameter(torch.tensor(held["b"]))
            stack.ln_lst.append(norm)
    return stack.eval()


@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("input_size", [3, 4])
@pytest.mark.parametrize(
    "made", [{}, {"gain": True}, {"post_norm": True}, {"gain": True, "post_norm": True}, {"projection": (2, 2)}]
)
def test_a_pickled_module_of_2_0_or_2_1_3_is_adapted(tmp_path, monkeypatch, bidirectional, input_size, made):
    numbers = Numbers(input_size, 2 if bidirectional else 4, bidirectional=bidirectional, **made)
    old = old_classes()
    monkeypatch.setitem(sys.modules, old.__name__, old)
    torch.save(old_stack(numbers, old, weight_norm=made.get("gain", False)), tmp_path / "m.pt")
    monkeypatch.undo()
    mine = read(tmp_path / "m.pt")
    assert isinstance(mine, SRU)
    x = np.random.default_rng(5).standard_normal((5, 2, input_size))
    with torch.no_grad():
        h, c = mine(torch.tensor(x))
    np.testing.assert_allclose(h.numpy(), numbers(x), rtol=1e-11, atol=1e-12)
    assert c.shape == (2, 2, 4)


@pytest.mark.parametrize("activation_type", [2, 3])
def test_a_pickled_module_with_relu_or_selu_is_refused(tmp_path, monkeypatch, activation_type):
    old = old_classes()
    monkeypatch.setitem(sys.modules, old.__name__, old)
    torch.save(old_stack(Numbers(3, 4), old, weight_norm=False, activation_type=activation_type), tmp_path / "m.pt")
    with pytest.raises(ExportError, match=r"ReLU or SeLU") as caught:
        read(tmp_path / "m.pt")
    assert str(tmp_path / "m.pt") in str(caught.value)
