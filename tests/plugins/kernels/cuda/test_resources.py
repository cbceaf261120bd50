"""The CUDA kernels compile for every architecture without a warning, and none spills registers."""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path
from types import ModuleType

import pytest

SCRIPT = Path(__file__).parents[4] / "scripts" / "cuda_resources.py"


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("cuda_resources", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("source", ["sru_serial.cu", "linear_serial.cu", "linear_chunked.cu"])
@pytest.mark.parametrize("arch", [75, 80, 86, 89, 90, 100, 120])
def test_no_kernel_spills(script, source, arch):
    nvcc = script.compiler()
    if nvcc is None:
        if os.environ.get("CI"):
            pytest.fail("there is no nvcc")
        pytest.skip("there is no nvcc")
    kernels = script.resources(nvcc, script.SOURCES / source, arch)
    stem = source.removesuffix(".cu")
    kinds = ["float32", "float16", "bfloat16"]
    if stem.endswith("_serial"):
        kinds = ["float32 x 1", "float16 x 1", "float16 x 2", "bfloat16 x 1", "bfloat16 x 2"]
    assert {kernel.name for kernel in kernels} == {f"{stem}, {kind}" for kind in kinds}
    for kernel in kernels:
        assert kernel.spilled == 0, kernel
        assert kernel.occupancy >= 0.25, kernel
