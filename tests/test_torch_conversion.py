"""torch_lstm(): a model with torch.nn.LSTM in the place of its recurrences, as a module and as a file."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sru
import torch
from minGRU_pytorch import minGRU
from programs_here import keep_programs_here
from torch import Tensor, nn

import sruexport
from sruexport.errors import ConversionError, OptionError, OutputError
from sruexport.layers import SRU
from sruexport.parity import programs
from sruexport.parity.measure import compare

#: Runs a program in a process that cannot have sruexport.
ALONE = """
import sys
sys.modules["sruexport"] = None
import torch
x, outputs = torch.load("x.pt"), torch.export.load("m.pt2").module()(torch.load("x.pt"))
torch.save([value.clone() for value in outputs], "out.pt")
"""


def trained(layer: nn.Module) -> nn.Module:
    for name, parameter in layer.named_parameters():
        if name.endswith(("weight_c", "bias")):
            nn.init.uniform_(parameter, -0.8, 0.8)
    return layer.eval()


@pytest.fixture(scope="module")
def layer() -> nn.Module:
    torch.manual_seed(0)
    return trained(SRU(3, 4, num_layers=2))


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder of its own; and one size to validate on, in this process."""
    monkeypatch.chdir(tmp_path)
    keep_programs_here(monkeypatch)
    assert sruexport.validate.__kwdefaults__ is not None
    monkeypatch.setitem(sruexport.validate.__kwdefaults__, "sizes", ((4, 2),))


def assert_same(found: Any, model: nn.Module, x: Tensor) -> None:
    """By the rule, with what the form is allowed."""
    with torch.no_grad():
        rounded, exact = model(x), twin(model)(x.double())
    for array, p, right in zip(found, rounded, exact, strict=True):
        errors = compare(array.detach().numpy(), p.numpy(), right.detach().numpy(), "float32", 4.0)
        assert errors.passed, errors


def twin(layer: nn.Module) -> nn.Module:
    wide = SRU(3, 4, num_layers=2).eval().double()
    wide.load_state_dict(layer.state_dict())
    return wide


# The module


def test_the_module_has_lstms_the_same_forward_and_the_same_numbers(layer):
    done = sruexport.torch_lstm(layer)
    assert done.passed
    assert (done.path, done.bytes) == (None, 0)
    assert len([part for part in done.module.modules() if isinstance(part, nn.LSTM)]) == 2
    assert not done.module.training
    x = torch.randn(7, 3, 3)
    with torch.no_grad():
        assert_same(done.module(x), layer, x)
    assert os.listdir() == []

    # The report is of the model in float64, and plain data.
    assert (done.report.form, done.report.baseline, done.report.allowance) == ("torch-lstm", "PyTorch", 4)
    assert done.report.outputs.keys() == {"h", "c"}
    assert all(errors.engine_max > 0 for errors in done.report.outputs.values())
    found = json.loads(json.dumps(done.to_dict(), allow_nan=False))
    assert (found["passed"], found["file"], found["form"]) == (True, None, "torch-lstm")
    assert [entry["layer"] for entry in found["layers"]] == ["rnn_lst.0", "rnn_lst.1"]
    assert all(entry["k"] > 0 for entry in found["layers"])
    assert tempfile.gettempdir() not in json.dumps(found)


def test_layers_of_other_packages_inside_a_model_are_replaced_in_a_copy():
    class Both(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.sru = trained(sru.SRU(3, 4, num_layers=1, bidirectional=True))
            self.gru = minGRU(8)

        def forward(self, x: Tensor) -> Tensor:
            return self.gru(self.sru(x)[0].transpose(0, 1))

    torch.manual_seed(0)
    model = Both().eval()
    x = torch.randn(5, 2, 3)
    done = sruexport.torch_lstm(model, (x,), dynamic={"x": {0: "T", 1: "B"}})
    assert done.passed, done.report.to_dict()
    assert len([part for part in done.module.modules() if isinstance(part, nn.LSTM)]) == 2
    assert isinstance(model.sru, sru.SRU)
    assert isinstance(model.gru, minGRU)
    with torch.no_grad():
        np.testing.assert_allclose(done.module(x).numpy(), model(x).numpy(), atol=1e-5)


# The state_dict


def test_the_state_dict_loads_back_and_its_lstms_are_plain_ones(layer):
    done = sruexport.torch_lstm(layer, output="m.pt")
    assert done.bytes == os.path.getsize("m.pt")
    content = torch.load("m.pt", weights_only=True)
    assert content["form"] == "torch-lstm"
    assert content["layers"] == [dict(entry) for entry in done.layers]
    other = sruexport.torch_lstm(layer, ranges={"input": (-0.1, 0.1)})
    assert [entry["k"] for entry in other.layers] != [entry["k"] for entry in done.layers]
    other.module.load_state_dict(content["state_dict"])
    x = torch.randn(7, 3, 3)
    with torch.no_grad():
        assert_same(other.module(x), layer, x)

    # The first layer by hand, from nothing but a torch.nn.LSTM and the scale in the file.
    prefix = "rnn_lst.0.embedded.lstm."
    weights = {n.removeprefix(prefix): t for n, t in content["state_dict"].items() if n.startswith(prefix)}
    plain = nn.LSTM(weights["weight_ih_l0"].shape[1], 4)
    plain.load_state_dict(weights)
    with torch.no_grad():
        given = torch.cat([x, torch.zeros(7, 3, 1)], dim=-1)  # and no padding
        c = plain(given)[0] * 2.0 ** content["layers"][0]["k"]
        right = layer.rnn_lst[0](x)[1]
    torch.testing.assert_close(c[-1], right, atol=1e-5, rtol=1e-5)


# The program


def test_the_program_runs_where_there_is_no_sruexport(layer):
    torch.manual_seed(1)
    x = torch.randn(6, 2, 3)
    done = sruexport.torch_lstm(layer, (x,), "m.pt2")
    assert done.passed
    assert done.about == "a program for torch.export.load, for input [6, 2, 3]"
    torch.save(x, "x.pt")
    ended = subprocess.run([sys.executable, "-I", "-c", ALONE], capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    assert_same(torch.load("out.pt"), layer, x)


def test_a_model_that_torch_export_does_not_take_is_refused_in_one_line(layer, monkeypatch):
    def refuse(*args: Any, **keywords: Any) -> None:
        raise RuntimeError("data-dependent\nand more lines")

    monkeypatch.setattr(torch.export, "save", refuse)
    with pytest.raises(ConversionError, match=r"^torch\.export does not take the model: data-dependent$"):
        sruexport.torch_lstm(layer, output="m.pt2")
    assert os.listdir() == []


# Ranges


def test_a_range_sets_the_scale_of_what_is_written_and_of_what_is_judged(layer):
    """From 0 to 0.001 the scale is so coarse that the module is wrong at 3; what is made up to try it lies within."""
    done = sruexport.torch_lstm(layer, ranges={"input": (0.0, 0.001)})
    assert done.passed, done.report.to_dict()
    assert max(entry["k"] for entry in done.layers) < 8
    assert max(errors.scale for errors in done.report.outputs.values()) < 1
    beyond = torch.full((7, 3, 3), 3.0)
    with torch.no_grad():
        assert float((done.module(beyond)[0] - layer(beyond)[0]).abs().max()) > 1e-3


def test_a_range_of_what_is_no_input_is_refused(layer):
    with pytest.raises(OptionError, match=r"range of 'inputt': no such input; did you mean 'input'"):
        sruexport.torch_lstm(layer, ranges={"inputt": (-1.0, 1.0)})


# What is not written


def test_a_module_with_other_numbers_is_not_written(layer, monkeypatch):
    def spoilt(model: nn.Module, scales: Any) -> nn.Module:
        module = right(model, scales)
        with torch.no_grad():
            module.rnn_lst[1].embedded.lstm.weight_ih_l0 += 1e-4
        return module

    right = programs.torch_lstm
    monkeypatch.setattr(programs, "torch_lstm", spoilt)
    done = sruexport.torch_lstm(layer, output="m.pt2")
    assert not done.passed
    assert done.to_dict()["passed"] is False
    assert done.to_dict()["file"] is None
    assert os.listdir() == []


@pytest.mark.parametrize(
    ("output", "error", "message"),
    [
        ("m.pth", OptionError, r"^m\.pth: name it \.pt \(state_dict\) or \.pt2 \(program that runs alone\)$"),
        ("m.onnx", OptionError, r"^m\.onnx: name it \.pt"),
        ("no/m.pt", OutputError, "the folder no does not exist"),
        (".", OutputError, "is a folder"),
    ],
)
def test_outputs_that_cannot_be_are_refused_before_the_work(layer, output, error, message):
    with pytest.raises(error, match=message):
        sruexport.torch_lstm(layer, output=output, progress=lambda step: pytest.fail(step))
    assert os.listdir() == []


def test_a_layer_without_such_a_form_is_named(layer):
    model = SRU(3, 3, num_layers=1, custom_m=nn.Linear(3, 12)).eval()
    with pytest.raises(ConversionError, match=r"rnn_lst\.0: .* of its own, and has no form torch-lstm: .*--to lstm"):
        sruexport.torch_lstm(model)
