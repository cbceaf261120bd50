"""The demonstration: exported, proven, and the same speakers from PyTorch and from ONNX Runtime."""

from __future__ import annotations

import json

import pytest

from sruexport import demo, load
from sruexport.examples.japanese_vowels import recordings


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    heard: list[str] = []
    path = tmp_path_factory.mktemp("demo") / "speaker.onnx"
    return demo.run(path, heard.append), path, heard


def test_it_passes(done):
    demonstration, _, _ = done
    assert demonstration.passed
    assert demonstration.on_recordings.passed
    assert demonstration.on_generated.passed


def test_the_file_is_there_and_runs(done):
    demonstration, path, _ = done
    assert demonstration.exported.path == path
    recording, mask_pad, _ = recordings()
    assert load(path).run(recording=recording, mask_pad=mask_pad)["logits"].shape == (36, 9)


def test_every_recording_is_predicted_alike_by_both(done):
    demonstration, _, _ = done
    assert len(demonstration.predictions) == 36
    for row in demonstration.predictions:
        assert row["pytorch"] == row["onnxruntime"]
        assert row["pytorch_probability"] == pytest.approx(row["onnxruntime_probability"], abs=1e-5)
        assert 1 / 9 < row["pytorch_probability"] <= 1


def test_most_speakers_are_told(done):
    demonstration, _, _ = done
    assert sum(row["pytorch"] == row["speaker"] for row in demonstration.predictions) >= 33


def test_recordings_have_their_own_lengths(done):
    demonstration, _, _ = done
    _, mask_pad, _ = recordings()
    assert [row["steps"] for row in demonstration.predictions] == (mask_pad == 0).sum(0).tolist()


def test_it_is_plain_data(done):
    demonstration, path, _ = done
    found = json.loads(json.dumps(demonstration.to_dict(), allow_nan=False))
    assert found["passed"] is True
    assert found["file"] == str(path)
    assert found["bytes"] == path.stat().st_size
    assert found["recordings"]["passed"] is found["generated"]["passed"] is True
    assert len(found["predictions"]) == 36


def test_the_steps_of_long_work_are_told(done):
    _, _, heard = done
    assert "predicting" in heard
    assert len(heard) > 4


def test_predictions_that_differ_are_no_pass(done):
    demonstration, _, _ = done
    first = {**demonstration.predictions[0], "onnxruntime": -1}
    changed = demo.Demonstration(
        demonstration.exported, demonstration.on_recordings, demonstration.on_generated, (first,)
    )
    assert not changed.passed
