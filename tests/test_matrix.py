"""Every form on every engine, by running it: what is said where, and the tables made of it."""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Callable, Iterator
from datetime import date
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import torch
from engines_here import needs
from moody_engines import Builder, Moody, Well
from programs_here import keep_programs_here
from sruexport.converters import FORMS
from torch import Tensor, nn

from sruexport import export, matrix, read
from sruexport.engines import ENGINES, Engine
from sruexport.engines.running import EngineSession
from sruexport.errors import CheckpointError, EngineError, OptionError
from sruexport.layers import SRU
from sruexport.matrix import Cell, Matrix
from sruexport.sources import Source

KWARGS = {"input_size": 3, "hidden_size": 4, "num_layers": 1}
SOME = ["lstm", "scan", "unrolled", "parallel", "as exported", "torch-lstm"]


def save(folder: Path) -> str:
    torch.manual_seed(0)
    layer = SRU(**KWARGS)
    nn.init.uniform_(layer.rnn_lst[0].weight_c, -0.8, 0.8)
    path = folder / "c.pt"
    torch.save({"state_dict": layer.state_dict(), "kwargs": KWARGS}, path)
    return str(path)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """A checkpoint, and the file that is exported from it."""
    folder = tmp_path_factory.mktemp("saved")
    checkpoint = save(folder)
    return checkpoint, export(read(checkpoint), None, folder / "m.onnx").path


@pytest.fixture
def checkpoint(saved: tuple[str, Path], monkeypatch: pytest.MonkeyPatch) -> str:
    """A checkpoint that is exported already, which is what takes the time."""
    monkeypatch.setattr(matrix, "export", lambda model, args, path, dynamic: shutil.copy(saved[1], path))
    return saved[0]


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Matrix]:
    """One source on two engines."""
    folder = tmp_path_factory.mktemp("matrix")
    with pytest.MonkeyPatch.context() as patch:
        keep_programs_here(patch)
        yield matrix.run([save(folder)], [], ["onnxruntime", "pytorch"], SOME, limit=60)


@pytest.fixture
def add(monkeypatch: pytest.MonkeyPatch) -> Callable[[Engine], str]:
    def add(engine: Engine) -> str:
        monkeypatch.setitem(ENGINES, engine.name, engine)
        return engine.name

    return add


def statuses(found: Matrix) -> dict[str, str]:
    return {cell.form: cell.status for cell in found.cells}


# What is tried


def test_every_form_is_tried_on_every_engine_that_takes_its_kind(two):
    tried = [(cell.engine, cell.form) for cell in two.cells]
    assert tried == [*(("onnxruntime", form) for form in SOME[:-1]), ("pytorch", "torch-lstm")]
    assert {cell.source for cell in two.cells} == {"c.pt"}


def test_what_works_has_its_error_and_its_time(two):
    good = [cell for cell in two.cells if cell.status == "ok"]
    assert [cell.form for cell in good] == ["lstm", "scan", "unrolled", "as exported", "torch-lstm"]
    for cell in good:
        assert cell.error is not None
        assert 0 < cell.error <= 1
        assert cell.milliseconds is not None
        assert cell.milliseconds > 0
        assert cell.known
    assert {cell.form for cell in good if cell.static} == {"unrolled", "torch-lstm"}


def test_a_form_that_the_model_has_not_is_no_fault_of_the_engine(two):
    (cell,) = [cell for cell in two.cells if cell.form == "parallel"]
    assert (cell.status, cell.shown, cell.known) == ("none", "-", True)
    assert "no parallel scan of it is exact" in cell.reason


def test_all_forms_and_engines_are_tried_where_none_is_named(checkpoint, monkeypatch):
    monkeypatch.setattr(matrix, "ENGINES", {engine.name: engine for engine in (Moody(), Well())})
    tried: list[tuple[str, str]] = []

    def attempt(name: str, source: Source, path: Path, engine: Engine, form: str, limit: float) -> Cell:
        assert limit == 7
        tried.append((engine.name, form))
        return Cell(name, form, engine.name, "none")

    monkeypatch.setattr(matrix, "_try", attempt)
    heard: list[str] = []
    matrix.run([checkpoint], [], [], [], limit=7, progress=heard.append)
    assert tried == [(engine, form) for engine in ("moody", "well") for form in (*FORMS, "as exported")]
    assert heard[:2] == ["c.pt: exporting", "c.pt: lstm on Moody"]
    assert len(heard) == 1 + len(tried)


# Faults


def test_wrong_numbers_crashes_and_refusals_are_shown_as_what_they_are(checkpoint, add):
    found = matrix.run([checkpoint], [], [add(Moody())], ["lstm", "scan", "loop", "unrolled"], limit=60)
    assert statuses(found) == {"lstm": "WRONG", "scan": "crashed", "loop": "refused", "unrolled": "ok"}
    reasons = {cell.form: cell.reason for cell in found.cells}
    assert reasons["lstm"].startswith("off by 1.0e-02, allowed ")
    assert reasons["scan"].endswith("Moody died of SIGABRT")
    assert reasons["loop"] == "Moody cannot load it: ValueError: no rule for 'Loop'"
    # The profile of Moody says that it runs all four.
    assert {cell.form for cell in found.cells if not cell.known} == {"lstm", "scan", "loop"}


def test_what_the_profile_foresees_is_known(checkpoint, add, monkeypatch):
    monkeypatch.setattr(Moody, "forms", ())
    monkeypatch.setattr(Moody, "wrong", {"LSTM.peepholes": "they are off"})
    found = matrix.run([checkpoint], [], [add(Moody())], ["lstm", "lstm-peephole", "loop"], limit=60)
    assert statuses(found) == {"lstm": "WRONG", "lstm-peephole": "WRONG", "loop": "refused"}, "it is tried nevertheless"
    assert {cell.form for cell in found.cells if not cell.known} == {"lstm"}, "of this it says nothing"


@pytest.mark.parametrize(("wrong", "status"), [("", "refused"), ("h", "WRONG")])
def test_numbers_that_are_wrong_count_for_more_than_a_refusal(checkpoint, add, monkeypatch, wrong, status):
    """An engine that refuses a single step, and is right or wrong with more."""

    def run(session: EngineSession, feeds: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        if len(feeds["input"]) == 1:
            raise EngineError("Well cannot run it: one step is not enough")
        outputs = right(session, feeds)
        return {name: array + np.float32(0.01 if name == wrong else 0) for name, array in outputs.items()}

    right = EngineSession.run
    monkeypatch.setattr(EngineSession, "run", run)
    found = matrix.run([checkpoint], [], [add(Well())], ["loop"], limit=60)
    assert statuses(found) == {"loop": status}
    assert not found.cells[0].known
    said = {"refused": "at T=1 B=1: Well cannot run it: one step is not enough", "WRONG": "off by 1.0e-02, allowed "}
    assert found.cells[0].reason.startswith(said[status])


def test_an_engine_out_of_time_has_crashed(checkpoint, add):
    found = matrix.run([checkpoint], [], [add(Well())], ["lstm"], limit=0.01)
    assert statuses(found) == {"lstm": "crashed"}
    assert found.cells[0].reason == "Well ran past the limit of 0.01 s"


def test_an_engine_that_only_builds_is_shown_to_build(checkpoint, add):
    found = matrix.run([checkpoint], [], [add(Builder())], ["loop", "unrolled"], limit=60)
    assert statuses(found) == {"loop": "refused", "unrolled": "builds"}
    assert [cell.known for cell in found.cells] == [False, True]


def test_tensorrt_rtx_builds_without_a_gpu(checkpoint):
    needs("tensorrt-rtx")
    found = matrix.run([checkpoint], [], ["tensorrt-rtx"], ["scan"], limit=120)
    assert statuses(found) == {"scan": "builds"}


def test_openvino_is_seen_to_ignore_peepholes(checkpoint):
    needs("openvino")
    found = matrix.run([checkpoint], [], ["openvino"], ["lstm-peephole-tanh", "lstm"], limit=60)
    assert statuses(found) == {"lstm-peephole-tanh": "WRONG", "lstm": "ok"}
    assert all(cell.known for cell in found.cells)


def test_an_engine_that_is_not_installed_is_listed_with_the_way_to_get_it(checkpoint, tmp_path, monkeypatch):
    monkeypatch.setenv("SRUEXPORT_ENGINES", str(tmp_path))
    found = matrix.run([checkpoint], [], ["tract"], [], limit=60)
    assert found.cells == ()
    assert found.absent == {"tract": "sruexport engines install tract"}
    assert "not installed here: `sruexport engines install tract`" in found.to_markdown()


class Picky(nn.Module):
    """Takes ten steps and no others, so that nothing that is made up fits."""

    def __init__(self) -> None:
        super().__init__()
        self.sru = SRU(3, 4, num_layers=1)

    def forward(self, x: Tensor) -> Tensor:
        if not torch.onnx.is_in_onnx_export() and not torch.compiler.is_exporting() and len(x) != 10:
            raise ValueError("ten steps, please")
        return self.sru(x)[0]


def picky() -> tuple[nn.Module, tuple[Tensor], dict[str, dict[int, str]]]:
    return Picky().eval(), (torch.zeros(10, 2, 3),), {"x": {0: "T", 1: "B"}}


def test_a_model_that_refuses_what_is_made_up_says_so(monkeypatch, add):
    monkeypatch.setattr(matrix, "from_code", lambda spec, weights: Source(*picky()))
    found = matrix.run(["nets:picky"], [], [add(Well())], ["lstm"], limit=60)
    assert statuses(found) == {"lstm": "none"}
    assert found.cells[0].reason == "PyTorch refuses it: ValueError: ten steps, please"


# What is refused


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (([], [], ["onnxruntim"], []), OptionError, r"engine 'onnxruntim' is not known; did you mean 'onnxruntime'"),
        (([], [], [], ["lsmt"]), OptionError, r"form 'lsmt' is not known; did you mean 'lstm'"),
        ((["no.pt"], [], [], []), CheckpointError, r"no\.pt: there is no such file"),
        ((["no_such_module:factory"], [], [], []), OptionError, "cannot import no_such_module"),
        ((["{}"], ["hidden=4"], [], []), OptionError, "there is no option 'hidden'"),
    ],
)
def test_what_is_not_there_is_refused(checkpoint, arguments, error, message):
    sources, *others = arguments
    with pytest.raises(error, match=message):
        matrix.run([source.format(checkpoint) for source in sources], *others, limit=60)


# As data and as a page


def test_the_matrix_is_plain_data(two):
    found = json.loads(json.dumps(two.to_dict(), allow_nan=False))
    assert found["versions"]["onnxruntime"] == onnxruntime.__version__
    assert found["versions"]["pytorch"] == torch.__version__
    assert found["day"] == date.today().isoformat()
    assert found["absent"] == {}
    assert found["cells"][0].keys() == {field.name for field in dataclasses.fields(Cell)}


def cell(form: str, engine: str, status: str, source: str = "one.pt", reason: str = "") -> Cell:
    good = {"error": 0.125, "milliseconds": 1.5} if status == "ok" else {}
    return Cell(source, form, engine, status, reason=reason, **good)


MADE = Matrix(
    (
        cell("lstm", "openvino", "ok"),
        cell("scan", "openvino", "WRONG", reason="off by 1.0e+00 | <b>, allowed 1.0e-06"),
        cell("parallel", "openvino", "none", reason="it has none"),
        cell("lstm", "tract", "crashed", reason="tract died of SIGABRT"),
        dataclasses.replace(cell("scan", "tract", "ok"), static=True),
        cell("lstm", "openvino", "refused", source="two.pt", reason="no rule"),
    ),
    {"openvino": "2026.4.1", "tract": "0.23.9"},
    {"iree": "sruexport engines install iree"},
    "2026-12-24",
    "x86_64 Linux",
)


def test_there_is_a_table_per_source_with_forms_down_and_engines_across():
    first, second = MADE.tables()
    assert first == (
        "one.pt",
        ["form", "OpenVINO", "tract"],
        [
            ["lstm", "ok 0.12, 1.5 ms", "crashed"],
            ["scan", "WRONG", "ok 0.12, 1.5 ms, static"],
            ["parallel", "-", ""],
        ],
    )
    assert second[0] == "two.pt"
    assert second[2] == [["lstm", "refused", ""]]


def test_the_page_has_the_tables_the_versions_and_the_day():
    page = MADE.to_markdown()
    assert "on 2026-12-24, on x86_64 Linux" in page
    assert "Versions: OpenVINO 2026.4.1, tract 0.23.9." in page
    lines = page.splitlines()
    start = lines.index("## one.pt")
    assert lines[start + 2 : start + 6] == [
        "| form | OpenVINO | tract |",
        "| --- | --- | --- |",
        "| lstm | ok 0.12, 1.5 ms | crashed |",
        "| scan | WRONG | ok 0.12, 1.5 ms, static |",
    ]
    assert lines.index("## two.pt") > start


def test_the_page_says_why_not_without_breaking_its_own_markup():
    page = MADE.to_markdown()
    assert "- one.pt, scan, OpenVINO: off by 1.0e+00 / (b), allowed 1.0e-06" in page
    assert "- one.pt, lstm, tract: tract died of SIGABRT" in page
    assert "- two.pt, lstm, OpenVINO: no rule" in page
    assert "one.pt, parallel" not in page


def test_the_page_has_every_engine_with_what_it_gets_wrong():
    page = MADE.to_markdown()
    for engine in ENGINES.values():
        assert f"### {engine.title} (`{engine.name}`)" in page
        for feature in engine.wrong:
            assert f"- {feature}: **wrong without a word**: " in page
    assert "not installed here: `sruexport engines install iree`" in page
