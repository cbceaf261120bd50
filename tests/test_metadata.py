"""What a file says of itself: JSON under keys of our own, beside whatever else is there."""

from __future__ import annotations

import json

import pytest
import torch

from sruexport import __version__, export, load
from sruexport.errors import ModelFileError
from sruexport.layers import SRU
from sruexport.metadata import PREFIX, pack, unpack

ENTRIES = {"dtype": "float16", "states": [{"input": "state_0", "shape": ["B", 4]}], "time": None, "dynamic": {}}


def test_entries_survive_the_way_there_and_back():
    assert unpack(pack(ENTRIES)) == ENTRIES


def test_props_are_texts_of_json_under_our_prefix():
    for key, text in pack(ENTRIES).items():
        assert key.startswith(PREFIX)
        json.loads(text)


def test_packing_is_the_same_whatever_the_order_of_keys():
    assert pack({"a": {"x": 1, "y": 2}}) == pack({"a": {"y": 2, "x": 1}})


def test_other_props_are_none_of_ours():
    assert unpack({"author": "someone", "sruexportish": "1", **pack(ENTRIES)}) == ENTRIES


def test_a_file_of_another_tool_has_no_entries():
    assert unpack({"author": "someone"}) == {}


def test_damaged_entries_are_refused_with_the_file():
    with pytest.raises(ModelFileError, match=r"m\.onnx: its metadata is damaged .*export it again"):
        unpack({f"{PREFIX}dtype": "float16"}, "m.onnx")


def test_every_file_tells_family_options_versions_source_opset_and_recurrences(tmp_path):
    layer = SRU(3, 4, num_layers=1, use_tanh=True)
    written = export(layer, None, tmp_path / "m.onnx", source={"file": "a.pt", "sha256": "0" * 64}, opset=20)
    metadata = load(written.path).metadata
    assert metadata == written.metadata
    assert [one["family"] for one in metadata["layers"]] == ["sru"]
    assert metadata["layers"][0]["options"]["use_tanh"] is True
    assert metadata["versions"]["sruexport"] == __version__
    assert metadata["versions"]["torch"] == torch.__version__
    assert {"onnx", "python"} <= metadata["versions"].keys()
    assert metadata["source"]["sha256"] == "0" * 64
    assert metadata["opset"] == 20
    assert metadata["recurrences"] == ["SRURecurrence"]
    assert metadata["dtype"] == "float32"
    assert metadata["time"] == "T"


def test_a_stateful_file_maps_inputs_to_outputs_with_sizes_and_axes(tmp_path):
    written = export(SRU(3, 4, num_layers=2), None, tmp_path / "m.onnx", stateful=True, dtype="float16")
    for i, state in enumerate(written.metadata["states"]):
        assert (state["input"], state["output"]) == (f"state_{i}", f"new_state_{i}")
        assert state["layer"] == f"rnn_lst.{i}"
        assert (state["shape"], state["batch_axis"]) == (["B", 4], 0)
        assert (state["dtype"], state["initial"]) == ("float32", 0)
    assert len(written.metadata["states"]) == 2
