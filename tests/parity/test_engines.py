"""validate_on(): one file on several engines."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from engines_here import needs
from moody_engines import Builder, Moody, Well

from sruexport import export
from sruexport.engines import ENGINES, Engine
from sruexport.errors import ConversionError, EngineCrash, EngineError, OptionError
from sruexport.layers import SRU
from sruexport.parity.engines import Reports, validate_on


@pytest.fixture(scope="module")
def layer() -> SRU:
    torch.manual_seed(0)
    return SRU(3, 4, num_layers=1).eval()


@pytest.fixture(scope="module")
def file(layer: SRU, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return export(layer, None, tmp_path_factory.mktemp("file") / "m.onnx").path


@pytest.fixture
def only() -> Iterator[Callable[..., None]]:
    """Let there be no other engines than these."""
    before = dict(ENGINES)

    def keep(*engines: Engine) -> None:
        ENGINES.clear()
        ENGINES.update({engine.name: engine for engine in engines})

    yield keep
    keep(*before.values())


def on(engines: list[str], layer: SRU, file: Path, **settings: object) -> Reports:
    return validate_on(engines, layer, file, sizes=((2, 2),), **settings)


def test_each_engine_has_a_report_in_the_order_that_was_asked_for(layer, file, only):
    only(Moody(), Well())
    done = on(["well", "moody", "well"], layer, file, form="unrolled")
    assert [report.engine.split(" ")[0] for report in done.reports] == ["Well", "Moody"]
    assert done.passed
    assert done.refused == {}
    assert done.to_dict()["passed"] is True
    assert [report["form"] for report in done.to_dict()["engines"]] == ["unrolled", "unrolled"]


def test_one_report_is_the_whole_document(layer, file, only):
    only(Well())
    done = on(["well"], layer, file)
    assert done.to_dict() == done.reports[0].to_dict()
    assert done.to_dict()["form"] == "loop"


def test_one_failure_is_enough(layer, file, only):
    only(Moody(), Well())
    done = on(["well", "moody"], layer, file, form="lstm")
    assert [report.passed for report in done.reports] == [True, False]
    assert not done.passed
    json.dumps(done.to_dict(), allow_nan=False)


def test_every_engine_that_is_here_and_runs_is_meant_by_all(layer, file, only, tmp_path, monkeypatch):
    monkeypatch.setenv("SRUEXPORT_ENGINES", str(tmp_path))
    tract = ENGINES["tract"]
    only(tract, Builder(), Moody(), Well())
    heard: list[str] = []
    done = on(["all"], layer, file, form="lstm", progress=heard.append)
    assert [report.engine.split(" ")[0] for report in done.reports] == ["Moody", "Well"]
    assert {line.split(": ")[0] for line in heard} == {"moody", "well"}
    assert "well: T=2 B=2" in heard


def test_of_all_engines_those_that_refuse_are_listed_and_do_not_fail(layer, file, only):
    only(Moody(), Well())
    done = on(["all"], layer, file, form="loop")
    assert [report.engine.split(" ")[0] for report in done.reports] == ["Well"]
    assert done.refused == {"moody": "Moody cannot load it: ValueError: no rule for 'Loop'"}
    assert done.passed
    assert done.to_dict()["refused"] == done.refused
    assert len(done.to_dict()["engines"]) == 1


def test_where_all_refuse_nothing_has_passed(layer, file, only):
    only(Moody())
    done = on(["all"], layer, file, form="loop")
    assert (done.reports, done.passed) == ((), False)


def test_an_engine_that_was_asked_for_by_name_raises(layer, file, only, tmp_path, monkeypatch):
    monkeypatch.setenv("SRUEXPORT_ENGINES", str(tmp_path))
    only(Moody(), ENGINES["tract"])
    with pytest.raises(EngineError, match="no rule for 'Loop'"):
        on(["moody"], layer, file, form="loop")
    with pytest.raises(EngineCrash, match="Moody died of SIGABRT"):
        on(["moody"], layer, file, form="scan")
    with pytest.raises(ConversionError, match="no parallel scan of it is exact"):
        on(["moody"], layer, file, form="parallel")
    with pytest.raises(EngineError, match="tract is not installed: sruexport engines install tract"):
        on(["moody", "tract"], layer, file, form="unrolled")
    with pytest.raises(OptionError, match=r"engine 'moodi' is not known; did you mean 'moody'"):
        on(["moodi"], layer, file)


@pytest.mark.parametrize("name", ["openvino", "tract", "iree", "onnxruntime-web"])
def test_the_engines_themselves_pass(layer, file, name):
    needs(name)
    done = on([name], layer, file)
    (report,) = done.reports
    assert report.passed, report.to_dict()
    assert report.engine.startswith(ENGINES[name].title)
    assert (report.form in ENGINES[name].forms) or not report.form
