"""What the engines' profiles say, held against each other.

Whether it is so, test_faults.py and test_refusals.py ask the engines.
"""

from __future__ import annotations

import re
from pathlib import Path

import onnx
import onnx_ir as ir
import pytest
import torch
from small_graphs import PAIRS, bfloat16_lstm, empty_value
from sruexport.converters import FORMS, convert, fix_sizes

from sruexport import export
from sruexport.engines import AS_EXPORTED, ENGINES
from sruexport.engines.features import features
from sruexport.engines.running import objections
from sruexport.layers import SRU
from sruexport.parity.programs import TORCH_LSTM

ENGINE_FORMS = [(name, form) for name, engine in ENGINES.items() for form in engine.forms if form != TORCH_LSTM]
SIZES = {"T": 4, "B": 2}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, ir.Model]:
    """A linear recurrence, of which there is every form, and SRU in both directions."""
    folder = tmp_path_factory.mktemp("files")
    torch.manual_seed(0)
    models = {"linear": SRU(3, 3, num_layers=1, v1=True), "sru": SRU(3, 3, num_layers=1, bidirectional=True)}
    return {name: ir.load(export(model.eval(), None, folder / f"{name}.onnx").path) for name, model in models.items()}


@pytest.mark.parametrize("name", ENGINES)
def test_an_engine_says_who_it_is(name):
    engine = ENGINES[name]
    assert engine.name == name
    assert re.fullmatch(r"[a-z0-9-]+", name)
    assert engine.title
    assert engine.packages
    assert engine.takes in ("onnx", "program")
    assert not isinstance(engine.notes, str)


@pytest.mark.parametrize("name", ENGINES)
def test_its_forms_are_known_and_of_its_kind(name):
    engine = ENGINES[name]
    assert engine.forms, "an engine that takes no form is listed with the reason"
    assert len(set(engine.forms)) == len(engine.forms)
    known = {TORCH_LSTM} if engine.takes == "program" else {*FORMS, AS_EXPORTED}
    assert set(engine.forms) <= known


@pytest.mark.parametrize("name", ENGINES)
def test_its_versions_are_exact(name):
    """They are those that the profile was measured with."""
    for requirement in ENGINES[name].requirements:
        assert re.fullmatch(r"(numpy|[\w.-]+(\[\w+\])?(==|@)[\w.]+)", requirement), requirement


@pytest.mark.parametrize("name", ENGINES)
def test_what_it_gets_wrong_was_measured_with_the_version_that_is_installed(name):
    engine = ENGINES[name]
    pinned = [re.split("==|@", requirement)[-1] for requirement in engine.requirements]
    for feature, reason in engine.wrong.items():
        assert reason
        measured = re.search(r"\(([\d., ]+)\)$", reason)
        assert measured or not pinned, f"{feature}: {reason}"
        for number in measured[1].split(", ") if measured else ():
            assert any(f"{version}.".startswith(f"{number}.") for version in pinned), f"{feature}: {reason}"


@pytest.mark.parametrize("name", ENGINES)
def test_a_feature_is_refused_or_wrong_and_not_both(name):
    engine = ENGINES[name]
    assert not engine.refuses.keys() & engine.wrong.keys()
    assert all(engine.refuses.values())


@pytest.fixture(scope="module")
def seen(files: dict[str, ir.Model]) -> set[str]:
    """Every feature that graphs in the tests have been seen to have."""
    graphs = [bfloat16_lstm(), empty_value(), *(case.graph().model for pair in PAIRS.values() for case in pair)]
    models = [*files.values(), *map(ir.serde.deserialize_model, graphs)]
    return {feature for model in models for feature in features(model)}


@pytest.mark.parametrize("name", ENGINES)
def test_its_features_are_ones_that_graphs_have(name, seen):
    """A key with a typing error would never be found in any graph."""
    ops = {schema.name for schema in onnx.defs.get_all_schemas() if schema.domain == ""}
    engine = ENGINES[name]
    for feature in (*engine.refuses, *engine.wrong):
        assert feature in ops | seen, feature


@pytest.mark.parametrize(("name", "form"), ENGINE_FORMS)
def test_an_engine_runs_its_forms_by_its_own_account(name, form, files):
    """With fixed sizes, in which every form has its fewest features."""
    model = fix_sizes(files["linear"], SIZES)
    assert not objections(ENGINES[name], model if form == AS_EXPORTED else convert(model, FORMS[form]).model)


@pytest.mark.parametrize(
    ("name", "form"), [pair for pair in ENGINE_FORMS if pair[1] not in (AS_EXPORTED, "parallel", "linear-attention")]
)
def test_an_engine_runs_its_forms_in_both_directions(name, form, files):
    assert not objections(ENGINES[name], convert(fix_sizes(files["sru"], SIZES), FORMS[form]).model)


@pytest.mark.parametrize("name", [name for name, engine in ENGINES.items() if engine.takes == "onnx"])
def test_forms_that_an_engine_does_not_list_it_refuses_or_gets_wrong_or_has_no_need_of(name, files):
    """The others are slower ones of a kind that it runs."""
    engine = ENGINES[name]
    model = fix_sizes(files["linear"], SIZES)
    for form in FORMS.keys() - set(engine.forms):
        spare = form.startswith("lstm") and any(other.startswith("lstm") for other in engine.forms)
        assert spare or objections(engine, convert(model, FORMS[form]).model), form


def test_every_engine_has_a_file_of_its_own_and_a_row():
    folder = Path(__file__).parents[2] / "sruexport" / "engines"
    others = {"__init__", "base", "environments", "features", "listing", "process", "running", "wire", "worker"}
    assert {path.stem for path in folder.glob("*.py")} - others == {name.replace("-", "_") for name in ENGINES}
