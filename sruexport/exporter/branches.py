"""Branches that a model takes by the value of a tensor (`if mask.any():`), which a graph cannot.

One run of the model on the example notes what was decided where; the trace decides the same. Each place is
reported, since the file always goes the example's way.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from sympy import Eq, Ne
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode
from torch.overrides import TorchFunctionMode

from sruexport.errors import ExportError

_TORCH = os.path.dirname(torch.__file__) + os.sep
_OURS = os.path.dirname(os.path.dirname(__file__)) + os.sep


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


@contextmanager
def noted_sizes() -> Iterator[set[str]]:
    """Notes where a model's own code, and not the tracer's, decides by whether a dynamic size is 1 (`if T == 1:`).

    Raises:
        ExportError: it decides by a number that was a tensor's (`if mask.sum().item() > 0:`).
    """
    places: set[str] = set()
    original = torch.SymBool.__bool__

    def noting(condition: torch.SymBool) -> bool:
        if not _is_model_code(sys._getframe(1).f_code.co_filename):
            return original(condition)
        expression = condition.node.expr
        if isinstance(expression, (Eq, Ne)) and 1 in expression.args:
            places.add(_place())
        try:
            return original(condition)
        except GuardOnDataDependentSymNode:
            raise ExportError(f"{_place()} decides by a number taken from a tensor, which no graph can") from None

    torch.SymBool.__bool__ = noting  # type: ignore[method-assign]
    try:
        yield places
    finally:
        torch.SymBool.__bool__ = original  # type: ignore[method-assign]


def _is_model_code(filename: str) -> bool:
    return filename != __file__ and not filename.startswith((_TORCH, _OURS))


def _place() -> str:
    """The line of the model's code that decides: the innermost frame outside of torch and of this file."""
    for frame in reversed(traceback.extract_stack()):
        if frame.filename != __file__ and not frame.filename.startswith(_TORCH):
            return f"{frame.filename.rsplit('/', 1)[-1]}:{frame.lineno}"
    return "?"
