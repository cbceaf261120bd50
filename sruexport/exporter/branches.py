"""Branches that a model takes by the value of a tensor (`if mask.any():`), which a graph cannot.

One run of the model on the example notes what was decided where; the trace decides the same. Each place is
reported, since the file always goes the example's way.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from sruexport.errors import ExportError


@dataclass
class Decisions:
    """What was decided, in running order, each as (place "file:line", truth)."""

    made: list[tuple[str, bool]] = field(default_factory=list)

    def places(self) -> dict[str, set[bool]]:
        found: dict[str, set[bool]] = {}
        for place, truth in self.made:
            found.setdefault(place, set()).add(truth)
        return found


class Recording(TorchFunctionMode):
    """Notes every tensor that Python code takes as true or false."""

    def __init__(self) -> None:
        super().__init__()
        self.decisions = Decisions()

    def __torch_function__(
        self, func: Callable[..., Any], types: Iterable[type], args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        answer = func(*args, **(kwargs or {}))
        if func is torch.Tensor.__bool__:
            self.decisions.made.append((_place(), bool(answer)))
        return answer


class Replaying(TorchFunctionMode):
    """Decides as was recorded."""

    def __init__(self, decisions: Decisions) -> None:
        super().__init__()
        self._left = list(decisions.made)

    def __torch_function__(
        self, func: Callable[..., Any], types: Iterable[type], args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if func == torch.Tensor.data.__get__:  # type: ignore[attr-defined]
            return args[0]  # the same at inference, and what is written through it is seen by the trace
        if func is not torch.Tensor.__bool__:
            return func(*args, **(kwargs or {}))
        place = _place()
        if not self._left or self._left[0][0] != place:
            raise ExportError(f"{place} decides by the values of a tensor, and did not when the example was run")
        return self._left.pop(0)[1]


def _place() -> str:
    """The line of the model's code that decides: the innermost frame outside of torch and of this file."""
    for frame in reversed(traceback.extract_stack()):
        if frame.filename != __file__ and "/torch/" not in frame.filename:
            return f"{frame.filename.rsplit('/', 1)[-1]}:{frame.lineno}"
    return "?"
