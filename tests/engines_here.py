"""Which engines a test can have here."""

from __future__ import annotations

import os

import pytest

from sruexport.engines import ENGINES
from sruexport.engines.environments import how_to_install, version

#: Those that CI has: there no test may be skipped for the lack of one.
IN_CI = ("onnxruntime", "openvino", "tract", "iree", "onnxruntime-web", "tensorrt-rtx")


def needs(name: str) -> None:
    """Skip the test where an engine is not installed; in CI, fail it for those that have to be there."""
    if version(ENGINES[name]) is not None:
        return
    why = f"{name} is not installed: {how_to_install(ENGINES[name])}"
    if os.environ.get("CI") and name in IN_CI:
        pytest.fail(why)
    pytest.skip(why)
