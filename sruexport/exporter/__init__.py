"""PyTorch to ONNX: any nn.Module that contains known recurrent layers, however deep, as one file.

export.py      the way from model to file
call.py        arguments and results as named tensors; which axes are dynamic
model.py       the caller's model, borrowed: layers replaced, dtype changed, all put back
trace.py       torch.onnx.export, with clean names
functions.py   the recurrences' function bodies
finish.py      weights laid out, 16-bit ops made runnable, dims checked
write.py       all or nothing
"""

from __future__ import annotations

from .export import DEFAULT_OPSET, DTYPES, OPSETS, Exported, example_arguments, export

__all__ = ["DEFAULT_OPSET", "DTYPES", "OPSETS", "Exported", "example_arguments", "export"]
