"""Which engines a test can have here, and a graph on one of them."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path

import numpy as np
import onnx
import pytest

from sruexport.engines import ENGINES
from sruexport.engines.environments import how_to_install, version
from sruexport.engines.process import EngineProcess
from sruexport.engines.running import ports, read_model

#: Those that CI has: there no test may be skipped for the lack of one.
IN_CI = ("onnxruntime", "onnxruntime-kernels", "openvino", "tract", "iree", "onnxruntime-web", "tensorrt-rtx")


def needs(name: str) -> None:
    """Skip the test where an engine is not installed; in CI, fail it for those that have to be there."""
    if version(ENGINES[name]) is not None:
        return
    why = f"{name} is not installed: {how_to_install(ENGINES[name])}"
    if os.environ.get("CI") and name in IN_CI:
        pytest.fail(why)
    pytest.skip(why)


def opened(name: str, path: Path, **options: str) -> EngineProcess:
    """A file in an engine, as it is: no form, and no word of its profile."""
    model = read_model(path)
    inputs, outputs = (ports(values, path) for values in (model.graph.inputs, model.graph.outputs))
    return EngineProcess(ENGINES[name], path, inputs, outputs, options=options)


def run_as_it_is(name: str, model: onnx.ModelProto, feeds: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The outputs of a graph on an engine."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        path.write_bytes(model.SerializeToString())
        with closing(opened(name, path)) as engine:
            return engine.run(feeds)
