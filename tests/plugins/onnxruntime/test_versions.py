"""A library whose ops mean something else than those of the file: it is passed over, and the function body runs."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
import torch

from sruexport import export, load
from sruexport.layers import SRU

#: The library as a next version of the domain would have it, built by scripts/test with the kernels' own tests.
NEXT = Path(__file__).parents[3] / "build" / "plugins-plain" / "tests" / "libsruexport_onnxruntime_next.so"


@pytest.fixture(scope="module")
def next_version() -> Path:
    if not NEXT.exists():
        why = "scripts/test builds the library of another version"
        if os.environ.get("CI"):
            pytest.fail(why)
        pytest.skip(why)
    return NEXT


def test_the_function_body_runs_in_place_of_a_newer_kernel(next_version, tmp_path, monkeypatch):
    torch.manual_seed(0)
    file = export(SRU(3, 4, num_layers=2).eval(), None, tmp_path / "sru.onnx").path
    x = np.random.default_rng(0).standard_normal((6, 2, 3)).astype(np.float32)
    body = load(file, kernels=False)(x)
    monkeypatch.setenv("SRUEXPORT_KERNELS", str(next_version))
    found = load(file)(x)
    assert all(np.array_equal(a, b) for a, b in zip(found, body, strict=True)), "bit for bit: it is the same graph"
