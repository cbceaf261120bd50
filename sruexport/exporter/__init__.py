"""PyTorch to ONNX: any nn.Module that contains known recurrent layers, however deep, as one file.

export.py      the way from model to file
plan.py        what one run in PyTorch shows, and what its user should know of it
call.py        arguments and results as named tensors; which axes are dynamic
model.py       the caller's model, borrowed: layers replaced, dtype changed, all put back
branches.py    branches taken by the values of tensors
trace.py       torch.export and torch.onnx, with clean names
quiet.py       what those say to themselves, kept off the terminal
functions.py   the recurrences' function bodies
finish.py      weights laid out, 16-bit ops made runnable, dims checked
write.py       all or nothing
"""

from __future__ import annotations

from .export import DEFAULT_OPSET, DTYPES, OPSETS, Exported, export
from .plan import example_arguments

__all__ = ["DEFAULT_OPSET", "DTYPES", "OPSETS", "Exported", "example_arguments", "export"]
