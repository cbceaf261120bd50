"""Run in a process of its own: prints by how many kB its peak memory grows in one run, with all outputs preallocated.

python measure_memory.py MODEL LIBRARY|- T B
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

import numpy as np
import onnxruntime


def main() -> None:
    model, library, steps, batch = sys.argv[1:]
    options = onnxruntime.SessionOptions()
    if library != "-":
        options.register_custom_ops_library(library)
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    binding = session.io_binding()
    sizes = {"T": int(steps), "B": int(batch)}
    kept = []
    for ports, bind in (
        (session.get_inputs(), binding.bind_ortvalue_input),
        (session.get_outputs(), binding.bind_ortvalue_output),
    ):
        for port in ports:
            array = np.full([sizes.get(dim, dim) for dim in port.shape], 0.1, np.float32)
            kept.append(onnxruntime.OrtValue.ortvalue_from_numpy(array))
            bind(port.name, kept[-1])
    Path("/proc/self/clear_refs").write_text("5")  # begins the peak anew
    before = kilobytes("VmRSS")
    session.run_with_iobinding(binding)
    print(kilobytes("VmHWM") - before)


def kilobytes(name: str) -> int:
    found = re.search(rf"{name}:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found is not None
    return int(found[1])


if __name__ == "__main__":
    main()
