"""The committed checkpoints and recordings: small, readable as data, and right about who speaks."""

from __future__ import annotations

import pytest
import sru
import torch
from minGRU_pytorch.minGRU import minGRU

from sruexport.examples.japanese_vowels import COEFFICIENTS, EXAMPLES, RECORDINGS, SPEAKERS, Example, recordings

Batch = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


#: By name: the class that the example was trained with, and its package's version, as the checkpoint tells it.
THEIRS = {
    "SRU": (sru.SRU, {"sru.__version__": "2.6.0"}),
    "minGRU": (minGRU, {"mingru-pytorch.__version__": "0.2.1"}),
}


@pytest.fixture(scope="module", params=EXAMPLES, ids=lambda example: example.name)
def example(request) -> Example:
    return request.param


@pytest.fixture(scope="module")
def checkpoint(example: Example) -> dict:
    return torch.load(example.checkpoint, weights_only=True)


@pytest.fixture(scope="module")
def model(example: Example, checkpoint: dict) -> torch.nn.Module:
    model = example.factory()
    model.load_state_dict(checkpoint["state_dict"], strict=True)
    return model.eval()


@pytest.fixture(scope="module")
def batch() -> Batch:
    recording, mask_pad, speaker = map(torch.from_numpy, recordings())
    return recording, mask_pad, speaker


def logits(model: torch.nn.Module, recording: torch.Tensor, mask_pad: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        return model(recording, mask_pad)["logits"]


@pytest.mark.parametrize("path", [RECORDINGS, *(e.checkpoint for e in EXAMPLES)], ids=lambda path: path.name)
def test_file_is_small(path):
    assert path.stat().st_size < 300_000


def test_examples_have_names_of_their_own():
    assert [example.name for example in EXAMPLES] == list(THEIRS)


def test_checkpoint_tells_how_it_was_made(example, checkpoint):
    assert checkpoint[f"{example.name.lower()}_kwargs"] == example.kwargs
    assert THEIRS[example.name][1].items() <= checkpoint.items()
    assert checkpoint["test_accuracy"] >= 0.95


def test_the_package_s_own_layers_take_the_checkpoint_and_give_the_same(example, checkpoint, model, batch):
    theirs = example.factory(THEIRS[example.name][0])
    theirs.load_state_dict(checkpoint["state_dict"], strict=True)
    found, wanted = (logits(m.eval(), *batch[:2]) for m in (model, theirs))
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)


def test_recordings_are_four_lengths_of_each_speaker(batch):
    recording, mask_pad, speaker = batch
    assert recording.shape == (*mask_pad.shape, COEFFICIENTS)
    assert (recording.dtype, mask_pad.dtype) == (torch.float32, torch.int32)
    lengths = (mask_pad == 0).sum(0)
    assert lengths.max() == len(recording)
    for one in range(SPEAKERS):
        assert len(lengths[speaker == one].unique()) == (speaker == one).sum() == 4


def test_padding_comes_last_and_is_zero(batch):
    recording, mask_pad, _ = batch
    assert (mask_pad.diff(dim=0) >= 0).all()
    assert not recording[mask_pad != 0].any()


def test_speakers_are_told_apart(model, batch):
    recording, mask_pad, speaker = batch
    assert (logits(model, recording, mask_pad).argmax(1) == speaker).sum() >= 33


@pytest.mark.parametrize("scale", [100.0, float("nan")])
def test_content_of_padding_does_not_matter(model, batch, scale):
    recording, mask_pad, _ = batch
    garbage = scale * torch.randn(recording.shape, generator=torch.Generator().manual_seed(0))
    filled = torch.where(mask_pad.unsqueeze(-1) != 0, garbage, recording)
    torch.testing.assert_close(logits(model, filled, mask_pad), logits(model, recording, mask_pad), rtol=0, atol=0)


def test_padding_itself_does_not_matter(model, batch):
    recording, mask_pad, _ = batch
    together = logits(model, recording, mask_pad)
    for i, length in enumerate((mask_pad == 0).sum(0).tolist()):
        alone = logits(model, recording[:length, i : i + 1], mask_pad[:length, i : i + 1])
        torch.testing.assert_close(alone[0], together[i], rtol=1e-4, atol=1e-5)


def test_one_step_of_one_recording(model, batch):
    recording, mask_pad, _ = batch
    one = logits(model, recording[:1, :1], mask_pad[:1, :1])
    assert one.shape == (1, SPEAKERS)
    assert one.isfinite().all()


def test_recording_without_steps(model, batch):
    recording, mask_pad, _ = batch
    empty = logits(model, recording[:3, :1], torch.ones_like(mask_pad[:3, :1]))
    torch.testing.assert_close(empty[0], model.output.bias.detach())
