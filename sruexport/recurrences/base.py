"""What a recurrence is: one custom op with a fixed signature, a reference and a function body.

A recurrence file (`linear.py`, `sru.py`) fills in one `Recurrence`. Its four faces are
the PyTorch reference, the node in a traced graph, the ONNX function body, and, by the same name, the
kernels in `plugins/`.

Conventions that hold for every recurrence:

* time first: sequences are [T, B, C], states [B, C], masks [T, B];
* C = directions * hidden; with ``direction="bidirectional"`` the first half of the channels runs forward and
  the second half backward, its last state being the one at t = 0;
* gates are planar: [T, B, gates * C], each gate one contiguous block of C channels;
* states are float32 whatever the tensors are (float64 for float64 tensors);
* a mask is INT32, non-zero at padding, at any position: the state passes through. Without ``masked=1`` the mask
  input is not looked at (it is a [1, 1] zero, since function bodies cannot have optional inputs).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import onnx_ir as ir
import torch

DOMAIN = "sruexport"
#: Raise it when the meaning of an op changes: a kernel registered for a newer version is then passed over.
DOMAIN_VERSION = 1
DIRECTIONS = ("forward", "reverse", "bidirectional")
#: Makes TensorRT look for a plugin of the op's name before it falls back to the function body.
PLUGIN_ATTRIBUTES: Mapping[str, str] = {"plugin_namespace": DOMAIN, "plugin_version": "1"}


_tracing: ContextVar[bool] = ContextVar("tracing", default=False)


@contextmanager
def graph_tracing() -> Iterator[None]:
    """Meanwhile recurrences leave nodes in the graph that is being traced. torch.onnx.export does without it."""
    token = _tracing.set(True)
    try:
        yield
    finally:
        _tracing.reset(token)


def is_tracing() -> bool:
    return _tracing.get() or torch.onnx.is_in_onnx_export()


@dataclass(frozen=True)
class Formal:
    """One input or output: its name, its shape in words, and what it is. `state` marks float32 states."""

    name: str
    shape: str
    about: str
    state: bool = False


@dataclass(frozen=True)
class Variant:
    """The attributes and the tensor type of a node: everything that its function body is specialised to."""

    attributes: tuple[tuple[str, str | int], ...]
    dtype: ir.DataType

    def __getitem__(self, name: str) -> str | int:
        return dict(self.attributes)[name]

    @property
    def overload(self) -> str:
        """Names the body where a file needs several of one op: ``bidirectional_tanh_1_0_float``."""
        return "_".join(str(value) for _, value in self.attributes) + "_" + self.dtype.name.lower()


@dataclass(frozen=True)
class Recurrence:
    """The signature of a custom op and its two faces in Python.

    Attributes:
        op_type: the op's name in domain `sruexport`; unique in the world, since TensorRT goes by name alone.
        equation: one step, in words of the field.
        inputs, outputs: fixed lists, in order.
        attributes: each attribute's name and the values it may take.
        reference: PyTorch, any floating dtype, called as ``reference(*inputs, **attributes)``.
        body: builds the nodes of the function body for one variant.
    """

    op_type: str
    equation: str
    inputs: tuple[Formal, ...]
    outputs: tuple[Formal, ...]
    attributes: Mapping[str, tuple[str | int, ...]]
    reference: Callable[..., tuple[torch.Tensor, ...]]
    body: Callable[[Any, Variant, Mapping[str, ir.Value]], Sequence[ir.Value]]
    output_shapes: Callable[[Sequence[torch.Tensor]], Sequence[Sequence[Any]]] = field(repr=False)

    def __call__(self, *inputs: torch.Tensor, **attributes: str | int) -> tuple[torch.Tensor, ...]:
        """Run the reference, or, while a graph is traced, leave one node of this op in the graph."""
        for name, value in attributes.items():
            if value not in self.attributes[name]:
                raise ValueError(f"{self.op_type}: {name}={value!r} is not one of {self.attributes[name]}")
        if not is_tracing():
            return self.reference(*inputs, **attributes)
        state_dtype = state_type(inputs[0].dtype)
        return tuple(
            torch.onnx.ops.symbolic_multi_out(
                f"{DOMAIN}::{self.op_type}",
                inputs,
                attrs={**{name: attributes[name] for name in self.attributes}, **PLUGIN_ATTRIBUTES},
                dtypes=[state_dtype if out.state else inputs[0].dtype for out in self.outputs],
                shapes=self.output_shapes(inputs),
                version=DOMAIN_VERSION,
            )
        )

    def variant(self, node: ir.Node) -> Variant:
        """Read a node's variant from its attributes and the type of its first input."""
        first = node.inputs[0]
        if first is None or first.dtype is None:
            raise ValueError(f"node {node.name} of {self.op_type}: the type of its first input is not known")
        values = tuple(
            (name, (attribute.as_int() if isinstance(choices[0], int) else attribute.as_string()))
            for name, choices in self.attributes.items()
            for attribute in (node.attributes[name],)
        )
        return Variant(values, first.dtype)


def state_type(dtype: torch.dtype) -> torch.dtype:
    """The dtype of a recurrence's state for tensors of `dtype`: float64 for float64, else float32."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def reversed_where_backward(sequence: torch.Tensor, direction: str) -> torch.Tensor:
    """[T, ..., C] with the channels that run backward flipped in time. It is its own inverse."""
    if direction == "forward":
        return sequence
    if direction == "reverse":
        return sequence.flip(0)
    ahead, back = sequence.chunk(2, dim=-1)
    return torch.cat([ahead, back.flip(0)], dim=-1)
