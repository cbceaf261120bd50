"""The form torch-lstm: a PyTorch program in the place of a file."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
import torch
from programs_here import keep_programs_here
from sruexport.converters import FORMS, Settings, convert
from torch import Tensor, nn

from sruexport import export, validate
from sruexport.engines import ENGINES
from sruexport.errors import ConversionError, EngineError
from sruexport.layers import SRU
from sruexport.parity.measure import compare
from sruexport.parity.programs import ProgramSession, to_torch_lstm, write_program

ONE = ((4, 2),)


def trained(**options: Any) -> SRU:
    torch.manual_seed(0)
    layer = SRU(3, 4, **options).eval()
    for name, parameter in layer.named_parameters():
        if name.endswith(("weight_c", "bias")):
            nn.init.uniform_(parameter, -0.8, 0.8)
    return layer


@pytest.fixture(scope="module")
def layer() -> SRU:
    return trained(num_layers=2, bidirectional=True, layer_norm=True)


@pytest.fixture(scope="module")
def file(layer: SRU, tmp_path_factory: pytest.TempPathFactory) -> Path:
    mask = torch.zeros(5, 2, dtype=torch.int32)
    args = {"input": torch.zeros(5, 2, 3), "mask_pad": mask}
    return export(layer, args, tmp_path_factory.mktemp("file") / "m.onnx").path


def feeds(steps: int = 4, batch: int = 2) -> dict[str, np.ndarray]:
    random = np.random.default_rng(0)
    x = random.standard_normal((steps, batch, 3)).astype(np.float32)
    return {"input": x, "mask_pad": (random.random((steps, batch)) < 0.3).astype(np.int32)}


def assert_right(found: Any, layer: SRU, given: dict[str, np.ndarray]) -> None:
    """By the rule, with what the form is allowed."""
    x, mask = torch.from_numpy(given["input"]), torch.from_numpy(given["mask_pad"])
    with torch.no_grad():
        rounded = layer(x, mask_pad=mask)
        exact = trained_twin(layer)(x.double(), mask_pad=mask)
    for array, p, right in zip(found, rounded, exact, strict=True):
        errors = compare(np.asarray(array), p.numpy(), right.numpy(), "float32", FORMS["lstm"].allowance)
        assert errors.passed, errors


def trained_twin(layer: SRU) -> SRU:
    options = {"num_layers": 2, "bidirectional": True, "layer_norm": True}
    twin = SRU(3, 4, **options).eval().double()
    twin.load_state_dict(layer.state_dict())
    return twin


@pytest.fixture
def in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    keep_programs_here(monkeypatch)


# The module


def test_every_recurrence_is_a_torch_lstm_and_the_numbers_stay(layer, file):
    module, report = to_torch_lstm(layer, ir.load(file))
    found = [part for part in module.modules() if isinstance(part, nn.LSTM)]
    assert [(part.hidden_size, part.bidirectional) for part in found] == [(4, True), (4, True)]
    assert [entry["layer"] for entry in report] == ["rnn_lst.0", "rnn_lst.1"]
    given = feeds(9, 3)
    with torch.no_grad():
        outputs = module(torch.from_numpy(given["input"]), mask_pad=torch.from_numpy(given["mask_pad"]))
    assert_right([value.numpy() for value in outputs], layer, given)


def test_the_model_stays_as_it_was(layer, file):
    before = {name: tensor.clone() for name, tensor in layer.state_dict().items()}
    layer.train()
    to_torch_lstm(layer, ir.load(file))
    assert layer.training
    layer.eval()
    assert layer.state_dict().keys() == before.keys()
    assert all(torch.equal(tensor, before[name]) for name, tensor in layer.state_dict().items())
    assert not [part for part in layer.modules() if isinstance(part, nn.LSTM)]


def test_the_scales_go_by_the_ranges(tmp_path):
    plain = trained(num_layers=1)
    exported = ir.load(export(plain, None, tmp_path / "m.onnx").path)
    (wide,), (narrow,) = (
        to_torch_lstm(plain, exported, Settings({"input": (-size, size)}))[1] for size in (100.0, 0.01)
    )
    assert wide["k"] > narrow["k"]


def test_the_copy_may_have_another_dtype(layer, file):
    module, _ = to_torch_lstm(layer, ir.load(file), dtype=torch.float64)
    assert {parameter.dtype for parameter in module.parameters()} == {torch.float64}
    assert {parameter.dtype for parameter in layer.parameters()} == {torch.float32}


# In an engine


def test_a_program_has_fixed_sizes_so_that_each_has_a_process(layer, file):
    with closing(ProgramSession(ENGINES["pytorch"], file, layer)) as session:
        assert session.static
        for sizes in ((4, 2), (1, 1), (4, 2)):
            given = feeds(*sizes)
            assert_right(session.run(given).values(), layer, given)
        assert len(session._processes) == 2
        assert session.ran_on == f"PyTorch {torch.__version__}"
        assert (session.written_as, session.allowance) == ("torch-lstm", 4)
        assert session.seconds > 0


def test_validate_runs_the_models_own_program(layer, file, in_this_process):
    report = validate(layer, file, engine="pytorch", sizes=ONE)
    assert report.passed, report.to_dict()
    assert (report.form, report.allowance, report.static) == ("torch-lstm", 4, True)
    assert [case.name for case in report.cases] == ["T=4 B=2", "T=4 B=2 masked"]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
def test_the_program_computes_in_the_files_dtype(tmp_path, dtype, in_this_process):
    model = trained(num_layers=1)
    path = export(model, None, tmp_path / "m.onnx", dtype=dtype).path
    report = validate(model, path, engine="pytorch", sizes=ONE)
    assert report.passed, report.to_dict()
    error = report.outputs["h"].engine_max
    assert (0 < error < 1e-12) if dtype == "float64" else (error > 1e-5), "it is that dtype's rounding"


def test_states_are_inputs_and_outputs_of_the_program(tmp_path, in_this_process):
    model = trained(num_layers=1)
    path = export(model, None, tmp_path / "m.onnx", stateful=True).path
    report = validate(model, path, engine="pytorch", sizes=ONE)
    assert report.passed, report.to_dict()
    assert report.outputs.keys() == {"h", "c", "new_state_0"}
    assert [case.name for case in report.cases] == ["T=4 B=2", "T=4 B=2 in chunks"]


def test_another_model_than_the_files_is_no_program_of_it(layer, file, in_this_process):
    """The program is made of the model, the file only says what goes in and out: so the model is judged."""
    changed = trained(num_layers=2, bidirectional=True, layer_norm=True)
    with torch.no_grad():
        changed.rnn_lst[1].weight += 1.0
    assert validate(changed, file, engine="pytorch", sizes=ONE).passed
    assert not validate(changed, file, sizes=ONE).passed


def test_a_converted_file_is_refused(layer, file, tmp_path):
    ir.save(convert(ir.load(file), FORMS["lstm"]).model, tmp_path / "lstm.onnx")
    with pytest.raises(ConversionError, match=r"lstm\.onnx: its recurrences are written in standard ops already"):
        validate(layer, tmp_path / "lstm.onnx", engine="pytorch")


def test_forms_of_files_and_engines_of_programs_do_not_go_together(layer, file):
    with pytest.raises(ConversionError, match="PyTorch takes PyTorch programs: its form is torch-lstm"):
        validate(layer, file, engine="pytorch", form="scan")
    with pytest.raises(ConversionError, match="ONNX Runtime takes ONNX files, and torch-lstm is none"):
        validate(layer, file, engine="onnxruntime", form="torch-lstm")


def test_an_engine_that_is_not_installed_is_refused(layer, file, tmp_path, monkeypatch):
    monkeypatch.setenv("SRUEXPORT_ENGINES", str(tmp_path))
    with pytest.raises(EngineError, match="ExecuTorch is not installed: sruexport engines install executorch"):
        validate(layer, file, engine="executorch")


# As a file


def test_a_program_has_the_sizes_of_its_example_and_what_they_are_is_told(layer, file, tmp_path):
    module, _ = to_torch_lstm(layer, ir.load(file))
    given = feeds(5, 2)
    args = {"input": torch.zeros(5, 2, 3), "mask_pad": torch.zeros(5, 2, dtype=torch.int32)}
    shapes = write_program(module, layer, file, args, tmp_path / "m.pt2")
    assert shapes == {"input": (5, 2, 3), "mask_pad": (5, 2)}
    program = torch.export.load(tmp_path / "m.pt2").module()
    with torch.no_grad():
        outputs = program(*(torch.from_numpy(given[name]) for name in shapes))
    assert_right([value.numpy() for value in outputs], layer, given)


class Branching(nn.Module):
    """Python asks for a value of a tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.sru = trained(num_layers=1)

    def forward(self, input: Tensor) -> Tensor:
        h = self.sru(input)[0]
        return h * 2 if bool(h.sum() > 0) else h


def test_what_torch_export_does_not_take_is_one_line(tmp_path):
    module = Branching().eval()
    path = export(module.sru, None, tmp_path / "m.onnx").path
    with pytest.raises(ConversionError, match=r"torch\.export does not take the model: ") as caught:
        write_program(module, module, path, {"input": torch.zeros(5, 2, 3)}, tmp_path / "m.pt2")
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "m.pt2").exists()
