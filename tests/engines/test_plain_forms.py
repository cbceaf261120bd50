"""The forms on the engines that their profiles name: held against PyTorch in float64, by the rule of `validate`."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from engines_here import IN_CI, needs
from torch import nn

from sruexport import Report, export, validate
from sruexport.engines import ENGINES
from sruexport.layers import SRU
from sruexport.layers.mingru import MinGRU

RUNNING = [name for name in IN_CI if not ENGINES[name].only_builds]
#: (T, B): one step, where engines have gone wrong, and several. IREE compiles for each, for seconds.
SIZES = ((1, 2), (6, 3))
SIZES_ON = {"iree": ((6, 3),)}
#: What is taken with fixed sizes only, besides all on IREE.
STATIC = {("tract", "parallel")}
#: What is not tried there in the other tests here.
ON_IREE = {("lstm-forward", "sru"), ("unrolled", "sru"), ("parallel", "mingru")}
#: Forms that only a linear recurrence has.
LINEAR = ("parallel", "linear-attention")


def trained(model: nn.Module) -> nn.Module:
    """With every weight other than where training begins: none is 0 or 1."""
    generator = torch.Generator().manual_seed(0)
    for parameter in model.parameters():
        parameter.data += 0.3 * torch.randn(parameter.shape, generator=generator)
    return model.eval()


@pytest.fixture(scope="module")
def models() -> dict[str, nn.Module]:
    torch.manual_seed(0)
    return {
        # Its first layer has 5 inputs and 4 channels (k = 4), its second 4 and 4 (k = 3).
        "everything": trained(SRU(5, 2, num_layers=2, bidirectional=True, layer_norm=True)),
        "sru": trained(SRU(3, 3, num_layers=1)),
        "mingru": trained(MinGRU(3)),
    }


@pytest.fixture(scope="module")
def files(models: dict[str, nn.Module], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("files")
    everything = {
        "input": torch.zeros(5, 3, 5),
        "c0": torch.zeros(2, 3, 4),
        "mask_pad": torch.zeros(5, 3, dtype=torch.int32),
    }
    calls = {"everything": everything, "sru": None, "mingru": None}
    return {name: export(model, calls[name], folder / f"{name}.onnx").path for name, model in models.items()}


def check(engine: str, form: str, model: nn.Module, path: Path, sizes=None) -> Report:
    needs(engine)
    report = validate(model, path, engine=engine, form=form, sizes=sizes or SIZES_ON.get(engine, SIZES))
    assert report.passed, report.to_dict()
    assert not any(case.skipped for case in report.cases)
    assert report.engine.startswith(ENGINES[engine].title)
    assert report.static == (engine == "iree" or form == "unrolled" or (engine, form) in STATIC)
    return report


@pytest.mark.parametrize("engine", RUNNING)
@pytest.mark.parametrize("form", ["lstm", "scan"])
def test_a_layer_with_everything_passes(engine, form, models, files):
    """Both directions, LayerNorm, k = 3 and 4, padding anywhere, states that do not begin at 0."""
    report = check(engine, form, models["everything"], files["everything"])
    assert report.form == form
    assert report.allowance == (4 if form == "lstm" else 1)
    assert report.outputs.keys() == {"h", "c"}
    assert {case.name.endswith("masked") for case in report.cases} == {False, True}


@pytest.mark.parametrize(
    ("engine", "form", "name"),
    [
        (engine, form, name)
        for engine in RUNNING
        for form in ENGINES[engine].forms
        for name in ("sru", "mingru")
        if (name == "mingru" or form not in LINEAR) and (engine != "iree" or (form, name) in ON_IREE)
    ],
)
def test_every_form_of_a_profile_passes(engine, form, name, models, files):
    check(engine, form, models[name], files[name])


def test_iree_passes_with_one_step(models, files):
    """It goes wrong in a Scan of one step: the form has none."""
    check("iree", "scan", models["sru"], files["sru"], sizes=((1, 2),))


@pytest.mark.parametrize("engine", ["openvino", "tract"])
@pytest.mark.parametrize(("name", "x"), [("sru", (6, 3, 3)), ("mingru", (3, 6, 3))])
def test_a_file_of_static_sizes_passes(engine, name, x, models, tmp_path):
    """OpenVINO goes wrong in a Scan of static batch where the state is a second operand: here it is the first."""
    needs(engine)
    path = export(models[name], (torch.zeros(x),), tmp_path / "static.onnx", dynamic={}).path
    for form in ("scan", "lstm", "unrolled"):
        report = validate(models[name], path, engine=engine, form=form)
        assert report.passed, report.to_dict()
        assert [case.name for case in report.cases] == ["static"]


@pytest.mark.parametrize("engine", [engine for engine in RUNNING if engine != "iree"])
@pytest.mark.parametrize("form", ["lstm", "scan"])
def test_a_long_sequence_passes(engine, form, models, files):
    check(engine, form, models["sru"], files["sru"], sizes=((2000, 7),))


@pytest.mark.parametrize(
    "engine", [engine for engine in RUNNING if "parallel" in ENGINES[engine].forms and engine != "iree"]
)
def test_more_steps_than_a_chunk_has_pass(engine, models, files):
    check(engine, "parallel", models["mingru"], files["mingru"], sizes=((130, 2),))
