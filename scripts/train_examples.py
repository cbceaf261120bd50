#!/usr/bin/env python3
"""Train the models of `sruexport/examples/japanese_vowels.py`, each with its own package, and write their files.

    pip install '.[train]'
    python scripts/train_examples.py

The seed is fixed. Nothing is written unless the test accuracy of each, on all 370 test recordings, is at least 95%.
"""

from __future__ import annotations

import importlib.util
import io
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

import numpy as np
import torch
from minGRU_pytorch.minGRU import minGRU
from torch import Tensor, nn

from sruexport.examples.japanese_vowels import EXAMPLES, RECORDINGS, Classifier
from sruexport.exporter.write import write_whole

# On import sru tries CUDA kernels that do not compile with current PyTorch; in training on the CPU it runs a Python
# loop over T and says so at every call. With at most 29 steps that is fast enough.
warnings.filterwarnings("ignore", message="Just-in-time loading and compiling the CUDA kernels of SRU")
warnings.filterwarnings("ignore", message="Running SRU on CPU with grad_enabled=True")
import sru  # noqa: E402  (after the filters)

EPOCHS = 60
BATCH = 30
LEARNING_RATE = 1e-2
WEIGHT_DECAY = 1e-2
NOISE = 0.3  # in standard deviations: 270 recordings are few, and the test ones were made at other times
LEAST_ACCURACY = 0.95
PER_SPEAKER = 4
#: By the example's name: the class of its layers to train with, and the package that has it.
PACKAGES: dict[str, tuple[Callable[..., nn.Module], str]] = {
    "SRU": (sru.SRU, "sru"),
    "minGRU": (minGRU, "mingru-pytorch"),
}


def main() -> int:
    torch.use_deterministic_algorithms(True)
    torch.set_num_threads(1)  # the tensors are small, and sums do not depend on the number of cores
    train_recordings, train_speakers = read_split("TRAIN")
    test_recordings, test_speakers = read_split("TEST")

    files: dict[Path, bytes] = {}
    for example in EXAMPLES:
        started = time.monotonic()
        layers, package = PACKAGES[example.name]
        torch.manual_seed(0)
        model = train(example.factory(layers), train_recordings, train_speakers)
        train_accuracy = accuracy(model, train_recordings, train_speakers)
        test_accuracy = accuracy(model, test_recordings, test_speakers)
        print(f"{example.name}, {time.monotonic() - started:.0f} s")
        print(f"  train accuracy {train_accuracy:.4f} of {len(train_speakers)} recordings")
        print(f"  test accuracy  {test_accuracy:.4f} of {len(test_speakers)} recordings")
        if test_accuracy < LEAST_ACCURACY:
            print(f"test accuracy is below {LEAST_ACCURACY}: nothing is written", file=sys.stderr)
            return 1
        files[example.checkpoint] = saved(
            {
                "state_dict": dict(model.state_dict()),
                f"{example.name.lower()}_kwargs": example.kwargs,
                f"{package}.__version__": version(package),
                "test_accuracy": test_accuracy,
            }
        )

    chosen = choose(test_recordings, test_speakers)
    recording, mask_pad = pad([test_recordings[i] for i in chosen])
    files[RECORDINGS] = compressed(recording, mask_pad, np.array([test_speakers[i] for i in chosen]))
    for path, data in files.items():
        write_whole(path, data)
        print(f"{path}: {len(data)} bytes")
    return 0


def read_split(split: str) -> tuple[list[np.ndarray], list[int]]:
    """Read the recordings, each [T, 12] float32, and their speakers, 0 to 8, from sktime's wheel."""
    spec = importlib.util.find_spec("sktime")
    if spec is None or spec.origin is None:
        raise SystemExit("sktime, which carries the recordings, is not installed: pip install sktime")
    path = Path(spec.origin).parent / "datasets" / "data" / "JapaneseVowels" / f"JapaneseVowels_{split}.ts"
    _, _, rows = path.read_text().partition("@data\n")
    recordings, speakers = [], []
    for row in rows.splitlines():
        *coefficients, speaker = row.split(":")
        recordings.append(np.array([c.split(",") for c in coefficients], dtype=np.float32).T)
        speakers.append(int(speaker) - 1)
    return recordings, speakers


def pad(recordings: list[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Put recordings [T_i, 12] into one batch [T, B, 12], and give its mask [T, B] int32, 1 at padding."""
    length = max(map(len, recordings))
    batch = np.zeros((length, len(recordings), recordings[0].shape[1]), np.float32)
    mask_pad = np.ones((length, len(recordings)), np.int32)
    for i, recording in enumerate(recordings):
        batch[: len(recording), i] = recording
        mask_pad[: len(recording), i] = 0
    return batch, mask_pad


def train(model: Classifier, recordings: list[np.ndarray], speakers: list[int]) -> Classifier:
    """Train a model in place."""
    steps = torch.from_numpy(np.concatenate(recordings))
    model.mean.copy_(steps.mean(0))
    model.deviation.copy_(steps.std(0))
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, weight_decay=WEIGHT_DECAY)
    batches = -(-len(recordings) // BATCH)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, LEARNING_RATE, total_steps=EPOCHS * batches)
    batch, mask_pad = map(torch.from_numpy, pad(recordings))
    wanted = torch.tensor(speakers)
    model.train()
    for _ in range(EPOCHS):
        for rows in torch.randperm(len(recordings)).split(BATCH):
            noise = NOISE * model.deviation * torch.randn(len(batch), len(rows), batch.shape[2])
            logits = model(batch[:, rows] + noise, mask_pad[:, rows])["logits"]
            optimizer.zero_grad()
            nn.functional.cross_entropy(logits, wanted[rows], label_smoothing=0.1).backward()
            optimizer.step()
            schedule.step()
    return model.eval()


@torch.no_grad()
def accuracy(model: nn.Module, recordings: list[np.ndarray], speakers: list[int]) -> float:
    logits: Tensor = model(*map(torch.from_numpy, pad(recordings)))["logits"]
    return (logits.argmax(1) == torch.tensor(speakers)).double().mean().item()


def choose(recordings: list[np.ndarray], speakers: list[int]) -> list[int]:
    """The first few of each speaker that differ in length."""
    chosen: list[int] = []
    taken: set[tuple[int, int]] = set()
    counts: Counter[int] = Counter()
    for i, (recording, speaker) in enumerate(zip(recordings, speakers, strict=True)):
        if counts[speaker] < PER_SPEAKER and (speaker, len(recording)) not in taken:
            chosen.append(i)
            taken.add((speaker, len(recording)))
            counts[speaker] += 1
    return chosen


def saved(checkpoint: dict[str, object]) -> bytes:
    stream = io.BytesIO()
    torch.save(checkpoint, stream)
    return stream.getvalue()


def compressed(recording: np.ndarray, mask_pad: np.ndarray, speaker: np.ndarray) -> bytes:
    stream = io.BytesIO()
    np.savez_compressed(stream, recording=recording, mask_pad=mask_pad, speaker=speaker)
    return stream.getvalue()


if __name__ == "__main__":
    sys.exit(main())
