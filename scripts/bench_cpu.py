#!/usr/bin/env python3
"""Time the native CPU kernels for ONNX Runtime beside what else runs models of the same sizes.

    .venv/bin/python scripts/bench_cpu.py
    .venv/bin/python scripts/bench_cpu.py --quick --shape 4x512-512-1 --json bench.json --plot bench.png

Per shape (layers x units, T steps, B rows; streaming is one step per call, with states in and out), on the same number
of threads, in turns:

- ours: an SRU model, exported, in ONNX Runtime with the kernel library;
- products: only that model's matrix products, in ONNX Runtime: what no kernel for the recurrence can save;
- function body: the same file without the library;
- lstm form: the same file converted to a plain LSTM (`sruexport convert --to lstm`), in ONNX Runtime;
- ONNX Runtime's LSTM, torch.nn.LSTM and OpenVINO's LSTM: LSTMs of the same layers and units;
- sru package: the same model in the `sru` package, with its own CPU op;
- our op and the package's op alone: one layer's recurrence without its product.

Shapes that begin with "linear" are SRU without weight_c: LinearRecurrence. Nothing is timed unless ours agrees with the
function body. What is not installed is left out, with a word (`sruexport engines install openvino`). It takes some
minutes, and wants the machine for itself. Exit codes are those of `sruexport`: 1 where the numbers do not agree; bars
that are missed are said, and no error.
"""

from __future__ import annotations

import importlib.util
import json
import math
import os
import platform
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from datetime import datetime, timezone
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import torch
import typer
from bench_contenders import Contender, Disagreement, Shape, contenders, in_this_environment
from bench_openvino import TimedOpenVino
from bench_report import Result, Timing, bars, counted, drawn, show
from rich.console import Console
from rich.text import Text

from sruexport.engines import environments
from sruexport.engines.onnxruntime_kernels import instructions, library, missing
from sruexport.errors import EngineError, OptionError, SruExportError, closest
from sruexport.exporter.write import check_output, write_whole

# After a run ONNX Runtime's threads keep spinning (30 ms were measured), and so do OpenMP's (10 ms), on the cores that
# the next contender needs: without a pause, one step of a stream took half as long again if it came after another's.
# Switching spinning off would time something else than what a user gets, most of all in a stream, where every product
# would first have to wake its threads (twice as long). So all keep their defaults, and a turn begins with a pause in
# which the others' threads go to sleep, and with untimed runs that wake its own and fill the caches (some 20 steps of
# a stream); then runs follow each other, as a user's do, and these are timed.
PAUSE = 0.06
#: Seconds of runs in a turn, untimed and timed, where a single run does not take longer.
WAKING, TIMED = 0.004, 0.03
MOST_RUNS = 300
#: A run that takes as long does not feel whether it is the first.
LONG = 0.1
#: Medians are not to be trusted where other programs take more of the machine.
MOST_ELSEWHERE = 0.05


class Effort(NamedTuple):
    """For each shape: rounds, seconds, and how many turns even the slowest has."""

    rounds: int
    budget: float
    least: int


FULL, QUICK = Effort(60, 40.0, 5), Effort(6, 6.0, 2)

SHAPES = {
    shape.name: shape
    for shape in (
        Shape(4, 512, 512, 1, 1.15),
        Shape(4, 512, 512, 16, 1.15),
        Shape(2, 256, 256, 1, 1.15),
        Shape(2, 1024, 256, 1, 1.15),
        Shape(4, 256, 2048, 1, 1.15),
        Shape(4, 512, 1, 1, 1.3),
        Shape(2, 256, 2048, 1, linear=True),
        Shape(1, 16, 5000, 1, linear=True),
    )
}


def measure(contenders: Mapping[str, Contender], effort: Effort) -> dict[str, Timing]:
    """Time contenders in turns, so that what else happens on the machine meets them all.

    One that would take more than its share of the seconds is left out of most rounds.
    """
    rounds = effort.rounds
    plans = {}
    for name, contender in contenders.items():
        time.sleep(PAUSE)
        once = min(contender(3))
        waking = min(MOST_RUNS, max(int(once < LONG), round(WAKING / once)))
        runs = min(MOST_RUNS, max(1, round(TIMED / once)))
        turn = PAUSE + (waking + runs) * once
        every = math.ceil(turn * rounds * len(contenders) / effort.budget)
        plans[name] = (waking, runs, min(every, rounds // effort.least))
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    for number in range(rounds):
        for name, contender in contenders.items():
            waking, runs, every = plans[name]
            if number % every == 0:
                time.sleep(PAUSE)
                seconds[name] += contender(waking + runs)[waking:]
    return {name: Timing.of(taken) for name, taken in seconds.items()}


class Elsewhere:
    """How much of the processor's time other programs took since this was made."""

    def __init__(self) -> None:
        self._before = self._now()

    def share(self) -> float | None:
        """None where the system does not say. The engines' processes count as ours once they have ended."""
        if self._before is None or (now := self._now()) is None:
            return None
        busy, own, wall = (after - before for before, after in zip(self._before, now))
        return max(0.0, busy - own) / (wall * (os.cpu_count() or 1))

    @staticmethod
    def _now() -> tuple[float, float, float] | None:
        try:
            user, nice, system, _, _, irq, softirq, steal = map(int, Path("/proc/stat").read_text().split()[1:9])
        except (OSError, ValueError):
            return None
        busy = (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")
        return busy, sum(os.times()[:4]), time.monotonic()


def about(kernels: Path, threads: int) -> dict[str, Any]:
    """The machine, and the versions of what ran on it."""
    try:
        lines = [line.partition(":") for line in Path("/proc/cpuinfo").read_text().splitlines()]
    except OSError:
        lines = []
    processor = {key.strip(): value.strip() for key, _, value in reversed(lines)}  # of the first core
    flags = processor.get("flags", processor.get("Features", "")).split()
    versions = {"python": platform.python_version()}
    for package in ("sruexport", "onnxruntime", "onnx", "torch", "numpy", "sru"):
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            continue
    if (openvino := environments.version(TimedOpenVino())) is not None:
        versions["openvino"] = openvino
    return {
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "processor": processor.get("model name") or platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "threads": threads,
        "kernels": instructions(kernels),
        "flags": [flag for flag in flags if flag.startswith(("avx", "fma", "asimd", "sve"))],
        "versions": versions,
    }


def run(
    console: Console,
    progress: Console,
    names: Sequence[str],
    threads: int,
    quick: bool,
    files: Mapping[str, Path],
    kernels: Path | None,
) -> None:
    """Time, show and write.

    Raises:
        SruExportError: something that the caller can mend.
        Disagreement: nothing is shown.
    """
    if unknown := [name for name in names if name not in SHAPES]:
        raise OptionError(
            f"shape '{unknown[0]}' is not known{closest(unknown[0], SHAPES)} (they are {', '.join(SHAPES)})"
        )
    for path in files.values():
        check_output(path)
    if "plot" in files and importlib.util.find_spec("matplotlib") is None:
        raise OptionError("--plot needs matplotlib: pip install matplotlib")
    found = kernels.resolve() if kernels else library()
    if found is None or not found.is_file():
        raise EngineError(f"{found}: there is no such file" if found else f"no kernels: {missing()}")
    in_this_environment()
    torch.set_num_threads(threads)
    machine = about(found, threads)
    for package, how in (("sru", "pip install sru"), ("openvino", environments.how_to_install(TimedOpenVino()))):
        if package not in machine["versions"]:
            progress.print(f"left out, since it is not installed: {package} ({how})")
    effort, elsewhere, results = QUICK if quick else FULL, Elsewhere(), []
    for name in names:
        progress.print(name)
        with tempfile.TemporaryDirectory(prefix="sruexport-") as folder, ExitStack() as stack:
            those, difference = contenders(SHAPES[name], found, threads, Path(folder), stack)
            results.append(Result(SHAPES[name], difference, measure(those, effort)))
    heading = f"{machine['processor']}, {counted(threads, 'thread')}, kernels for {machine['kernels']}"
    console.print(heading, highlight=False)
    for group in ([r for r in results if not r.shape.linear], [r for r in results if r.shape.linear]):
        if group:
            show(console, group)
    if (share := elsewhere.share()) is not None and share > MOST_ELSEWHERE:
        said = f"other programs took {share:.0%} of the processor meanwhile: run it again on a machine that is idle"
        console.print(said, style="yellow", highlight=False)
    if "json" in files:
        content = machine | {
            "rounds": effort.rounds,
            "elsewhere": share,
            "shapes": [result.to_dict() for result in results],
            "promised": [dict(zip(("what", "is", "to be", "met"), bar)) for bar in bars(results)],
        }
        write_whole(files["json"], (json.dumps(content, indent=2) + "\n").encode())
    if "plot" in files:
        write_whole(files["plot"], drawn(results, machine))


def main(
    shape: Annotated[list[str] | None, typer.Option(help=f"One of {', '.join(SHAPES)}. Repeatable.")] = None,
    threads: Annotated[int, typer.Option(min=1, help="Of each contender.")] = os.cpu_count() or 1,
    quick: Annotated[bool, typer.Option("--quick", help="A few rounds only: figures are rough.")] = False,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write all figures there.")] = None,
    plot: Annotated[Path | None, typer.Option(help="Draw them there, as a PNG; needs matplotlib.")] = None,
    kernels: Annotated[Path | None, typer.Option("--library", help="In place of the installed kernels.")] = None,
) -> None:
    """Time the native CPU kernels for ONNX Runtime beside what else runs models of the same sizes."""
    progress = Console(stderr=True)
    files = {name: path for name, path in (("json", json_file), ("plot", plot)) if path is not None}
    try:
        run(Console(), progress, shape or list(SHAPES), threads, quick, files, kernels)
    except SruExportError as error:
        progress.print(Text(f"error: {error}", style="red"))
        raise typer.Exit(2) from None
    except Disagreement as error:
        progress.print(Text(f"error: {error}", style="red"))
        raise typer.Exit(1) from None


if __name__ == "__main__":
    typer.run(main)
