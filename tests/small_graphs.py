"""Small recurrent graphs that have one feature each which engines differ by, with their numbers in NumPy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from sruexport.metadata import pack

Arrays = dict[str, np.ndarray]
Dims = list["int | str"]

STEPS, BATCH, INPUT, HIDDEN = 5, 3, 2, 4
_BACKWARD = {"forward": [False], "reverse": [True], "bidirectional": [False, True]}


@dataclass(frozen=True)
class SmallGraph:
    """A graph and a call of it.

    Attributes:
        compute: its outputs by name, in the dtype of what it is given.
        dtype: of its floats.
    """

    model: onnx.ModelProto
    feeds: Arrays
    compute: Callable[[Arrays], Arrays]
    dtype: str = "float32"

    def exact(self) -> Arrays:
        wide = {n: array.astype(np.float64) if array.dtype.kind == "f" else array for n, array in self.feeds.items()}
        return self.compute(wide)

    def rounded(self) -> Arrays:
        return self.compute(self.feeds)


@dataclass(frozen=True)
class Lstm:
    """An ONNX LSTM on random weights.

    Attributes:
        identity: what stands in place of both Tanh: "LeakyRelu" (alpha 1), "Affine" (alpha 1, beta 0) or "Affine
            without alpha", which is the same by default.
        lens: whether it has sequence_lens; they differ from row to row.
        lasts: whether Y_h and Y_c are outputs too.
        beside: the initial c is computed, and part of a product with X that comes before the LSTM is added to Y: what
            stands around it in a gated layer.
        exponent: k, where c is scaled by 2^-k, as in our own forms.
    """

    direction: str = "forward"
    peepholes: bool = False
    identity: str = ""
    clip: float = 0.0
    input_forget: bool = False
    layout: bool = False
    lens: bool = False
    dynamic: bool = False
    states: bool = True
    lasts: bool = False
    beside: bool = False
    exponent: int = 0
    steps: int = STEPS
    batch: int = BATCH
    dtype: str = "float32"

    def graph(self) -> SmallGraph:
        weights, feeds = self._arrays()
        directions = len(_BACKWARD[self.direction])
        steps, batch = ("T", "B") if self.dynamic else (self.steps, self.batch)
        x: Dims = [steps, batch, INPUT]
        y: Dims = [steps, directions, batch, HIDDEN]
        state: Dims = [directions, batch, HIDDEN]
        if self.layout:
            x, y, state = [batch, steps, INPUT], [batch, steps, directions, HIDDEN], [batch, directions, HIDDEN]
        inputs: dict[str, Dims] = {"x": x, "lens": [batch], "h0": state, "c0": state}
        outputs: dict[str, Dims] = {"Y": y, "Y_h": state, "Y_c": state} if self.lasts else {"Y": y}
        kind = helper.np_dtype_to_tensor_dtype(np.dtype(self.dtype))
        graph = helper.make_graph(
            self._nodes(list(feeds), list(outputs)),
            "lstm",
            [
                helper.make_tensor_value_info(name, onnx.TensorProto.INT32 if name == "lens" else kind, inputs[name])
                for name in feeds
            ],
            [helper.make_tensor_value_info(name, kind, dims) for name, dims in outputs.items()],
            [numpy_helper.from_array(array, name) for name, array in weights.items()],
        )
        form = {"form": {"name": "lstm", "layers": [{"k": self.exponent}]}} if self.exponent else {}
        made = _model(graph, form)
        return SmallGraph(made, feeds, lambda given: self._compute(weights, given, list(outputs)), self.dtype)

    def _nodes(self, feeds: Sequence[str], outputs: Sequence[str]) -> list[onnx.NodeProto]:
        before, after = [], []
        y, c0 = "Y", "c0" if self.states else ""
        if self.beside:
            before = [
                helper.make_node("MatMul", ["x", "product"], ["both"]),
                helper.make_node("Split", ["both"], ["part", "other"], axis=-1, num_outputs=2),
                helper.make_node("Mul", ["c0", "half"], ["c0_half"]),
            ]
            after = [
                helper.make_node("Unsqueeze", ["part", "axis"], ["part_of_one"]),
                helper.make_node("Add", ["Y_alone", "part_of_one"], ["Y"]),
            ]
            y, c0 = "Y_alone", "c0_half"
        if self.exponent:
            after = [helper.make_node("Mul", ["Y_scaled", "huge"], ["Y"])]
            y = "Y_scaled"
        ports = ["x", "W", "R", "B", *(name if name in feeds else "" for name in ("lens", "h0"))]
        ports += [c0, "P" if self.peepholes else ""]
        while not ports[-1]:
            ports.pop()
        lstm = helper.make_node("LSTM", ports, [y, *outputs[1:]], name="lstm", **self._attributes())
        return [*before, lstm, *after]

    def _attributes(self) -> dict[str, Any]:
        found: dict[str, Any] = {"hidden_size": HIDDEN, "direction": self.direction}
        found |= {"clip": self.clip} if self.clip else {}
        found |= {name: 1 for name in ("input_forget", "layout") if getattr(self, name)}
        name, count = self.identity.split(" ")[0], len(_BACKWARD[self.direction])
        if name:
            found["activations"] = ["Sigmoid", name, name] * count
        if name and "without" not in self.identity:
            found["activation_alpha"] = [1.0, 1.0] * count
            found |= {"activation_beta": [0.0, 0.0] * count} if name == "Affine" else {}
        return found

    def _arrays(self) -> tuple[Arrays, Arrays]:
        """Weights and feeds; the same ones whatever the features are."""
        random = np.random.default_rng(0)
        directions = len(_BACKWARD[self.direction])

        def normal(*shape: int) -> np.ndarray:
            return random.standard_normal(shape)

        weights = {
            "W": normal(directions, 4 * HIDDEN, INPUT),
            "R": normal(directions, 4 * HIDDEN, HIDDEN) / 2,
            "B": normal(directions, 8 * HIDDEN) / 2,
            "P": normal(directions, 3 * HIDDEN),
            "product": normal(INPUT, 2 * HIDDEN),
        }
        feeds = {"x": normal(self.steps, self.batch, INPUT), "lens": 1 + np.arange(self.batch) % self.steps}
        feeds |= {name: normal(directions, self.batch, HIDDEN) / 2 for name in ("h0", "c0")}
        scale = 2.0**-self.exponent
        candidate = np.arange(4 * HIDDEN) // HIDDEN == 3
        weights["W"][:, candidate] *= scale
        weights["B"] *= np.where(np.tile(candidate, 2), scale, 1)
        weights["R"] = np.where(candidate[:, None], weights["R"], weights["R"] / scale)
        for name in ("h0", "c0"):
            feeds[name] *= scale
        wanted = {"P": self.peepholes, "product": self.beside, "lens": self.lens, "h0": self.states, "c0": self.states}
        if self.layout:
            feeds = {name: array.swapaxes(0, 1).copy() if array.ndim > 1 else array for name, array in feeds.items()}
        weights = {name: array.astype(self.dtype) for name, array in weights.items() if wanted.get(name, True)}
        feeds = {
            name: array.astype(np.int32 if name == "lens" else self.dtype)
            for name, array in feeds.items()
            if wanted.get(name, True)
        }
        if self.beside:
            weights |= {"half": np.array(0.5, self.dtype), "axis": np.array([1])}
        if self.exponent:
            weights["huge"] = np.array(2.0**self.exponent, self.dtype)
        return weights, feeds

    def _compute(self, weights: Arrays, feeds: Arrays, names: Sequence[str]) -> Arrays:
        dtype = feeds["x"].dtype
        weights = {name: array.astype(dtype) for name, array in weights.items()}
        if self.layout:
            feeds = {name: array.swapaxes(0, 1) if array.ndim > 1 else array for name, array in feeds.items()}
        x = feeds["x"]
        steps, batch, _ = x.shape
        backward = _BACKWARD[self.direction]
        lens = feeds.get("lens", np.full(batch, steps))
        zeros = np.zeros((len(backward), batch, HIDDEN), dtype)
        h, c = (feeds.get(name, zeros).copy() for name in ("h0", "c0"))
        y = np.zeros((steps, len(backward), batch, HIDDEN), dtype)
        if self.beside:
            c *= weights["half"]
        for d, back in enumerate(backward):
            for row in range(batch):
                order = range(lens[row])
                for t in reversed(order) if back else order:
                    h[d, row], c[d, row] = self._step(weights, d, x[t, row], h[d, row], c[d, row])
                    y[t, d, row] = h[d, row]
        if self.beside:
            y += (x @ weights["product"])[:, None, :, :HIDDEN]
        if self.exponent:
            y *= weights["huge"]
        found = {"Y": y, "Y_h": h, "Y_c": c}
        if self.layout:
            found = {"Y": y.transpose(2, 0, 1, 3), "Y_h": h.swapaxes(0, 1), "Y_c": c.swapaxes(0, 1)}
        return {name: found[name] for name in names}

    def _step(
        self, weights: Arrays, d: int, x: np.ndarray, h: np.ndarray, c: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Where the standard leaves something open (which gate input_forget couples to which), as ONNX Runtime does."""
        bias, more = np.split(weights["B"][d], 2)
        z_i, z_o, z_f, z_c = np.split(weights["W"][d] @ x + weights["R"][d] @ h + bias + more, 4)
        p_i, p_o, p_f = np.split(weights["P"][d], 3) if self.peepholes else (0, 0, 0)
        squash = (lambda z: z) if self.identity else np.tanh
        enter = _sigmoid(self._clipped(z_i + p_i * c))
        forget = 1 - enter if self.input_forget else _sigmoid(self._clipped(z_f + p_f * c))
        c = forget * c + enter * squash(self._clipped(z_c))
        # Whether c itself is clipped is left open too: it stays within.
        assert not self.clip or np.abs(c).max() < self.clip
        return _sigmoid(self._clipped(z_o + p_o * c)) * squash(c), c

    def _clipped(self, z: np.ndarray) -> np.ndarray:
        return np.clip(z, -self.clip, self.clip) if self.clip else z


@dataclass(frozen=True)
class Scan:
    """A linear recurrence ``s = a * s + b`` as ONNX Scan, with a and b from one product.

    Attributes:
        state_first: whether the state is the first operand where it is multiplied.
    """

    dynamic: bool = False
    state_first: bool = True
    steps: int = STEPS
    batch: int = BATCH

    def graph(self) -> SmallGraph:
        steps, batch = ("T", "B") if self.dynamic else (self.steps, self.batch)
        row: Dims = [batch, HIDDEN]
        body = helper.make_graph(
            [
                helper.make_node("Mul", ["old", "a_t"] if self.state_first else ["a_t", "old"], ["kept"]),
                helper.make_node("Add", ["kept", "b_t"], ["new"]),
                helper.make_node("Identity", ["new"], ["shown"]),
            ],
            "step",
            _floats({"old": row, "a_t": row, "b_t": row}),
            _floats({"new": row, "shown": row}),
        )
        random = np.random.default_rng(0)
        weight = random.standard_normal((INPUT, 3 * HIDDEN)).astype(np.float32)
        shapes = {"x": (self.steps, self.batch, INPUT), "s0": (self.batch, HIDDEN)}
        feeds = {name: random.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
        graph = helper.make_graph(
            [
                helper.make_node("MatMul", ["x", "weight"], ["all"]),
                helper.make_node("Split", ["all"], ["z", "b", "beside"], axis=-1, num_outputs=3),
                helper.make_node("Sigmoid", ["z"], ["a"]),
                helper.make_node("Scan", ["s0", "a", "b"], ["last", "states"], num_scan_inputs=2, body=body),
                helper.make_node("Add", ["states", "beside"], ["S"]),
            ],
            "linear",
            _floats({"x": [steps, batch, INPUT], "s0": row}),
            _floats({"S": [steps, batch, HIDDEN], "last": row}),
            [numpy_helper.from_array(weight, "weight")],
        )

        def compute(given: Arrays) -> Arrays:
            z, b, beside = np.split(given["x"] @ weight.astype(given["x"].dtype), 3, -1)
            states = [given["s0"]]
            for a_t, b_t in zip(_sigmoid(z), b):
                states.append(a_t * states[-1] + b_t)
            return {"S": np.stack(states[1:]) + beside, "last": states[-1]}

        return SmallGraph(_model(graph), feeds, compute)


#: By feature, as `sruexport.engines.features` calls it: a graph that has it, and the same without it.
PAIRS: dict[str, tuple[Lstm | Scan, Lstm | Scan]] = {
    "LSTM.peepholes": (Lstm(peepholes=True), Lstm()),
    "LSTM.activations": (Lstm(identity="LeakyRelu"), Lstm()),
    "LSTM.affine": (Lstm(identity="Affine without alpha"), Lstm(identity="Affine")),
    "LSTM.clip": (Lstm(clip=1.5), Lstm()),
    "LSTM.input_forget": (Lstm(input_forget=True), Lstm()),
    "LSTM.layout": (Lstm(layout=True, states=False), Lstm(states=False)),
    "LSTM.sequence_lens": (Lstm(lens=True), Lstm()),
    "LSTM.reverse": (Lstm(direction="reverse"), Lstm()),
    "LSTM.bidirectional": (Lstm(direction="bidirectional"), Lstm()),
    "LSTM.last": (Lstm(lasts=True), Lstm()),
    "LSTM.dynamic": (Lstm(dynamic=True, beside=True), Lstm(beside=True)),
    "LSTM.scaled": (Lstm(exponent=14), Lstm()),
    "LSTM.float16": (Lstm(dtype="float16"), Lstm()),
    "LSTM.float64": (Lstm(dtype="float64"), Lstm()),
    "Scan.dynamic": (Scan(dynamic=True), Scan()),
    "Scan.one step": (Scan(steps=1), Scan()),
    "Scan.state second": (Scan(state_first=False), Scan()),
}


def bfloat16_lstm() -> onnx.ModelProto:
    """An LSTM in bfloat16 between casts, since NumPy has none."""
    weights = {name: helper.make_tensor(name, onnx.TensorProto.BFLOAT16, [1, 4, 1], [0.5] * 4) for name in ("W", "R")}
    graph = helper.make_graph(
        [
            helper.make_node("Cast", ["x"], ["narrow"], to=onnx.TensorProto.BFLOAT16),
            helper.make_node("LSTM", ["narrow", "W", "R"], ["y"], hidden_size=1, name="lstm"),
            helper.make_node("Cast", ["y"], ["Y"], to=onnx.TensorProto.FLOAT),
        ],
        "lstm",
        _floats({"x": [2, 1, 1]}),
        _floats({"Y": [2, 1, 1, 1]}),
        list(weights.values()),
    )
    return _model(graph, opset=22)


def empty_value() -> onnx.ModelProto:
    """A graph with a tensor without elements."""
    graph = helper.make_graph(
        [
            helper.make_node("Split", ["x", "sizes"], ["none", "all"], axis=0, name="split"),
            helper.make_node("Concat", ["all", "none"], ["y"], axis=0),
        ],
        "empty",
        _floats({"x": [3]}),
        _floats({"y": [3]}),
        [numpy_helper.from_array(np.array([0, 3]), "sizes")],
    )
    return _model(graph)


def _sigmoid(z: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-z))


def _floats(ports: dict[str, Dims]) -> list[onnx.ValueInfoProto]:
    return [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, dims) for name, dims in ports.items()]


def _model(graph: onnx.GraphProto, metadata: dict[str, Any] | None = None, opset: int = 18) -> onnx.ModelProto:
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)
    helper.set_model_props(model, pack(metadata) if metadata else {})
    model = onnx.shape_inference.infer_shapes(model, data_prop=True)
    onnx.checker.check_model(model, full_check=True)
    return model
