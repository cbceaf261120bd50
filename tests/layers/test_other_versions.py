"""SRU of `sru` 2.0.0 and 3.0.0-dev, and SRU++, against those versions themselves, each run in its own process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from oracles import SRU_2_0, SRU_3_0, SRUPP_3_0, oracle

import sruexport
from sruexport.errors import ExportError, OptionsNeeded
from sruexport.exporter.model import borrowed
from sruexport.layers import SRU, SRUpp, adapt
from sruexport.parity.measure import compare

ALL = [
    *[("2.0.0", i) for i in range(len(SRU_2_0))],
    *[("3.0.0.dev6", i) for i in range(len(SRU_3_0) + len(SRUPP_3_0))],
]
ASKED = ("bidirectional", "use_tanh", "has_skip_term", "normalize_after", "num_heads", "nn_rnn_compatible_return")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("oracles")


def _told_options(entry: dict[str, Any], file: Path) -> dict[str, Any]:
    """Give exactly what the reader asks for, one error at a time, from the constructor arguments."""
    defaults = {"bidirectional": False, "use_tanh": False, "num_heads": 1, "normalize_after": False}
    options: dict[str, Any] = {}
    if "nn_rnn_compatible_return" in entry["kwargs"]:
        options["nn_rnn_compatible_return"] = entry["kwargs"]["nn_rnn_compatible_return"]
    asked: list[str] = []
    try:
        sruexport.read(file, options=options)
    except OptionsNeeded as error:
        asked = error.options
    assert set(asked) <= set(ASKED)
    options |= {name: entry["kwargs"].get(name, defaults.get(name)) for name in asked}
    return options


def _agrees(module: torch.nn.Module, entry: dict[str, Any]) -> None:
    for call, expected in zip(entry["calls"], entry["outputs"], strict=True):
        with torch.no_grad():
            single = module(**call)[:2]
        with borrowed(module, dtype=torch.float64) as exact_module:
            wide = {name: _double(value) for name, value in call.items()}
            exact = exact_module(**wide)[:2]
        for ours, theirs, truth in zip(single, expected, exact, strict=True):
            assert compare(ours.numpy(), theirs.numpy(), truth.numpy(), "float32").passed


def _double(value: Any) -> Any:
    if isinstance(value, list):
        return [_double(item) for item in value]
    return value.double() if value.is_floating_point() else value


@pytest.mark.parametrize(("version", "index"), ALL)
def test_state_dict_gives_the_numbers_of_that_version(version: str, index: int, folder: Path, tmp_path: Path) -> None:
    entry = oracle(version, folder)[index]
    file = tmp_path / "model.pt"
    torch.save({"state_dict": entry["state_dict"]}, file)
    module = sruexport.read(file, options=_told_options(entry, file))
    assert isinstance(module, SRUpp if entry["class"] == "SRUpp" else SRU)
    _agrees(module.eval(), entry)


@pytest.mark.parametrize(("version", "index"), ALL)
def test_pickled_module_gives_the_numbers_of_that_version(
    version: str, index: int, folder: Path, tmp_path: Path
) -> None:
    entry = oracle(version, folder)[index]
    file = tmp_path / "model.pt"
    file.write_bytes(entry["pickled"])
    _agrees(sruexport.read(file), entry)


@pytest.mark.parametrize("index", range(len(SRU_3_0), len(SRU_3_0) + len(SRUPP_3_0)))
def test_srupp_file_equals_pytorch(index: int, folder: Path, tmp_path: Path) -> None:
    entry = oracle("3.0.0.dev6", folder)[index]
    module = SRUpp(**entry["kwargs"])
    module.load_state_dict(entry["state_dict"])
    call = entry["calls"][1]
    example = {"input": call["input"], "mask_pad": call["mask_pad"].int()}
    sruexport.export(module, example, tmp_path / "model.onnx")
    report = sruexport.validate(module, tmp_path / "model.onnx", data={k: v.numpy() for k, v in example.items()})
    assert report.passed
    assert sruexport.validate(module, tmp_path / "model.onnx").passed


def test_srupp_with_an_attention_mask_and_a_memory_is_exported(folder: Path, tmp_path: Path) -> None:
    entry = oracle("3.0.0.dev6", folder)[len(SRU_3_0)]
    module = SRUpp(**entry["kwargs"])
    module.load_state_dict(entry["state_dict"])
    memory = entry["calls"][3]
    dynamic = {"input": {0: "T", 1: "B"}, **{f"memory_{i}": {0: "M", 1: "B"} for i in range(3)}}
    sruexport.export(module, memory, tmp_path / "memory.onnx", dynamic=dynamic)
    arrays = [memory["input"].numpy(), *(m.numpy() for m in memory["memory"])]
    outputs = sruexport.load(tmp_path / "memory.onnx")(*arrays)
    for ours, theirs in zip(outputs[:2], entry["outputs"][3], strict=True):
        assert compare(ours, theirs.numpy(), theirs.numpy(), "float32").passed


def test_srupp_with_attention_cannot_be_streamed(tmp_path: Path) -> None:
    with pytest.raises(ExportError, match="attention sees the whole sequence"):
        sruexport.export(SRUpp(6, 8, 4), None, tmp_path / "model.onnx", stateful=True)


def test_srupp_without_attention_streams(tmp_path: Path) -> None:
    module = SRUpp(6, 8, 4, attention_last_n_layers=0)
    sruexport.export(module, None, tmp_path / "model.onnx", stateful=True)
    report = sruexport.validate(module, tmp_path / "model.onnx")
    assert report.passed
    assert any("chunks" in case.name for case in report.cases)


@pytest.mark.parametrize("name", ["SRUpp", "SRUppCell", "SRUppAttention"])
def test_a_subclass_of_srupp_with_a_forward_of_its_own_is_refused_not_replaced(name: str) -> None:
    known = type(name, (torch.nn.Module,), {"__module__": "sru.modules", "__qualname__": name})
    mine = type("Mine", (known,), {"forward": lambda self, x: x})
    with pytest.raises(ExportError, match=f"Mine overrides forward of {name}"):
        adapt(mine())
