"""A layer of every family, with the native kernels and with the function bodies in its file: one file, two ways."""

from __future__ import annotations

import pytest
import torch
from kernels_here import needs_kernels
from torch import nn

from sruexport import export, validate
from sruexport.layers import SRU, SRUpp
from sruexport.layers.mingru import MinGRU, MinLSTM
from sruexport.layers.qrnn import QRNN

LAYERS = {
    "sru": lambda: SRU(5, 6, num_layers=2, bidirectional=True, use_tanh=True),
    "sru with v1": lambda: SRU(6, 6, num_layers=2, v1=True),
    "sru without skip": lambda: SRU(5, 6, num_layers=2, has_skip_term=False, layer_norm=True),
    "srupp": lambda: SRUpp(6, 8, 4, num_layers=2),
    "mingru": lambda: MinGRU(6, 1.5),
    "minlstm": lambda: MinLSTM(6, 2.0),
    "qrnn": lambda: QRNN(6, 5, num_layers=2, window=2),
}


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "float64"])
@pytest.mark.parametrize("name", LAYERS)
def test_both_are_within_the_rule(name, dtype, tmp_path):
    needs_kernels()
    torch.manual_seed(0)
    layer: nn.Module = LAYERS[name]().eval()
    file = export(layer, None, tmp_path / "layer.onnx", dtype=dtype).path
    reports = [validate(layer, file, engine=engine) for engine in ("onnxruntime", "onnxruntime-kernels")]
    for report in reports:
        assert report.passed, report
    assert [report.engine.startswith("ONNX Runtime with native kernels") for report in reports] == [False, True]
