"""Small models with recurrences, each written once: as the file that the exporter would make, and as PyTorch ops.

A model is a function of `ops`, which is a `Graph` under construction or PyTorch in one dtype (`Eager`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import torch
from onnx import TensorProto, helper, numpy_helper
from sruexport.converters import FORMS, Converted, Settings, convert, fix_sizes

from sruexport.exporter.functions import attach_functions
from sruexport.metadata import pack
from sruexport.parity.measure import compare
from sruexport.recurrences import DOMAIN, DOMAIN_VERSION, RECURRENCES

Arrays = dict[str, np.ndarray]
Values = dict[str, Any]

DIRECTIONS = ("forward", "reverse", "bidirectional")
#: Forms that any SRU layer has, of any length.
SRU_FORMS = ("lstm", "lstm-forward", "lstm-peephole", "lstm-peephole-tanh", "scan", "loop")
LINEAR_FORMS = (*SRU_FORMS, "parallel", "linear-attention")
_TYPES = {"float32": TensorProto.FLOAT, "float64": TensorProto.DOUBLE, "float16": TensorProto.FLOAT16}
_TYPES |= {"int32": TensorProto.INT32, "int64": TensorProto.INT64, "bool": TensorProto.BOOL}


class Eager:
    """Runs ops at once, in PyTorch."""

    def __init__(self, dtype: torch.dtype):
        self.dtype = dtype

    def weight(self, array: np.ndarray) -> torch.Tensor:
        tensor = torch.from_numpy(array)
        return tensor.to(self.dtype) if tensor.is_floating_point() else tensor

    def state(self, array: np.ndarray) -> torch.Tensor:
        """As a weight, in the type of states."""
        return torch.from_numpy(array).to(torch.float64 if self.dtype == torch.float64 else torch.float32)

    def recurrence(self, op_type: str, *inputs: torch.Tensor, module: str = "cell", **attributes: Any) -> Any:
        return RECURRENCES[op_type].reference(*inputs, **attributes)

    def __call__(self, op_type: str, *inputs: Any, **attributes: Any) -> Any:
        return _EAGER[op_type](*inputs, **attributes)


_EAGER: Mapping[str, Callable[..., Any]] = {
    "Add": torch.add,
    "Sub": torch.sub,
    "Mul": torch.mul,
    "Neg": torch.neg,
    "MatMul": torch.matmul,
    "Sigmoid": torch.sigmoid,
    "Tanh": torch.tanh,
    "Softplus": torch.nn.functional.softplus,
    "Relu": torch.relu,
    "Where": torch.where,
    "GreaterOrEqual": torch.ge,
    "Concat": lambda *parts, axis: torch.cat(parts, dim=axis),
    "Split": lambda x, axis, num_outputs: x.chunk(num_outputs, dim=axis),
    "Transpose": lambda x, perm: x.permute(perm),
    "LayerNormalization": lambda x, gain, shift, epsilon: torch.nn.functional.layer_norm(
        x, gain.shape, gain, shift, epsilon
    ),
}


class Graph:
    """Adds nodes to an ONNX graph; values are their names."""

    def __init__(self, dtype: str = "float32", opset: int = 18):
        self.dtype, self.opset = dtype, opset
        self._nodes: list[onnx.NodeProto] = []
        self._weights: list[onnx.TensorProto] = []
        self._known: list[onnx.ValueInfoProto] = []

    def weight(self, array: np.ndarray) -> str:
        return self._initializer(array.astype(self.dtype) if array.dtype.kind == "f" else array)

    def state(self, array: np.ndarray) -> str:
        return self._initializer(array.astype(self.state_dtype))

    @property
    def state_dtype(self) -> str:
        return "float64" if self.dtype == "float64" else "float32"

    def recurrence(self, op_type: str, *inputs: str, module: str = "cell", **attributes: Any) -> list[str]:
        outputs = self(op_type, *inputs, outputs=2, domain=DOMAIN, **attributes)
        entry = self._nodes[-1].metadata_props.add()
        entry.key, entry.value = "sruexport.module", module
        for name, dtype, dims in zip(outputs, (self.dtype, self.state_dtype), (["T", "B", None], ["B", None])):
            self._known.append(helper.make_tensor_value_info(name, _TYPES[dtype], dims))
        return outputs

    def __call__(self, op_type: str, *inputs: str, outputs: int = 1, domain: str = "", **attributes: Any) -> Any:
        outputs = attributes.get("num_outputs", outputs)
        names = [f"value_{len(self._nodes)}_{i}" for i in range(outputs)]
        self._nodes.append(helper.make_node(op_type, list(inputs), names, domain=domain, **attributes))
        return names if outputs > 1 else names[0]

    def model(
        self, inputs: Mapping[str, tuple[str, Sequence[str | int]]], outputs: Mapping[str, str], metadata: Values
    ) -> ir.Model:
        """The model as a file has it: with its functions, and with the types of its values.

        Args:
            inputs: dtype ("float" for the graph's own, "state" for that of states) and dims.
        """
        own = {"float": self.dtype, "state": self.state_dtype}
        given = [helper.make_tensor_value_info(n, _TYPES[own.get(d, d)], list(s)) for n, (d, s) in inputs.items()]
        nodes = [*self._nodes, *(helper.make_node("Identity", [value], [name]) for name, value in outputs.items())]
        made = helper.make_graph(
            nodes,
            "model",
            given,
            [onnx.ValueInfoProto(name=name) for name in outputs],
            self._weights,
            value_info=self._known,
        )
        opsets = [helper.make_opsetid("", self.opset), helper.make_opsetid(DOMAIN, DOMAIN_VERSION)]
        proto = onnx.shape_inference.infer_shapes(helper.make_model(made, opset_imports=opsets, ir_version=10))
        model = ir.serde.deserialize_model(proto)
        attach_functions(model)
        proto = onnx.shape_inference.infer_shapes(ir.serde.serialize_model(model))
        onnx.checker.check_model(proto, full_check=True)
        model = ir.serde.deserialize_model(proto)
        model.metadata_props.update(pack({"format": 1, "opset": self.opset, "dtype": self.dtype, **metadata}))
        return model

    def _initializer(self, array: np.ndarray) -> str:
        name = f"weight_{len(self._weights)}"
        self._weights.append(numpy_helper.from_array(array, name))
        return name


@dataclass(frozen=True)
class Net:
    """A model: what it computes, and what it takes.

    Attributes:
        define: gives the outputs by name.
        inputs: dtype and dims of each, as for `Graph.model`.
    """

    define: Callable[[Any, Values], Values]
    inputs: Mapping[str, tuple[str, Sequence[str | int]]]
    metadata: Values = field(default_factory=dict)

    def file(self, dtype: str = "float32", opset: int = 18) -> ir.Model:
        graph = Graph(dtype, opset)
        outputs = self.define(graph, {name: name for name in self.inputs})
        return graph.model(self.inputs, outputs, self.metadata)

    def run(self, feeds: Arrays, dtype: torch.dtype = torch.float32) -> Arrays:
        """In PyTorch."""
        ops = Eager(dtype)
        given = {name: (ops.state if self.inputs[name][0] == "state" else ops.weight)(a) for name, a in feeds.items()}
        with torch.no_grad():
            return {name: value.numpy() for name, value in self.define(ops, given).items()}

    def feeds(self, steps: int = 5, batch: int = 3, seed: int = 0, scale: float = 1.0) -> Arrays:
        """Random inputs. Padding is anywhere, all of the first row but not of the others, and NaN in sequences."""
        random, sizes = np.random.default_rng(seed), {"T": steps, "B": batch}
        arrays: Arrays = {}
        for name, (dtype, dims) in self.inputs.items():
            shape = [sizes[dim] if isinstance(dim, str) else dim for dim in dims]
            if dtype == "int32":
                arrays[name] = (random.random(shape) < 0.35).astype(np.int32) * 5
                arrays[name][:, :1] = 1 if batch > 1 else arrays[name][:, :1]
            else:
                arrays[name] = (scale * random.standard_normal(shape)).astype(np.float32)
        if "mask" in arrays:
            for name, (_, dims) in self.inputs.items():
                if list(dims[:2]) == ["T", "B"] and len(dims) == 3:
                    arrays[name][arrays["mask"] != 0] = np.nan
        return arrays


def session(model: ir.Model) -> onnxruntime.InferenceSession:
    """Plain ONNX Runtime."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    content = ir.serde.serialize_model(model).SerializeToString()
    return onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])


def converted(model: ir.Model, form: str, sizes: Mapping[str, int] | None = None, **settings: Any) -> Converted:
    return convert(fix_sizes(model, sizes) if sizes else model, FORMS[form], Settings(**settings))


def run(model: ir.Model, feeds: Arrays) -> Arrays:
    engine = session(model)
    return dict(zip([output.name for output in engine.get_outputs()], engine.run(None, feeds)))


def assert_right(
    found: Mapping[str, np.ndarray], net: Net, feeds: Arrays, allowance: float, own: Mapping[str, np.ndarray] = {}
) -> None:
    """Judge outputs in float32 against float64, by the rule.

    Args:
        own: what the engine makes of the file itself. Where that is not right, the form is not to blame.
    """
    exact, rounded = net.run(feeds, torch.float64), net.run(feeds)
    assert found.keys() == exact.keys()
    for name, array in found.items():
        if name in own and (
            not compare(own[name], rounded[name], exact[name], "float32").passed
            or np.abs(exact[name]).max() < np.finfo(np.float32).tiny  # no number of float32's
        ):
            continue
        errors = compare(array, rounded[name], exact[name], "float32", allowance)
        assert errors.passed, (name, errors)


def assert_form_is_right(
    net: Net, form: str, cases: Sequence[Arrays], *, static: bool = False, extreme: bool = False, **settings: Any
) -> Converted:
    """Convert a model, and judge what ONNX Runtime makes of the result.

    Args:
        extreme: gates may be so far from 0 that all of an output is smaller than what ONNX Runtime's sigmoid is off by
            (1e-7, measured in 1.32): such outputs say nothing of a form.
    """
    file = net.file()
    made: Converted | None = None
    for feeds in cases:
        if made is None or static:
            sizes = {dim: feeds[n].shape[i] for n, (_, dims) in net.inputs.items() for i, dim in enumerate(dims)}
            sizes = {dim: size for dim, size in sizes.items() if isinstance(dim, str)} if static else {}
            made = converted(file, form, sizes, **settings)
        assert_right(run(made.model, feeds), net, feeds, FORMS[form].allowance, run(file, feeds) if extreme else {})
    assert made is not None
    return made


# The models


def sru(
    inputs: int = 4,
    hidden: int = 3,
    *,
    direction: str = "forward",
    activation: str = "identity",
    masked: int = 0,
    highway: str = "product",
    norm: bool = False,
    project: int = 0,
    v_per_step: int = 0,
    scale: float = 0.7,
    forget_bias: float = 0.0,
    seed: int = 0,
) -> Net:
    """One SRU layer with trained weights.

    Args:
        highway: "product" (k = 4), "input" (k = 3; as many inputs as channels) or "none" (no skip term).
        norm: a LayerNorm in front.
        project: the size of a product in front of the gates'; 0 for none.
    """
    layer = SRULayer(inputs, hidden, direction, activation, highway, norm, project, scale, forget_bias, seed)

    def define(ops: Any, given: Values) -> Values:
        v = given["v"] if v_per_step else None
        h, c = layer(ops, given["x"], given["c0"], given.get("mask"), v=v)
        return {"h": h, "c": c}

    taken: dict[str, tuple[str, Sequence[str | int]]] = {
        "x": ("float", ["T", "B", inputs]),
        "c0": ("state", ["B", layer.channels]),
    }
    if v_per_step:
        taken["v"] = ("float", ["T", "B", 2 * layer.channels])
    if masked:
        taken["mask"] = ("int32", ["T", "B"])
    return Net(define, taken)


@dataclass(frozen=True)
class SRULayer:
    """The arguments are those of `sru`."""

    inputs: int
    hidden: int
    direction: str = "forward"
    activation: str = "identity"
    highway: str = "product"
    norm: bool = False
    project: int = 0
    scale: float = 0.7
    forget_bias: float = 0.0
    seed: int = 0

    @property
    def channels(self) -> int:
        return self.hidden * (2 if self.direction == "bidirectional" else 1)

    def weights(self) -> Arrays:
        random = np.random.default_rng(self.seed)

        def normal(*shape: int) -> np.ndarray:
            return (self.scale * random.standard_normal(shape)).astype(np.float32)

        rows, c = self.project or self.inputs, self.channels
        bias = normal(2 * c)
        bias[:c] += self.forget_bias
        return {
            "gain": 1 + normal(self.inputs),
            "shift": normal(self.inputs),
            "projection": normal(self.inputs, rows),
            "gates": normal(rows, 3 * c),
            "skip": normal(rows, c),
            "v": normal(1, 1, 2 * c),
            "bias": bias,
        }

    def __call__(self, ops: Any, x: Any, c0: Any, mask: Any = None, *, v: Any = None, module: str = "cell") -> Any:
        w = {name: ops.weight(array) for name, array in self.weights().items()}
        normed = ops("LayerNormalization", x, w["gain"], w["shift"], epsilon=1e-5) if self.norm else x
        narrow = ops("MatMul", normed, w["projection"]) if self.project else normed
        if self.highway == "product":
            highway = ops("MatMul", narrow, w["skip"])
        elif self.highway == "input":
            highway = ops("Mul", x, ops.weight(np.array([1.5], np.float32)))
        else:
            highway = ops.weight(np.zeros((1, 1, self.channels), np.float32))
        return ops.recurrence(
            "SRURecurrence",
            ops("MatMul", narrow, w["gates"]),
            highway,
            w["v"] if v is None else v,
            w["bias"],
            c0,
            ops.weight(np.zeros((1, 1), np.int32)) if mask is None else mask,
            module=module,
            direction=self.direction,
            activation=self.activation,
            masked=int(mask is not None),
            v_per_step=int(v is not None),
        )


#: Families whose recurrence is linear, and gates alone.
LINEAR = ("mingru", "minlstm", "qrnn", "sru v1", "free")


def linear(
    family: str,
    inputs: int = 4,
    hidden: int = 3,
    *,
    direction: str = "forward",
    masked: int = 0,
    scale: float = 0.7,
    gate_bias: float = 0.0,
    seed: int = 0,
) -> Net:
    """One layer of a linear family, the batch in front for minGRU and minLSTM.

    Args:
        family: one of `LINEAR`; "free" adds what no gate has a share in: h_t = a_t * h_{t-1} + b_t, a = sigmoid(z).
    """
    channels = hidden * (2 if direction == "bidirectional" else 1)
    gates = {"mingru": 2, "minlstm": 3, "qrnn": 3, "sru v1": 3, "free": 2}[family]
    random = np.random.default_rng(seed)
    matrix = (scale * random.standard_normal((inputs, gates * channels))).astype(np.float32)
    row = (scale * random.standard_normal(gates * channels)).astype(np.float32)
    row[channels : 2 * channels] += gate_bias
    swapped = family in ("mingru", "minlstm")

    def define(ops: Any, given: Values) -> Values:
        product = ops("MatMul", given["x"], ops.weight(matrix))
        if swapped:
            product = ops("Transpose", product, perm=[1, 0, 2])
        planes = ops("Split", ops("Add", product, ops.weight(row)), axis=-1, num_outputs=gates)
        mask = given["mask"] if masked else ops.weight(np.zeros((1, 1), np.int32))
        a, b = _GATES[family](ops, planes)
        h, last = ops.recurrence(
            "LinearRecurrence", a, b, given["h0"], mask, direction=direction, masked=masked, module="layer"
        )
        if family == "qrnn":
            h = ops("Mul", ops("Sigmoid", planes[2]), h)
        elif family == "sru v1":
            reset = ops("Sigmoid", planes[2])
            h = ops("Mul", h, reset)
        return {"h": ops("Transpose", h, perm=[1, 0, 2]) if swapped else h, "last": last}

    taken: dict[str, tuple[str, Sequence[str | int]]] = {
        "x": ("float", [*(["B", "T"] if swapped else ["T", "B"]), inputs]),
        "h0": ("state", ["B", channels]),
    }
    if masked:
        taken["mask"] = ("int32", ["T", "B"])
    return Net(define, taken)


def _mingru(ops: Any, planes: Sequence[Any]) -> tuple[Any, Any]:
    decay, share = ops("Sigmoid", ops("Neg", planes[1])), ops("Sigmoid", planes[1])
    return decay, ops("Mul", share, _positive(ops, planes[0]))


def _minlstm(ops: Any, planes: Sequence[Any]) -> tuple[Any, Any]:
    forget, enter = (ops("Softplus", ops("Neg", plane)) for plane in planes[1:])
    difference = ops("Sub", forget, enter)
    decay, share = ops("Sigmoid", ops("Neg", difference)), ops("Sigmoid", difference)
    return decay, ops("Mul", share, _positive(ops, planes[0]))


def _qrnn(ops: Any, planes: Sequence[Any]) -> tuple[Any, Any]:
    f = ops("Sigmoid", planes[1])
    return ops("Sub", ops.weight(np.array(1, np.float32)), f), ops("Mul", f, ops("Tanh", planes[0]))


def _sru_v1(ops: Any, planes: Sequence[Any]) -> tuple[Any, Any]:
    f = ops("Sigmoid", planes[1])
    return f, ops("Mul", ops("Sub", ops.weight(np.array(1, np.float32)), f), planes[0])


def _free(ops: Any, planes: Sequence[Any]) -> tuple[Any, Any]:
    return ops("Sigmoid", planes[1]), planes[0]


_GATES = {"mingru": _mingru, "minlstm": _minlstm, "qrnn": _qrnn, "sru v1": _sru_v1, "free": _free}


def _positive(ops: Any, x: Any) -> Any:
    """minGRU's g."""
    zero, half = (ops.weight(np.array(n, np.float32)) for n in (0, 0.5))
    return ops("Where", ops("GreaterOrEqual", x, zero), ops("Add", x, half), ops("Sigmoid", x))


def bare(channels: int = 3, *, direction: str = "forward", masked: int = 0) -> Net:
    """A LinearRecurrence whose decay and input are the file's own inputs."""

    def define(ops: Any, given: Values) -> Values:
        mask = given["mask"] if masked else ops.weight(np.zeros((1, 1), np.int32))
        h, last = ops.recurrence(
            "LinearRecurrence",
            given["a"],
            given["b"],
            given["h0"],
            mask,
            direction=direction,
            masked=masked,
            module="layer",
        )
        return {"h": h, "last": last}

    sequence: tuple[str, Sequence[str | int]] = ("float", ["T", "B", channels])
    taken = {"a": sequence, "b": sequence, "h0": ("state", ["B", channels])}
    return Net(define, {**taken, "mask": ("int32", ["T", "B"])} if masked else taken)
