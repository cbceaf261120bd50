"""Builds ONNX function bodies: a thin notation over onnx-ir, and the parts that all recurrences share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import onnx_ir as ir
from onnx_ir import tape

from .base import DOMAIN, Recurrence, Variant


class Body:
    """Adds nodes to a graph under construction: ``body.op("Add", [a, b])`` gives the output value."""

    def __init__(self, prefix: str, counter: list[int] | None = None, length: int | None = None):
        self._tape = tape.Tape()
        self._prefix = prefix
        #: T, if it is known.
        self.length = length
        # Shared with inner graphs: a name must be unique through all nesting levels.
        self._counter = counter if counter is not None else [0]

    @property
    def nodes(self) -> Sequence[ir.Node]:
        return self._tape.nodes

    def op(self, op_type: str, inputs: Sequence[ir.Value | None], **attributes: Any) -> ir.Value:
        return self.ops(op_type, inputs, 1, **attributes)[0]

    def ops(self, op_type: str, inputs: Sequence[ir.Value | None], outputs: int, **attributes: Any) -> list[ir.Value]:
        values = self._tape.op_multi_out(op_type, inputs, attributes, num_outputs=outputs)
        for value in values:
            value.name = self.name(op_type)
        node = values[0].producer()
        assert node is not None
        node.name = f"{values[0].name}_node"
        return list(values)

    def value(self, name: str) -> ir.Value:
        """A named value that is fed from outside: an input of the graph."""
        return ir.val(f"{self._prefix}{name}_{self._next()}")

    def constant(self, values: Sequence[int] | int) -> ir.Value:
        """An INT64 constant, for axes and shapes."""
        key = "value_int" if isinstance(values, int) else "value_ints"
        return self.op("Constant", [], **{key: values})

    def graph(self, inputs: Sequence[ir.Value], outputs: Sequence[ir.Value], **keywords: Any) -> ir.Graph:
        return ir.Graph(inputs, outputs, nodes=self._tape.nodes, **keywords)

    def inner(self) -> Body:
        """A body for a subgraph, with names of its own."""
        return Body(self._prefix + "step_", self._counter)

    # What the recurrences share

    def cast(self, value: ir.Value, dtype: ir.DataType, wanted: ir.DataType) -> ir.Value:
        return value if dtype == wanted else self.op("Cast", [value], to=wanted.value)

    def split(self, value: ir.Value, parts: int) -> list[ir.Value]:
        """Split the last axis into equal parts."""
        return self.ops("Split", [value], parts, axis=-1, num_outputs=parts)

    def flip(self, value: ir.Value) -> ir.Value:
        """Reverse axis 0."""
        if self.length is not None:
            return self.op("Slice", [value, *(self.constant([n]) for n in (-1, -(2**31), 0, -1))])
        # By Gather: some engines take no Slice with a negative step along a dynamic axis, others no long Gather.
        length = self.op("Squeeze", [self.op("Shape", [value], start=0, end=1), self.constant([0])])
        ahead = self.op("Range", [self.constant(0), length, self.constant(1)])
        back = self.op("Sub", [self.op("Sub", [length, self.constant(1)]), ahead])
        return self.op("Gather", [value, back], axis=0)

    def reversed_where_backward(self, value: ir.Value, direction: str | int) -> ir.Value:
        """As the PyTorch function of the same name: flip in time the channels that run backward."""
        if direction == "forward":
            return value
        if direction == "reverse":
            return self.flip(value)
        ahead, back = self.split(value, 2)
        return self.op("Concat", [ahead, self.flip(back)], axis=-1)

    def keep(self, mask: ir.Value, like: ir.Value, direction: str | int) -> ir.Value:
        """BOOL [T, B, 1] (or [T, B, C] when bidirectional) in running order: true where a step is not padding."""
        kept = self.op("Equal", [mask, self.op("Constant", [], value=ir.tensor([0], ir.DataType.INT32))])
        kept = self.op("Unsqueeze", [kept, self.constant([2])])
        if direction == "bidirectional":
            kept = self.op("Expand", [kept, self.op("Shape", [like])])
        return self.reversed_where_backward(kept, direction)

    def before(self, first: ir.Value, states: ir.Value) -> ir.Value:
        """[T, B, C] of the states one step earlier: `first` [B, C], then all of `states` but its last."""
        head = self.op("Unsqueeze", [first, self.constant([0])])
        if self.length == 1:
            return head
        limits = [self.constant([n]) for n in (0, -1, 0)]
        return self.op("Concat", [head, self.op("Slice", [states, *limits])], axis=0)

    def scan(
        self,
        state: ir.Value,
        sequences: Sequence[ir.Value],
        step: Callable[[Body, ir.Value, Sequence[ir.Value]], ir.Value],
    ) -> tuple[ir.Value, ir.Value]:
        """Run `step(inner, state, slices) -> new state` over axis 0. Gives all states [T, B, C] and the last one."""
        inner = self.inner()
        old = inner.value("state")
        slices = [inner.value(f"in{i}") for i in range(len(sequences))]
        new = step(inner, old, slices)
        graph = inner.graph([old, *slices], [new, inner.op("Identity", [new])], name=inner.name("graph"))
        last, states = self.ops("Scan", [state, *sequences], 2, num_scan_inputs=len(sequences), body=graph)
        return states, last

    def name(self, stem: str) -> str:
        return f"{self._prefix}{stem.lower()}_{self._next()}"

    def _next(self) -> int:
        self._counter[0] += 1
        return self._counter[0]


def function(recurrence: Recurrence, variant: Variant, opset: int, overload: str = "") -> ir.Function:
    """The ONNX function of a recurrence for one variant, stamped with the model's own opset.

    Args:
        overload: tells several bodies of one op in one file apart; empty where there is only one.
    """
    body = Body("")
    inputs = {formal.name: ir.val(formal.name) for formal in recurrence.inputs}
    outputs = list(recurrence.body(body, variant, inputs))
    for formal, value in zip(recurrence.outputs, outputs, strict=True):
        value.name = formal.name
    graph = body.graph(list(inputs.values()), outputs, opset_imports={"": opset})
    attributes = [ir.Attr(name, _kind(values), None) for name, values in recurrence.attributes.items()]
    return ir.Function(DOMAIN, recurrence.op_type, overload, graph=graph, attributes=attributes)


def _kind(choices: tuple[str | int, ...]) -> ir.AttributeType:
    return ir.AttributeType.INT if isinstance(choices[0], int) else ir.AttributeType.STRING
