"""Reports and findings as tables for people."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.table import Table

from sruexport.parity import Errors, Report

_EXPLAINED = (
    "|engine - f64| is how far the file is from PyTorch in float64, over all cases; PyTorch is how far PyTorch's own "
    "{dtype} is. Passed: max <= max(8 x PyTorch, floor x scale)."
)


def show_report(console: Console, report: Report) -> None:
    """One row per output: the case nearest to its bound."""
    ran = [case for case in report.cases if not case.skipped]
    table = Table(title=f"{report.path} on {report.engine}, {report.dtype}, {len(ran)} cases", title_justify="left")
    for heading in ("output", "max", "mean", "p99", "PyTorch", "bound", ""):
        table.add_column(heading, justify="left" if heading in ("output", "") else "right", no_wrap=True)
    for name, errors in report.outputs.items():
        table.add_row(name, *_figures(errors), _verdict(errors.passed))
    console.print(table)
    console.print(_EXPLAINED.format(dtype=report.dtype), style="dim")
    for case in report.cases:
        if case.skipped:
            console.print(f"not run: {case.name}: {case.skipped}", style="dim")
    for name, errors in report.outputs.items():
        if errors.reason:
            console.print(f"{name}: {errors.reason}", style="red")
    failed = [case.name for case in ran if not case.passed]
    if failed:
        console.print(f"failed in {len(failed)} of {len(ran)} cases: {', '.join(failed[:6])}", style="red")
        if report.first_departure is not None:
            console.print(f"the first layer that departs: {report.first_departure or 'the model itself'}", style="red")
    if not ran:
        console.print("no case could be run: give inputs with --data", style="red")
    console.print(f"parity: {_verdict(report.passed)}")


def show_findings(console: Console, found: Mapping[str, Any]) -> None:
    """What `inspect` found, a line each; layers with their options."""
    plain = {key: value for key, value in found.items() if not isinstance(value, (dict, list)) and value is not None}
    table = Table(show_header=False, box=None)
    for key, value in plain.items():
        table.add_row(key.replace("_", " "), str(value))
    for key in ("inputs", "outputs"):
        for port in found.get(key, []):
            table.add_row(
                key[:-1], f"{port['name']} {port['dtype']} [{', '.join(map(str, port['shape']))}]", style=None
            )
    for op_type, count in found.get("recurrences", {}).items():
        table.add_row("recurrence", f"{op_type} x {count}")
    metadata = found.get("metadata", {})
    for state in metadata.get("states", []):
        table.add_row("state", f"{state['input']} -> {state['output']} {state['shape']} of {state['layer']}")
    for layer in [*found.get("layers", []), *metadata.get("layers", [])]:
        where = layer.get("prefix", layer.get("path", ""))
        table.add_row("layer", f"{layer['family']} at '{where}'")
        options = ", ".join(f"{name}={value}" for name, value in layer.get("options", {}).items())
        if options:
            table.add_row("", options)
        if layer.get("needs"):
            table.add_row("", f"not told by the tensors: {', '.join(layer['needs'])}", style="yellow")
        if layer.get("error"):
            table.add_row("", layer["error"], style="red")
    for name in found.get("not_finite", []):
        table.add_row("warning", f"tensor {name} has NaN or infinite values", style="yellow")
    console.print(table)


def show_predictions(console: Console, rows: list[tuple[str, ...]], headings: tuple[str, ...], title: str) -> None:
    table = Table(title=title, title_justify="left")
    for heading in headings:
        table.add_column(heading, justify="right")
    for row in rows:
        table.add_row(*row)
    console.print(table)


def _figures(errors: Errors) -> list[str]:
    values = (errors.engine_max, errors.engine_mean, errors.engine_p99, errors.pytorch_max, errors.bound)
    return [f"{value:.1e}" for value in values]


def _verdict(passed: bool) -> str:
    return "[green]passed[/green]" if passed else "[bold red]FAILED[/bold red]"
