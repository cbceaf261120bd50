"""What `bench_cpu.py` found, as tables and as a picture."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import geometric_mean
from typing import Any

import numpy as np
from bench_contenders import (
    ALL,
    BODY,
    FORM,
    OP,
    OPENVINO_LSTM,
    ORT_LSTM,
    OURS,
    PRODUCTS,
    SRU_OP,
    SRU_PACKAGE,
    TORCH_LSTM,
    Shape,
)
from rich.console import Console
from rich.table import Table
from rich.text import Text

#: How much faster ours is to be than what, in the geometric mean over the shapes.
SPEEDUPS = ((ORT_LSTM, OURS, 3.0), (SRU_OP, OP, 5.0))

#: In the picture, in its order: what computes an SRU by itself, and then LSTMs.
COLORS = {
    OURS: "#1b4f9c",
    BODY: "#6aa5de",
    SRU_PACKAGE: "#b9d4ef",
    FORM: "#8c4a06",
    ORT_LSTM: "#d9701a",
    OPENVINO_LSTM: "#f2a65e",
    TORCH_LSTM: "#f9d3ae",
}
TITLES = {"onnxruntime": "ONNX Runtime", "torch": "PyTorch", "sru": "sru", "openvino": "OpenVINO"}


@dataclass(frozen=True)
class Timing:
    """Milliseconds of all timed runs of a contender."""

    median: float
    minimum: float
    quartiles: tuple[float, float]
    runs: int

    @staticmethod
    def of(seconds: Sequence[float]) -> Timing:
        low, middle, high = (float(value) * 1e3 for value in np.percentile(seconds, (25, 50, 75)))
        return Timing(middle, min(seconds) * 1e3, (low, high), len(seconds))


@dataclass(frozen=True)
class Result:
    """Attributes:
    difference: the largest between ours and the function body, relative.
    timings: by contender.
    """

    shape: Shape
    difference: float
    timings: Mapping[str, Timing]

    def ratio(self, name: str, to: str = OURS) -> float:
        return self.timings[name].median / self.timings[to].median

    def to_dict(self) -> dict[str, Any]:
        return asdict(self.shape) | {
            "name": self.shape.name,
            "difference": self.difference,
            "milliseconds": {name: asdict(timing) for name, timing in self.timings.items()},
            "ours / products": self.ratio(OURS, PRODUCTS),
            "ours / products, minima": self.timings[OURS].minimum / self.timings[PRODUCTS].minimum,
            "times of ours": {name: self.ratio(name, OP if name in (OP, SRU_OP) else OURS) for name in self.timings},
        }


def bars(results: Sequence[Result]) -> list[tuple[str, float, str, bool]]:
    """What is promised: of what, its value, how much it may or must be, and whether it holds."""
    found = []
    for result in results:
        if (most := result.shape.bar) is not None:
            value = result.ratio(OURS, PRODUCTS)
            found.append((f"{result.shape.label}: ours / products", value, f"at most {most:g}", value <= most))
    for name, ours, least in SPEEDUPS:
        ratios = [result.ratio(name, ours) for result in results if name in result.timings]
        if ratios:
            mean = geometric_mean(ratios)
            what = f"{name} / {ours}, geometric mean of {counted(len(ratios), 'shape')}"
            found.append((what, mean, f"at least {least:g}", mean >= least))
    return found


def show(console: Console, results: Sequence[Result]) -> None:
    """A table with a column per shape, and one of what is promised."""
    console.print(
        "milliseconds, median; below: in times of ours, and for the op alone in times of our op", style="italic"
    )
    table = Table(show_lines=True)
    table.add_column("layers x units\nsteps, rows", no_wrap=True)
    for result in results:
        table.add_column(result.shape.label.replace(", ", "\n", 1), justify="right", no_wrap=True)
    for name, ours in [*((name, OURS) for name in ALL), (OP, OP), (SRU_OP, OP)]:
        if any(name in result.timings for result in results):
            cells = [
                Text(figure(result.timings[name].median)) + Text(f"\n{figure(result.ratio(name, ours))}x", style="dim")
                if name in result.timings
                else Text("-")
                for result in results
            ]
            table.add_row(Text(name), *cells, style="bold" if name == ours else None)
    console.print(table, crop=False)
    table = Table()
    table.add_column("promised", overflow="fold")
    for heading in ("is", "to be", ""):
        table.add_column(heading, justify="right", no_wrap=True)
    for what, value, wanted, met in bars(results):
        verdict = Text("met", style="green") if met else Text("MISSED", style="bold red")
        table.add_row(what, f"{value:.3f}", wanted, verdict)
    if table.row_count:
        console.print(table, crop=False)


def figure(value: float) -> str:
    """Three digits."""
    return f"{value:.0f}" if value >= 100 else f"{value:#.3g}"


def counted(number: int, what: str) -> str:
    return f"{number} {what}{'s' if number != 1 else ''}"


def drawn(results: Sequence[Result], machine: Mapping[str, Any]) -> bytes:
    """A PNG: each contender's time in parts of the products', a group per shape. Needs matplotlib."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    # With few units the products are nothing: times relative to them say little.
    shown = [result for result in results if not result.shape.linear] or list(results)
    names = [name for name in COLORS if any(name in result.timings for result in shown)]
    width = 0.86 / len(names)
    figure_, axes = pyplot.subplots(figsize=(max(8.5, 2.3 * len(shown) + 1), 6), layout="constrained")
    for index, name in enumerate(names):
        shift = (index - (len(names) - 1) / 2) * width
        places = [place + shift for place, result in enumerate(shown) if name in result.timings]
        values = [result.ratio(name, PRODUCTS) for result in shown if name in result.timings]
        made = axes.bar(places, values, width * 0.92, label=name, color=COLORS[name])
        labels = [f"{value:.2f}" if value < 10 else f"{value:.0f}" for value in values]
        axes.bar_label(made, labels, padding=3, rotation=90, fontsize=9, fontweight="bold" if name == OURS else None)
    axes.axhline(1, color="black", linewidth=1, label="the matrix products alone")
    axes.set_yscale("log")
    axes.set_ylim(0.6, 2.2 * max(result.ratio(name, PRODUCTS) for result in shown for name in result.timings))
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}x"))
    axes.grid(axis="y", color="0.9")
    axes.set_axisbelow(True)
    axes.tick_params(axis="x", length=0)
    axes.set_xticks(range(len(shown)), [_tick(result) for result in shown])
    axes.set_ylabel("time, relative to the matrix products alone")
    axes.spines[["top", "right"]].set_visible(False)
    figure_.legend(ncols=4, loc="outside lower center", frameon=False)
    versions = [
        f"{title} {machine['versions'][package]}" for package, title in TITLES.items() if package in machine["versions"]
    ]
    axes.set_title(
        f"{machine['processor']}, {counted(machine['threads'], 'thread')}, kernels for {machine['kernels']}; medians\n"
        + ", ".join(versions),
        fontsize=10,
    )
    content = io.BytesIO()
    figure_.savefig(content, dpi=150, format="png")
    return content.getvalue()


def _tick(result: Result) -> str:
    shape = result.shape
    sizes = "one step per call" if shape.streaming else f"T = {shape.steps}, B = {shape.batch}"
    products = f"products: {figure(result.timings[PRODUCTS].median)} ms"
    return f"{shape.layers} x {shape.units}, {sizes}\n{products}"
