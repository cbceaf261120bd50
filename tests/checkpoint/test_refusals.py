"""What is no checkpoint, or not a whole one, or asks for code, is refused with its name; nothing of it is run."""

from __future__ import annotations

import builtins
import os
import pickle
import re
import struct
import subprocess
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

import sruexport
from sruexport.checkpoint import open_checkpoint, read
from sruexport.errors import CheckpointError, OptionError, SruExportError, UnsafeCheckpointError
from sruexport.layers import SRU, SRUCell

OPTIONS = {"bidirectional": False, "use_tanh": False}


def tensors(**options: Any) -> dict[str, Tensor]:
    torch.manual_seed(0)
    return SRU(5, 4, **options).state_dict()


def refused(file: Path, pattern: str, error: type[SruExportError] = CheckpointError, **arguments: Any) -> str:
    """What `read` says, which begins with the file, has one line and matches `pattern`."""
    with pytest.raises(error) as caught:
        read(file, **arguments)
    text = str(caught.value)
    assert type(caught.value) is error
    assert text.startswith(f"{file}: "), text
    assert "\n" not in text
    assert re.search(pattern, text), text
    assert caught.value.exit_code == 2
    return text


# Files that are none


def test_a_missing_file(tmp_path):
    refused(tmp_path / "none.pt", "there is no such file")


def test_a_folder(tmp_path):
    refused(tmp_path, "is a folder")


def test_an_empty_file(tmp_path):
    (tmp_path / "c.pt").touch()
    refused(tmp_path / "c.pt", "is empty")


JUNK = [b"x", b"not a checkpoint, but a text\n", bytes(range(256)) * 8, b"\x80", b"PK\x03\x04junk"]


@pytest.mark.parametrize("content", JUNK)
@pytest.mark.parametrize("name", ["c.pt", "c.safetensors"])
def test_junk(tmp_path, content, name):
    (tmp_path / name).write_bytes(content)
    refused(tmp_path / name, "cannot be read as a checkpoint|cut off or damaged")


@pytest.mark.parametrize("zipped", [True, False])
@pytest.mark.parametrize("share", [0.02, 0.3, 0.6, 0.95, 0.999])
def test_a_file_that_is_cut_off(tmp_path, zipped, share):
    torch.save(tensors(), tmp_path / "whole.pt", _use_new_zipfile_serialization=zipped)
    whole = (tmp_path / "whole.pt").read_bytes()
    (tmp_path / "c.pt").write_bytes(whole[: int(len(whole) * share)])
    refused(tmp_path / "c.pt", "cut off, damaged or something else")


@pytest.mark.parametrize("share", [0.1, 0.5, 0.99])
def test_a_safetensors_file_that_is_cut_off(tmp_path, share):
    save_file(tensors(), tmp_path / "whole.safetensors")
    whole = (tmp_path / "whole.safetensors").read_bytes()
    (tmp_path / "c.safetensors").write_bytes(whole[: int(len(whole) * share)])
    refused(tmp_path / "c.safetensors", "cut off or damaged")


def test_a_safetensors_file_whose_header_promises_more_than_there_is(tmp_path):
    (tmp_path / "c.safetensors").write_bytes(struct.pack("<Q", 2**40) + b"{}")
    refused(tmp_path / "c.safetensors", "cut off or damaged")


@pytest.mark.parametrize("value", [3, [1, 2], "text", None, torch.zeros(2)])
def test_a_pickle_of_something_else(tmp_path, value):
    torch.save(value, tmp_path / "c.pt")
    refused(tmp_path / "c.pt", f"holds a {type(value).__name__}, not a state_dict or a module")


@pytest.mark.parametrize("suffix", [".onnx", ".pt"])
def test_an_onnx_file(tmp_path, suffix):
    sruexport.export(SRU(2, 2, num_layers=1), None, tmp_path / "m.onnx")
    (tmp_path / "m.onnx").rename(tmp_path / f"file{suffix}")
    refused(tmp_path / f"file{suffix}", "looks like an ONNX file")


@pytest.mark.filterwarnings("ignore")
def test_a_torchscript_archive(tmp_path):
    torch.jit.save(torch.jit.script(nn.Linear(2, 2)), str(tmp_path / "m.pt"))
    refused(tmp_path / "m.pt", r"TorchScript archive.*state_dict\(\)")


# Code


class Calls:
    """Pickles as a call of `function`, as attackers write it."""

    def __init__(self, function: Any, *arguments: Any):
        self.reduced = (function, arguments)

    def __reduce__(self) -> Any:
        return self.reduced


class Home(nn.Module):
    """A module of the user's own: code that a checkpoint can only name."""


def malicious(marker: Path) -> dict[str, Any]:
    command = f"touch {marker}"
    return {
        "os.system": Calls(os.system, command),
        "builtins.eval": Calls(builtins.eval, f"open({str(marker)!r}, 'w')"),
        "builtins.exec": Calls(builtins.exec, f"open({str(marker)!r}, 'w')"),
        "builtins.open": Calls(builtins.open, str(marker), "w"),
        "builtins.getattr": Calls(builtins.getattr, "text", "upper"),
        "subprocess.call": Calls(subprocess.call, ["touch", str(marker)]),
        "torch.load": Calls(torch.load, str(marker)),
        "torch.hub.load": Calls(torch.hub.load, "someone/something", "model"),
        "pathlib.Path.touch": Calls(Path.touch, marker),
    }


@pytest.mark.parametrize("name", list(malicious(Path("marker"))))
@pytest.mark.parametrize("zipped", [True, False])
@pytest.mark.parametrize("nested", [True, False])
def test_a_pickle_that_calls_a_function_is_refused_and_nothing_is_run(tmp_path, name, zipped, nested):
    marker = tmp_path / "marker"
    attack = malicious(marker)[name]
    content = {"state_dict": {**tensors(), "extra": [{"deep": (attack,)}]}} if nested else attack
    torch.save(content, tmp_path / "c.pt", _use_new_zipfile_serialization=zipped)
    said = r"the pickle asks for [\w.]+, which is code.*nothing was run.*--model"
    refused(tmp_path / "c.pt", said, UnsafeCheckpointError)
    assert not marker.exists()


@pytest.mark.parametrize("zipped", [True, False])
def test_a_module_of_unknown_code_is_refused_by_its_name(tmp_path, zipped):
    torch.save(Home(), tmp_path / "c.pt", _use_new_zipfile_serialization=zipped)
    refused(tmp_path / "c.pt", r"asks for [\w.]*test_refusals\.Home", UnsafeCheckpointError)


def raw_pickle(file: Path, program: bytes) -> None:
    """A torch archive whose data.pkl is `program`, since no pickler writes such names."""
    torch.save({}, file)
    with zipfile.ZipFile(file) as archive:
        parts = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(file, "w") as archive:
        for name, data in parts.items():
            archive.writestr(name, program if name.endswith("data.pkl") else data)


def call(module: str, name: str, argument: str) -> bytes:
    """module.name(argument), by GLOBAL and by STACK_GLOBAL, which alone takes dotted names."""
    return (
        b"\x80\x04"
        + pickle.SHORT_BINUNICODE + bytes([len(module)]) + module.encode()
        + pickle.SHORT_BINUNICODE + bytes([len(name)]) + name.encode()
        + pickle.STACK_GLOBAL
        + pickle.SHORT_BINUNICODE + bytes([len(argument)]) + argument.encode()
        + pickle.TUPLE1 + pickle.REDUCE + b"."
    )  # fmt: skip


TRICKS = [
    ("torch.nn.modules.module", "os.system"),
    ("torch.nn.modules.module", "torch.os.system"),
    ("torch.nn.modules.module", "functools.partial"),
    ("torch.nn.modules.module", "torch"),
    ("torch.nn.modules.module", "warnings"),
    ("torch.nn.modules.module", "register_module_forward_hook"),
    ("torch.nn.modules.module", "OrderedDict"),
    ("torch.nn.modules.module", "namedtuple"),
    ("torch.nn.modules.module", "Module.__init__.__globals__"),
    ("torch.nn.modules.module", "Module.load_state_dict"),
    ("torch.nn.modules.module", "__builtins__"),
    ("torch.nn.modules.module", "_WrappedHook"),
    ("torch.nn.modules.container", "chain"),
    ("torch.nn.modules.container", "operator.attrgetter"),
    ("torch.nn.modules.lazy", "itertools.chain"),
    ("torch.nn.modules.rnn", "math"),
    ("torch.nn.modules.rnn", "_VF"),
    ("torch.nn.modules.conv", "F"),
    ("torch.nn.modules", "module"),
    ("torch.nn.modules.no_such_module", "Linear"),
    ("torch.nn", "Linear.__init__"),
    ("torch.nn.modulesque.linear", "Linear"),
    ("torch._utils", "_import_dotted_name"),
    ("torch", "load"),
    ("torch", "os.system"),
    ("torch.serialization", "_get_layout.__globals__"),
    ("collections", "_sys.modules"),
    ("collections", "namedtuple"),
    ("argparse", "ArgumentParser"),
    ("_codecs", "decode"),
    ("numpy", "load"),
    ("builtins", "__import__"),
    ("__builtin__", "eval"),
    ("posix", "system"),
    ("nt", "system"),
    ("sru", "__dict__"),
    ("sru.modules", "SRU.forward"),
    ("sru.modules", "copy"),
]  # fmt: skip


@pytest.mark.parametrize(("module", "name"), TRICKS)
def test_no_name_leads_to_code_by_way_of_a_known_one(tmp_path, module, name):
    marker = tmp_path / "marker"
    raw_pickle(tmp_path / "c.pt", call(module, name, f"touch {marker}"))
    refused(tmp_path / "c.pt", re.escape(f"asks for {module}.{name}, which is code"), UnsafeCheckpointError)
    assert not marker.exists()
    if "." not in name:
        raw_pickle(tmp_path / "c.pt", f"c{module}\n{name}\n(X\x04\x00\x00\x00trueltR.".encode("latin-1"))
        refused(tmp_path / "c.pt", re.escape(f"asks for {module}.{name}, which is code"), UnsafeCheckpointError)


def test_the_tricks_would_work_in_a_plain_unpickler(tmp_path):
    """That the pickles above are sound, and only the reader keeps them from running."""
    marker = tmp_path / "marker"
    pickle.loads(call("posix", "system", f"touch {marker}"))
    assert marker.exists()


def test_plain_values_of_all_kinds_are_no_code(tmp_path):
    content = {
        "model": tensors(),
        "epoch": 3,
        "seen": {1, 2},
        "frozen": frozenset([1]),
        "shape": torch.Size([2, 3]),
        "dtype": torch.float16,
        "device": torch.device("cpu"),
        "slices": slice(1, 2),
        "bytes": b"abc",
        "complex": torch.zeros(1, dtype=torch.complex64),
        "parameter": nn.Parameter(torch.ones(2)),
        "bool": torch.tensor([True]),
    }
    torch.save(content, tmp_path / "c.pt")
    assert isinstance(read(tmp_path / "c.pt", prefix="model.", options=OPTIONS), SRU)


# Checkpoints of something else


def test_an_unknown_family_is_told_what_was_seen_and_what_is_nearest(tmp_path):
    torch.save(nn.LSTM(2, 3).state_dict(), tmp_path / "c.pt")
    text = refused(tmp_path / "c.pt", "holds 4 tensors of no known family")
    assert "bias_hh_l0, bias_ih_l0, weight_hh_l0, weight_ih_l0" in text
    assert "the nearest is sru, whose keys are like rnn_lst.0.weight, " in text


def test_the_nearest_family_is_the_one_whose_names_are_alike(tmp_path):
    torch.save({"a.transform_module.linear1.weight": torch.ones(1), "x.alpha": torch.ones(1)}, tmp_path / "c.pt")
    refused(tmp_path / "c.pt", "the nearest is ")


@pytest.mark.parametrize("content", [{}, {"epoch": 3}, {"state_dict": {}}])
def test_no_tensors(tmp_path, content):
    torch.save(content, tmp_path / "c.pt")
    refused(tmp_path / "c.pt", "holds no tensors")


def test_a_pickled_module_without_a_known_layer(tmp_path):
    torch.save(nn.Sequential(nn.Linear(2, 2)), tmp_path / "c.pt")
    refused(tmp_path / "c.pt", r"the pickled Sequential has no layer of a known family \(sru")


def test_several_layers_without_a_prefix(tmp_path):
    both = {f"{prefix}{k}": t for prefix in ("encoder.", "decoder.") for k, t in tensors().items()}
    torch.save({"model": both}, tmp_path / "c.pt")
    refused(tmp_path / "c.pt", "holds 2 recurrent layers: choose one with --prefix, of 'model.decoder.', 'model.enc")


def test_other_tensors_beside_the_layer(tmp_path):
    model = {f"rnn.{k}": t for k, t in tensors().items()} | {"head.weight": torch.ones(1)}
    torch.save(model, tmp_path / "c.pt")
    said = r"more than the recurrent layer 'rnn\.', such as head\.weight: .*--model.*--prefix 'rnn\.'"
    refused(tmp_path / "c.pt", said)
    assert isinstance(read(tmp_path / "c.pt", prefix="rnn.", options=OPTIONS), SRU)


def test_a_prefix_that_is_not_there_gets_the_closest(tmp_path):
    torch.save({f"encoder.{k}": t for k, t in tensors().items()}, tmp_path / "c.pt")
    refused(tmp_path / "c.pt", "no layer under prefix 'encodr'; did you mean 'encoder.'", OptionError, prefix="encodr")
    refused(tmp_path / "c.pt", "no layer under prefix ''", OptionError, prefix="")


# Keys and shapes that do not fit


@pytest.mark.parametrize("key", ["0.weight", "1.bias", "0.weight_c", "1.weight_c", "1.scale_x", "0.layer_norm.bias"])
def test_a_missing_key_is_named(tmp_path, key):
    held = tensors(projection_size=2, layer_norm=True)
    del held[f"rnn_lst.{key}"]
    torch.save(held, tmp_path / "c.pt")
    options = {**OPTIONS, "normalize_after": False}
    refused(tmp_path / "c.pt", rf"key rnn_lst\.{re.escape(key)} is missing", options=options)


def test_a_weight_c_is_missing_where_there_is_a_scale(tmp_path):
    """Only the code of 2017 has no weight_c, and it has no scale_x either."""
    torch.save({key: t for key, t in tensors().items() if not key.endswith("weight_c")}, tmp_path / "c.pt")
    refused(tmp_path / "c.pt", r"key rnn_lst\.0\.weight_c is missing", options=OPTIONS)


def test_a_missing_projection_shows_in_the_weight_behind_it(tmp_path):
    held = tensors(projection_size=2)
    del held["rnn_lst.1.weight_proj"]
    torch.save(held, tmp_path / "c.pt")
    refused(tmp_path / "c.pt", r"key rnn_lst\.1\.weight has shape \[2, 12\], expected \[4, 12\]", options=OPTIONS)


def test_a_missing_layer_is_told_from_the_others(tmp_path):
    held = {key: t for key, t in tensors(num_layers=3).items() if not key.startswith("rnn_lst.1.")}
    torch.save(held, tmp_path / "c.pt")
    refused(tmp_path / "c.pt", r"layers \[0, 2\] of rnn_lst", options=OPTIONS)


UNKNOWN = ["rnn_lst.0.weight_q", "rnn_lst.1.layer_norm.weights", "rnn_lst.0.transform_module.bias", "extra"]


@pytest.mark.parametrize("key", UNKNOWN)
def test_an_unknown_key_is_named(tmp_path, key):
    torch.save({**tensors(), key: torch.ones(2)}, tmp_path / "c.pt")
    refused(tmp_path / "c.pt", rf"key {re.escape(key)} |such as {re.escape(key)}", options=OPTIONS, prefix="")


def test_the_weights_of_a_custom_m_need_its_code(tmp_path):
    torch.save(SRU(3, 4, custom_m=[nn.Linear(3, 16), nn.Linear(4, 12)]).state_dict(), tmp_path / "c.pt")
    refused(tmp_path / "c.pt", r"key rnn_lst\.0\.custom_m\.weight: a custom_m is code.*--model", options=OPTIONS)


@pytest.mark.parametrize(
    "extra", [{}, {"projection_size": 2}, {"layer_norm": True}, {"proj_input_to_hidden_first": True}], ids=str
)
def test_a_wrong_shape_is_told_with_its_key_and_the_right_one(tmp_path, extra):
    """Every tensor in turn, longer by one along every axis, with an axis more, and without any."""
    options = {**OPTIONS, "has_skip_term": True, "normalize_after": False}
    if "layer_norm" not in extra:
        del options["normalize_after"]
    held = tensors(**extra)
    first = "rnn_lst.0.weight_proj" if "rnn_lst.0.weight_proj" in held else "rnn_lst.0.weight"
    if "input_to_hidden.weight" in held:
        first = ""
    for key, tensor in held.items():
        longer = [torch.cat([tensor, tensor.narrow(axis, 0, 1)], axis) for axis in range(tensor.dim())]
        if key == "input_to_hidden.weight":
            longer = longer[:1]  # the other axis is the input size, which no other tensor tells
        elif key == first and "layer_norm" not in extra:
            longer = longer[1:]
        for wrong in (*longer, tensor.unsqueeze(0), torch.tensor(1.0)):
            if key.endswith("scale_x") and wrong.numel() == 1:
                continue  # a scalar in some versions: taken for what it is
            torch.save({**held, key: wrong}, tmp_path / "c.pt")
            refused(tmp_path / "c.pt", r"key [\w.]+ has shape \[[\d, ]*\]|contradicts the tensors", options=options)


@pytest.mark.parametrize("key", ["weight_c", "scale_x", "layer_norm.weight"])
def test_both_shapes_are_in_the_message(tmp_path, key):
    held = SRUCell(3, 4, layer_norm=True).state_dict()
    right = list(held[key].shape)
    held[key] = torch.ones(right[0] + 2)
    torch.save(held, tmp_path / "c.pt")
    said = rf"key {re.escape(key)} has shape \[{right[0] + 2}\], expected \[{right[0]}\]"
    refused(tmp_path / "c.pt", said, options=OPTIONS)


def test_the_gains_of_weight_norm_are_one_for_each_column(tmp_path):
    """A single one would otherwise be spread over all of them."""
    held = SRUCell(3, 4).state_dict()
    torch.save({**held, "gain": torch.ones(1)}, tmp_path / "c.pt")
    refused(tmp_path / "c.pt", r"key gain has shape \[1\], expected \[16\]", options=OPTIONS)


@pytest.mark.parametrize("shape", [(16,), (1, 16, 3), ()])
def test_a_weight_of_3_0_dev_that_is_no_matrix(tmp_path, shape):
    held = SRUCell(3, 4).state_dict()
    del held["weight"]
    torch.save({**held, "transform_module.weight": torch.ones(shape)}, tmp_path / "c.pt")
    refused(tmp_path / "c.pt", r"key transform_module\.weight has shape \[.*\], expected a matrix", options=OPTIONS)


def test_reading_changes_no_file_and_leaves_none_behind(tmp_path):
    torch.save(tensors(), tmp_path / "c.pt")
    before = (tmp_path / "c.pt").read_bytes()
    open_checkpoint(tmp_path / "c.pt")
    assert [file.name for file in tmp_path.iterdir()] == ["c.pt"]
    assert (tmp_path / "c.pt").read_bytes() == before
