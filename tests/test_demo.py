"""The demonstration: every example exported, proven, and the same speakers from PyTorch and from ONNX Runtime."""

from __future__ import annotations

import dataclasses
import io
import json

import pytest
from rich.console import Console

from sruexport import demo, load
from sruexport.display import show_predictions
from sruexport.examples.japanese_vowels import EXAMPLES, recordings

NAMES = [example.name for example in EXAMPLES]


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    heard: list[str] = []
    folder = tmp_path_factory.mktemp("demo")
    output = folder / "kept" / "sru.onnx"
    output.parent.mkdir()
    return demo.run(folder, output, heard.append), output, heard


@pytest.fixture(params=range(len(NAMES)), ids=NAMES)
def shown(done, request):
    return done[0].examples[request.param]


def test_every_example_is_there_and_passes(done):
    demonstration, _, _ = done
    assert NAMES == ["SRU", "minGRU"]
    assert [shown.name for shown in demonstration.examples] == NAMES
    assert demonstration.passed


def test_an_example_passes(shown):
    assert shown.passed
    assert shown.on_recordings.passed
    assert shown.on_generated.passed
    assert {layer["family"] for layer in shown.exported.metadata["layers"]} == {shown.name.lower()}


def test_the_file_is_there_and_runs(shown):
    recording, mask_pad, _ = recordings()
    assert load(shown.exported.path).run(recording=recording, mask_pad=mask_pad)["logits"].shape == (36, 9)


def test_the_first_file_goes_where_it_is_asked_for(done):
    demonstration, output, _ = done
    first, *others = [shown.exported.path for shown in demonstration.examples]
    assert first == output
    assert all(path.parent == output.parent.parent for path in others)


def test_every_recording_is_predicted_alike_by_both(shown):
    assert len(shown.predictions) == 36
    for row in shown.predictions:
        assert row["pytorch"] == row["onnxruntime"]
        assert row["pytorch_probability"] == pytest.approx(row["onnxruntime_probability"], abs=1e-5)
        assert 1 / 9 < row["pytorch_probability"] <= 1


def test_most_speakers_are_told(shown):
    assert sum(row["pytorch"] == row["speaker"] for row in shown.predictions) >= 33


def test_recordings_have_their_own_lengths(shown):
    _, mask_pad, speaker = recordings()
    assert [row["steps"] for row in shown.predictions] == (mask_pad == 0).sum(0).tolist()
    assert [row["speaker"] for row in shown.predictions] == speaker.tolist()


def test_it_is_plain_data(done):
    demonstration, _, _ = done
    found = json.loads(json.dumps(demonstration.to_dict(), allow_nan=False))
    assert found["passed"] is True
    assert list(found["examples"]) == NAMES
    for shown in demonstration.examples:
        entry = found["examples"][shown.name]
        assert entry["passed"] is entry["recordings"]["passed"] is entry["generated"]["passed"] is True
        assert entry["file"] == str(shown.exported.path)
        assert entry["bytes"] == shown.exported.path.stat().st_size
        assert len(entry["predictions"]) == 36


def test_the_steps_of_long_work_are_told(done):
    _, _, heard = done
    for name in NAMES:
        steps = [step.removeprefix(f"{name}: ") for step in heard if step.startswith(f"{name}: ")]
        assert "predicting" in steps
        assert len(steps) > 4


def test_predictions_of_any_example_that_differ_are_no_pass(done):
    demonstration, _, _ = done
    for i, shown in enumerate(demonstration.examples):
        changed = dataclasses.replace(shown, predictions=({**shown.predictions[0], "onnxruntime": -1},))
        assert not changed.passed
        examples = list(demonstration.examples)
        examples[i] = changed
        assert not demo.Demonstration(tuple(examples)).passed


@pytest.mark.parametrize("width", [40, 80, 200])
def test_the_table_has_the_models_side_by_side_and_fits(done, width):
    demonstration, _, _ = done
    written = io.StringIO()
    console = Console(width=width, file=written)
    show_predictions(console, {shown.name: shown.predictions for shown in demonstration.examples})
    lines = written.getvalue().splitlines()
    assert max(map(len, lines)) <= 100
    (heading,) = [line for line in lines if "steps" in line]
    assert heading.count("PyTorch") == heading.count("ONNX Runtime") == 2
    (row,) = [line for line in lines if line.split()[1:2] == ["24"]]
    figures = row.replace("│", " ").split()
    first, second = (next(r for r in shown.predictions if r["steps"] == 24) for shown in demonstration.examples)
    wanted = [f"{r[key]}" for r in (first, second) for key in ("pytorch", "onnxruntime")]
    assert figures[:2] == ["24", str(first["speaker"])]
    assert figures[2::2] == wanted
    assert figures[3] == f"{first['pytorch_probability']:.6f}"
    assert figures[9] == f"{second['onnxruntime_probability']:.6f}"
