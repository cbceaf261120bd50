"""What a form is: one way to write recurrences in standard ONNX ops.

A form file fills in a `Form`: its name, and `lower`, which builds the nodes that stand for one recurrence. Everything
else is here: finding the nodes, putting the new ones in their place, cleaning up, checking.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnx_ir.passes.common as passes
from onnxscript import optimizer

from sruexport.errors import ConversionError
from sruexport.metadata import pack, unpack
from sruexport.quiet import quiet
from sruexport.recurrences import DOMAIN, RECURRENCES
from sruexport.recurrences.base import Variant
from sruexport.recurrences.body import Body

from .bounds import Bounds
from .patterns import constant
from .products import drop_unused_columns
from .sizes import raise_opset

#: The metadata of a node that names the module it comes from, as the exporter writes it.
_MODULE = "sruexport.module"
#: What protobuf holds in one message.
_MOST = 2**31 - 1
#: Constants up to this size are computed at conversion: shapes, axes, the weights of a gate that are put together anew.
_FOLDED = 2**30


@dataclass(frozen=True)
class Settings:
    """What a conversion may be told.

    Attributes:
        ranges: of graph inputs, by name: the interval that all their values lie in.
        measured: the largest |c| seen on data, with a margin, by layer; for layers whose bound cannot be proven from
            the weights and the ranges.
        lstm_dtype: what the LSTM itself computes in, where the file has 16 bits; float32 is the states' own.
    """

    ranges: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    measured: Mapping[str, float] = field(default_factory=dict)
    lstm_dtype: ir.DataType = ir.DataType.FLOAT


@dataclass
class Lowering:
    """One recurrence node on its way to standard ops.

    Attributes:
        layer: the path of its module in the model; the op's name if it is not known.
        node: with `variant`, its attributes and tensor type.
        inputs: its inputs by the names of the recurrence's signature.
        build: adds nodes.
        bounds: what values can become.
        report: what the form wants to be known of this node; goes into the metadata.
    """

    layer: str
    node: ir.Node
    variant: Variant
    inputs: dict[str, ir.Value]
    build: Body
    bounds: Bounds
    settings: Settings
    opset: int
    report: dict[str, Any] = field(default_factory=dict)
    initializers: list[ir.Value] = field(default_factory=list)

    @property
    def state_dtype(self) -> ir.DataType:
        return ir.DataType.DOUBLE if self.variant.dtype == ir.DataType.DOUBLE else ir.DataType.FLOAT

    @property
    def length(self) -> int | None:
        """T, if it is static."""
        return self.build.length

    def weight(self, name: str, array: np.ndarray, dtype: ir.DataType) -> ir.Value:
        """An initializer, named after the layer."""
        value = ir.Value(
            name=f"{self.layer}.{name}",
            const_value=ir.tensor(array.astype(dtype.numpy()), name=f"{self.layer}.{name}"),
            shape=ir.Shape(array.shape),
            type=ir.TensorType(dtype),
        )
        self.initializers.append(value)
        return value

    def refuse(self, reason: str) -> ConversionError:
        where = f"{self.layer}: " if self.layer != self.node.op_type else ""
        return ConversionError(f"{where}{self.node.op_type}: {reason}")


@dataclass(frozen=True)
class Form:
    """One way to write recurrences in standard ops.

    Attributes:
        about: one line for people.
        lower: builds the nodes for one recurrence and gives its outputs; raises what `Lowering.refuse` makes.
        allowance: by how much the parity rule's bound is widened, where the form costs accuracy.
        opset: the least it needs.
        static: whether T must be static.
        features: of the graphs that it makes, as `sruexport/engines/features.py` names them, for a trained weight_c.
    """

    name: str
    about: str
    lower: Callable[[Lowering], Sequence[ir.Value]]
    allowance: float = 1.0
    opset: int = 18
    static: bool = False
    features: tuple[str, ...] = ()


@dataclass(frozen=True)
class Converted:
    """A model of standard ops, and what is to be known of it, which is in its metadata too."""

    model: ir.Model
    form: str
    report: list[dict[str, Any]]


def convert(model: ir.Model, form: Form, settings: Settings | None = None) -> Converted:
    """Write every recurrence of a model in standard ops.

    Args:
        model: as `sruexport.export` writes it; left as it is.

    Returns:
        a model with the same inputs, outputs and metadata, without functions and without domain `sruexport`.

    Raises:
        ConversionError: a recurrence has no such form; with the reason. The result does not pass the checker.
    """
    settings = settings or Settings()
    if model.opset_imports.get("", 0) < form.opset:
        copy = raise_opset(model, form.opset)
    else:
        copy = ir.serde.deserialize_model(ir.serde.serialize_model(model))
    bounds = Bounds(copy, settings.ranges)
    report = []
    for layer, node in recurrences(copy):
        report.append(_replace(copy, layer, node, form, settings, bounds))
    finish(copy)
    check_size(copy)
    copy = with_types(copy)
    copy.metadata_props.update(pack({"form": {"name": form.name, "allowance": form.allowance, "layers": report}}))
    check(copy)
    return Converted(copy, form.name, report)


def recurrences(model: ir.Model) -> list[tuple[str, ir.Node]]:
    """The recurrence nodes, each with a name of its own: the path of its module, where it has one."""
    nodes = [node for node in model.graph.all_nodes() if node.domain == DOMAIN and node.op_type in RECURRENCES]
    paths = [node.metadata_props.get(_MODULE) or node.op_type for node in nodes]
    names: list[str] = []
    for path in paths:
        name, use = path, 1
        while name in names or (use > 1 and name in paths):
            use += 1
            name = f"{path}_{use}"
        names.append(name)
    return list(zip(names, nodes))


def _body(layer: str, inputs: Mapping[str, ir.Value]) -> Body:
    shape = next(iter(inputs.values())).shape
    length = shape[0] if shape is not None and isinstance(shape[0], int) else None
    return Body(f"{layer}.", length=length)


def _replace(
    model: ir.Model, layer: str, node: ir.Node, form: Form, settings: Settings, bounds: Bounds
) -> dict[str, Any]:
    recurrence = RECURRENCES[node.op_type]
    variant = recurrence.variant(node)
    inputs = {formal.name: value for formal, value in zip(recurrence.inputs, node.inputs) if value is not None}
    lowering = Lowering(layer, node, variant, inputs, _body(layer, inputs), bounds, settings, model.opset_imports[""])
    outputs = list(form.lower(lowering))
    graph = node.graph
    assert isinstance(graph, ir.Graph)
    for value in lowering.initializers:
        model.graph.register_initializer(value)
    for made in lowering.build.nodes:
        made.metadata_props.update(node.metadata_props)
    for old, new in zip(node.outputs, outputs, strict=True):
        bounds.replace(old, new)
    ir.convenience.replace_nodes_and_values(graph, node, [node], lowering.build.nodes, node.outputs, outputs)
    return {"layer": lowering.layer, "recurrence": node.op_type, **lowering.report}


def finish(model: ir.Model) -> None:
    """Remove what is no longer needed, and compute what is constant."""
    model.functions.clear()
    model.opset_imports.pop(DOMAIN, None)
    passes.RemoveUnusedNodesPass()(model)
    drop_unused_columns(model)
    _split_constants(model)
    with quiet():
        optimizer.fold_constants(model, output_size_limit=_FOLDED, should_fold=_may_fold)
    passes.RemoveUnusedNodesPass()(model)
    # Axes and shapes as initializers: some engines take them in no other way.
    passes.LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0)(model)
    _own_constants(model)


def _split_constants(model: ir.Model) -> None:
    """Split weights now: onnxscript folds no op with several outputs."""
    for node in list(model.graph):
        array = constant(node.inputs[0]) if node.op_type == "Split" and not node.domain else None
        if array is None:
            continue
        axis = node.attributes["axis"].as_int() if "axis" in node.attributes else 0
        sizes = constant(node.inputs[1]) if len(node.inputs) > 1 else None
        count = len(node.outputs)
        width = -(-array.shape[axis] // count)
        ends = np.cumsum(sizes)[:-1] if sizes is not None else [width * i for i in range(1, count)]
        for value, part in zip(node.outputs, np.split(array, ends, axis)):
            made = ir.node("Constant", [], {"value": ir.tensor(part)})
            made.outputs[0].name = f"{value.name}.constant"
            model.graph.insert_before(node, made)
            ir.convenience.replace_all_uses_with(value, made.outputs[0])


def _own_constants(model: ir.Model) -> None:
    """Give a Scan's body the weights that it captures as Constants of its own: OpenVINO takes all else for inputs."""
    for node in model.graph:
        if node.op_type != "Scan" or node.domain:
            continue
        body = node.attributes["body"].as_graph()
        own: dict[ir.Value, ir.Value] = {}
        for inner in list(body):
            for index, value in enumerate(inner.inputs):
                if value is None or value.const_value is None or value.graph is body:
                    continue
                if value not in own:
                    constant = ir.node("Constant", [], {"value": value.const_value})
                    constant.outputs[0].name = f"{value.name}.{body.name}"
                    body.insert_before(body[0], constant)
                    own[value] = constant.outputs[0]
                inner.replace_input_with(index, own[value])
    passes.RemoveUnusedNodesPass()(model)


def with_types(model: ir.Model) -> ir.Model:
    """The model with the types of all its values: those of a Scan's or Loop's inner inputs too, which inference leaves
    out and some engines ask for."""
    inferred = _inferred(model)
    for node in inferred.graph.all_nodes():
        if node.op_type in ("Scan", "Loop") and not node.domain:
            body = node.attributes["body"].as_graph()
            looped = node.op_type == "Loop"
            states = len(body.inputs) - (2 if looped else node.attributes["num_scan_inputs"].as_int())
            outer = list(node.inputs)[2:] if looped else list(node.inputs)
            for index, (inner, value) in enumerate(zip(list(body.inputs)[2 if looped else 0 :], outer)):
                if value is None or value.shape is None or value.dtype is None:
                    continue
                inner.dtype = value.dtype
                inner.shape = ir.Shape(list(value.shape)[0 if looped or index < states else 1 :])
    return _inferred(inferred)


def _inferred(model: ir.Model) -> ir.Model:
    proto = ir.serde.serialize_model(model)
    return ir.serde.deserialize_model(onnx.shape_inference.infer_shapes(proto, data_prop=True))


def _may_fold(node: ir.Node) -> bool | None:
    # Weights may be put together anew, where nothing else needs the old ones; an embedding stays as it is.
    return None if node.op_type not in ("Scan", "Loop", "If") else False


def check(model: ir.Model) -> None:
    """Raises ConversionError if the checker does not take a model."""
    try:
        onnx.checker.check_model(ir.serde.serialize_model(model), full_check=True)
    except Exception as error:
        raise ConversionError(
            f"the converted graph does not pass onnx.checker: {str(error).splitlines()[0]}"
        ) from error


def check_size(model: ir.Model) -> None:
    """Raises ConversionError if a model's weights are more than one ONNX file holds."""
    size = sum(value.const_value.nbytes for value in model.graph.initializers.values() if value.const_value is not None)
    if size > _MOST:
        raise ConversionError(f"the converted weights take {size:,} bytes, and one ONNX file holds 2 GiB")


def form_of(model: ir.Model) -> dict[str, Any]:
    """What the metadata of a converted file say of its form; empty for one that is not converted."""
    return unpack(model.metadata_props).get("form", {})


def is_converted(model: ir.Model) -> bool:
    """Whether a model has no recurrence as a custom op, in whatever way."""
    return not any(node.domain == DOMAIN for node in model.graph.all_nodes())
