"""inspect(): what is in a checkpoint or an ONNX file, as plain data, whatever the file is called."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import onnx_ir as ir
import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from sruexport import export
from sruexport.errors import CheckpointError, ModelFileError
from sruexport.inspection import inspect
from sruexport.layers import SRU, SRUCell

KWARGS = {"input_size": 3, "hidden_size": 4, "num_layers": 2, "bidirectional": True}


@pytest.fixture(scope="module")
def layer() -> SRU:
    torch.manual_seed(0)
    return SRU(**KWARGS)


@pytest.fixture
def saved(tmp_path: Path, layer: SRU) -> Path:
    torch.save({"state_dict": layer.state_dict(), "kwargs": KWARGS}, tmp_path / "c.pt")
    return tmp_path / "c.pt"


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(0)
    return export(SRU(3, 4, num_layers=2), None, tmp_path_factory.mktemp("m") / "m.onnx", stateful=True).path


def test_findings_are_plain_data(saved, file):
    for path in (saved, file):
        json.dumps(inspect(path), allow_nan=False)


def test_a_checkpoint_with_its_arguments_tells_every_option(saved, layer):
    found = inspect(saved)
    assert (found["kind"], found["format"], found["families"]) == ("checkpoint", "torch", ["sru"])
    assert found["sha256"] == hashlib.sha256(saved.read_bytes()).hexdigest()
    assert found["tensors"] == len(layer.state_dict())
    assert found["parameters"] == sum(tensor.numel() for tensor in layer.state_dict().values())
    (one,) = found["layers"]
    assert (one["family"], one["prefix"], one["other_tensors"], one["needs"]) == ("sru", "state_dict.", 0, [])
    assert one["options"].items() >= KWARGS.items()


def test_a_bare_state_dict_says_exactly_what_it_does_not_tell(tmp_path, layer):
    torch.save(layer.state_dict(), tmp_path / "c.pt")
    (one,) = inspect(tmp_path / "c.pt")["layers"]
    assert one["options"] == {}
    assert one["needs"] == ["bidirectional", "use_tanh"]


def test_safetensors_are_read_alike(tmp_path, layer):
    save_file(layer.state_dict(), tmp_path / "c.safetensors")
    found = inspect(tmp_path / "c.safetensors")
    assert (found["format"], found["families"]) == ("safetensors", ["sru"])


@pytest.mark.parametrize("padding", range(16))
def test_a_safetensors_file_is_told_from_onnx_whatever_its_header_length(tmp_path, padding):
    save_file({"x": torch.zeros(2)}, tmp_path / "c.bin", metadata={"note": "a" * padding * 8})
    assert inspect(tmp_path / "c.bin")["kind"] == "checkpoint"


def test_a_layer_among_others_is_found_with_its_prefix(tmp_path):
    model = nn.ModuleDict({"embedding": nn.Embedding(5, 3), "encoder": SRU(**KWARGS), "cell": SRUCell(3, 4)})
    torch.save({"model": model.state_dict()}, tmp_path / "c.pt")
    layers = inspect(tmp_path / "c.pt")["layers"]
    assert {one["prefix"] for one in layers} == {"model.encoder.", "model.cell."}
    assert all(one["other_tensors"] > 0 for one in layers)


def test_nan_and_infinite_tensors_are_named(tmp_path, layer):
    tensors = {name: tensor.clone() for name, tensor in layer.state_dict().items()}
    tensors["rnn_lst.0.bias"][0] = float("nan")
    tensors["rnn_lst.1.weight"][0, 0] = float("inf")
    torch.save(tensors, tmp_path / "c.pt")
    assert set(inspect(tmp_path / "c.pt")["not_finite"]) == {"rnn_lst.0.bias", "rnn_lst.1.weight"}


def test_a_layer_with_a_missing_key_is_shown_with_its_error(tmp_path, layer):
    tensors = dict(layer.state_dict())
    del tensors["rnn_lst.1.weight"]
    torch.save(tensors, tmp_path / "c.pt")
    assert "rnn_lst.1.weight is missing" in inspect(tmp_path / "c.pt")["layers"][0]["error"]


def test_a_checkpoint_without_a_known_layer_is_no_error(tmp_path):
    torch.save(nn.Linear(2, 2).state_dict(), tmp_path / "c.pt")
    found = inspect(tmp_path / "c.pt")
    assert (found["layers"], found["families"], found["tensors"]) == ([], [], 2)


def test_an_onnx_file_tells_its_ports_recurrences_and_metadata(file):
    found = inspect(file)
    assert (found["kind"], found["opset"], found["families"]) == ("onnx", 18, ["sru"])
    assert found["bytes"] == file.stat().st_size
    assert found["inputs"] == [
        {"name": "input", "dtype": "float32", "shape": ["T", "B", 3]},
        {"name": "state_0", "dtype": "float32", "shape": ["B", 4]},
        {"name": "state_1", "dtype": "float32", "shape": ["B", 4]},
    ]
    assert [port["name"] for port in found["outputs"]] == ["h", "c", "new_state_0", "new_state_1"]
    assert found["recurrences"] == {"SRURecurrence": 2}
    assert found["functions"] == ["sruexport::SRURecurrence"]
    assert found["metadata"]["states"][0]["output"] == "new_state_0"


def test_an_onnx_file_is_known_by_its_content_as_well(tmp_path, file):
    other = tmp_path / "model.bin"
    other.write_bytes(file.read_bytes())
    assert inspect(other)["kind"] == "onnx"


def test_an_onnx_file_of_another_tool_has_no_recurrences(tmp_path):
    x = ir.Value(name="x", shape=ir.Shape(["N", 4]), type=ir.TensorType(ir.DataType.BFLOAT16))
    node = ir.node("Identity", [x])
    graph = ir.Graph([x], node.outputs, nodes=[node], opset_imports={"": 18}, name="other")
    ir.save(ir.Model(graph, ir_version=10), tmp_path / "other.onnx")
    found = inspect(tmp_path / "other.onnx")
    assert (found["recurrences"], found["metadata"], found["families"]) == ({}, {}, [])
    assert found["inputs"] == [{"name": "x", "dtype": "bfloat16", "shape": ["N", 4]}]


@pytest.mark.parametrize("name", ["no.onnx", "no.pt"])
def test_a_missing_file_is_named(tmp_path, name):
    with pytest.raises((CheckpointError, ModelFileError), match=f"{name}: there is no such file"):
        inspect(tmp_path / name)


@pytest.mark.parametrize("name", ["folder.onnx", "folder"])
def test_a_folder_is_no_file(tmp_path, name):
    (tmp_path / name).mkdir()
    with pytest.raises((CheckpointError, ModelFileError), match=f"{name}: is a folder"):
        inspect(tmp_path / name)


@pytest.mark.parametrize(("name", "error"), [("c.pt", CheckpointError), ("m.onnx", ModelFileError)])
def test_half_a_file_is_refused(tmp_path, saved, file, name, error):
    whole = (saved if name == "c.pt" else file).read_bytes()
    (tmp_path / "half").mkdir()
    half = tmp_path / "half" / name
    half.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(error, match=name):
        inspect(half)


def test_a_checkpoint_called_onnx_is_refused_as_onnx(tmp_path, saved):
    (tmp_path / "c.onnx").write_bytes(saved.read_bytes())
    with pytest.raises(ModelFileError, match=r"c\.onnx: is cut off, damaged or no ONNX file"):
        inspect(tmp_path / "c.onnx")
