"""From a model to the same model with torch.nn.LSTM in the place of its recurrences, as a module and as a file."""

from __future__ import annotations

import dataclasses
import io
import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from sruexport.conversion import check_ranges
from sruexport.converters import Settings
from sruexport.engines.running import read_model
from sruexport.errors import OptionError
from sruexport.exporter import export
from sruexport.exporter.write import check_output, write_whole
from sruexport.parity import Report
from sruexport.parity.programs import TORCH_LSTM, to_torch_lstm, write_program
from sruexport.parity.validate import validate

_STATE_DICT, _PROGRAM = ".pt", ".pt2"


@dataclass(frozen=True)
class TorchConversion:
    """A module, and the file of it where one was asked for.

    Attributes:
        module: a copy of the model, in eval mode, with the same forward.
        layers: of each recurrence: the scale k, the bound on |c|, the error that follows.
        report: how it compared with the model in float64.
    """

    module: nn.Module
    layers: Sequence[Mapping[str, Any]]
    report: Report
    path: Path | None = None
    bytes: int = 0
    about: str = ""

    @property
    def passed(self) -> bool:
        return self.report.passed

    def to_dict(self) -> dict[str, Any]:
        return {
            "passed": self.passed,
            "file": str(self.path) if self.passed and self.path else None,
            "bytes": self.bytes,
            "form": TORCH_LSTM,
            "layers": [dict(layer) for layer in self.layers],
            "verified": self.report.to_dict(),
        }


def convert_to_torch(
    model: nn.Module,
    args: Any = None,
    output: str | os.PathLike[str] | None = None,
    *,
    dynamic: Mapping[str, Mapping[int, str]] | None = None,
    ranges: Mapping[str, tuple[float, float]] | None = None,
    origin: Mapping[str, Any] | None = None,
    progress: Callable[[str], None] = lambda step: None,
) -> TorchConversion:
    """Put torch.nn.LSTM in the place of a model's recurrences, for engines that convert from PyTorch.

    Args:
        model: any nn.Module with known layers; left as it was.
        args, dynamic: as for `export`.
        output: ``.pt`` for the state_dict with what it was made from beside it, or ``.pt2`` for the program, which
            torch.export.load reads without sruexport; it has the sizes of `args`. Left out, nothing is written.
        ranges: of float inputs, by name: the interval that their values lie in.
        origin: what to note of where the model came from.

    Raises:
        ConversionError: a layer has no such form, or torch.export does not take the model.
        ExportError, OptionError, OutputError: as for `export`.

    Example:
        >>> lstm_model = sruexport.torch_lstm(model, (audio,), dynamic={"audio": {0: "B", 1: "T"}}).module
    """
    target = check_output(output) if output is not None else None
    if target is not None and target.suffix not in (_STATE_DICT, _PROGRAM):
        raise OptionError(f"{target}: name it {_STATE_DICT} (state_dict) or {_PROGRAM} (program that runs alone)")
    with tempfile.TemporaryDirectory(prefix="sruexport-") as folder:
        path = Path(folder) / "model.onnx"
        export(model, args, path, dynamic=dynamic, source=origin, progress=progress)
        exported = read_model(path)
        check_ranges(ranges or {}, [value.name or "" for value in exported.graph.inputs])
        module, layers = to_torch_lstm(model, exported, Settings(ranges or {}))
        progress("holding it against the model")
        report = validate(
            model, path, example=args, engine="pytorch", form=TORCH_LSTM, ranges=ranges, progress=progress
        )
        report = dataclasses.replace(report, path=target or Path("the model"))
        content, about = b"", ""
        if target is not None and report.passed:
            if target.suffix == _PROGRAM:
                place = Path(folder) / "program.pt2"
                shapes = write_program(module, model, path, args, place)
                sizes = ", ".join(f"{name} {list(shape)}" for name, shape in shapes.items())
                content, about = place.read_bytes(), f"a program for torch.export.load, for {sizes}"
            else:
                content, about = _state_dict(module, layers, origin or {}), "the state_dict of the LSTM module"
            write_whole(target, content)
    return TorchConversion(module, layers, report, target, len(content), about)


def _state_dict(module: nn.Module, layers: Sequence[Mapping[str, Any]], origin: Mapping[str, Any]) -> bytes:
    stream = io.BytesIO()
    torch.save(
        {
            "state_dict": dict(module.state_dict()),
            "form": TORCH_LSTM,
            "layers": [dict(layer) for layer in layers],
            "source": dict(origin),
        },
        stream,
    )
    return stream.getvalue()
