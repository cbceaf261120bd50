"""Reports and findings as tables for people."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from sruexport.parity import Errors, Report
from sruexport.parity.measure import floor

_EXPLAINED = (
    "max, mean, p99: of |engine - f64|, how far the file is from PyTorch in float64, in the case nearest to its bound. "
    "PyTorch: |{dtype} - f64|, how far PyTorch itself is. bound: max(8 x PyTorch, {floor:.0e} x scale)."
)

#: What a report's table needs, whatever the terminal has: figures that are cut off say nothing.
_WIDTH = 80


def show_report(console: Console, report: Report) -> None:
    """One row per output: the case nearest to its bound."""
    ran = sum(not case.skipped for case in report.cases)
    console.print(Text(f"{report.path} on {report.engine}, {report.dtype}, {ran} cases", style="italic"))
    if report.outputs:
        _show_errors(console, "output", report.outputs, report.dtype)
    _show_failures(console, report)
    console.print(Text("parity: ") + _verdict(report.passed))


def show_reports(console: Console, reports: Mapping[str, Report]) -> None:
    """Several reports of one engine and dtype in one table. Each is named; so are its outputs where it has several."""
    one = next(iter(reports.values()))
    console.print(Text(f"on {one.engine}, {one.dtype}", style="italic"))
    rows = {
        of if len(report.outputs) == 1 else f"{of}, {name}": errors
        for of, report in reports.items()
        for name, errors in report.outputs.items()
    }
    _show_errors(console, "file, inputs", rows, one.dtype)
    for report in reports.values():
        _show_failures(console, report)
    console.print(Text("parity: ") + _verdict(all(report.passed for report in reports.values())))


def _show_errors(console: Console, heading: str, rows: Mapping[str, Errors], dtype: str) -> None:
    table = Table(width=_WIDTH if console.width < _WIDTH else None)
    table.add_column(heading, overflow="fold", min_width=6)
    for figure in ("max", "mean", "p99", "PyTorch", "bound"):
        table.add_column(figure, justify="right", no_wrap=True)
    table.add_column("", no_wrap=True)
    for name, errors in rows.items():
        table.add_row(Text(name), *_figures(errors), _verdict(errors.passed))
    console.print(table, crop=False)
    console.print(_EXPLAINED.format(dtype=dtype, floor=floor(dtype)), style="dim")


def _show_failures(console: Console, report: Report) -> None:
    """What is behind a verdict: cases that were not run, reasons, the layer that departs."""
    ran = [case for case in report.cases if not case.skipped]
    for case in report.cases:
        if case.skipped:
            console.print(Text(f"not run: {case.name}: {case.skipped}", style="dim"))
    for name, errors in report.outputs.items():
        if errors.reason:
            console.print(Text(f"{name}: {errors.reason}", style="red"))
        if errors.not_finite:
            console.print(Text(f"{name}: PyTorch itself gives {errors.not_finite} NaN or infinities", style="yellow"))
    failed = [case.name for case in ran if not case.passed]
    if failed:
        shown = ", ".join(failed[:6]) + (", ..." if len(failed) > 6 else "")
        console.print(Text(f"failed in {len(failed)} of {len(ran)} cases: {shown}", style="red"))
        where = "no single layer departs by the rule when the sequence is run whole"
        if report.first_departure is not None:
            where = f"the first layer that departs: {report.first_departure or 'the model itself'}"
        console.print(Text(where, style="red"))
    if not ran:
        console.print(
            "PyTorch refuses every case that fits the file: is it of this model? If so, give inputs with --data",
            style="red",
        )


def show_findings(console: Console, found: Mapping[str, Any]) -> None:
    """What `inspect` found, a line each; layers with their options."""
    plain = {key: value for key, value in found.items() if not isinstance(value, (dict, list)) and value is not None}
    table = Table(show_header=False, box=None)

    def row(heading: str, text: str, style: str = "") -> None:
        table.add_row(heading, Text(text, style=style, overflow="fold"))

    for key, value in plain.items():
        row(key.replace("_", " "), str(value))
    for key in ("inputs", "outputs"):
        for port in found.get(key, []):
            row(key[:-1], f"{port['name']} {port['dtype']} {_dims(port['shape'])}")
    for op_type, count in found.get("recurrences", {}).items():
        row("recurrence", f"{op_type} x {count}")
    metadata = found.get("metadata", {})
    for state in metadata.get("states", []):
        whose = state["layer"] or "the layer"
        row("state", f"{state['input']} -> {state['output']} {_dims(state['shape'])} of {whose}")
    layers = [*found.get("layers", []), *metadata.get("layers", [])]
    for layer in layers:
        where = layer.get("prefix", layer.get("path", ""))
        row("layer", f"{layer['family']} at '{where}'" if where else layer["family"])
        options = ", ".join(f"{name}={value}" for name, value in layer.get("options", {}).items())
        if options:
            row("", options)
        if layer.get("needs"):
            row("", f"not told by the tensors: {', '.join(layer['needs'])}", "yellow")
        if layer.get("error"):
            row("", layer["error"], "red")
    if not layers:
        row("layer", "none that sruexport knows", "yellow")
    if metadata:
        source = metadata.get("source", {})
        row("dtype", metadata.get("dtype", ""))
        row("made from", ", ".join(str(source[key]) for key in ("file", "model", "class") if key in source))
        row("made by", ", ".join(f"{name} {version}" for name, version in metadata.get("versions", {}).items()))
    elif found["kind"] == "onnx":
        row("made by", "not sruexport", "yellow")
    for name in found.get("not_finite", []):
        row("warning", f"tensor {name} has NaN or infinite values", "yellow")
    console.print(table)


def show_predictions(console: Console, predictions: Mapping[str, Sequence[Mapping[str, Any]]]) -> None:
    """The demo's predictions: a row per recording, and the models side by side.

    Args:
        predictions: by the model's name, a row per recording; the recordings are the same for all.
    """
    console.print(Text("who speaks, and how sure", style="italic"))
    table = Table(width=_WIDTH if console.width < _WIDTH else None)
    for heading in ("steps", "speaker"):
        table.add_column(heading, justify="right", vertical="bottom")
    for name in predictions:
        for engine in ("PyTorch", "ONNX Runtime"):
            table.add_column(f"{name}\n{engine}", justify="right", no_wrap=True)
    for rows in zip(*predictions.values(), strict=True):
        said = [
            f"{row[engine]}  {row[f'{engine}_probability']:.6f}"
            for row in rows
            for engine in ("pytorch", "onnxruntime")
        ]
        table.add_row(str(rows[0]["steps"]), str(rows[0]["speaker"]), *said)
    console.print(table, crop=False)


def _figures(errors: Errors) -> list[str]:
    values = (errors.engine_max, errors.engine_mean, errors.engine_p99, errors.pytorch_max, errors.bound)
    return [f"{value:.1e}" for value in values]


def _dims(shape: Iterable[Any]) -> str:
    return f"[{', '.join(map(str, shape))}]"


def _verdict(passed: bool) -> Text:
    return Text("passed", style="green") if passed else Text("FAILED", style="bold red")
