"""A file on an engine: which form it gets, in which sizes, and what happens when it dies."""

from __future__ import annotations

import tempfile
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
import torch
from fake_engines import Fake, Own, Picky, Rigid
from small_graphs import PAIRS, Lstm
from sruexport.converters import FORMS, convert, fix_sizes

from sruexport import export, validate
from sruexport.engines import AS_EXPORTED, ENGINES, OnnxRuntime
from sruexport.engines.running import EngineSession, choices, objections, ports, read_model
from sruexport.errors import ConversionError, EngineCrash, EngineError, ModelFileError
from sruexport.layers import SRU

MODEL = SRU(3, 3, num_layers=1).eval()


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(0)
    return export(MODEL, None, tmp_path_factory.mktemp("file") / "m.onnx").path


def feeds(steps: int = 4, batch: int = 2) -> dict[str, np.ndarray]:
    return {"input": np.random.default_rng(0).standard_normal((steps, batch, 3)).astype(np.float32)}


def plain(path: Path, arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    with closing(EngineSession(OnnxRuntime(), path)) as session:
        return session.run(arrays)


def assert_same(found: dict[str, np.ndarray], right: dict[str, np.ndarray]) -> None:
    assert list(found) == list(right)
    for name, array in found.items():
        np.testing.assert_allclose(array, right[name], atol=1e-5)


# What an engine must not be given


def test_objections_name_the_feature_its_node_and_the_reason(file):
    (reason,) = objections(Picky(), convert(fix_sizes(ir.load(file), {"T": 2, "B": 1}), FORMS["loop"]).model)
    assert reason.startswith("Loop (")
    assert reason.endswith("_node): it has none")
    wrong = objections(Picky(), ir.serde.deserialize_model(Lstm().graph().model))
    assert wrong == ["LSTM (lstm) gives wrong numbers there: it guesses"]


def test_dynamic_sizes_are_an_objection_where_all_must_be_static(file):
    assert objections(Picky(), ir.load(file)) == ["Picky needs static sizes, and 'input' has dynamic ones"]
    assert not objections(OnnxRuntime(), ir.load(file))


def test_what_is_wrong_comes_before_what_is_refused():
    both = type("Both", (Picky,), {"static": False, "refuses": {"LSTM.peepholes": "no"}, "wrong": {"LSTM": "yes"}})
    reasons = objections(both(), ir.serde.deserialize_model(PAIRS["LSTM.peepholes"][0].graph().model))
    assert [reason.split(" ")[0] for reason in reasons] == ["LSTM", "LSTM.peepholes"]


# Which form


def test_forms_come_in_the_engines_order_without_the_custom_ops(file):
    found = [choice.converted.form for choice in choices(OnnxRuntime(), ir.load(file))]
    has_none = {AS_EXPORTED, "parallel", "linear-attention", "unrolled"}
    assert found == [form for form in OnnxRuntime.forms if form not in has_none]
    assert len(found) == 6


def test_a_form_that_is_passed_over_comes_with_the_reason(file):
    picked = next(choices(Picky(), fix_sizes(ir.load(file), {"T": 4, "B": 2})))
    assert picked.converted.form == "scan"
    assert list(picked.passed_over) == ["parallel", "loop", "lstm"]
    assert "no parallel scan of it is exact" in picked.passed_over["parallel"]
    assert "it has none" in picked.passed_over["loop"]
    assert "gives wrong numbers there" in picked.passed_over["lstm"]


def test_an_engine_without_a_form_says_why_not_for_each_and_what_may_help(file):
    narrow = type("Narrow", (Picky,), {"forms": ("parallel", "loop")})()
    with pytest.raises(ConversionError, match=r"^Picky runs no form of this model; with fixed sizes \(") as caught:
        list(choices(narrow, ir.load(file)))
    message = str(caught.value)
    assert "--size T=... --size B=..." in message
    assert "parallel: rnn_lst.0: SRURecurrence: its gates read the state" in message
    assert "loop: Picky needs static sizes" in message
    with pytest.raises(ConversionError, match="runs no form of this model: parallel") as caught:
        list(choices(narrow, fix_sizes(ir.load(file), {"T": 4, "B": 2})))
    assert "--size" not in str(caught.value)


def test_a_session_takes_the_file_as_it_is_where_the_engine_does(file):
    with closing(EngineSession(OnnxRuntime(), file)) as session:
        session.run(feeds())
        assert session.form == AS_EXPORTED
        assert session.written_as == ""
        assert session.allowance == 1


def test_a_session_takes_the_first_form_that_fits_elsewhere(file):
    with closing(EngineSession(Picky(), file)) as session:
        assert_same(session.run(feeds()), plain(file, feeds()))
        assert session.form == session.written_as == "scan"


def test_a_session_takes_the_form_that_is_asked_for(file):
    with closing(EngineSession(OnnxRuntime(), file, "lstm")) as session:
        assert_same(session.run(feeds()), plain(file, feeds()))
        assert session.written_as == "lstm"
        assert session.allowance == FORMS["lstm"].allowance == 4


def test_a_converted_file_is_run_as_it_is_and_says_its_form(file, tmp_path):
    path = tmp_path / "lstm.onnx"
    ir.save(convert(ir.load(file), FORMS["lstm"]).model, path)
    with closing(EngineSession(OnnxRuntime(), path)) as session:
        assert_same(session.run(feeds()), plain(file, feeds()))
        assert session.form == AS_EXPORTED
        assert session.written_as == "lstm"
        assert session.allowance == 4


@pytest.mark.parametrize("form", ["loop", "lstm"])
def test_what_the_profile_forbids_runs_only_by_force(file, form):
    with (
        closing(EngineSession(Picky(), file, form)) as session,
        pytest.raises(EngineError, match=f"Picky, {form}: L") as caught,
    ):
        session.run(feeds())
    assert not isinstance(caught.value, EngineCrash)
    with closing(EngineSession(Picky(), file, form, force=True)) as session:
        assert_same(session.run(feeds()), plain(file, feeds()))


def test_a_form_that_the_model_has_not_is_a_conversion_error(file):
    with (
        closing(EngineSession(OnnxRuntime(), file, "parallel")) as session,
        pytest.raises(ConversionError, match="exact"),
    ):
        session.run(feeds())


# In which sizes


def started(session: EngineSession) -> int:
    return len(session._processes)


def test_one_process_runs_all_sizes_where_the_engine_takes_dynamic_ones(file):
    with closing(EngineSession(OnnxRuntime(), file)) as session:
        for sizes in ((1, 1), (4, 2), (3, 5)):
            assert_same(session.run(feeds(*sizes)), plain(file, feeds(*sizes)))
        assert started(session) == 1
        assert not session.static


@pytest.mark.parametrize("engine", [Picky, Rigid], ids=["by its profile", "by what it says"])
def test_an_engine_of_static_sizes_gets_a_file_of_each(file, engine):
    with closing(EngineSession(engine(), file)) as session:
        for sizes in ((1, 1), (4, 2), (1, 1)):
            assert_same(session.run(feeds(*sizes)), plain(file, feeds(*sizes)))
        assert started(session) == 2
        assert session.static


def test_where_sizes_must_not_be_fixed_such_an_engine_refuses(file):
    with (
        closing(EngineSession(Rigid(), file, fix=False)) as session,
        pytest.raises(EngineError, match="must be static"),
    ):
        session.run(feeds())
    with (
        closing(EngineSession(Picky(), file, fix=False)) as session,
        pytest.raises(ConversionError, match="fixed sizes"),
    ):
        session.run(feeds())


def test_unrolled_is_written_for_each_length(file):
    with closing(EngineSession(OnnxRuntime(), file, "unrolled")) as session:
        for sizes in ((1, 1), (4, 2)):
            assert_same(session.run(feeds(*sizes)), plain(file, feeds(*sizes)))
        assert session.static


# When it dies


@pytest.fixture
def doubling(tmp_path: Path) -> Path:
    x = ir.Value(name="x", shape=ir.Shape(["T"]), type=ir.TensorType(ir.DataType.FLOAT))
    node = ir.node("Add", [x, x])
    y = node.outputs[0]
    y.name, y.shape, y.type = "y", x.shape, x.type
    graph = ir.Graph([x], [y], nodes=[node], opset_imports={"": 18}, name="doubling")
    ir.save(ir.Model(graph, ir_version=10), tmp_path / "doubling.onnx")
    return tmp_path / "doubling.onnx"


@pytest.mark.parametrize(
    ("deed", "message"),
    [("abort", "died of SIGABRT"), ("exit", "exited with 3"), ("hang", "ran past the limit of 5 s")],
)
def test_after_a_crash_the_session_can_be_used_again(doubling, deed, message):
    calm, fatal = np.array([0, 1], np.float32), np.array([1, 1], np.float32)
    with closing(EngineSession(Fake(), doubling, limit=5, options={"run": deed})) as session:
        for _ in range(1 if deed == "hang" else 2):
            np.testing.assert_array_equal(session.run({"x": calm})["y"], 2 * calm)
            with pytest.raises(EngineCrash, match=message):
                session.run({"x": fatal})
        np.testing.assert_array_equal(session.run({"x": calm})["y"], 2 * calm)


def test_a_refusal_to_run_keeps_the_process(doubling):
    calm, fatal = np.array([0, 1], np.float32), np.array([1, 1], np.float32)
    with closing(EngineSession(Fake(), doubling, options={"run": "raise"})) as session:
        session.run({"x": calm})
        (process,) = session._processes.values()
        with pytest.raises(EngineError, match="Frobnicate"):
            session.run({"x": fatal})
        np.testing.assert_array_equal(session.run({"x": calm})["y"], 2 * calm)
        assert list(session._processes.values()) == [process]


@pytest.mark.parametrize(
    "options",
    [{}, {"run": "abort"}, {"run": "raise"}, {"open": "abort"}, {"open": "raise"}],
    ids=lambda o: str(o or ""),
)
def test_no_temp_folder_is_left(doubling, tmp_path, monkeypatch, options):
    temp = tmp_path / "temp"
    temp.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temp))
    with closing(EngineSession(Fake(), doubling, options=options)) as session:
        try:
            session.run({"x": np.ones(2, np.float32)})
        except EngineError:
            assert options
        else:
            assert not options
    assert not list(temp.iterdir())


# Files


def test_an_engine_that_is_not_installed_is_refused_with_the_way_to_get_it(file, monkeypatch, tmp_path):
    monkeypatch.setenv("SRUEXPORT_ENGINES", str(tmp_path))
    with pytest.raises(EngineError, match=r"^tract is not installed: sruexport engines install tract$"):
        EngineSession(ENGINES["tract"], file)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "there is no such file"),
        (b"no model", "is cut off, damaged or no ONNX file"),
        (b"", "is empty"),
    ],
    ids=["missing", "text", "empty"],
)
def test_files_that_cannot_be_read_are_named(tmp_path, content, message):
    path = tmp_path / "m.onnx"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ModelFileError, match=rf"m\.onnx: .*({message})"):
        EngineSession(OnnxRuntime(), path)


def test_a_folder_is_no_file(tmp_path):
    with pytest.raises(ModelFileError, match="is a folder"):
        read_model(tmp_path)


def test_ports_have_numpys_types_and_the_names_of_their_dims(file):
    model = ir.load(file)
    (port,) = ports(model.graph.inputs, file)
    assert (port.name, port.dtype, port.shape) == ("input", np.float32, ("T", "B", 3))
    with closing(EngineSession(OnnxRuntime(), file)) as session:
        assert session.inputs == (port,)
        assert [output.name for output in session.outputs] == ["h", "c"]
        assert "sruexport.layers" in session.metadata


@pytest.mark.parametrize("missing", ["type", "shape", "numpy"])
def test_a_port_without_a_type_or_shape_is_refused(missing):
    kind = None if missing == "type" else ir.TensorType(ir.DataType.STRING if missing == "numpy" else ir.DataType.FLOAT)
    value = ir.Value(name="x", shape=None if missing == "shape" else ir.Shape([1]), type=kind)
    with pytest.raises(ModelFileError, match=r"m\.onnx: 'x' "):
        ports([value], "m.onnx")


# An engine of one's own


def test_an_engine_of_ones_own_is_a_class_and_a_row(file, monkeypatch):
    monkeypatch.setitem(ENGINES, "own", Own())
    report: Any = validate(MODEL, file, engine="own", sizes=((1, 1), (4, 2)))
    assert report.passed
    assert report.engine.startswith("My engine ")
    assert report.form == "loop"
