"""The command line: words for what the package does. No logic lives here.

Every command takes --json: then one document goes to stdout and everything for people to stderr. Exit codes: 0 done,
1 the numbers do not agree, 2 something that the caller can mend, 3 a fault of sruexport itself, 130 interrupted.
"""

from __future__ import annotations

import json
import shlex
import sys
import tempfile
import threading
import traceback
from pathlib import Path
from typing import Annotated

import typer

from sruexport._version import __version__
from sruexport.errors import OptionError, SruExportError
from sruexport.talk import Talk, console

app = typer.Typer(
    help="Trained SRU and linear-RNN models from PyTorch to ONNX, proven equal.",
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    add_completion=False,
)

Json = Annotated[bool, typer.Option("--json", help="One JSON document on stdout; everything for people on stderr.")]
Model = Annotated[
    str | None,
    typer.Option(help="Code that makes the model: package.module:factory. For models with other layers too."),
]
Weights = Annotated[Path | None, typer.Option(help="The state_dict for --model.")]
Prefix = Annotated[str | None, typer.Option(help="Which layer of the checkpoint, by what its keys begin with.")]
Options = Annotated[
    list[str] | None,
    typer.Option(
        "--option", help="What the tensors do not tell, as NAME=VALUE, such as bidirectional=true. Repeatable."
    ),
]
Inputs = Annotated[
    list[str] | None,
    typer.Option(
        "--input",
        help="An argument of forward, for --model: 'x=float32[T,B,40]'; a name is a dynamic axis, 'T:50' gives it an "
        "example size, 'ids=int64[T,B]:0..999' a range. Repeatable.",
    ),
]


def _seconds(value: float) -> float:
    if not 0 < value <= threading.TIMEOUT_MAX:
        raise OptionError(f"--limit {value:g}: give a number of seconds above 0")
    return value


Limit = Annotated[
    float, typer.Option(help="Seconds for an engine to load a file, and for each run.", callback=_seconds)
]

#: As in `sruexport.converters.FORMS`, which is not imported for a help text: it takes PyTorch with it.
_FORMS = (
    "lstm, lstm-forward, lstm-peephole, lstm-peephole-tanh, scan, loop, unrolled, parallel, linear-attention, "
    "torch-lstm"
)
_TORCH_LSTM = "torch-lstm"


@app.command("inspect")
def inspect_command(
    file: Annotated[Path, typer.Argument(help="A checkpoint (.pt, .pth, .ckpt, .bin, .safetensors) or an .onnx file.")],
    as_json: Json = False,
) -> None:
    """Say what is in a checkpoint or an ONNX file. No code in it is run."""
    talk = Talk(as_json)
    with talk.progress(f"reading {file.name}"):
        from sruexport.display import show_findings
        from sruexport.inspection import inspect

        found = inspect(file)
    show_findings(talk.people, found)
    talk.document(found)


@app.command("export")
def export_command(
    output: Annotated[Path, typer.Option("--output", "-o", help="The ONNX file. It appears whole or not at all.")],
    source: Annotated[Path | None, typer.Argument(help="A checkpoint of a recurrent layer.")] = None,
    model: Model = None,
    weights: Weights = None,
    prefix: Prefix = None,
    option: Options = None,
    inputs: Inputs = None,
    mask: Annotated[
        bool, typer.Option("--mask", help="Give the file of a bare layer an input for the padding mask.")
    ] = False,
    stateful: Annotated[
        bool, typer.Option("--stateful", help="Add states as inputs and outputs, for streaming.")
    ] = False,
    dtype: Annotated[
        str | None, typer.Option(help="float32, float16, bfloat16 or float64. [default: the model's own]")
    ] = None,
    opset: Annotated[int | None, typer.Option(help="18 to 25. [default: 18]")] = None,
    as_json: Json = False,
) -> None:
    """Write a model as one ONNX file that runs anywhere."""
    talk = Talk(as_json)
    with talk.progress("export") as progress:
        from sruexport.exporter import export
        from sruexport.exporter.write import check_output
        from sruexport.sources import choose, keep_apart, with_inputs

        check_output(output)
        keep_apart(output, source, weights)
        progress("reading the model")
        made = with_inputs(choose(source, model, weights, prefix, option or []), inputs or [], mask)
        done = export(
            made.model,
            made.args,
            output,
            dynamic=made.dynamic,
            stateful=stateful,
            dtype=dtype,
            opset=opset,
            source=made.origin,
            progress=progress,
        )
    for note in made.notes:
        talk.errors.print(note, style="dim")
    what = ", ".join(done.metadata["recurrences"])
    talk.people.print(f"wrote {done.path} ({done.bytes:,} bytes, opset {done.metadata['opset']}, {what})")
    again = [
        str(part) for name, part in (("--weights", weights), ("--prefix", prefix)) if part for part in (name, part)
    ]
    again += [part for text in option or [] for part in ("--option", text)]
    named = ["--model", model] if model else [str(source)]
    command = shlex.join(["sruexport", "validate", *named, *again, str(output)])
    talk.people.print(f"next, to hold it against PyTorch: {command}", style="dim")
    talk.document({"file": str(done.path), "bytes": done.bytes, "metadata": done.metadata})


@app.command("validate")
def validate_command(
    first: Annotated[Path, typer.Argument(metavar="SOURCE", help="The checkpoint. With --model: leave it out.")],
    second: Annotated[Path | None, typer.Argument(metavar="M.onnx", help="The file that was exported from it.")] = None,
    model: Model = None,
    weights: Weights = None,
    prefix: Prefix = None,
    option: Options = None,
    data: Annotated[Path | None, typer.Option(help="Own inputs: an .npz file with an array per input.")] = None,
    engine: Annotated[
        list[str] | None,
        typer.Option(
            help="Where to run it (see 'sruexport engines'), or 'all' that are here. Repeatable. "
            "[onnxruntime-kernels where they are here, else onnxruntime]"
        ),
    ] = None,
    form: Annotated[
        str | None, typer.Option(help=f"What to write recurrences as for it: one of {_FORMS}. [what the engine runs]")
    ] = None,
    limit: Limit = 300.0,
    as_json: Json = False,
) -> None:
    """Hold a file against PyTorch in float64.

    It is run at several lengths and batch sizes, masked and in chunks, or on the arrays of --data. Exit code 1 if the
    numbers do not agree; then the first layer that departs is named.
    """
    talk = Talk(as_json)
    source, file = (first, second) if second is not None else (None, first)
    if source is None and model is None:
        raise OptionError("give SOURCE and M.onnx, or --model package.module:factory --weights FILE and M.onnx")
    with talk.progress("validate") as progress:
        from sruexport.display import show_report
        from sruexport.engines.onnxruntime_kernels import without
        from sruexport.parity.engines import validate_on
        from sruexport.sources import another_checkpoint, choose

        made = choose(source, model, weights, prefix, option or [])
        done = validate_on(
            engine or [""],
            made.model,
            file,
            data=data,
            example=made.args,
            form=form or "",
            limit=limit,
            progress=progress,
        )
    for report in done.reports:
        show_report(talk.people, report)
    if not engine and not any(report.form for report in done.reports) and (why := without()):
        talk.people.print(why, style="dim")
    for name, reason in done.refused.items():
        talk.people.print(f"{name}: {reason}")
    if done.reports and (note := another_checkpoint(made, done.reports[0].source)):
        talk.errors.print(note, style="yellow")
    talk.document(done.to_dict())
    if not done.passed:
        raise typer.Exit(1)


@app.command("convert")
def convert_command(
    source: Annotated[
        Path | None,
        typer.Argument(help="An ONNX file of sruexport; for --to torch-lstm the checkpoint, or --model in its place."),
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="The file. It appears whole, and only if it is right.")
    ] = None,
    to: Annotated[str | None, typer.Option("--to", metavar="FORM", help=f"One of {_FORMS}.")] = None,
    engine: Annotated[
        str | None,
        typer.Option(help="The form that this engine runs, right and fastest (see 'sruexport engines')."),
    ] = None,
    size: Annotated[
        list[str] | None, typer.Option("--size", help="Make a dynamic dim static: T=50. Repeatable.")
    ] = None,
    range_: Annotated[
        list[str] | None,
        typer.Option("--range", help="Where an input's values lie: x=-4..4. An LSTM's scale goes by it. Repeatable."),
    ] = None,
    data: Annotated[
        Path | None, typer.Option(help="Own inputs, an .npz file: to compare on, and to take ranges from.")
    ] = None,
    lstm_dtype: Annotated[
        str, typer.Option(help="float16: the LSTM itself computes in float16, for engines that can.")
    ] = "float32",
    limit: Limit = 300.0,
    model: Model = None,
    weights: Weights = None,
    prefix: Prefix = None,
    option: Options = None,
    inputs: Inputs = None,
    as_json: Json = False,
) -> None:
    """Write a file in standard ops, and hold it against the original.

    It is for engines without functions and plugins. Exit code 1, and no file, if its numbers are not the original's.
    """
    talk = Talk(as_json)
    if output is None:
        raise OptionError("give the file to write: -o OUT.onnx")
    if to == _TORCH_LSTM:
        if engine or size or data or lstm_dtype != "float32":
            raise OptionError(f"--engine, --size, --data and --lstm-dtype are not for --to {_TORCH_LSTM}")
        with talk.progress("convert") as progress:
            from sruexport.display import show_torch_conversion
            from sruexport.sources import choose, keep_apart, parse_ranges, with_inputs
            from sruexport.torch_conversion import convert_to_torch

            keep_apart(output, source, weights)
            made = with_inputs(choose(source, model, weights, prefix, option or []), inputs or [], False)
            module = convert_to_torch(
                made.model,
                made.args,
                output,
                dynamic=made.dynamic,
                ranges=parse_ranges(range_ or []),
                origin=made.origin,
                progress=progress,
            )
        show_torch_conversion(talk.people, module)
        talk.document(module.to_dict())
        if not module.passed:
            raise typer.Exit(1)
        return
    if source is None:
        raise OptionError("give the ONNX file to convert")
    if model or weights or prefix or option or inputs:
        raise OptionError(
            f"--model, --weights, --prefix, --option and --input are for --to {_TORCH_LSTM}, from a checkpoint"
        )
    with talk.progress("convert") as progress:
        from sruexport.conversion import convert_file
        from sruexport.display import show_conversion
        from sruexport.sources import keep_apart, parse_ranges, parse_sizes

        keep_apart(output, source, data)
        done = convert_file(
            source,
            output,
            form=to,
            engine=engine,
            sizes=parse_sizes(size or []),
            ranges=parse_ranges(range_ or []),
            data=data,
            lstm_dtype=lstm_dtype,
            limit=limit,
            progress=progress,
        )
    show_conversion(talk.people, done)
    talk.document(done.to_dict())
    if not done.passed:
        raise typer.Exit(1)


@app.command("build")
def build_command(
    source: Annotated[Path, typer.Argument(metavar="M.onnx", help="A file of sruexport, exported or converted.")],
    engine: Annotated[str, typer.Option(help="The engine to build for: tensorrt-rtx.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="The engine file. It appears whole or not at all.")],
    form: Annotated[
        str | None,
        typer.Option(help=f"Only in this form: 'as exported', or one of {_FORMS.removesuffix(f', {_TORCH_LSTM}')}."),
    ] = None,
    min_: Annotated[
        list[str] | None, typer.Option("--min", help="Smallest sizes of dynamic dims, such as T=1,B=1. [1]")
    ] = None,
    opt: Annotated[list[str] | None, typer.Option("--opt", help="Sizes that it is to be fastest with. [32]")] = None,
    max_: Annotated[list[str] | None, typer.Option("--max", help="Largest sizes. [512]")] = None,
    capability: Annotated[
        list[str] | None,
        typer.Option(help="The GPU's compute capability without the dot: 75, 80, 86, 89, 120, 121. Repeatable. [86]"),
    ] = None,
    dtype: Annotated[
        str | None, typer.Option(help="Only if the file is in this dtype: the engine file computes in the file's own.")
    ] = None,
    workspace: Annotated[int | None, typer.Option(help="MiB of scratch memory that it may use at most.")] = None,
    limit: Limit = 300.0,
    as_json: Json = False,
) -> None:
    """Build an engine file for a GPU that need not be here.

    It is built in the first form that the engine's builder takes, without plugins. It is not run: only that GPU can.
    """
    talk = Talk(as_json)
    with talk.bar("build") as progress:
        from sruexport.building import build_file
        from sruexport.display import show_built
        from sruexport.sources import keep_apart, parse_profile

        keep_apart(output, source)
        done = build_file(
            source,
            output,
            engine=engine,
            form=form,
            min_sizes=parse_profile(min_ or [], "--min"),
            opt_sizes=parse_profile(opt or [], "--opt"),
            max_sizes=parse_profile(max_ or [], "--max"),
            capabilities=capability or (),
            dtype=dtype,
            workspace=workspace,
            limit=limit,
            progress=progress,
        )
    show_built(talk.people, done)
    talk.document(done.to_dict())


engines_app = typer.Typer(help="List the engines and install them.", invoke_without_command=True)
app.add_typer(engines_app, name="engines")


@engines_app.callback()
def engines_command(context: typer.Context, as_json: Json = False) -> None:
    """List the engines: installed or not, the forms that each runs, and what it gets wrong without a word."""
    context.obj = as_json
    if context.invoked_subcommand is not None:
        return
    from sruexport.display import show_engines
    from sruexport.engines import listing

    talk = Talk(as_json)
    found = listing.list_engines()
    show_engines(talk.people, found)
    talk.document({"engines": found})


@engines_app.command("install")
def engines_install_command(
    context: typer.Context,
    names: Annotated[list[str], typer.Argument(metavar="NAME...", help="Engines, or 'all'.")],
    as_json: Json = False,
) -> None:
    """Put engines into environments of their own, under the user's cache folder (or SRUEXPORT_ENGINES)."""
    talk = Talk(as_json or bool(context.obj))
    from sruexport.engines import listing

    installed = {}
    for engine in listing.named(names):
        with talk.progress(f"install {engine.name}") as progress:
            installed[engine.name] = str(listing.install(engine, progress))
        talk.people.print(f"{engine.title} {listing.version(engine)}: {installed[engine.name]}")
    talk.document({"installed": installed})


@app.command("matrix")
def matrix_command(
    sources: Annotated[
        list[str] | None,
        typer.Argument(metavar="SOURCE...", help="Checkpoints, or package.module:factory. [default: trained examples]"),
    ] = None,
    option: Options = None,
    engine: Annotated[list[str] | None, typer.Option(help="Only this engine. Repeatable. [default: all]")] = None,
    form: Annotated[list[str] | None, typer.Option(help="Only this form. Repeatable. [default: all]")] = None,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Write the table as Markdown.")] = None,
    limit: Limit = 120.0,
    as_json: Json = False,
) -> None:
    """Try every form on every installed engine.

    Each is ok, with its error and time, or refused, crashed, or WRONG.
    """
    talk = Talk(as_json)
    with talk.progress("matrix") as progress:
        from sruexport import matrix
        from sruexport.display import show_matrix
        from sruexport.exporter.write import check_output, write_whole
        from sruexport.sources import keep_apart

        if output is not None:
            check_output(output)
            keep_apart(output, *map(Path, sources or []))
        done = matrix.run(sources or [], option or [], engine or [], form or [], limit=limit, progress=progress)
        if output is not None:
            write_whole(output, done.to_markdown().encode())
    show_matrix(talk.people, done)
    talk.document(done.to_dict())


@app.command("demo")
def demo_command(
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Keep the SRU's file here; the others are not kept.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Export trained examples and prove them equal.

    An SRU and a minGRU tell nine speakers apart: each is exported, held against PyTorch, and run on real recordings.
    """
    talk = Talk(as_json)
    with talk.progress("demo") as progress, tempfile.TemporaryDirectory() as folder:
        from sruexport import demo
        from sruexport.display import show_predictions, show_reports
        from sruexport.engines.onnxruntime_kernels import without

        done = demo.run(Path(folder), output, progress)
    show_predictions(talk.people, {shown.name: shown.predictions for shown in done.examples})
    reports = {}
    for shown in done.examples:
        reports[f"{shown.name}, random"] = shown.on_generated
        reports[f"{shown.name}, speech"] = shown.on_recordings
    show_reports(talk.people, reports)
    if why := without():
        talk.people.print(why, style="dim")
    talk.document(done.to_dict())
    if not done.passed:
        raise typer.Exit(1)


@app.callback(invoke_without_command=True)
def _main(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version and stop.")] = False,
) -> None:
    if version:
        print(f"sruexport {__version__}")
        raise typer.Exit
    if context.invoked_subcommand is None:
        print(context.get_help(), file=sys.stderr)
        raise typer.Exit(2)


_INTERRUPTED = (130, "Interrupted", "stopped; nothing was written")


def main() -> None:
    """Run a command; turn every error that is meant for the caller into one line and its exit code."""
    as_json = "--json" in sys.argv
    code, kind, message = _run()
    if message:
        message = " ".join(message.split())
        console(stderr=True).print(f"error: {message}", style="bold red")
        if as_json:
            print(json.dumps({"passed": False, "error": {"type": kind, "message": message}}))
    sys.exit(code)


def _run() -> tuple[int, str, str]:
    """The exit code, and the error's type and message if there was one."""
    try:
        code = app(prog_name="sruexport", standalone_mode=False) or 0
        return _INTERRUPTED if code == _INTERRUPTED[0] else (code, "", "")
    except SruExportError as error:
        return error.exit_code, type(error).__name__, str(error)
    except (typer.Abort, KeyboardInterrupt):
        return _INTERRUPTED
    except OSError as error:
        return 2, "OSError", f"{error.filename or ''}: {error.strerror or error}".lstrip(": ")
    except Exception as error:
        if hasattr(error, "format_message"):  # a usage error of the command line, from whichever click is under typer
            command = getattr(getattr(error, "ctx", None), "command_path", "sruexport")
            return 2, "UsageError", f"{error.format_message().rstrip('.')} (see {command} --help)"
        traceback.print_exc()
        return 3, type(error).__name__, "this is a fault of sruexport itself; please report it with the lines above"
