"""Parity on several engines."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn

from sruexport.engines import ENGINES
from sruexport.engines.environments import version
from sruexport.errors import ConversionError, EngineError

from .report import Report
from .validate import validate


@dataclass(frozen=True)
class Reports:
    """What several engines made of a file.

    Attributes:
        refused: engines that do not take it in any form, each with the reason. They count as failed only where they
            were asked for by name.
    """

    reports: tuple[Report, ...]
    refused: dict[str, str]

    @property
    def passed(self) -> bool:
        return bool(self.reports) and all(report.passed for report in self.reports)

    def to_dict(self) -> dict[str, Any]:
        """The one report, or all of them under "engines"."""
        if len(self.reports) == 1 and not self.refused:
            return self.reports[0].to_dict()
        return {
            "passed": self.passed,
            "engines": [report.to_dict() for report in self.reports],
            "refused": self.refused,
        }


def validate_on(
    engines: Sequence[str],
    model: nn.Module,
    path: str | os.PathLike[str],
    *,
    progress: Callable[[str], None] = lambda case: None,
    **settings: Any,
) -> Reports:
    """As `validate`, on each of several engines.

    Args:
        engines: names, "" for that of `sruexport.load`, or ["all"] for every one that is installed and runs here.

    Raises:
        EngineError, ConversionError: an engine that was asked for by name does not take the file; and as `validate`.
    """
    every = "all" in engines
    names = list(engines)
    if every:
        names = [name for name, engine in ENGINES.items() if version(engine) is not None and not engine.only_builds]
    reports, refused = [], {}
    for name in dict.fromkeys(names):
        try:
            shown = f"{name}: " if len(names) > 1 else ""
            reports.append(validate(model, path, engine=name, progress=_prefixed(progress, shown), **settings))
        except (EngineError, ConversionError) as error:
            if not every:
                raise
            refused[name] = str(error)
    return Reports(tuple(reports), refused)


def _prefixed(progress: Callable[[str], None], prefix: str) -> Callable[[str], None]:
    return lambda case: progress(f"{prefix}{case}")
