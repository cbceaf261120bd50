"""A file in an engine, in a process of its own and with a time limit: some engines abort, some never come back."""

from __future__ import annotations

import inspect
import os
import shutil
import signal
import subprocess
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO, cast

import numpy as np

from sruexport.errors import EngineCrash, EngineError

from .base import BuildingEngine, Engine, Job, Port, Progress
from .environments import interpreter
from .wire import receive, send

#: Seconds for opening a file, and for each run.
TIME_LIMIT = 300.0
_WORKER = Path(__file__).with_name("worker.py")


class _Worker:
    """A process that has been given a job; its answers are still to be read."""

    def __init__(
        self,
        engine: Engine,
        task: str,
        path: Path,
        inputs: tuple[Port, ...],
        outputs: tuple[Port, ...],
        limit: float,
        options: Mapping[str, str],
        sizes: Mapping[str, tuple[int, int, int]],
    ):
        self._engine, self._limit = engine, limit
        self._folder = Path(tempfile.mkdtemp(prefix="sruexport-"))
        self._log = (self._folder / "stderr").open("w+b")
        workdir = self._folder / "work"
        workdir.mkdir()
        job = Job(path.resolve(), inputs, outputs, workdir, options, sizes)
        self._process = subprocess.Popen(
            [interpreter(engine), "-I", str(_WORKER), *_class(engine), task, job.to_json()],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            cwd=workdir,
            env=os.environ | dict.fromkeys(("TMPDIR", "TEMP", "TMP"), str(workdir)),  # some leave things there
            start_new_session=True,  # so that programs which the engine starts end with it
        )

    def close(self) -> None:
        if self._log.closed:
            return
        self._kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout, self._log):
            if stream is not None:
                with suppress(OSError):  # what was not yet sent to a process that is gone
                    stream.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def answer(
        self, what: str, feeds: Mapping[str, np.ndarray] | None = None, progress: Progress = lambda step, share: None
    ) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        """The next answer, after what is said of the progress."""
        requests, answers = cast(BinaryIO, self._process.stdin), cast(BinaryIO, self._process.stdout)
        with self._watched() as late:
            try:
                if feeds is not None:
                    send(requests, {}, feeds)
                header, arrays = receive(answers)
                while "progress" in header:
                    progress(*header["progress"])
                    header, arrays = receive(answers)
            except (EOFError, OSError):
                raise EngineCrash(f"{self._engine.title} {self._how_it_died(late)}") from None
        if "error" in header:
            raise EngineError(f"{self._engine.title} {what}: {header['error']}")
        return header, arrays

    @contextmanager
    def _watched(self) -> Iterator[list[bool]]:
        """Kill the process at the time limit; the list is then not empty."""
        late: list[bool] = []

        def kill() -> None:
            late.append(True)
            self._kill()

        timer = threading.Timer(self._limit, kill)
        timer.start()
        try:
            yield late
        finally:
            timer.cancel()

    def _kill(self) -> None:
        with suppress(OSError):  # it is gone already
            os.killpg(self._process.pid, signal.SIGKILL) if hasattr(os, "killpg") else self._process.kill()

    def _how_it_died(self, late: list[bool]) -> str:
        if late:
            return f"ran past the limit of {self._limit:g} s"
        code = self._process.wait()
        how = f"exited with {code}" if code >= 0 else f"died of {_signal(-code)}"
        self._log.seek(0)
        said = self._log.read().decode(errors="replace").strip().splitlines()
        return f"{how}{': ' + said[-1][:300] if said else ''}"


class EngineProcess(_Worker):
    """One file in one engine.

    Attributes:
        opened_in: seconds that the engine took to load the file.
        seconds: that the last run took, in the engine.

    Raises:
        EngineError: the engine is not installed, or refuses the file.
        EngineCrash: its process died, or ran past the limit.
    """

    def __init__(
        self,
        engine: Engine,
        path: Path,
        inputs: tuple[Port, ...],
        outputs: tuple[Port, ...],
        *,
        limit: float = TIME_LIMIT,
        options: Mapping[str, str] | None = None,
    ):
        super().__init__(engine, "open", path, inputs, outputs, limit, options or {}, {})
        self.seconds = 0.0
        try:
            self.opened_in = float(self.answer("cannot load it")[0]["seconds"])
        except BaseException:
            self.close()
            raise

    def run(self, feeds: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Outputs by name.

        Raises:
            EngineError, EngineCrash: as for opening.
        """
        header, outputs = self.answer("cannot run it", feeds)
        self.seconds = float(header["seconds"])
        return outputs


def build(
    engine: BuildingEngine,
    path: Path,
    inputs: tuple[Port, ...],
    outputs: tuple[Port, ...],
    *,
    sizes: Mapping[str, tuple[int, int, int]],
    options: Mapping[str, str],
    limit: float = TIME_LIMIT,
    progress: Progress = lambda step, share: None,
) -> tuple[bytes, float]:
    """An engine file, and the seconds that building it took.

    Raises:
        EngineError, EngineCrash: as for `EngineProcess`.
    """
    worker = _Worker(engine, "build", path, inputs, outputs, limit, options, sizes)
    try:
        header, arrays = worker.answer("cannot build it", progress=progress)
    finally:
        worker.close()
    return arrays["engine"].tobytes(), float(header["seconds"])


def _class(engine: Engine) -> tuple[str, str]:
    """The file and the name of an engine's class: it need not be one of ours."""
    return inspect.getfile(type(engine)), type(engine).__qualname__


def _signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
