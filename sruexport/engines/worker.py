"""The engine's own process: opens one file in one engine, and runs it as often as it is asked; or builds one.

    python worker.py FILE CLASS open|build JOB(JSON)

FILE is the engine's own, with a subclass of `Engine`. It runs in the engine's environment, which need not have
sruexport or PyTorch. Requests come on what stdin was, answers go to what stdout was; what the engine prints goes to
stderr.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
import time
import types
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, cast

if TYPE_CHECKING:
    from sruexport.engines.base import BuildingEngine, Engine, Job

_PACKAGE = Path(__file__).resolve().parent.parent


def main() -> None:
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    requests = os.fdopen(os.dup(0), "rb")
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)  # no program that the engine starts may read them
    # The package without its __init__, which imports PyTorch: only the engines are needed.
    package = types.ModuleType("sruexport")
    package.__path__ = [str(_PACKAGE)]
    sys.modules["sruexport"] = package
    sys.path[:] = [entry for entry in sys.path if Path(entry or ".").resolve() != Path(__file__).resolve().parent]

    from sruexport.engines.base import Job
    from sruexport.engines.wire import receive, send

    file, name, task, text = sys.argv[1:]
    job = Job.from_json(text)
    if task == "build":
        _build(Path(file), name, job, answers)
        return
    started = time.perf_counter()
    try:
        session = _engine(Path(file), name).open(job)
    except Exception as error:
        send(answers, {"error": _short(error)})
        return
    send(answers, {"seconds": time.perf_counter() - started})
    while True:
        try:
            _, feeds = receive(requests)
        except EOFError:
            return
        started = time.perf_counter()
        try:
            outputs = session.run(feeds)
        except Exception as error:
            send(answers, {"error": _short(error)})
        else:
            seconds = time.perf_counter() - started
            names = (port.name for port in job.outputs)
            send(answers, {"seconds": seconds}, dict(zip(names, outputs, strict=True)))


def _build(file: Path, name: str, job: Job, answers: BinaryIO) -> None:
    """Answer with the engine file, after a message for every step on the way."""
    import numpy as np

    from sruexport.engines.wire import send

    started = time.perf_counter()
    try:
        engine = cast("BuildingEngine", _engine(file, name))
        content = engine.build(job, lambda step, share: send(answers, {"progress": [step, share]}))
    except Exception as error:
        send(answers, {"error": _short(error)})
    else:
        seconds = time.perf_counter() - started
        send(answers, {"seconds": seconds}, {"engine": np.frombuffer(content, np.uint8)})


def _engine(file: Path, name: str) -> Engine:
    if file.resolve().parent == Path(__file__).resolve().parent:
        module = importlib.import_module(f"sruexport.engines.{file.stem}")
    else:
        spec = importlib.util.spec_from_file_location(file.stem, file)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    return getattr(module, name)()


def _short(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:400]}"


if __name__ == "__main__":
    main()
