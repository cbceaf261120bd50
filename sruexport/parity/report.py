"""What a parity check found, as data."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from .measure import Errors


@dataclass(frozen=True)
class CaseResult:
    """One case: the errors of each output, or why it was not run.

    Attributes:
        refused: what the engine says, where it takes the file but not this case.
        crashed: whether its process died of it, or ran out of time.
    """

    name: str
    outputs: dict[str, Errors] = field(default_factory=dict)
    skipped: str = ""
    refused: str = ""
    crashed: bool = False

    @property
    def passed(self) -> bool:
        return all(errors.passed for errors in self.outputs.values())


@dataclass(frozen=True)
class Report:
    """The outcome of `validate`.

    Attributes:
        engine: with its version.
        form: what the recurrences were written as, if not as custom ops.
        allowance: what that form's bounds were multiplied with.
        baseline: whose own distance from float64 the bounds go by: PyTorch, or the original of a converted file.
        seconds: of repeated runs of the last case, where they were asked for.
        static: whether the engine was given every size in a file of its own.
        cases: every case in order, those that PyTorch itself refused among them.
        source: what the file's metadata say of where its model came from.
        first_departure: on failure, the path of the first layer that departs ("": the model itself), if found.
    """

    path: Path
    engine: str
    dtype: str
    cases: tuple[CaseResult, ...]
    first_departure: str | None = None
    source: Mapping[str, Any] = field(default_factory=dict)
    form: str = ""
    allowance: float = 1.0
    baseline: str = "PyTorch"
    seconds: tuple[float, ...] = ()
    static: bool = False

    @property
    def passed(self) -> bool:
        ran = [case for case in self.cases if not case.skipped]
        return bool(ran) and all(case.passed for case in ran)

    @property
    def outputs(self) -> dict[str, Errors]:
        """Of each output the case that is nearest to its bound, or farthest beyond it."""
        worst: dict[str, Errors] = {}
        for case in self.cases:
            for name, errors in case.outputs.items():
                if name not in worst or errors.ratio > worst[name].ratio:
                    worst[name] = errors
        return worst

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON; what is not finite as text."""

        def plain(errors: Errors) -> dict[str, Any]:
            values = {
                key: str(v) if isinstance(v, float) and not math.isfinite(v) else v for key, v in asdict(errors).items()
            }
            return values | {"passed": errors.passed}

        return {
            "passed": self.passed,
            "file": str(self.path),
            "engine": self.engine,
            "form": self.form,
            "allowance": self.allowance,
            "baseline": self.baseline,
            "dtype": self.dtype,
            "first_departure": self.first_departure,
            "source": dict(self.source),
            "outputs": {name: plain(errors) for name, errors in self.outputs.items()},
            "cases": [
                {
                    "name": case.name,
                    "passed": case.passed and not case.skipped,
                    "skipped": case.skipped,
                    "outputs": {name: plain(errors) for name, errors in case.outputs.items()},
                }
                for case in self.cases
            ],
        }
