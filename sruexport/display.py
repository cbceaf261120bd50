"""Reports and findings as tables for people."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from sruexport.building import Built
from sruexport.conversion import Conversion
from sruexport.converters import FORMS
from sruexport.engines import ENGINES
from sruexport.matrix import Cell, Matrix
from sruexport.parity import Errors, Report
from sruexport.parity.measure import floor
from sruexport.parity.programs import TORCH_LSTM
from sruexport.torch_conversion import TorchConversion

_EXPLAINED = (
    "max, mean, p99: of |engine - f64|, how far the file is from {what} in float64, in the case nearest to its bound. "
    "{what}: |{dtype} - f64|, how far {what} itself is. bound: {times}max(8 x {what}, {floor:.0e} x scale)."
)

#: What a report's table needs, whatever the terminal has: figures that are cut off say nothing.
_WIDTH = 80


def show_report(console: Console, report: Report) -> None:
    """One row per output: the case nearest to its bound."""
    ran = sum(not case.skipped for case in report.cases)
    form = f" as {report.form}" if report.form else ""
    console.print(Text(f"{report.path}{form} on {report.engine}, {report.dtype}, {ran} cases", style="italic"))
    if report.outputs:
        _show_errors(console, "output", report.outputs, report)
    _show_failures(console, report)
    if report.form == TORCH_LSTM and report.path.suffix == ".onnx":
        console.print(f"a {TORCH_LSTM} program is made of the model: no number of the ONNX file is in it", style="dim")
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
    _show_errors(console, "file, inputs", rows, one)
    for report in reports.values():
        _show_failures(console, report)
    console.print(Text("parity: ") + _verdict(all(report.passed for report in reports.values())))


def _show_errors(console: Console, heading: str, rows: Mapping[str, Errors], of: Report) -> None:
    table = Table(width=_WIDTH if console.width < _WIDTH else None)
    table.add_column(heading, overflow="fold", min_width=6)
    for figure in ("max", "mean", "p99", of.baseline, "bound"):
        table.add_column(figure, justify="right", no_wrap=True)
    table.add_column("", no_wrap=True)
    for name, errors in rows.items():
        table.add_row(Text(name), *_figures(errors), _verdict(errors.passed))
    console.print(table, crop=False)
    times = f"{of.allowance:g} x " if of.allowance != 1 else ""
    explained = _EXPLAINED.format(dtype=of.dtype, floor=floor(of.dtype), times=times, what=_whose(of))
    console.print(explained, style="dim")


def _whose(report: Report) -> str:
    """Whose own numbers an engine's are held against, in a sentence."""
    return report.baseline if report.baseline == "PyTorch" else f"the {report.baseline}"


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
            said = f"{name}: {_whose(report)} itself gives {errors.not_finite} NaN or infinities"
            console.print(Text(said, style="yellow"))
    failed = [case.name for case in ran if not case.passed]
    if failed:
        shown = ", ".join(failed[:6]) + (", ..." if len(failed) > 6 else "")
        console.print(Text(f"failed in {len(failed)} of {len(ran)} cases: {shown}", style="red"))
        where = "no single layer departs by the rule when the sequence is run whole"
        if report.first_departure is not None:
            where = f"the first layer that departs: {report.first_departure or 'the model itself'}"
        if report.baseline == "PyTorch" and report.form != TORCH_LSTM:  # else no layer was looked for
            console.print(Text(where, style="red"))
    if not ran:
        console.print(
            "PyTorch refuses every case that fits the file: is it of this model? If so, give inputs with --data",
            style="red",
        )


def show_conversion(console: Console, done: Conversion) -> None:
    """What was written, the scales that were chosen, and whether the numbers held."""
    if done.passed:
        console.print(
            f"wrote {done.path} ({done.bytes:,} bytes, opset {done.opset}), form {done.form}: {FORMS[done.form].about}"
        )
    for name, reason in done.passed_over.items():
        console.print(Text(f"not {name}: {reason}", style="dim"))
    _show_scales(console, done.layers)
    if done.report is None:
        console.print(Text(f"not verified: {done.not_verified}", style="yellow"))
    else:
        show_report(console, done.report)
    if done.report is not None and not done.passed:
        console.print(Text(f"{done.path} was not written: {done.report.engine} fails it", style="bold red"))


def show_built(console: Console, done: Built) -> None:
    """What was built, for which GPUs and sizes, in which form and why, and that nobody has run it."""
    engine = ENGINES[done.engine].title
    console.print(
        f"wrote {done.path} ({done.bytes:,} bytes), built in {done.seconds:.1f} s by {engine} {done.version}, "
        f"for compute capability {', '.join(done.capabilities)}"
    )
    about = FORMS[done.form].about if done.form in FORMS else "the recurrences by their function bodies"
    console.print(f"form {done.form}: {about}; {done.dtype}")
    for name, reason in done.passed_over.items():
        console.print(Text(f"not {name}: {reason}", style="dim"))
    _show_scales(console, done.layers)
    for kind, given in (("input", done.inputs), ("output", done.outputs)):
        for port in given:
            console.print(Text(f"{kind} {port.name} {port.dtype} {_dims(port.shape)}"))
    for name, (low, best, high) in done.sizes.items():
        console.print(f"{name} from {low} to {high}, fastest at {best}")
    console.print(Text(f"not run here: {done.not_run}", style="yellow"))


def show_torch_conversion(console: Console, done: TorchConversion) -> None:
    """As `show_conversion`, for a PyTorch module."""
    if done.passed:
        console.print(f"wrote {done.path} ({done.bytes:,} bytes): {done.about}")
    _show_scales(console, done.layers)
    show_report(console, done.report)
    if not done.passed:
        console.print(Text(f"{done.path} was not written: its numbers are not the model's", style="bold red"))


def _show_scales(console: Console, layers: Sequence[Mapping[str, Any]]) -> None:
    for layer in layers:
        if "k" in layer:
            console.print(
                Text(
                    f"{layer['layer']}: state times 2^-{layer['k']} in the LSTM, for |c| up to {layer['bound']:.3g} "
                    f"({layer['bound_from']}); tanh takes at most {layer['relative_error']:.1e} of it"
                )
            )


def show_engines(console: Console, engines: Sequence[Mapping[str, Any]]) -> None:
    """One row per engine, and below the table what each gets wrong."""
    table = Table(width=_WIDTH if console.width < _WIDTH else None)
    for heading in ("engine", "version"):
        table.add_column(heading, no_wrap=True)
    table.add_column("forms, fastest first", overflow="fold")
    for engine in engines:
        found = Text(engine["version"], style="green") if engine["installed"] else Text("not installed", style="yellow")
        forms = ", ".join(engine["forms"]) or "none"
        forms += " (static sizes)" if engine["static"] else ""
        forms += f". {engine['only_builds']}" if engine["only_builds"] else ""
        wrong = ", ".join(engine["wrong_forms"])
        table.add_row(
            Text(engine["name"]), found, Text(forms) + Text(f"\nWRONG: {wrong}" if wrong else "", style="red")
        )
    console.print(table, crop=False)
    for engine in engines:
        for feature, reason in engine["wrong"].items():
            console.print(Text(f"{engine['name']} gets wrong, without a word: {feature}: {reason}", style="red"))
    absent = [engine for engine in engines if not engine["installed"]]
    if own := [engine["name"] for engine in absent if engine["folder"]]:
        console.print(Text(f"to install: sruexport engines install {' '.join(own)}", style="dim"))
    for engine in absent:
        if not engine["folder"]:
            console.print(Text(f"{engine['name']} is not here: {engine['install']}", style="dim"))


def show_matrix(console: Console, matrix: Matrix) -> None:
    """Per source a row per engine, with what became of each form; and what the profiles did not foresee."""
    styles = {"ok": "green", "builds": "green", "refused": "yellow", "crashed": "red", "WRONG": "bold red"}
    for source in dict.fromkeys(cell.source for cell in matrix.cells):
        table = Table(title=Text(source, style="italic"), title_justify="left", show_lines=True)
        table.add_column("engine", no_wrap=True)
        table.add_column("forms: ok with error (1.00 is all that is allowed) and time of a run", overflow="fold")
        for engine in matrix.versions:
            own = [cell for cell in matrix.cells if cell.source == source and cell.engine == engine]
            lines = [
                Text(f"{status}: ", style=style) + Text(", ".join(_cell(cell) for cell in own if cell.status == status))
                for status, style in styles.items()
                if any(cell.status == status for cell in own)
            ]
            table.add_row(Text(engine), Text("\n").join(lines))
        console.print(table, crop=False)
    for cell in matrix.cells:
        if not cell.known and cell.status != "none":
            console.print(
                Text(
                    f"not as the profile of {cell.engine} says: {cell.form}: {cell.shown} {cell.reason}", style="yellow"
                )
            )
    for name, how in matrix.absent.items():
        console.print(Text(f"{name} is not installed: {how}", style="dim"))


def _cell(cell: Cell) -> str:
    if cell.status != "ok":
        return cell.form
    return f"{cell.form} ({cell.shown.removeprefix('ok ').replace(', static', ' static')})"


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
        _form_rows(row, metadata.get("form", {}))
        row("made from", ", ".join(str(source[key]) for key in ("file", "model", "class") if key in source))
        row("made by", ", ".join(f"{name} {version}" for name, version in metadata.get("versions", {}).items()))
    elif found["kind"] == "onnx":
        row("made by", "not sruexport", "yellow")
    for name in found.get("not_finite", []):
        row("warning", f"tensor {name} has NaN or infinite values", "yellow")
    console.print(table)


def _form_rows(row: Callable[..., None], form: Mapping[str, Any]) -> None:
    """Of a converted file: its form, and whether it was run."""
    if not form:
        return
    row("form", form["name"])
    held = form.get("held_against_original", {})
    if held.get("verified"):
        row("verified", f"on {held['engine']} {held['version']}")
    else:
        row("verified", f"not verified: {held.get('not_verified', 'it was not run')}", "yellow")


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
