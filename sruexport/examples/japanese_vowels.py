"""Japanese Vowels: an SRU and a minGRU, trained to tell nine speakers apart, and real recordings to try them on.

Each recording is one utterance of the vowels /ae/ as 7 to 29 steps of 12 LPC cepstrum coefficients (Kudo, Toyama and
Shimbo 1999, UCI Machine Learning Repository). `scripts/train_examples.py` makes the files.

>>> recording, mask_pad, speakers = recordings()
>>> for example in EXAMPLES:
...     model = example.factory()
...     model.load_state_dict(torch.load(example.checkpoint)["state_dict"])
...     model.eval()(torch.from_numpy(recording), torch.from_numpy(mask_pad))["logits"].argmax(1)  # [B]
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from sruexport.layers import SRU
from sruexport.layers.mingru import MinGRU

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
#: With an expansion there is a `to_out`: all that a minGRU can have.
MINGRU_KWARGS: dict[str, Any] = {"dim": 48, "expansion_factor": 1.5}
MINGRU_LAYERS = 2


class Classifier(nn.Module, ABC):
    """Speaker of an utterance: standardise, recurrent layers, mean over the steps, linear.

    Attributes:
        mean, deviation: [12], of the coefficients over all steps of the training recordings.
    """

    mean: Tensor
    deviation: Tensor
    output: nn.Linear

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(COEFFICIENTS))
        self.register_buffer("deviation", torch.ones(COEFFICIENTS))

    def forward(self, recording: Tensor, mask_pad: Tensor) -> dict[str, Tensor]:
        """Classify a batch of utterances.

        Args:
            recording: [T, B, 12], LPC cepstrum coefficients as recorded; any content at padding.
            mask_pad: [T, B] int32, non-zero at padding.

        Returns:
            logits: [B, 9], one per speaker.
        """
        h = self.encode((recording - self.mean) / self.deviation, mask_pad)
        steps = (mask_pad == 0).to(h.dtype).sum(0).clamp(min=1).unsqueeze(1)  # [B, 1]; 1 where all is padding
        return {"logits": self.output(h.sum(0) / steps)}

    @abstractmethod
    def encode(self, x: Tensor, mask_pad: Tensor) -> Tensor:
        """The recurrent layers: [T, B, 12] to [T, B, C], 0 at padding."""


class SpeakerClassifier(Classifier):
    """With a bidirectional SRU.

    Args:
        sru: the class of the recurrent layers: ours, or `sru.SRU` to train with; the state_dict keys are the same.
    """

    def __init__(self, sru: Callable[..., nn.Module] = SRU):
        super().__init__()
        self.sru = sru(**SRU_KWARGS)
        directions = 2 if SRU_KWARGS["bidirectional"] else 1
        self.output = nn.Linear(directions * SRU_KWARGS["hidden_size"], SPEAKERS)

    def encode(self, x: Tensor, mask_pad: Tensor) -> Tensor:
        h: Tensor = self.sru(x, mask_pad=mask_pad)[0]
        return h


class MinGRUSpeakerClassifier(Classifier):
    """With a stack of minGRU, each after a LayerNorm and with a skip around it.

    A minGRU knows no mask, but looks only back: padding that comes after a recording cannot reach its steps.

    Args:
        mingru: the class of the recurrent layers: ours, or `minGRU_pytorch.minGRU.minGRU` to train with; the
            state_dict keys are the same.
    """

    def __init__(self, mingru: Callable[..., nn.Module] = MinGRU):
        super().__init__()
        dim = MINGRU_KWARGS["dim"]
        self.input = nn.Linear(COEFFICIENTS, dim)
        self.norms = nn.ModuleList(nn.LayerNorm(dim) for _ in range(MINGRU_LAYERS))
        self.mingrus = nn.ModuleList(mingru(**MINGRU_KWARGS) for _ in range(MINGRU_LAYERS))
        self.output_norm = nn.LayerNorm(dim)
        self.output = nn.Linear(dim, SPEAKERS)

    def encode(self, x: Tensor, mask_pad: Tensor) -> Tensor:
        h = self.input(x).transpose(0, 1)  # minGRU takes [B, T, C]
        for norm, mingru in zip(self.norms, self.mingrus):
            h = h + mingru(norm(h))
        # Filled, not multiplied: 0 * NaN would not be 0.
        return self.output_norm(h).transpose(0, 1).masked_fill((mask_pad != 0).unsqueeze(-1), 0.0)


def speaker_classifier(sru: Callable[..., nn.Module] = SRU) -> Classifier:
    """An untrained `SpeakerClassifier`."""
    return SpeakerClassifier(sru)


def mingru_speaker_classifier(mingru: Callable[..., nn.Module] = MinGRU) -> Classifier:
    """An untrained `MinGRUSpeakerClassifier`."""
    return MinGRUSpeakerClassifier(mingru)


@dataclass(frozen=True)
class Example:
    """A model of these recordings.

    Attributes:
        name: of its recurrent layers.
        factory: makes it untrained, with our layers or those of a class that is given.
        kwargs: what its recurrent layers are made with.
        checkpoint: its weights, under "state_dict".
    """

    name: str
    factory: Callable[..., Classifier]
    kwargs: dict[str, Any]
    checkpoint: Path

    @property
    def model(self) -> str:
        """As the commands take it: ``--model package.module:factory``."""
        return f"{self.factory.__module__}:{self.factory.__name__}"


EXAMPLES = (
    Example("SRU", speaker_classifier, SRU_KWARGS, Path(__file__).with_name("japanese_vowels.pt")),
    Example("minGRU", mingru_speaker_classifier, MINGRU_KWARGS, Path(__file__).with_name("japanese_vowels_mingru.pt")),
)


def recordings() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Test recordings of all speakers, with different lengths.

    Returns:
        recording [T, B, 12] float32, 0 at padding; mask_pad [T, B] int32, 1 at padding; speaker [B] int64, 0 to 8.
    """
    with np.load(RECORDINGS, allow_pickle=False) as arrays:
        return arrays["recording"], arrays["mask_pad"], arrays["speaker"]
