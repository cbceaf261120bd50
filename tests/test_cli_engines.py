"""The commands that have to do with engines, as they are typed: convert, engines, matrix, validate --engine."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
import torch
from command_line import Done, Run
from engines_here import needs
from moody_engines import Moody, Well
from programs_here import keep_programs_here
from sruexport.converters import FORMS
from torch import nn

import sruexport
from sruexport import cli, export
from sruexport.engines import ENGINES, listing
from sruexport.engines.environments import version
from sruexport.layers import SRU
from sruexport.metadata import unpack

KWARGS = {"input_size": 3, "hidden_size": 4, "num_layers": 2}
#: With these a file is tried in one case only.
SMALL = ("--size", "T=3", "--size", "B=2")
CODE = """
import torch
from sruexport.layers import SRU

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = torch.nn.Embedding(9, 3)
        self.sru = SRU(3, 4, num_layers=1)

    def forward(self, ids):
        return self.sru(self.embedding(ids))[0]

def net():
    torch.manual_seed(0)
    return Net().eval(), (torch.zeros(5, 2, dtype=torch.long),), {"ids": {0: "T", 1: "B"}}
"""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a checkpoint, c.pt, the file that was exported from it, m.onnx, and that as an LSTM, lstm.onnx."""
    folder = tmp_path_factory.mktemp("made")
    torch.manual_seed(0)
    layer = SRU(**KWARGS).eval()
    for cell in layer.rnn_lst:
        nn.init.uniform_(cell.weight_c, -0.8, 0.8)
    torch.save({"state_dict": layer.state_dict(), "kwargs": KWARGS}, folder / "c.pt")
    export(layer, None, folder / "m.onnx")
    sruexport.conversion.convert_file(folder / "m.onnx", folder / "lstm.onnx", form="lstm")
    return folder


@pytest.fixture
def run(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Run:
    """Run a command in this process, in a folder that has the files of `made`; all that anybody prints is seen."""
    shutil.copytree(made, tmp_path / "here")
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setenv("COLUMNS", "100")
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))

    def call(*arguments: object) -> Done:
        monkeypatch.setattr(sys, "argv", ["sruexport", *map(str, arguments)])
        capfd.readouterr()
        with pytest.raises(SystemExit) as ended:
            cli.main()
        captured = capfd.readouterr()
        assert str(temporary) not in captured.out + captured.err, "nobody asked for our temporary files"
        assert not [name for name in os.listdir(temporary) if name.startswith("sruexport")], "nothing is left behind"
        return Done(ended.value.code if isinstance(ended.value.code, int) else 0, captured.out, captured.err)

    return call


@pytest.fixture
def nothing_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SRUEXPORT_ENGINES", str(tmp_path / "engines"))


@pytest.fixture
def moody(monkeypatch: pytest.MonkeyPatch) -> None:
    for engine in (Moody(), Well()):
        monkeypatch.setitem(ENGINES, engine.name, engine)


def refused(done: Done, *parts: str, code: int = 2) -> None:
    """One line on stderr that has all of `parts`, nothing on stdout, and no file that was not there."""
    assert done.code == code, done
    assert done.out == ""
    assert done.err.startswith("error: ")
    assert done.err.count("\n") == 1, done.err
    for part in parts:
        assert part in done.err
    assert {"c.pt", "lstm.onnx", "m.onnx"} >= {name for name in os.listdir() if not name.endswith((".npz", ".txt"))}


def form_in(path: str) -> dict[str, Any]:
    return unpack(ir.load(path).metadata_props)["form"]


def spoil(path: str, weight: str, by: float) -> str:
    """The file with one number of a weight changed."""
    model = ir.load(path)
    value = model.graph.initializers[weight]
    assert value.const_value is not None
    array = value.const_value.numpy().copy()
    array.flat[0] += by
    value.const_value = ir.Tensor(array, name=weight)
    ir.save(model, "spoilt.onnx")
    return "spoilt.onnx"


# Help


def test_help_has_every_command_with_a_whole_sentence(run):
    done = run("--help")
    for name in ("convert", "engines", "matrix", "validate"):
        (line,) = [line for line in done.out.splitlines() if line.strip().startswith(name)]
        assert line.endswith(".")
        assert not line.endswith("...")


def test_the_help_names_every_form(run):
    said = "".join(run("convert", "--help").out.split())
    for form in (*FORMS, "torch-lstm"):
        assert form in said


# convert


def test_convert_to_a_form(run):
    done = run("convert", "m.onnx", "--to", "lstm", "-o", "out.onnx", *SMALL)
    assert (done.code, done.err) == (0, "")
    first, *_ = done.out.splitlines()
    assert first.startswith(f"wrote out.onnx ({os.path.getsize('out.onnx'):,} bytes, opset 18), form lstm: LSTM")
    for layer in ("rnn_lst.0", "rnn_lst.1"):
        assert f"{layer}: state times 2^-" in done.out
    assert "out.onnx as lstm on ONNX Runtime " in done.out
    assert "how far the original itself is. bound: 4 x max(8 x the original, 1e-06 x scale)" in done.out
    assert done.out.splitlines()[-1] == "parity: passed"
    assert form_in("out.onnx")["held_against_original"]["verified"] is True


def test_convert_json(run):
    done = run("convert", "m.onnx", "--to", "scan", "-o", "out.onnx", "--json", *SMALL)
    assert done.code == 0
    found = done.document
    assert (found["passed"], found["file"], found["form"]) == (True, "out.onnx", "scan")
    assert found["verified"]["file"] == "out.onnx"
    assert found["warnings"] == []
    assert done.err.splitlines()[-1] == "parity: passed"


def test_convert_for_an_engine_says_which_form_and_why(run, moody):
    done = run("convert", "m.onnx", "--engine", "moody", "-o", "out.onnx", *SMALL)
    assert (done.code, done.err) == (0, "")
    assert "form unrolled: " in done.out
    for said in ("not lstm: Moody ", "not scan: Moody died of SIGABRT", "not loop: Moody cannot load it"):
        assert said in done.out
    assert "out.onnx as unrolled on Moody " in done.out


@pytest.mark.parametrize("name", ["openvino", "tract", "onnxruntime-web"])
def test_convert_for_the_engines_themselves(run, name):
    needs(name)
    done = run("convert", "m.onnx", "--engine", name, "-o", "out.onnx", "--json", *SMALL)
    assert done.code == 0
    assert done.document["engine"] == name
    assert done.document["verified"]["passed"] is True
    assert done.document["form"] in ENGINES[name].forms


def test_convert_for_an_engine_that_is_not_here_says_not_verified(run, nothing_installed):
    done = run("convert", "m.onnx", "--engine", "openvino", "-o", "out.onnx")
    assert (done.code, done.err) == (0, "")
    assert done.out.splitlines()[-1] == "not verified: OpenVINO is not installed here"
    assert form_in("out.onnx")["held_against_original"]["not_verified"] == "OpenVINO is not installed here"
    done = run("inspect", "out.onnx")
    assert "not verified: OpenVINO is not installed here" in done.out
    done = run("convert", "m.onnx", "--engine", "openvino", "-o", "out.onnx", "--json")
    assert done.document["verified"] is None
    assert done.document["not_verified"] == "OpenVINO is not installed here"


def test_wrong_numbers_exit_with_1_and_write_nothing(run, moody, monkeypatch):
    monkeypatch.setattr(Moody, "forms", ("lstm",))
    done = run("convert", "m.onnx", "--engine", "moody", "-o", "out.onnx", *SMALL)
    assert done.code == 1
    assert "parity: FAILED" in done.out
    assert f"out.onnx was not written: Moody {version(Moody())} fails it" in done.out
    assert "wrote" not in done.out
    assert "departs" not in done.out, "no layer was looked for"
    done = run("convert", "m.onnx", "--engine", "moody", "-o", "out.onnx", "--json", *SMALL)
    assert (done.code, done.document["passed"], done.document["file"]) == (1, False, None)
    assert not Path("out.onnx").exists()


def test_convert_with_data_and_a_range(run):
    np.savez("data.npz", input=np.ones((4, 2, 3), np.float32))
    done = run("convert", "m.onnx", "--to", "lstm", "--data", "data.npz", "-o", "out.onnx")
    assert done.code == 0
    assert "float32, 1 cases" in done.out
    assert form_in("out.onnx")["ranges"] == {"input": [-2.0, 2.0]}
    done = run("convert", "m.onnx", "--to", "lstm", "--range", "input=-4..4.5", "-o", "out.onnx", *SMALL)
    assert "input in [-4, 4.5]" in done.out
    assert form_in("out.onnx")["ranges"] == {"input": [-4.0, 4.5]}


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        ([], ["give the file to write: -o OUT.onnx"]),
        (["m.onnx", "--to", "scan"], ["give the file to write: -o OUT.onnx"]),
        (["--to", "scan", "-o", "out.onnx"], ["give the ONNX file to convert"]),
        (["m.onnx", "-o", "out.onnx"], ["give either a form (--to FORM) or an engine (--engine NAME)"]),
        (["m.onnx", "-o", "out.onnx", "--to", "scan", "--engine", "tract"], ["give either a form"]),
        (["m.onnx", "-o", "out.onnx", "--to", "scann"], ["form 'scann' is not known; did you mean 'scan'?"]),
        (["m.onnx", "-o", "out.onnx", "--engine", "tracked"], ["engine 'tracked' is not known", "tract"]),
        (["no.onnx", "-o", "out.onnx", "--to", "scan"], ["no.onnx: there is no such file"]),
        (["text.txt", "-o", "out.onnx", "--to", "scan"], ["text.txt: is cut off, damaged or no ONNX file"]),
        (["c.pt", "-o", "out.onnx", "--to", "lstm"], ["c.pt: is a checkpoint", "sruexport export c.pt -o M.onnx"]),
        (["lstm.onnx", "-o", "out.onnx", "--to", "scan"], ["lstm.onnx: ", "it is converted already (form lstm)"]),
        (["m.onnx", "-o", "m.onnx", "--to", "scan"], ["m.onnx: is the file to convert itself"]),
        (["m.onnx", "-o", "data.npz", "--to", "scan", "--data", "data.npz"], ["data.npz: is the data itself"]),
        (["m.onnx", "-o", "no/out.onnx", "--to", "scan"], ["no/out.onnx: the folder no does not exist"]),
        (["m.onnx", "-o", ".", "--to", "scan"], [".: is a folder"]),
        (["m.onnx", "-o", "out.onnx", "--to", "scan", "--size", "N=3"], ["size 'N'", "they are T, B"]),
        (["m.onnx", "-o", "out.onnx", "--to", "scan", "--size", "T=0"], ["size T=0: give 1 or more"]),
        (["m.onnx", "-o", "out.onnx", "--to", "scan", "--size", "T=ten"], ["--size T=ten: write NAME=NUMBER"]),
        (["m.onnx", "-o", "out.onnx", "--to", "scan", "--size", "T=²"], ["write NAME=NUMBER"]),
        (["m.onnx", "-o", "out.onnx", "--to", "scan", *SMALL, "--size", "T=4"], ["'T' is given twice"]),
        (["m.onnx", "-o", "out.onnx", "--to", "lstm", "--range", "input=4"], ["write NAME=LOW..HIGH"]),
        (["m.onnx", "-o", "out.onnx", "--to", "lstm", "--range", "x=1..2"], ["range of 'x': no such input", "input"]),
        (["m.onnx", "-o", "out.onnx", "--to", "lstm", "--range", "input=2..1"], ["the lower one first"]),
        (["m.onnx", "-o", "out.onnx", "--to", "lstm", "--data", "no.npz"], ["no.npz: there is no such file"]),
        (["m.onnx", "-o", "out.onnx", "--to", "lstm", "--data", "wrong.npz"], ["wrong.npz: 'x' is no input of m.onnx"]),
        (["m.onnx", "-o", "out.onnx", "--to", "lstm", "--data", "shape.npz"], ["m.onnx: 'input' has shape [2, 3]"]),
        (["m.onnx", "-o", "out.onnx", "--to", "lstm", "--lstm-dtype", "float8"], ["lstm_dtype 'float8'"]),
        (["m.onnx", "-o", "out.onnx", "--to", "lstm", "--limit", "0"], ["--limit 0: give a number of seconds above 0"]),
        (["m.onnx", "-o", "out.onnx", "--to", "lstm", "--limit", "nan"], ["--limit nan: "]),
        (["m.onnx", "-o", "out.onnx", "--to", "lstm", "--limit", "0.01"], ["ran past the limit of 0.01 s"]),
        (["m.onnx", "-o", "out.onnx", "--to", "parallel"], ["rnn_lst.0: ", "no parallel scan of it is exact"]),
        (["m.onnx", "-o", "out.pt2", "--engine", "executorch"], ["--to torch-lstm"]),
        (["m.onnx", "-o", "out.onnx", "--to", "scan", "--prefix", "x"], ["--prefix", "are for --to torch-lstm"]),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_convert_refused(run, arguments, parts):
    Path("text.txt").write_text("text")
    for name, array in {"data": np.ones((3, 2, 3)), "shape": np.ones((2, 3))}.items():
        np.savez(f"{name}.npz", input=array)
    np.savez("wrong.npz", x=np.ones((3, 2, 3)))
    before = Path("m.onnx").read_bytes()
    refused(run("convert", *arguments), *parts)
    assert Path("m.onnx").read_bytes() == before


def test_an_error_is_a_json_document_too(run):
    done = run("convert", "m.onnx", "--engine", "opnvino", "-o", "out.onnx", "--json")
    assert done.code == 2
    assert done.document["passed"] is False
    assert done.document["error"]["type"] == "OptionError"
    assert "did you mean 'openvino'?" in done.document["error"]["message"]


def test_inspect_says_the_form_of_a_converted_file(run):
    done = run("inspect", "lstm.onnx")
    assert [line.split() for line in done.out.splitlines() if line.strip().startswith("form")] == [["form", "lstm"]]
    assert f"on onnxruntime {version(ENGINES['onnxruntime'])}" in done.out
    assert run("inspect", "lstm.onnx", "--json").document["metadata"]["form"]["name"] == "lstm"
    assert "verified" not in run("inspect", "m.onnx").out


# convert --to torch-lstm


@pytest.fixture
def programs_here(monkeypatch: pytest.MonkeyPatch) -> None:
    keep_programs_here(monkeypatch)
    assert sruexport.validate.__kwdefaults__ is not None
    monkeypatch.setitem(sruexport.validate.__kwdefaults__, "sizes", ((4, 2),))


def test_convert_to_a_state_dict_of_torch_lstm(run, programs_here):
    done = run("convert", "c.pt", "--to", "torch-lstm", "--range", "input=-2..2", "-o", "out.pt", "--json")
    assert done.code == 0
    assert (done.document["file"], done.document["form"]) == ("out.pt", "torch-lstm")
    assert "input in [-2, 2]" in done.document["layers"][0]["bound_from"]
    assert done.document["verified"]["passed"] is True
    assert torch.load("out.pt", weights_only=True)["source"]["file"] == "c.pt"


def test_convert_a_whole_model_to_a_program(run, programs_here, monkeypatch):
    Path("nets_of_cli_engines.py").write_text(CODE)
    monkeypatch.setattr(sys, "path", [os.getcwd(), *sys.path])
    done = run("convert", "--model", "nets_of_cli_engines:net", "--to", "torch-lstm", "-o", "out.pt2")
    assert (done.code, done.err) == (0, "")
    first, *_ = done.out.splitlines()
    size = os.path.getsize("out.pt2")
    assert first == f"wrote out.pt2 ({size:,} bytes): a program for torch.export.load, for ids [5, 2]"
    assert "out.pt2 as torch-lstm on PyTorch " in done.out
    torch.export.load("out.pt2")


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (["m.onnx", "-o", "out.pt"], ["m.onnx: looks like an ONNX file; a checkpoint is needed here"]),
        (["c.pt", "-o", "out.pth"], ["out.pth: name it .pt (state_dict) or .pt2"]),
        (["c.pt", "-o", "c.pt"], ["c.pt: is the checkpoint itself"]),
        (["-o", "out.pt"], ["give a checkpoint, or --model"]),
        (["c.pt", "-o", "out.pt", "--engine", "tract"], ["--engine", "are not for --to torch-lstm"]),
        (["c.pt", "-o", "out.pt", "--size", "T=3"], ["--size", "are not for --to torch-lstm"]),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_convert_to_torch_lstm_refused(run, arguments, parts):
    refused(run("convert", "--to", "torch-lstm", *arguments), *parts)


# validate --engine, --form


def test_validate_on_an_engine_in_a_form(run, moody):
    done = run("validate", "c.pt", "m.onnx", "--engine", "well", "--form", "lstm")
    assert (done.code, done.err) == (0, "")
    assert f"m.onnx as lstm on Well {version(Well())}" in done.out


def test_validate_on_two_engines_fails_where_one_does(run, moody):
    done = run("validate", "c.pt", "m.onnx", "--engine", "well", "--engine", "moody", "--form", "lstm", "--json")
    assert (done.code, done.document["passed"]) == (1, False)
    assert [entry["passed"] for entry in done.document["engines"]] == [True, False]
    assert done.err.count("parity: passed") == done.err.count("parity: FAILED") == 1


@pytest.mark.parametrize("name", ["onnxruntime", "openvino", "tract"])
@pytest.mark.parametrize("layer", ["rnn_lst.0", "rnn_lst.1"])
def test_a_converted_file_with_one_changed_number_fails_and_engine_and_layer_are_named(run, name, layer):
    needs(name)
    done = run("validate", "c.pt", spoil("lstm.onnx", f"{layer}.lstm.W", 0.2), "--engine", name)
    assert done.code == 1
    assert f"spoilt.onnx as lstm on {ENGINES[name].title} {version(ENGINES[name])}" in done.out
    assert f"the first layer that departs: {layer}\n" in done.out
    assert "parity: FAILED" in done.out


def test_a_converted_file_is_not_run_as_another_form(run):
    refused(
        run("validate", "c.pt", "lstm.onnx", "--form", "scan"), "lstm.onnx: is in form lstm already, and not in scan"
    )
    assert run("validate", "c.pt", "lstm.onnx", "--form", "lstm").code == 0


def test_what_a_program_says_of_the_file_is_said(run, programs_here):
    done = run("validate", "c.pt", "m.onnx", "--engine", "pytorch")
    assert done.code == 0
    assert "a torch-lstm program is made of the model: no number of the ONNX file is in it" in done.out
    refused(run("validate", "c.pt", "lstm.onnx", "--engine", "pytorch"), "lstm.onnx: ", "as it was exported")


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (["--engine", "openvinno"], ["engine 'openvinno' is not known; did you mean 'openvino'?"]),
        (["--form", "lsmt"], ["form 'lsmt' is not known; did you mean 'lstm'?"]),
        (["--engine", "tract"], ["tract is not installed: sruexport engines install tract"]),
        (["--engine", "pytorch", "--form", "scan"], ["PyTorch takes PyTorch programs: its form is torch-lstm"]),
        (["--form", "torch-lstm"], ["takes ONNX files, and torch-lstm is none"]),
        (["--form", "parallel"], ["no parallel scan of it is exact"]),
        (["--limit", "-1"], ["--limit -1: give a number of seconds above 0"]),
        (["--limit", "0.01"], ["ran past the limit of 0.01 s"]),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_validate_refused(run, nothing_installed, arguments, parts):
    refused(run("validate", "c.pt", "m.onnx", *arguments), *parts)


# engines


def test_engines_lists_every_one_with_what_it_gets_wrong(run, nothing_installed):
    done = run("engines")
    assert (done.code, done.err) == (0, "")
    for engine in ENGINES.values():
        assert f" {engine.name} " in done.out
        for feature in engine.wrong:
            assert f"{engine.name} gets wrong, without a word: {feature}: " in done.out
    assert version(ENGINES["onnxruntime"]) in done.out
    assert done.out.count("not installed") == len([e for e in ENGINES.values() if version(e) is None])
    assert "to install: sruexport engines install openvino tract " in done.out


def test_engines_json(run, nothing_installed):
    found = {entry["name"]: entry for entry in run("engines", "--json").document["engines"]}
    assert list(found) == list(ENGINES)
    assert found["onnxruntime"]["installed"] is True
    assert found["tract"]["installed"] is False
    assert found["tract"]["version"] is None
    assert found["tract"]["install"] == "sruexport engines install tract"
    assert found["tract"]["forms"] == list(ENGINES["tract"].forms)
    assert found["openvino"]["wrong"]["LSTM.peepholes"]


def test_engines_install(run, monkeypatch):
    installed: list[str] = []

    def install(engine: Any, progress: Callable[[str], None]) -> Path:
        installed.append(engine.name)
        progress("installing")
        return Path("cache") / engine.name

    monkeypatch.setattr(listing, "install", install)
    monkeypatch.setattr(listing, "version", lambda engine: "1.2")
    done = run("engines", "install", "tract", "iree")
    assert (done.code, done.out, done.err) == (0, "tract 1.2: cache/tract\nIREE 1.2: cache/iree\n", "")
    for arguments in (("install", "tract", "--json"), ("--json", "install", "tract")):
        done = run("engines", *arguments)
        assert done.document == {"installed": {"tract": "cache/tract"}, "warnings": []}
        assert done.err == "tract 1.2: cache/tract\n"
    installed.clear()
    assert run("engines", "install", "all").code == 0
    assert installed == [engine.name for engine in ENGINES.values() if engine.requirements]


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (["install"], ["Missing argument 'NAME...'"]),
        (["install", "tracked"], ["engine 'tracked' is not known; did you mean 'tract'?"]),
        (["install", "tract", "openvno"], ["engine 'openvno' is not known; did you mean 'openvino'?"]),
        (["install", "onnxruntime"], ["ONNX Runtime runs in this Python: pip install onnxruntime"]),
        (["instal"], ["No such command 'instal'. Did you mean 'install'?"]),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_engines_refused(run, nothing_installed, tmp_path, arguments, parts):
    refused(run("engines", *arguments), *parts)
    assert not (tmp_path / "engines").exists()


# matrix


def test_matrix(run, moody):
    forms = ("--form", "lstm", "--form", "loop", "--form", "unrolled")
    done = run("matrix", "c.pt", "--engine", "moody", *forms, "-o", "table.md")
    assert (done.code, done.err) == (0, "")
    for status, form in {"WRONG": "lstm", "refused": "loop", "ok": "unrolled"}.items():
        assert f"{status}: {form}" in done.out
    assert "not as the profile of moody says: lstm: WRONG off by 1.0e-02" in done.out
    page = Path("table.md").read_text()
    assert "## c.pt" in page
    assert "- c.pt, loop, Moody: " in page


def test_matrix_json(run, moody, nothing_installed):
    done = run("matrix", "c.pt", "--engine", "well", "--engine", "tract", "--form", "loop", "--json")
    assert done.code == 0
    (cell,) = done.document["cells"]
    assert (cell["source"], cell["form"], cell["engine"], cell["status"]) == ("c.pt", "loop", "well", "ok")
    assert done.document["absent"] == {"tract": "sruexport engines install tract"}
    assert done.document["versions"] == {"well": version(Well())}
    assert "tract is not installed: sruexport engines install tract" in done.err


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (["c.pt", "--engine", "tracked"], ["engine 'tracked' is not known; did you mean 'tract'?"]),
        (["c.pt", "--form", "lsmt"], ["form 'lsmt' is not known; did you mean 'lstm'?"]),
        (["no.pt"], ["no.pt: there is no such file"]),
        (["m.onnx"], ["m.onnx: looks like an ONNX file; a checkpoint is needed here"]),
        (["no_such_module:net"], ["cannot import no_such_module"]),
        (["c.pt", "-o", "no/table.md"], ["no/table.md: the folder no does not exist"]),
        (["c.pt", "-o", "c.pt"], ["c.pt: is the checkpoint itself"]),
        (["c.pt", "--limit", "0"], ["--limit 0: "]),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_matrix_refused(run, arguments, parts):
    refused(run("matrix", *arguments), *parts)
