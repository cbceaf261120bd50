"""Engines that do to their process what real ones have done. This file also runs in that process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np

from sruexport.engines.base import AS_EXPORTED, BuildingEngine, Engine, Job, Opened, Progress
from sruexport.engines.onnxruntime import OnnxRuntime


def _raise() -> None:
    raise ValueError("no rule for\n   'Frobnicate'")


def _say_and_exit() -> None:
    print("something else\nout of luck", file=sys.stderr, flush=True)
    os._exit(3)


def _print() -> None:
    print("Loading ...", flush=True)
    os.write(1, b"\x08\x00\x00\x00\x00\x00\x00\x00{}")
    subprocess.run(["echo", "so says a program"], check=True)


def _read() -> None:
    if sys.stdin.read() or subprocess.run(["cat"], stdout=subprocess.PIPE, check=True).stdout:
        os.abort()


def _start_and_hang() -> None:
    child = subprocess.Popen(["sleep", "600"])
    Path(os.environ["SRUEXPORT_TEST_PID"]).write_text(str(child.pid))
    time.sleep(600)


def _litter() -> None:
    Path("here").write_text("in the folder that it is run in")
    os.close(tempfile.mkstemp()[0])


DEEDS: Mapping[str, Callable[[], object]] = {
    "": lambda: None,
    "abort": os.abort,
    "exit": _say_and_exit,
    "exit quietly": lambda: os._exit(0),
    "leave": sys.exit,
    "hang": lambda: time.sleep(600),
    "raise": _raise,
    "print": _print,
    "read": _read,
    "start and hang": _start_and_hang,
    "litter": _litter,
}


class Fake(Engine):
    """Doubles every input, but first does what it is told: the option "open" when it opens, "run" when the first input
    begins with anything but 0."""

    name = "fake"
    title = "Fake"
    packages = ("numpy",)
    forms = (AS_EXPORTED,)

    def open(self, job: Job) -> Opened:
        DEEDS[job.options.get("open", "")]()
        return _Opened(job)


class _Opened(Opened):
    def __init__(self, job: Job):
        self._job = job

    def run(self, feeds: Mapping[str, np.ndarray]) -> Sequence[np.ndarray]:
        deed = self._job.options.get("run", "")
        arrays = [feeds[port.name] for port in self._job.inputs]
        if arrays[0].size and arrays[0].flat[0]:
            if deed == "drop":
                return []
            DEEDS[deed]()
        return [array if array.dtype == bool else array + array for array in arrays]


class Echo(Engine):
    """Gives every input back."""

    name = "echo"
    title = "Echo"
    packages = ("numpy",)
    forms = ("scan",)

    def open(self, job: Job) -> Opened:
        return _Echo(job)


class _Echo(_Opened):
    def run(self, feeds: Mapping[str, np.ndarray]) -> Sequence[np.ndarray]:
        return [feeds[port.name] for port in self._job.inputs]


class Forge(Echo, BuildingEngine):
    """Builds a file that has its job in it, or as many bytes as the option "bytes" says, but takes no Scan.

    It tells of two steps, and does the option "build" between them.
    """

    name = "forge"
    title = "Forge"
    forms = ("parallel", "scan", "loop")
    capabilities = ("1", "2")
    capability = "1"
    only_builds = "its machine is elsewhere"

    def build(self, job: Job, progress: Progress) -> bytes:
        progress("heating", 0.25)
        DEEDS[job.options.get("build", "")]()
        progress("casting", 0.75)
        if job.path.exists() and b"Scan" in job.path.read_bytes():
            raise ValueError("a Scan melts")
        if "bytes" in job.options:
            return bytes(int(job.options["bytes"]))
        return json.dumps({"options": job.options, "sizes": job.sizes}).encode()


class Picky(OnnxRuntime):
    """ONNX Runtime, but without dynamic sizes, and with opinions."""

    name = "picky"
    title = "Picky"
    packages = ("numpy",)
    forms = ("parallel", "loop", "lstm", "scan", "unrolled")
    static = True
    refuses = {"Loop": "it has none"}  # noqa: RUF012  (as the engines that it stands for)
    wrong = {"LSTM": "it guesses"}  # noqa: RUF012


class Rigid(OnnxRuntime):
    """ONNX Runtime, but it says only when it opens a file that it does not take dynamic sizes."""

    name = "rigid"
    title = "Rigid"
    packages = ("numpy",)
    forms = ("scan",)

    def open(self, job: Job) -> Opened:
        if any(isinstance(dim, str) for port in job.inputs for dim in port.shape):
            raise ValueError("all dims must be static")
        return super().open(job)


class Own(OnnxRuntime):
    """What somebody may add."""

    name = "own"
    title = "My engine"
    packages = ("numpy",)
    forms = ("loop",)
