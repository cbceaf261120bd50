"""The commands as they are typed: what goes to stdout and stderr, the exit codes, and no file left where one fails."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
import torch
from command_line import Done, Run

from sruexport import cli, load
from sruexport.layers import SRU

KWARGS = {"input_size": 3, "hidden_size": 4, "num_layers": 2}
CODE = """
import torch
from torch import nn
from sruexport.layers import SRU

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(9, 3)
        self.sru = SRU(3, 4, num_layers=1)
        self.out = nn.Linear(4, 2)

    def forward(self, ids):
        return self.out(self.sru(self.embedding(ids))[0])

def boom(): return Net()
"""


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Run a command in this process, in a folder of its own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")

    def call(*arguments: object) -> Done:
        monkeypatch.setattr(sys, "argv", ["sruexport", *map(str, arguments)])
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            cli.main()
        captured = capsys.readouterr()
        return Done(ended.value.code if isinstance(ended.value.code, int) else 0, captured.out, captured.err)

    return call


@pytest.fixture(scope="module")
def layer() -> SRU:
    torch.manual_seed(0)
    return SRU(**KWARGS).eval()


@pytest.fixture
def checkpoint(tmp_path: Path, layer: SRU) -> Callable[..., str]:
    """Write a checkpoint with some of its tensors replaced, beside its constructor arguments unless told not to."""

    def save(changes: dict[str, Any] | None = None, bare: bool = False) -> str:
        state = {name: tensor.clone() for name, tensor in layer.state_dict().items()}
        for name, tensor in (changes or {}).items():
            state.pop(name, None)
            if tensor is not None:
                state[name] = tensor
        torch.save(state if bare else {"state_dict": state, "kwargs": KWARGS}, tmp_path / "c.pt")
        return "c.pt"

    return save


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory, layer: SRU) -> tuple[Path, Path]:
    """A checkpoint and the file that the command made of it."""
    folder = tmp_path_factory.mktemp("shared")
    torch.save({"state_dict": layer.state_dict(), "kwargs": KWARGS}, folder / "c.pt")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["sruexport", "export", str(folder / "c.pt"), "-o", str(folder / "m.onnx")])
        with pytest.raises(SystemExit) as ended:
            cli.main()
    assert ended.value.code == 0
    return folder / "c.pt", folder / "m.onnx"


@pytest.fixture
def net(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A whole model in the current folder, whose spec ("...:boom") has an emoji's name in it."""
    name = f"cli_nets_{abs(hash(str(tmp_path)))}"
    (tmp_path / f"{name}.py").write_text(CODE)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.syspath_prepend(str(tmp_path))
    return f"{name}:boom"


def changed(path: Path, name: str, by: float) -> str:
    model = ir.load(path)
    value = model.graph.initializers[name]
    array = value.const_value.numpy().copy()
    array.flat[array.size // 2] += by
    value.const_value = ir.Tensor(array, name=name)
    ir.save(model, "changed.onnx")
    return "changed.onnx"


def weight_of(path: Path, layer: str) -> str:
    values = ir.load(path).graph.initializers.values()
    of_layer = [v for v in values if any(u.metadata_props.get("sruexport.module") == layer for u in v.consumers())]
    return str(max(of_layer, key=lambda value: value.const_value.size).name)


def refused(done: Done, *parts: str, code: int = 2) -> None:
    """One line on stderr that has all of `parts`, nothing on stdout, and no file left but those of the test."""
    assert done.code == code, done
    assert done.out == ""
    assert done.err.startswith("error: ")
    assert done.err.count("\n") == 1, done.err
    for part in parts:
        assert part in done.err
    assert not [name for name in os.listdir() if name.endswith((".onnx", ".part"))]


# Help and usage


def test_help_has_every_command_with_a_whole_sentence(run):
    done = run("--help")
    assert done.code == 0
    for name in ("inspect", "export", "validate", "convert", "build", "engines", "matrix", "demo"):
        (line,) = [line for line in done.out.splitlines() if line.strip().startswith(name)]
        assert line.endswith(".")
        assert not line.endswith("...")


@pytest.mark.parametrize("command", ["inspect", "export", "validate", "convert", "build", "engines", "matrix", "demo"])
def test_help_of_every_command_has_json(run, command):
    done = run(command, "--help")
    assert done.code == 0
    assert "--json" in done.out
    assert done.err == ""


def test_no_command_shows_the_help_but_is_no_success(run):
    done = run()
    assert done.code == 2
    assert done.out == ""
    assert done.err.startswith("Usage: sruexport")


def test_version(run):
    assert run("--version").out.startswith("sruexport 0.")


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (["exprot"], ["'exprot'", "Did you mean 'export'", "see sruexport --help"]),
        (
            ["export", "c.pt", "-o", "m.onnx", "--statefull"],
            ["--statefull", "--stateful", "see sruexport export --help"],
        ),
        (["export", "c.pt", "m.onnx"], ["--output", "see sruexport export --help"]),
        (["export", "c.pt", "-o", "m.onnx", "--opset", "new"], ["--opset"]),
        (["inspect"], ["file", "see sruexport inspect --help"]),
        (["export", "-o", "m.onnx"], ["give a checkpoint, or --model package.module:factory"]),
        (["validate", "m.onnx"], ["give SOURCE and M.onnx, or --model"]),
        (["validate", "c.pt", "m.onnx", "--model", "a:b"], ["c.pt: give either a checkpoint or --model"]),
    ],
)
def test_wrong_usage_is_one_line_with_the_way_out(run, arguments, parts):
    refused(run(*arguments), *parts)


# inspect


def test_inspect_checkpoint(run, checkpoint):
    done = run("inspect", checkpoint())
    assert (done.code, done.err) == (0, "")
    assert "hidden_size=4" in done.out
    assert "sru at 'state_dict.'" in done.out


def test_inspect_onnx(run, shared):
    done = run("inspect", shared[1])
    assert (done.code, done.err) == (0, "")
    assert "input float32 [T, B, 3]" in done.out
    assert "SRURecurrence x 2" in done.out
    assert "c.pt" in done.out


@pytest.mark.parametrize("which", [0, 1])
def test_inspect_json(run, shared, which):
    done = run("inspect", shared[which], "--json")
    assert done.code == 0
    assert done.document["families"] == ["sru"]
    assert "sru" in done.err


def test_inspect_says_what_is_not_told_and_what_is_not_finite(run, checkpoint):
    done = run("inspect", checkpoint({"rnn_lst.1.bias": torch.full((8,), float("nan"))}, bare=True))
    assert "not told by the tensors: bidirectional, use_tanh" in done.out
    assert "tensor rnn_lst.1.bias has NaN" in done.out


def test_dims_with_small_letters_are_shown_as_they_are(run, tmp_path):
    x = ir.Value(name="x", shape=ir.Shape(["batch", "time"]), type=ir.TensorType(ir.DataType.FLOAT))
    node = ir.node("Identity", [x])
    graph = ir.Graph([x], node.outputs, nodes=[node], opset_imports={"": 18}, name="other")
    ir.save(ir.Model(graph, ir_version=10), tmp_path / "other.onnx")
    assert "x float32 [batch, time]" in run("inspect", "other.onnx").out


def test_inspect_of_a_missing_file(run):
    refused(run("inspect", "no.pt"), "no.pt: there is no such file")


# export


def test_export_says_what_it_wrote_and_what_to_do_next(run, checkpoint):
    done = run("export", checkpoint(), "-o", "m.onnx")
    assert (done.code, done.err) == (0, "")
    assert f"wrote m.onnx ({Path('m.onnx').stat().st_size:,} bytes" in done.out
    assert "sruexport validate c.pt m.onnx" in done.out
    assert load("m.onnx")(np.zeros((5, 2, 3)))[0].shape == (5, 2, 4)


def test_export_json(run, checkpoint):
    done = run("export", checkpoint(), "-o", "m.onnx", "--json")
    assert done.document["file"] == "m.onnx"
    assert done.document["metadata"]["source"]["file"] == "c.pt"
    assert done.document["warnings"] == []
    assert "passed" not in done.document, "nothing was checked"
    assert "wrote m.onnx" in done.err


def test_export_with_states_mask_dtype_and_opset(run, checkpoint):
    done = run("export", checkpoint(), "-o", "m.onnx", "--stateful", "--mask", "--dtype", "float16", "--opset", 20)
    assert done.code == 0
    model = load("m.onnx")
    assert [port.name for port in model.inputs] == ["input", "mask_pad", "state_0", "state_1"]
    assert model.inputs[0].dtype == np.float16
    assert model.metadata["opset"] == 20


def test_options_that_the_tensors_do_not_tell_are_given(run, checkpoint):
    options = ["--option", "bidirectional=false", "--option", "use_tanh=true"]
    done = run("export", checkpoint(bare=True), "-o", "m.onnx", *options)
    assert done.code == 0
    assert load("m.onnx").metadata["layers"][0]["options"]["use_tanh"] is True
    assert f"sruexport validate c.pt {' '.join(options)} m.onnx" in done.out


def test_options_that_are_not_given_are_listed_exactly(run, checkpoint):
    done = run("export", checkpoint(bare=True), "-o", "m.onnx")
    refused(done, "c.pt: ", "--option bidirectional=true|false", "--option use_tanh=true|false")
    assert done.err.count("--option") == 2


def test_a_whole_model_is_exported_and_validated_by_its_code(run, net, tmp_path):
    module, _, _ = net.partition(":")
    sys.path.insert(0, str(tmp_path))
    torch.save({"model": __import__(module).Net().state_dict()}, "w.pt")
    given = ["--model", net, "--weights", "w.pt"]
    done = run("export", *given, "--input", "ids=int64[T,B]:0..8", "-o", "m.onnx", "--json")
    assert done.document["metadata"]["dynamic"] == {"ids": {"0": "T", "1": "B"}}
    assert done.document["metadata"]["source"]["model"] == net
    done = run("validate", *given, "m.onnx", "--json")
    assert (done.code, done.document["passed"]) == (0, True)


def test_nan_weights_are_a_warning_that_names_the_tensor(run, checkpoint):
    source = checkpoint({"rnn_lst.1.bias": torch.full((8,), float("nan"))})
    done = run("export", source, "-o", "m.onnx")
    assert done.code == 0
    assert "warning: tensor rnn_lst.1.bias has NaN" in done.err
    done = run("export", source, "-o", "m.onnx", "--json")
    assert done.document["warnings"] == ["tensor rnn_lst.1.bias has NaN"]
    assert Path("m.onnx").exists()


def test_a_file_that_is_there_is_replaced(run, checkpoint):
    Path("m.onnx").write_bytes(b"old")
    assert run("export", checkpoint(), "-o", "m.onnx").code == 0
    load("m.onnx")


# export, refused


@pytest.mark.parametrize(
    ("changes", "parts"),
    [
        ({"rnn_lst.1.weight": None}, ["c.pt: ", "rnn_lst.1.weight", "missing"]),
        ({"rnn_lst.0.weights": torch.zeros(3, 16)}, ["c.pt: ", "rnn_lst.0.weights"]),
        ({"rnn_lst.1.weight": torch.zeros(4, 13)}, ["c.pt: ", "rnn_lst.1.weight", "[4, 13]"]),
        ({"rnn_lst.1.bias": torch.zeros(6)}, ["c.pt: ", "rnn_lst.1."]),
    ],
    ids=["key-missing", "key-unknown", "shape", "bias-shape"],
)
def test_a_wrong_key_or_shape_is_named(run, checkpoint, changes, parts):
    refused(run("export", checkpoint(changes), "-o", "m.onnx"), *parts)


@pytest.mark.parametrize("share", [0.1, 0.5, 0.95])
def test_a_truncated_checkpoint_is_refused(run, checkpoint, share):
    content = Path(checkpoint()).read_bytes()
    Path("c.pt").write_bytes(content[: int(len(content) * share)])
    refused(run("export", "c.pt", "-o", "m.onnx"), "c.pt: ", "cut off")


class _Touch:
    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return os.system, ("touch RAN",)


@pytest.mark.parametrize("zipped", [True, False])
def test_a_pickle_that_runs_code_is_refused_and_nothing_is_run(run, tmp_path, zipped):
    torch.save({"state_dict": {}, "hook": _Touch()}, tmp_path / "c.pt", _use_new_zipfile_serialization=zipped)
    assert b"system" in pickle.dumps(_Touch())
    refused(run("export", "c.pt", "-o", "m.onnx"), "c.pt: ", "system", "nothing was run", "--model")
    refused(run("inspect", "c.pt"), "nothing was run")
    assert not Path("RAN").exists()


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (["--dtype", "float23"], ["dtype 'float23'", "did you mean 'float32'"]),
        (["--dtype", "int8"], ["float32, float16, bfloat16, float64"]),
        (["--opset", 12], ["opset 12: give one from 18 to 25"]),
        (["--option", "bidirektional=true"], ["'bidirektional'", "did you mean 'bidirectional'"]),
        (["--option", "bidirectional=often"], ["bidirectional=true or bidirectional=false"]),
        (["--prefix", "encoder"], ["c.pt: ", "no layer under prefix 'encoder'", "'state_dict.'"]),
        (["--weights", "w.pt"], ["--weights is for --model"]),
        (["--input", "y=float32[T,B,3]"], ["forward takes no 'y'", "input"]),
    ],
)
def test_a_wrong_option_is_named_with_the_way_out(run, checkpoint, arguments, parts):
    refused(run("export", checkpoint(), "-o", "m.onnx", *arguments), *parts)


def test_states_of_a_bidirectional_layer_are_refused_with_the_layer(run, tmp_path):
    kwargs = {**KWARGS, "bidirectional": True}
    torch.save({"state_dict": SRU(**kwargs).state_dict(), "kwargs": kwargs}, tmp_path / "c.pt")
    refused(run("export", "c.pt", "-o", "m.onnx", "--stateful"), "rnn_lst.0", "bidirectional")


def test_an_output_that_is_a_folder_is_refused(run, checkpoint):
    Path("folder").mkdir()
    refused(run("export", checkpoint(), "-o", "folder"), "folder: is a folder", "folder/model.onnx")
    assert os.listdir("folder") == []


def test_an_output_in_a_missing_folder_is_refused(run, checkpoint):
    refused(run("export", checkpoint(), "-o", "no/m.onnx"), "no/m.onnx: the folder no does not exist")


def test_the_checkpoint_is_never_overwritten(run, checkpoint):
    source = checkpoint()
    before = Path(source).read_bytes()
    refused(run("export", source, "-o", source), "c.pt: is the checkpoint itself")
    assert Path(source).read_bytes() == before


def test_a_missing_checkpoint_is_refused(run):
    refused(run("export", "no.pt", "-o", "m.onnx"), "no.pt: there is no such file")


def test_the_models_own_error_is_one_line_and_its_spec_stays_as_it_was_typed(run, net):
    refused(run("export", "--model", net.replace("boom", "zoom"), "-o", "m.onnx"), net.replace("boom", "zoom"))
    refused(run("export", "--model", net, "--input", "ids=int64[T,B]:0..9", "-o", "m.onnx"), "IndexError")
    refused(run("export", "--model", f"{net}x", "-o", "m.onnx"), f"--model {net}x: ", "did you mean 'boom'")


def test_an_error_is_a_json_document_too(run):
    done = run("export", "no.pt", "-o", "m.onnx", "--json")
    assert done.code == 2
    assert done.document == {
        "passed": False,
        "error": {"type": "CheckpointError", "message": "no.pt: there is no such file"},
    }
    assert done.err == "error: no.pt: there is no such file\n"


def test_wrong_usage_is_a_json_document_too(run):
    done = run("export", "--jsno", "--json")
    assert done.code == 2
    assert done.document["error"]["type"] == "UsageError"


FULL_DISK = """
import resource, sys
resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
from sruexport.cli import main
for name in ("new.onnx", "old.onnx"):
    sys.argv = ["sruexport", "export", "c.pt", "-o", name]
    try:
        main()
    except SystemExit as ended:
        print(ended.code)
"""


def test_a_full_disk_leaves_what_was_there(tmp_path, checkpoint):
    checkpoint()
    (tmp_path / "old.onnx").write_bytes(b"the old file")
    command = [sys.executable, "-B", "-c", FULL_DISK]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.stdout.split() == ["2", "2"], done.stderr
    first, second = done.stderr.splitlines()
    assert first.startswith("error: new.onnx: cannot be written: ")
    assert second.startswith("error: old.onnx: cannot be written: ")
    assert sorted(os.listdir(tmp_path)) == ["c.pt", "old.onnx"]
    assert (tmp_path / "old.onnx").read_bytes() == b"the old file"


@pytest.mark.parametrize("json_too", [False, True])
def test_an_interrupt_stops_with_130_and_leaves_nothing(run, checkpoint, monkeypatch, json_too):
    source = checkpoint()
    monkeypatch.setattr(os, "fsync", lambda handle: signal.raise_signal(signal.SIGINT))
    done = run("export", source, "-o", "m.onnx", *(["--json"] if json_too else []))
    assert done.code == 130
    assert done.err.strip() == "error: stopped; nothing was written"
    assert os.listdir() == ["c.pt"]
    if json_too:
        assert done.document["error"]["type"] == "Interrupted"


def test_a_fault_of_our_own_is_not_taken_for_a_parity_failure(run, checkpoint, monkeypatch):
    import sruexport.exporter

    def broken(*args: Any, **keywords: Any) -> None:
        raise ZeroDivisionError("broken")

    source = checkpoint()
    monkeypatch.setattr(sruexport.exporter, "export", broken)
    done = run("export", source, "-o", "m.onnx", "--json")
    assert done.code == 3
    assert "ZeroDivisionError: broken" in done.err
    assert "please report it" in done.err
    assert done.document["error"]["type"] == "ZeroDivisionError"


# validate


def test_validate(run, shared):
    done = run("validate", *shared)
    assert (done.code, done.err) == (0, "")
    for word in ("max", "mean", "p99", "PyTorch", "bound", "5 cases", "parity: passed"):
        assert word in done.out


def test_figures_are_whole_in_the_narrowest_terminal(run, shared, monkeypatch):
    monkeypatch.setenv("COLUMNS", "30")
    done = run("validate", *shared)
    assert "…" not in done.out
    assert done.out.count(" passed ") == 2


def test_validate_json(run, shared):
    done = run("validate", *shared, "--json")
    assert done.code == 0
    assert done.document["passed"] is True
    assert done.document["outputs"].keys() == {"h", "c"}
    assert "parity: passed" in done.err


def test_validate_with_own_data(run, shared):
    np.savez("x.npz", input=np.ones((7, 2, 3)))
    done = run("validate", *shared, "--data", "x.npz", "--json")
    assert [case["name"] for case in done.document["cases"]] == ["data"]


@pytest.mark.parametrize("where", ["rnn_lst.0", "rnn_lst.1"])
def test_a_file_that_differs_exits_with_1_and_names_the_layer(run, shared, where):
    file = changed(shared[1], weight_of(shared[1], where), 0.1)
    done = run("validate", shared[0], file)
    assert done.code == 1
    assert "parity: FAILED" in done.out
    assert f"the first layer that departs: {where}\n" in done.out
    done = run("validate", shared[0], file, "--json")
    assert (done.code, done.document["passed"], done.document["first_departure"]) == (1, False, where)


def test_a_file_full_of_nan_fails_with_a_document_that_is_json(run, shared):
    done = run("validate", shared[0], changed(shared[1], weight_of(shared[1], "rnn_lst.1"), float("nan")), "--json")
    assert (done.code, done.document["passed"]) == (1, False)


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (["{c}", "no.onnx"], ["no.onnx: there is no such file"]),
        (["no.pt", "{m}"], ["no.pt: there is no such file"]),
        (["{c}", "{c}"], ["c.pt: is cut off, damaged or no ONNX file"]),
        (["{m}", "{c}"], ["m.onnx: looks like an ONNX file"]),
        (["{c}", "{m}", "--data", "no.npz"], ["no.npz: there is no such file"]),
        (["{c}", "{m}", "--data", "{c}"], ["is no input of"]),
        (["{c}", "{m}", "--option", "use_tanhh=true"], ["did you mean 'use_tanh'"]),
    ],
)
def test_what_cannot_be_validated_is_refused(run, shared, arguments, parts):
    refused(run("validate", *(text.format(c=shared[0], m=shared[1]) for text in arguments)), *parts)


def test_another_kind_of_model_is_refused(run, shared, net):
    refused(run("validate", "--model", net, shared[1]), "m.onnx: its input 'input' is no argument of Net")


# demo


def test_demo(run):
    done = run("demo")
    assert (done.code, done.err) == (0, "")
    assert done.out.count("parity: passed") == 1
    assert done.out.count(" passed ") == 4  # two files, each on random sequences and on the recordings
    assert done.out.splitlines()[-1] == "parity: passed"
    for word in ("speaker", "SRU, random", "SRU, speech", "minGRU, random", "minGRU, speech"):
        assert word in done.out
    assert os.listdir() == []


def test_demo_json_and_the_file_of_the_sru_kept(run):
    done = run("demo", "-o", "speaker.onnx", "--json")
    assert done.code == 0
    assert done.document["passed"] is True
    assert list(done.document["examples"]) == ["SRU", "minGRU"]
    for entry in done.document["examples"].values():
        assert entry["passed"] is True
        assert len(entry["predictions"]) == 36
    assert [entry["file"] for entry in done.document["examples"].values()] == ["speaker.onnx", None]
    assert os.listdir() == ["speaker.onnx"]
    assert done.err.splitlines()[-1] == "parity: passed"


def test_demo_into_a_folder_is_refused(run):
    Path("folder").mkdir()
    refused(run("demo", "-o", "folder"), "folder: is a folder")
