"""What the profiles say that an engine answers with an error, it does: else a form is kept from it for nothing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
import torch
from engines_here import IN_CI, needs, opened
from small_graphs import PAIRS, bfloat16_lstm
from sruexport.converters import FORMS, convert, fix_sizes

from sruexport import export
from sruexport.engines import ENGINES
from sruexport.engines.running import ports, read_model
from sruexport.errors import EngineCrash, EngineError
from sruexport.layers import SRU

REFUSALS = [(name, feature) for name in IN_CI for feature in ENGINES[name].refuses]


@pytest.fixture(scope="module")
def linear(tmp_path_factory: pytest.TempPathFactory) -> ir.Model:
    torch.manual_seed(0)
    path = export(SRU(3, 3, num_layers=1, v1=True).eval(), None, tmp_path_factory.mktemp("file") / "m.onnx").path
    return fix_sizes(ir.load(path), {"T": 3, "B": 2})


def graph(feature: str, linear: ir.Model) -> onnx.ModelProto:
    """A graph with static sizes that has the feature."""
    forms = {"Loop": "loop", "LinearAttention": "linear-attention"}
    made: dict[str, Callable[[], onnx.ModelProto]] = {
        "functions": lambda: ir.serde.serialize_model(linear),
        "custom ops": lambda: _without_functions(linear),
        "bfloat16": bfloat16_lstm,
        "LSTM.bfloat16": bfloat16_lstm,
        "float64": lambda: PAIRS["LSTM.float64"][0].graph().model,
    }
    if feature in forms:
        return ir.serde.serialize_model(convert(linear, FORMS[forms[feature]]).model)
    return made[feature]() if feature in made else PAIRS[feature][0].graph().model


def _without_functions(model: ir.Model) -> onnx.ModelProto:
    proto = ir.serde.serialize_model(model)
    del proto.functions[:]
    return proto


@pytest.mark.parametrize(("name", "feature"), REFUSALS)
def test_the_engine_refuses_it_and_says_so(name, feature, linear, tmp_path):
    needs(name)
    path = tmp_path / "m.onnx"
    path.write_bytes(graph(feature, linear).SerializeToString())
    with pytest.raises(EngineError) as caught:
        _run(name, path)
    assert not isinstance(caught.value, EngineCrash)
    assert ENGINES[name].only_builds not in str(caught.value) or not ENGINES[name].only_builds
    assert len(str(caught.value).splitlines()) == 1


def _run(name: str, path: Path) -> None:
    engine = opened(name, path)
    try:
        if not ENGINES[name].only_builds:
            inputs = ports(read_model(path).graph.inputs, path)
            engine.run({port.name: np.zeros(port.shape, port.dtype) for port in inputs})
    finally:
        engine.close()
