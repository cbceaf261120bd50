"""Where a command's words go, and how it says what it is at."""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, SpinnerColumn, TextColumn
from rich.progress import Progress as ProgressBar
from rich.text import Text

from sruexport.errors import ModelWarning


class Talk:
    """Where words go: findings to stdout, or to stderr when stdout is for JSON; progress always to stderr."""

    def __init__(self, as_json: bool):
        self.as_json = as_json
        self.people = console(stderr=as_json, soft_wrap=not sys.stdout.isatty())
        self.errors = console(stderr=True)
        self.warnings: list[str] = []

    def document(self, content: dict[str, Any]) -> None:
        if self.as_json:
            print(json.dumps(content | {"warnings": self.warnings}, indent=2, allow_nan=False, default=str))

    @contextmanager
    def progress(self, what: str) -> Iterator[Callable[[str], None]]:
        """A line on stderr that says which step is on, and afterwards the warnings that came up."""
        with self._warnings_kept(), self.errors.status(Text(what)) as status:
            yield lambda step: status.update(Text(f"{what}: {step}"))

    @contextmanager
    def bar(self, what: str) -> Iterator[Callable[[str, float], None]]:
        """As `progress`, with a bar for the share that is done."""
        columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), BarColumn())
        quiet = not self.errors.is_terminal  # where it would leave an empty line
        bar = ProgressBar(*columns, console=self.errors, transient=True, disable=quiet)
        with self._warnings_kept(), bar:
            task = bar.add_task(what, total=1.0)
            yield lambda step, share: bar.update(task, description=f"{what}: {step}", completed=share)

    @contextmanager
    def _warnings_kept(self) -> Iterator[None]:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", ModelWarning)
            try:
                yield
            finally:
                found = (str(w.message) for w in caught if issubclass(w.category, ModelWarning))
                self.warnings = list(dict.fromkeys(found))
                for message in self.warnings:
                    self.errors.print(f"warning: {message}", style="yellow")


def console(stderr: bool, soft_wrap: bool = True) -> Console:
    # Names and paths are printed as they are: "[T, B]" is no markup and "nets:boom" no emoji.
    return Console(stderr=stderr, highlight=False, markup=False, emoji=False, soft_wrap=soft_wrap)
