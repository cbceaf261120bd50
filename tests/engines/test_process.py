"""An engine's own process: whatever it does there, it comes back as numbers or as a typed error, and nothing stays."""

from __future__ import annotations

import os
import tempfile
import time
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from engines_here import IN_CI, needs, opened
from fake_engines import Echo, Fake, Forge
from small_graphs import Lstm

from sruexport.engines import ENGINES, Port
from sruexport.engines.process import EngineProcess, build
from sruexport.errors import EngineCrash, EngineError

PORTS = (Port("x", np.dtype(np.float32), ("T", 2)),)
OUTPUTS = (Port("y", np.dtype(np.float32), ("T", 2)),)
CALM, FAULTY = {"x": np.zeros((3, 2), np.float32)}, {"x": np.ones((3, 2), np.float32)}
#: What becomes of the process, and what is said of it.
DEATHS = {
    "abort": "Fake died of SIGABRT",
    "exit": "Fake exited with 3: out of luck",
    "exit quietly": "Fake exited with 0",
    "leave": "Fake exited with 0",
}


@pytest.fixture
def temp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A temp folder of its own, for this process and its children."""
    folder = tmp_path / "temp"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    monkeypatch.setenv("TMPDIR", str(folder))
    return folder


def process(limit: float = 60, engine: type = Fake, **options: str) -> EngineProcess:
    return EngineProcess(engine(), Path("any.onnx"), PORTS, OUTPUTS, limit=limit, options=options)


def test_it_runs_as_often_as_it_is_asked():
    with closing(process()) as fake:
        for number in range(3):
            outputs = fake.run({"x": np.full((number, 2), number, np.float32)})
            assert list(outputs) == ["y"]
            np.testing.assert_array_equal(outputs["y"], np.full((number, 2), 2 * number))


def test_time_is_taken_of_loading_and_of_each_run():
    before = time.perf_counter()
    with closing(process()) as fake:
        fake.run(CALM)
        assert 0 < fake.opened_in < time.perf_counter() - before
        assert 0 < fake.seconds < time.perf_counter() - before


# What it does on opening


@pytest.mark.parametrize("deed", DEATHS)
def test_a_process_that_ends_on_opening_is_a_crash(temp, deed):
    with pytest.raises(EngineCrash, match=f"^{DEATHS[deed]}$"):
        process(open=deed)
    assert not list(temp.iterdir())


def test_a_refusal_on_opening_is_an_error_and_no_crash(temp):
    with pytest.raises(EngineError, match=r"^Fake cannot load it: ValueError: no rule for 'Frobnicate'$") as caught:
        process(open="raise")
    assert not isinstance(caught.value, EngineCrash)
    assert not list(temp.iterdir())


def test_opening_that_takes_too_long_is_ended(temp):
    before = time.perf_counter()
    with pytest.raises(EngineCrash, match=r"^Fake ran past the limit of 0\.5 s$"):
        process(limit=0.5, open="hang")
    assert time.perf_counter() - before < 20
    assert not list(temp.iterdir())


# What it does when it runs


@pytest.mark.parametrize("deed", DEATHS)
def test_a_process_that_ends_while_it_runs_is_a_crash(temp, deed):
    with closing(process(run=deed)) as fake, pytest.raises(EngineCrash, match=f"^{DEATHS[deed]}$"):
        fake.run(FAULTY)
    assert not list(temp.iterdir())


def test_a_refusal_to_run_is_an_error_and_the_next_run_is_right():
    with closing(process(run="raise")) as fake:
        with pytest.raises(EngineError, match=r"^Fake cannot run it: ValueError: no rule for 'Frobnicate'$") as caught:
            fake.run(FAULTY)
        assert not isinstance(caught.value, EngineCrash)
        np.testing.assert_array_equal(fake.run(CALM)["y"], CALM["x"])


def test_a_run_that_takes_too_long_is_ended(temp):
    with closing(process(run="hang")) as fake:
        fake.run(CALM)
        fake._limit = 0.5  # it took longer to open
        with pytest.raises(EngineCrash, match="ran past the limit"):
            fake.run(FAULTY)
    assert not list(temp.iterdir())


def test_after_a_crash_every_run_is_a_crash_and_none_hangs():
    with closing(process(run="abort")) as fake:
        for feeds in (FAULTY, CALM, CALM):
            with pytest.raises(EngineCrash, match="SIGABRT"):
                fake.run(feeds)


def test_too_few_outputs_are_a_crash_and_not_other_names_for_the_rest():
    with closing(process(run="drop")) as fake, pytest.raises(EngineCrash, match="Fake exited with 1: ValueError"):
        fake.run(FAULTY)


@pytest.mark.parametrize("deed", ["print", "read", "litter"])
def test_what_it_prints_and_reads_does_not_get_between_the_answers(temp, deed):
    """Its own prints and those of programs that it starts; one that reads finds nothing, and takes no request."""
    with closing(process(open=deed, run=deed)) as fake:
        for _ in range(2):
            np.testing.assert_array_equal(fake.run(FAULTY)["y"], 2 * FAULTY["x"])
        np.testing.assert_array_equal(fake.run(CALM)["y"], CALM["x"])
    assert not list(temp.iterdir())


def test_programs_that_it_started_end_with_it(tmp_path, monkeypatch):
    note = tmp_path / "pid"
    monkeypatch.setenv("SRUEXPORT_TEST_PID", str(note))
    with pytest.raises(EngineCrash, match="ran past the limit"):
        process(limit=6, open="start and hang")
    assert _ends(int(note.read_text()))


def _ends(pid: int) -> bool:
    for _ in range(100):
        try:
            os.kill(pid, 0)
            if Path(f"/proc/{pid}/stat").read_text().split()[2] == "Z":  # nobody waits for it
                return True
        except OSError:
            return True
        time.sleep(0.05)
    return False


def test_closing_ends_a_process_at_once_and_can_be_done_twice(temp):
    fake = process(run="hang")
    before = time.perf_counter()
    fake.close()
    fake.close()
    assert time.perf_counter() - before < 5
    assert not list(temp.iterdir())


# Building


def forged(progress=lambda step, share: None, limit: float = 60, **options: str) -> bytes:
    content, seconds = build(
        Forge(), Path("any.onnx"), PORTS, OUTPUTS, sizes={}, options=options, limit=limit, progress=progress
    )
    assert seconds > 0
    return content


def test_a_build_tells_of_its_steps_and_gives_the_whole_file(temp):
    steps = []
    content = forged(lambda step, share: steps.append((step, share)), bytes=str(2**20 + 1))
    assert content == bytes(2**20 + 1)
    assert steps == [("heating", 0.25), ("casting", 0.75)]
    assert not list(temp.iterdir())


@pytest.mark.parametrize("deed", DEATHS)
def test_a_process_that_ends_while_it_builds_is_a_crash(temp, deed):
    with pytest.raises(EngineCrash, match=f"^{DEATHS[deed].replace('Fake', 'Forge')}$"):
        forged(build=deed)
    assert not list(temp.iterdir())


def test_a_build_that_is_refused_is_an_error_and_no_crash(temp):
    with pytest.raises(EngineError, match=r"^Forge cannot build it: ValueError: no rule for 'Frobnicate'$") as caught:
        forged(build="raise")
    assert not isinstance(caught.value, EngineCrash)
    assert not list(temp.iterdir())


def test_a_build_that_takes_too_long_is_ended_whatever_it_tells(temp):
    with pytest.raises(EngineCrash, match="Forge ran past the limit of 3 s"):
        forged(limit=3, build="hang")
    assert not list(temp.iterdir())


def test_what_a_build_prints_does_not_get_between_the_answers():
    assert forged(build="print", bytes="5") == bytes(5)


# What goes through


def test_arrays_of_every_dtype_empty_and_without_axes_survive():
    kinds = ["?", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8"]
    arrays = {}
    for kind in kinds:
        for shape in ((), (0,), (2, 0, 3), (2, 3)):
            arrays[f"{kind} {shape}"] = np.random.default_rng(0).integers(0, 2, shape).astype(kind)
    both = tuple(Port(name, array.dtype, array.shape) for name, array in arrays.items())
    with closing(EngineProcess(Echo(), Path("any.onnx"), both, both)) as echo:
        found = echo.run(arrays)
    assert list(found) == list(arrays)
    for name, array in arrays.items():
        assert found[name].dtype == array.dtype
        assert found[name].shape == array.shape
        np.testing.assert_array_equal(found[name], array)


def test_more_than_a_pipe_holds_goes_both_ways():
    large = np.random.default_rng(0).standard_normal((2**20, 2)).astype(np.float32)
    large[0, 0] = 0
    with closing(process()) as fake:
        np.testing.assert_array_equal(fake.run({"x": large})["y"], 2 * large)


# Real engines


@pytest.mark.parametrize("name", [name for name in IN_CI if not ENGINES[name].only_builds])
def test_a_real_engine_leaves_nothing_behind_and_keeps_its_outputs_apart(temp, name):
    """Outputs of one run are not overwritten by the next."""
    needs(name)
    graph = Lstm(steps=2, batch=1).graph()
    with closing(opened(name, _saved(graph.model, temp.parent))) as engine:
        first = engine.run(graph.feeds)["Y"]
        kept = first.copy()
        other = engine.run({key: 3 * array for key, array in graph.feeds.items()})["Y"]
        again = engine.run(graph.feeds)["Y"]
    np.testing.assert_array_equal(first, kept)
    np.testing.assert_array_equal(again, kept)
    assert np.abs(other - kept).max() > 0.01
    assert not list(temp.iterdir())


@pytest.mark.parametrize("name", IN_CI)
def test_a_real_engine_says_what_is_wrong_with_a_damaged_file(temp, name):
    needs(name)
    path = temp.parent / "damaged.onnx"
    path.write_bytes(b"this is no model")
    with pytest.raises(EngineError, match=f"^{ENGINES[name].title} ") as caught:
        EngineProcess(ENGINES[name], path, PORTS, OUTPUTS)
    assert len(str(caught.value).splitlines()) == 1
    assert not list(temp.iterdir())


def test_a_real_abort_is_told_as_what_it_is(temp):
    """tract panics on an LSTM of symbolic batch without an initial state."""
    needs("tract")
    path = _saved(Lstm(dynamic=True, states=False).graph().model, temp.parent)
    with pytest.raises(EngineCrash, match=r"^tract died of SIGABRT"):
        opened("tract", path)
    assert not list(temp.iterdir())


def _saved(model, folder: Path) -> Path:
    path = folder / "model.onnx"
    path.write_bytes(model.SerializeToString())
    return path
