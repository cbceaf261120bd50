"""What scripts/gpu_check.py will do on a GPU, as far as a CPU can: its structs fit, and its grid passes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[4] / "scripts" / "gpu_check.py"


def test_its_checks_pass_on_the_sources_as_c_plus_plus(tmp_path):
    command = [sys.executable, str(SCRIPT), "--on-cpu", "--json", str(tmp_path / "found.json")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    rows = json.loads((tmp_path / "found.json").read_text())["correctness"]
    assert {(row["kernel"], row["dtype"]) for row in rows} == {
        (kernel, dtype)
        for kernel in ("sru", "linear", "linear, chunked")
        for dtype in ("float32", "float16", "bfloat16")
    }
    assert all(0 < row["worst"] <= 1 for row in rows)
