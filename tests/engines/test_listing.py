"""The engines as plain data."""

from __future__ import annotations

import json

import pytest

from sruexport.engines import ENGINES
from sruexport.engines.environments import version
from sruexport.engines.listing import list_engines, named
from sruexport.errors import OptionError


def test_every_engine_is_listed_installed_or_not(tmp_path, monkeypatch):
    here = {entry["name"]: entry for entry in list_engines()}
    versions = {name: version(engine) for name, engine in ENGINES.items()}
    monkeypatch.setenv("SRUEXPORT_ENGINES", str(tmp_path))
    bare = {entry["name"]: entry for entry in list_engines()}
    assert list(here) == list(bare) == list(ENGINES)
    for name, entry in here.items():
        assert entry["version"] == versions[name]
        assert entry["installed"] == (entry["version"] is not None)
    assert not any(entry["installed"] for name, entry in bare.items() if entry["folder"])
    assert bare["onnxruntime"]["installed"]
    assert bare["tract"]["folder"] == str(tmp_path / "tract")


def test_the_list_is_plain_data():
    assert json.loads(json.dumps(list_engines(), allow_nan=False)) == list_engines()


def test_it_says_what_an_engine_takes_refuses_and_gets_wrong():
    for entry in list_engines():
        engine = ENGINES[entry["name"]]
        assert entry["title"] == engine.title
        assert entry["forms"] == list(engine.forms)
        assert entry["refuses"] == engine.refuses
        assert entry["wrong"] == engine.wrong
        assert entry["only_builds"] == engine.only_builds


def test_forms_that_an_engine_gets_wrong_are_named_and_never_among_those_that_it_runs():
    entries = {entry["name"]: entry for entry in list_engines()}
    assert entries["openvino"]["wrong_forms"] == ["lstm-peephole", "lstm-peephole-tanh"]
    assert entries["onnxruntime"]["wrong_forms"] == []
    assert "lstm" in entries["mnn"]["wrong_forms"]
    for entry in entries.values():
        assert not set(entry["wrong_forms"]) & set(entry["forms"])


def test_engines_by_name():
    assert [engine.name for engine in named(["tract", "openvino"])] == ["tract", "openvino"]
    assert named([]) == []
    assert named(["all"]) == [engine for engine in ENGINES.values() if engine.requirements]


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["opnvino"], r"engine 'opnvino' is not known; did you mean 'openvino'\? \(they are onnxruntime, "),
        (["tract", "zzz"], r"engine 'zzz' is not known \(they are "),
        (["all", "tract"], "engine 'all' is not known"),
        ([""], "engine '' is not known"),
    ],
)
def test_unknown_names_are_refused_with_those_that_are_known(names, message):
    with pytest.raises(OptionError, match=message):
        named(names)
