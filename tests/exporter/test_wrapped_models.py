"""Models inside torch.nn.DataParallel and torch.compile are exported as what is inside."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

import sruexport
from sruexport.layers import SRU


class Tagger(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rnn, self.head = SRU(4, 6, 1), nn.Linear(6, 3)

    def forward(self, frames: torch.Tensor) -> torch.Tensor:
        return self.head(self.rnn(frames)[0])


@pytest.mark.parametrize("wrap", [nn.DataParallel, torch.compile], ids=["parallel", "compiled"])
def test_the_model_inside_is_exported_and_validated(wrap, tmp_path: Path) -> None:
    model = wrap(Tagger())
    frames = {"frames": {0: "T", 1: "B"}}
    done = sruexport.export(model, (torch.zeros(5, 2, 4),), tmp_path / "m.onnx", dynamic=frames)
    assert [layer["path"] for layer in done.metadata["layers"]] == ["rnn"]
    assert sruexport.validate(model, tmp_path / "m.onnx").passed
