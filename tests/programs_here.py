"""PyTorch programs run in this process: a process of its own for each takes longer than all else in a test."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch

from sruexport.engines import Engine, Port
from sruexport.parity import programs


class InThisProcess:
    """As an EngineProcess of PyTorch."""

    seconds = 0.001

    def __init__(self, engine: Engine, place: Path, inputs: Sequence[Port], outputs: Sequence[Port], limit: float):
        assert engine.name == "pytorch"
        self._program = torch.export.load(str(place)).module()
        self._inputs, self._outputs = inputs, outputs

    def run(self, feeds: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        with torch.no_grad():
            values = self._program(*(torch.from_numpy(np.array(feeds[port.name])) for port in self._inputs))
        return {port.name: value.numpy() for port, value in zip(self._outputs, values, strict=True)}

    def close(self) -> None:
        """There is nothing to end."""


def keep_programs_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(programs, "EngineProcess", InThisProcess)
