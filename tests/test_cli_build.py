"""`sruexport build`, as it is typed."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path

import pytest
import torch
from command_line import Done, Run
from engines_here import needs
from fake_engines import Forge
from sruexport.converters import FORMS

from sruexport import cli, export
from sruexport.engines import ENGINES
from sruexport.engines.environments import version
from sruexport.layers import SRU

RTX = ("--engine", "tensorrt-rtx", "-o", "m.engine")
FORGE = ("--engine", "forge", "-o", "m.engine")


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    torch.manual_seed(0)
    path = tmp_path_factory.mktemp("exported") / "m.onnx"
    export(SRU(3, 4, num_layers=2).eval(), None, path)
    return path.read_bytes()


@pytest.fixture
def run(exported: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Run:
    """Run a command in this process, in a folder that has m.onnx only."""
    here, temporary = tmp_path / "here", tmp_path / "temporary"
    for folder in (here, temporary):
        folder.mkdir()
    (here / "m.onnx").write_bytes(exported)
    monkeypatch.chdir(here)
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    monkeypatch.setitem(ENGINES, "forge", Forge())

    def call(*arguments: object) -> Done:
        monkeypatch.setattr(sys, "argv", ["sruexport", *map(str, arguments)])
        capfd.readouterr()
        with pytest.raises(SystemExit) as ended:
            cli.main()
        captured = capfd.readouterr()
        assert not [name for name in os.listdir(temporary) if name.startswith("sruexport")], "nothing is left behind"
        return Done(ended.value.code if isinstance(ended.value.code, int) else 0, captured.out, captured.err)

    return call


def test_build(run):
    needs("tensorrt-rtx")
    done = run("build", "m.onnx", *RTX, "--max", "T=4096,B=8", "--opt", "T=128", "--opt", "B=1", "--capability", "120")
    assert (done.code, done.err) == (0, "")
    first, second, *others = done.out.splitlines()
    size, found = os.path.getsize("m.engine"), version(ENGINES["tensorrt-rtx"])
    assert first.startswith(f"wrote m.engine ({size:,} bytes), built in 0.")
    assert first.endswith(f" s by TensorRT-RTX {found}, for compute capability 120")
    assert second == f"form scan: {FORMS['scan'].about}; float32"
    assert any(line.startswith("not parallel: rnn_lst.0: SRURecurrence: ") for line in others)
    for line in (
        "input input float32 [T, B, 3]",
        "output h float32 [T, B, 4]",
        "T from 1 to 4096, fastest at 128",
        "B from 1 to 8, fastest at 1",
    ):
        assert line in others
    assert others[-1] == "not run here: it builds for a GPU that need not be here, and only that GPU can run it"


def test_build_json(run):
    done = run(
        "build",
        "m.onnx",
        *FORGE,
        "--min",
        "T=2",
        "--capability",
        "2",
        "--capability",
        "1",
        "--workspace",
        "64",
        "--json",
    )
    assert done.code == 0
    found = done.document
    assert (found["file"], found["engine"], found["form"]) == ("m.engine", "forge", "loop")
    assert found["bytes"] == os.path.getsize("m.engine")
    job = json.loads(Path("m.engine").read_text())
    assert job == {"options": {"capability": "2,1", "workspace": "64"}, "sizes": found["sizes"]}
    assert found["sizes"] == {"T": [2, 32, 512], "B": [1, 32, 512]}
    assert found["capabilities"] == ["2", "1"]
    assert found["passed_over"]["scan"].endswith("a Scan melts")
    assert found["inputs"] == [{"name": "input", "dtype": "float32", "shape": ["T", "B", 3]}]
    assert found["not_run"] == "its machine is elsewhere"
    assert found["warnings"] == []
    assert done.err.splitlines()[-1] == "not run here: its machine is elsewhere"


def test_on_a_terminal_the_builder_s_steps_are_seen_on_stderr_only(run, monkeypatch):
    needs("tensorrt-rtx")
    monkeypatch.setenv("FORCE_COLOR", "1")  # a terminal, to rich
    done = run("build", "m.onnx", *RTX, "--json")
    assert done.code == 0
    assert done.document["form"] == "scan"
    assert "build: form " in done.err
    assert "━" in done.err


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (["m.onnx", "-o", "m.engine"], ["--engine", "see sruexport build --help"]),
        (["m.onnx", "--engine", "tensorrt-rtx"], ["--output", "see sruexport build --help"]),
        (["m.onnx", "--engine", "openvino", "-o", "m.engine"], ["'openvino' has no files of its own", "tensorrt-rtx"]),
        (["no.onnx", *FORGE], ["no.onnx: there is no such file"]),
        (["m.onnx", "--engine", "forge", "-o", "m.onnx"], ["m.onnx: is the file to convert itself"]),
        (["m.onnx", "--engine", "forge", "-o", "no/m.engine"], ["no/m.engine: the folder no does not exist"]),
        (["m.onnx", *FORGE, "--min", "T"], ["--min T: write NAME=NUMBER, such as T=50"]),
        (["m.onnx", *FORGE, "--opt", "T=1,T=2"], ["--opt T=2: 'T' is given twice"]),
        (["m.onnx", *FORGE, "--max", "T=-1"], ["--max T=-1: write NAME=NUMBER"]),
        (["m.onnx", *FORGE, "--max", "L=9"], ["max L=9: m.onnx has no such dynamic dim", "they are T, B"]),
        (["m.onnx", *FORGE, "--min", "T=9", "--max", "T=3"], ["min T=9, max T=3: give sizes with min <= opt <= max"]),
        (["m.onnx", *FORGE, "--capability", "86"], ["capability '86': Forge builds for 1, 2"]),
        (["m.onnx", *FORGE, "--dtype", "float16"], ["m.onnx: is in float32", "export the model with --dtype float16"]),
        (["m.onnx", *FORGE, "--workspace", "0"], ["workspace 0: give a number of MiB from 1 up"]),
        (["m.onnx", *FORGE, "--form", "scan"], ["m.onnx: Forge builds it in no form: scan: ", "a Scan melts"]),
        (["m.onnx", *FORGE, "--limit", "0"], ["--limit 0: give a number of seconds above 0"]),
        (["m.onnx", *RTX, "--capability", "75"], ["TensorRT-RTX does not build for capability 75", "--dtype float16"]),
    ],
)
def test_what_can_be_mended_is_one_line_and_writes_nothing(run, arguments, parts):
    done = run("build", *arguments)
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith("error: ")
    assert done.err.count("\n") == 1, done.err
    for part in parts:
        assert part in done.err
    assert os.listdir() == ["m.onnx"]


def test_the_old_file_stays_where_a_build_fails(run):
    Path("m.engine").write_bytes(b"old")
    done = run("build", "m.onnx", *FORGE, "--form", "scan", "--json")
    assert done.code == 2
    assert done.document["error"]["type"] == "EngineError"
    assert Path("m.engine").read_bytes() == b"old"
    assert sorted(os.listdir()) == ["m.engine", "m.onnx"]


def test_the_help_names_every_form_and_gpu(run):
    said = "".join(run("build", "--help").out.split())
    for name in (*FORMS, "asexported", *ENGINES["tensorrt-rtx"].capabilities):
        assert name in said
    assert "torch-lstm" not in said
