"""Japanese Vowels: a trained SRU that tells nine speakers apart, and real recordings to try it on.

Each recording is one utterance of the vowels /ae/ as 7 to 29 steps of 12 LPC cepstrum coefficients (Kudo, Toyama and
Shimbo 1999, UCI Machine Learning Repository). `scripts/train_examples.py` makes both files.

>>> recording, mask_pad, speakers = recordings()
>>> model = speaker_classifier()
>>> model.load_state_dict(torch.load(CHECKPOINT)["state_dict"])
>>> model.eval()(torch.from_numpy(recording), torch.from_numpy(mask_pad))["logits"].argmax(1)  # [B]
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from sruexport.layers import SRU

CHECKPOINT = Path(__file__).with_name("japanese_vowels.pt")
RECORDINGS = Path(__file__).with_name("japanese_vowels_recordings.npz")

COEFFICIENTS = 12
SPEAKERS = 9
#: The first layer projects its highway input (12 != 64), the second takes it as it is: both forms of SRU are in here.
SRU_KWARGS: dict[str, Any] = {
    "input_size": COEFFICIENTS,
    "hidden_size": 32,
    "num_layers": 2,
    "dropout": 0.2,
    "bidirectional": True,
    "layer_norm": True,
    "rescale": True,
}


class SpeakerClassifier(nn.Module):
    """Speaker of an utterance: standardise, SRU, mean over the steps, linear.

    Args:
        sru: the class of the recurrent layers: ours, or `sru.SRU` to train with; the state_dict keys are the same.

    Attributes:
        mean, deviation: [12], of the coefficients over all steps of the training recordings.
    """

    mean: Tensor
    deviation: Tensor

    def __init__(self, sru: Callable[..., nn.Module] = SRU):
        super().__init__()
        self.register_buffer("mean", torch.zeros(COEFFICIENTS))
        self.register_buffer("deviation", torch.ones(COEFFICIENTS))
        self.sru = sru(**SRU_KWARGS)
        directions = 2 if SRU_KWARGS["bidirectional"] else 1
        self.output = nn.Linear(directions * SRU_KWARGS["hidden_size"], SPEAKERS)

    def forward(self, recording: Tensor, mask_pad: Tensor) -> dict[str, Tensor]:
        """Classify a batch of utterances.

        Args:
            recording: [T, B, 12], LPC cepstrum coefficients as recorded; any content at padding.
            mask_pad: [T, B] int32, non-zero at padding.

        Returns:
            logits: [B, 9], one per speaker.
        """
        h, _ = self.sru((recording - self.mean) / self.deviation, mask_pad=mask_pad)  # [T, B, 64], 0 at padding
        steps = (mask_pad == 0).to(h.dtype).sum(0).clamp(min=1).unsqueeze(1)  # [B, 1]; 1 where all is padding
        return {"logits": self.output(h.sum(0) / steps)}


def speaker_classifier() -> nn.Module:
    """An untrained `SpeakerClassifier`, for `CHECKPOINT` to be loaded into."""
    return SpeakerClassifier()


def recordings() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Test recordings of all speakers, with different lengths.

    Returns:
        recording [T, B, 12] float32, 0 at padding; mask_pad [T, B] int32, 1 at padding; speaker [B] int64, 0 to 8.
    """
    with np.load(RECORDINGS, allow_pickle=False) as arrays:
        return arrays["recording"], arrays["mask_pad"], arrays["speaker"]
