#!/usr/bin/env python3
"""Compile the CUDA kernels for every architecture, and say what each needs of it: registers, shared memory, occupancy.

    .venv/bin/python scripts/cuda_resources.py [--arch 90]... [--json FILE]

nvcc is the one on PATH, or that of CUDA_HOME. Exit code 1 where a kernel spills registers: it would wait for memory
that no tensor is in.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

SOURCES = Path(__file__).resolve().parent.parent / "plugins" / "kernels" / "cuda"
#: Threads and blocks that an SM holds, by compute capability (CUDA C++ Programming Guide, technical specifications).
LIMITS = {
    75: (1024, 16),
    80: (2048, 32),
    86: (1536, 16),
    89: (1536, 24),
    90: (2048, 32),
    100: (2048, 32),
    120: (1536, 24),
}
REGISTERS = 65536  # of an SM, in all of these; a warp gets them 256 at a time
#: Threads of a block: kThreads in device.h, kBlock in linear_chunked.cu.
THREADS = {"serial": 128, "chunked": 256}
#: Shared memory of an SM that blocks can have, in kB, and what CUDA takes of it for each.
SHARED = {75: 64, 80: 164, 86: 100, 89: 100, 90: 228, 100: 228, 120: 100}
SHARED_OVERHEAD = 1


@dataclass(frozen=True)
class Kernel:
    """What ptxas says of a kernel for one architecture.

    Attributes:
        name: as in the source, with its tensor type and channels per thread.
        shared, spilled: bytes; of spilled registers, stores and loads together.
        occupancy: threads that an SM holds at once, in parts of the most that it can.
    """

    name: str
    arch: int
    registers: int
    shared: int
    spilled: int
    occupancy: float


def compiler() -> str | None:
    home = os.environ.get("CUDA_HOME")
    return shutil.which("nvcc", path=f"{home}/bin" if home else None)


def resources(nvcc: str, source: Path, arch: int) -> list[Kernel]:
    """Compile a file for one architecture, warnings being errors.

    Raises:
        RuntimeError: it does not compile.
    """
    with tempfile.TemporaryDirectory() as folder:
        flags = ["-std=c++17", "-O3", "-Werror=all-warnings", "-Xcompiler=-Wall,-Wextra,-Werror", "-Xptxas=-v"]
        target = ["-gencode", f"arch=compute_{arch},code=sm_{arch}", "-c", str(source), "-o", f"{folder}/kernel.o"]
        done = subprocess.run([nvcc, *flags, *target], capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{source.name} for sm_{arch} does not compile:\n{done.stderr}")
    return list(_kernels(done.stderr, arch))


def _kernels(log: str, arch: int) -> Iterator[Kernel]:
    for part in log.split("Compiling entry function '")[1:]:
        used = {name: int(value) for value, name in re.findall(r"(\d+) (registers|bytes smem)", part)}
        spilled = sum(int(value) for value in re.findall(r"(\d+) bytes spill", part))
        name, registers, shared = _name(part), used["registers"], used.get("bytes smem", 0)
        yield Kernel(name, arch, registers, shared, spilled, _occupancy(name, registers, shared, arch))


def _name(part: str) -> str:
    """linear_serial, float32 x 1 (channels of a thread) for _ZN...13linear_serialIfLi1EEEv..."""
    mangled = part.split("'")[0]
    found = re.search(r"\d+((?:sru|linear)_[a-z]+)I(f|NS0_4HalfE|NS0_8BFloat16E)(?:Li(\d)E)?E", mangled)
    if found is None:
        return mangled
    tensor = {"f": "float32", "NS0_4HalfE": "float16", "NS0_8BFloat16E": "bfloat16"}[found[2]]
    return f"{found[1]}, {tensor}" + (f" x {found[3]}" if found[3] else "")


def _occupancy(name: str, registers: int, shared: int, arch: int) -> float:
    most, blocks = LIMITS[arch]
    threads = THREADS[name.split(",")[0].split("_")[-1]]
    of_warp = -(-registers * 32 // 256) * 256
    fit = min(REGISTERS // of_warp * 32 // threads, most // threads, blocks)
    if shared:
        fit = min(fit, SHARED[arch] * 1024 // (shared + SHARED_OVERHEAD * 1024))
    return fit * threads / most


def main(
    arch: Annotated[list[int] | None, typer.Option(help=f"One of {', '.join(map(str, LIMITS))}. Repeatable.")] = None,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write all figures there.")] = None,
) -> None:
    """Compile the CUDA kernels for every architecture, and say what each needs of it."""
    people = Console(stderr=True)
    nvcc = compiler()
    if nvcc is None:
        people.print("error: there is no nvcc: put it on PATH, or set CUDA_HOME", style="red")
        raise typer.Exit(2)
    if unknown := [each for each in arch or () if each not in LIMITS]:
        people.print(f"error: arch {unknown[0]} is not known (they are {', '.join(map(str, LIMITS))})", style="red")
        raise typer.Exit(2)
    jobs = [(nvcc, source, each) for source in sorted(SOURCES.glob("*.cu")) for each in arch or LIMITS]
    try:
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            kernels = [kernel for found in pool.map(lambda job: resources(*job), jobs) for kernel in found]
    except RuntimeError as error:
        people.print(Text(f"error: {error}", style="red"))
        raise typer.Exit(1) from None
    show(Console(), kernels)
    if json_file is not None:
        json_file.write_text(json.dumps([asdict(kernel) for kernel in kernels], indent=2) + "\n")
    if any(kernel.spilled for kernel in kernels):
        raise typer.Exit(1)


def show(console: Console, kernels: Sequence[Kernel]) -> None:
    """A row per kernel, a column per architecture."""
    table = Table(title="registers; threads that an SM holds, in parts of the most; in red: spills", show_lines=True)
    table.add_column("kernel", no_wrap=True)
    archs = list(dict.fromkeys(kernel.arch for kernel in kernels))
    for arch in archs:
        table.add_column(f"sm_{arch}", justify="right", no_wrap=True)
    for name in dict.fromkeys(kernel.name for kernel in kernels):
        own = {kernel.arch: kernel for kernel in kernels if kernel.name == name}
        cells = [
            Text(f"{own[arch].registers}\n{own[arch].occupancy:.0%}", style="red" if own[arch].spilled else "")
            for arch in archs
        ]
        table.add_row(Text(name), *cells)
    console.print(table, crop=False)


if __name__ == "__main__":
    typer.run(main)
