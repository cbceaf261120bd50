"""The demonstration: trained speaker classifiers, exported, proven equal, and run on real speech."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from sruexport.examples import japanese_vowels
from sruexport.exporter import Exported, export
from sruexport.exporter.model import borrowed
from sruexport.parity import Report, validate
from sruexport.runtime import load
from sruexport.sources import Source, from_code

DYNAMIC = {"recording": {0: "T", 1: "B"}, "mask_pad": {0: "T", 1: "B"}}


@dataclass(frozen=True)
class Shown:
    """What the demo did with one example.

    Attributes:
        name: of the example.
        predictions: per recording: its length in steps, the speaker, and what PyTorch and ONNX Runtime say, with
            their softmax probabilities of it.
    """

    name: str
    exported: Exported
    on_recordings: Report
    on_generated: Report
    predictions: tuple[dict[str, Any], ...]

    @property
    def passed(self) -> bool:
        same = all(row["pytorch"] == row["onnxruntime"] for row in self.predictions)
        return self.on_recordings.passed and self.on_generated.passed and same

    def to_dict(self) -> dict[str, Any]:
        return {
            "passed": self.passed,
            "file": str(self.exported.path) if self.exported.path.exists() else None,
            "bytes": self.exported.bytes,
            "metadata": self.exported.metadata,
            "recordings": self.on_recordings.to_dict(),
            "generated": self.on_generated.to_dict(),
            "predictions": list(self.predictions),
        }


@dataclass(frozen=True)
class Demonstration:
    """What the demo did: an entry per example, in the order of `japanese_vowels.EXAMPLES`."""

    examples: tuple[Shown, ...]

    @property
    def passed(self) -> bool:
        return all(shown.passed for shown in self.examples)

    def to_dict(self) -> dict[str, Any]:
        return {"passed": self.passed, "examples": {shown.name: shown.to_dict() for shown in self.examples}}


def run(folder: Path, output: Path | None = None, progress: Callable[[str], None] = lambda step: None) -> Demonstration:
    """Export every example checkpoint, check the files, and compare their predictions with PyTorch's.

    Args:
        folder: where the files go, each under its example's name.
        output: where the first example's file, the SRU's, goes instead.
        progress: called with a few words before each long step.
    """
    examples = japanese_vowels.EXAMPLES
    paths = [folder / f"speaker_{example.name.lower()}.onnx" for example in examples]
    paths[0] = output or paths[0]
    return Demonstration(tuple(_show(example, path, progress) for example, path in zip(examples, paths)))


def arguments(recording: np.ndarray, mask_pad: np.ndarray) -> tuple[torch.Tensor, ...]:
    """What an example's forward is called with."""
    return torch.from_numpy(recording), torch.from_numpy(mask_pad)


def _show(example: japanese_vowels.Example, path: Path, progress: Callable[[str], None]) -> Shown:
    def tell(step: str) -> None:
        progress(f"{example.name}: {step}")

    recording, mask_pad, speaker = japanese_vowels.recordings()
    source = from_code(example.model, example.checkpoint)
    exported = export(
        source.model, arguments(recording, mask_pad), path, dynamic=DYNAMIC, source=source.origin, progress=tell
    )
    tell("checking on the recordings")
    data = {"recording": recording, "mask_pad": mask_pad}
    on_recordings = validate(source.model, path, data=data)
    tell("checking on random sequences")
    on_generated = validate(source.model, path)
    tell("predicting")
    return Shown(example.name, exported, on_recordings, on_generated, _predictions(source, path, data, speaker))


def _predictions(
    source: Source, path: Path, data: dict[str, np.ndarray], speaker: np.ndarray
) -> tuple[dict[str, Any], ...]:
    with borrowed(source.model) as model:
        pytorch = model(**{name: torch.from_numpy(array) for name, array in data.items()})["logits"].numpy()
    engine = load(path).run(**data)["logits"]
    lengths = (data["mask_pad"] == 0).sum(0)
    chances = [_softmax(logits) for logits in (pytorch, engine)]
    return tuple(
        {
            "steps": int(lengths[i]),
            "speaker": int(speaker[i]),
            "pytorch": int(pytorch[i].argmax()),
            "pytorch_probability": float(chances[0][i].max()),
            "onnxruntime": int(engine[i].argmax()),
            "onnxruntime_probability": float(chances[1][i].max()),
        }
        for i in range(len(speaker))
    )


def _softmax(logits: np.ndarray) -> np.ndarray:
    powers = np.exp(logits - logits.max(-1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True)
