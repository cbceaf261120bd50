"""The library of native kernels that the tests run with."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from sruexport.engines.onnxruntime_kernels import library, missing


def needs_kernels() -> Path:
    """The library; without one the test is skipped, or fails in CI, which has to have it."""
    found = library()
    if found is not None:
        return found
    if os.environ.get("CI"):
        pytest.fail(f"there are no native kernels: {missing()}")
    pytest.skip(f"there are no native kernels: {missing()}")
