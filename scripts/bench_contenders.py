"""What `bench_cpu.py` times: models of a shape, and what runs them."""

from __future__ import annotations

import importlib.util
import os
import sys
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import torch
from bench_openvino import SECONDS, TimedOpenVino
from onnx import TensorProto, helper, numpy_helper
from sruexport.converters import FORMS, Settings, convert
from torch import nn

import sruexport
from sruexport.engines import Port, environments
from sruexport.engines.process import EngineProcess
from sruexport.layers.sru import SRU
from sruexport.recurrences import DOMAIN, DOMAIN_VERSION

OURS, PRODUCTS, BODY, FORM = "ours", "products", "function body", "lstm form"
ORT_LSTM, TORCH_LSTM, SRU_PACKAGE, OPENVINO_LSTM = "ONNX Runtime LSTM", "torch LSTM", "sru package", "OpenVINO LSTM"
OP, SRU_OP = "our op alone", "sru package's op"
ALL = (OURS, PRODUCTS, BODY, FORM, ORT_LSTM, TORCH_LSTM, SRU_PACKAGE, OPENVINO_LSTM)

#: The largest relative difference between ours and the function body, both in float32.
AGREEMENT = 5e-6
#: Values of inputs and states lie in [-RANGE, RANGE]; the lstm form's scale is chosen by it.
RANGE = 2.0


class Disagreement(Exception):
    """Ours and the function body give different numbers."""


@dataclass(frozen=True)
class Shape:
    """Attributes:
    bar: ours may take at most so many times the products' time; None where there is no bar.
    linear: weight_c = 0.
    """

    layers: int
    units: int
    steps: int
    batch: int
    bar: float | None = None
    linear: bool = False

    @property
    def streaming(self) -> bool:
        return self.steps == 1

    @property
    def name(self) -> str:
        sizes = "stream" if self.streaming else f"{self.steps}-{self.batch}"
        return f"{'linear-' if self.linear else ''}{self.layers}x{self.units}-{sizes}"

    @property
    def label(self) -> str:
        return f"{self.layers}x{self.units}, " + ("stream" if self.streaming else f"{self.steps}, {self.batch}")


#: Runs once or more often, and gives the seconds of each run.
Contender = Callable[[int], Sequence[float]]


class InOnnxRuntime:
    """A file in ONNX Runtime, with all inputs and outputs bound, so that nothing is allocated or copied in a run.

    In a stream the same states come in every time: what they are does not change what a run costs.
    """

    def __init__(self, path: Path, shape: Shape, threads: int, kernels: Path | None = None):
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4
        options.intra_op_num_threads = threads
        if kernels is not None:
            options.register_custom_ops_library(str(kernels))
        self._session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        sizes = {"T": shape.steps, "B": shape.batch}
        self.feeds = made_up({port.name: [sizes.get(n, n) for n in port.shape] for port in self._session.get_inputs()})
        self.outputs = self._session.run(None, self.feeds)
        self._binding = self._session.io_binding()
        for name, array in self.feeds.items():
            self._binding.bind_ortvalue_input(name, onnxruntime.OrtValue.ortvalue_from_numpy(array))
        for port, array in zip(self._session.get_outputs(), self.outputs, strict=True):
            self._binding.bind_ortvalue_output(port.name, onnxruntime.OrtValue.ortvalue_from_numpy(array))

    def __call__(self, runs: int) -> list[float]:
        return timed(lambda: self._session.run_with_iobinding(self._binding), runs)


def made_up(shapes: Mapping[str, Sequence[int]]) -> dict[str, np.ndarray]:
    """Inputs; the same for all that have the same ones."""
    generator = np.random.default_rng(0)
    return {name: generator.uniform(-RANGE, RANGE, shape).astype(np.float32) for name, shape in shapes.items()}


def timed(run: Callable[[], Any], runs: int) -> list[float]:
    marks = [time.perf_counter()]
    for _ in range(runs):
        run()
        marks.append(time.perf_counter())
    return [after - before for before, after in pairwise(marks)]


def exported(shape: Shape, path: Path) -> None:
    torch.manual_seed(0)
    model = SRU(shape.units, shape.units, shape.layers, v1=shape.linear).eval()
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):
            nn.init.normal_(parameter)
    sruexport.export(model, None, path, stateful=shape.streaming)


def products(model: onnx.ModelProto, shape: Shape) -> onnx.ModelProto:
    """Each product of a model on its input x. Of the results only one step is an output: the rest would be copied."""
    constants = {tensor.name: tensor for tensor in model.graph.initializer}
    weights = [constants[node.input[1]] for node in model.graph.node if node.op_type == "MatMul"]
    if len(weights) != shape.layers:
        raise RuntimeError(f"{len(weights)} products in {shape.layers} layers")
    nodes = [
        node
        for i, weight in enumerate(weights)
        for node in (
            helper.make_node("MatMul", ["input", weight.name], [f"product_{i}"]),
            helper.make_node("Slice", [f"product_{i}", "zero", "one"], [f"step_{i}"]),
        )
    ]
    ends = [numpy_helper.from_array(np.array([value]), name) for value, name in enumerate(("zero", "one"))]
    outputs = {f"step_{i}": [1, shape.batch, weight.dims[1]] for i, weight in enumerate(weights)}
    return graph(nodes, {"input": [shape.steps, shape.batch, shape.units]}, outputs, [*weights, *ends])


def lstm(shape: Shape) -> onnx.ModelProto:
    """ONNX LSTMs, one for each layer. Sizes are static, which OpenVINO prefers."""
    generator = np.random.default_rng(0)
    units, state = shape.units, [1, shape.batch, shape.units]
    nodes, weights = [], [numpy_helper.from_array(np.array([1]), "axis")]
    inputs, outputs = {"input": [shape.steps, shape.batch, units]}, {}
    x = "input"
    for i in range(shape.layers):
        for name, sizes in (
            (f"W_{i}", (1, 4 * units, units)),
            (f"R_{i}", (1, 4 * units, units)),
            (f"B_{i}", (1, 8 * units)),
        ):
            weights.append(
                numpy_helper.from_array((generator.uniform(-1, 1, sizes) / units**0.5).astype(np.float32), name)
            )
        states = [f"h_{i}", f"c_{i}"] if shape.streaming else []
        inputs |= dict.fromkeys(states, state)
        outputs |= {f"new_h_{i}": state, f"new_c_{i}": state}
        given = [x, f"W_{i}", f"R_{i}", f"B_{i}", "", *states] if states else [x, f"W_{i}", f"R_{i}", f"B_{i}"]
        nodes.append(helper.make_node("LSTM", given, [f"Y_{i}", f"new_h_{i}", f"new_c_{i}"], hidden_size=units))
        x = f"x_{i + 1}"
        nodes.append(helper.make_node("Squeeze", [f"Y_{i}", "axis"], [x]))
    return graph(nodes, inputs, {x: inputs["input"]} | outputs, weights)


def graph(
    nodes: list[onnx.NodeProto],
    inputs: Mapping[str, list[int]],
    outputs: Mapping[str, list[int]],
    weights: list[onnx.TensorProto],
) -> onnx.ModelProto:
    ports = [
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, sizes) for name, sizes in side.items()]
        for side in (inputs, outputs)
    ]
    made = helper.make_graph(nodes, "graph", *ports, weights)
    return helper.make_model(made, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)


def in_torch(module: nn.Module, shape: Shape, states: int) -> Contender:
    """An LSTM, or the package's SRU, whose state is one tensor."""
    x = torch.from_numpy(made_up({"input": (shape.steps, shape.batch, shape.units)})["input"])
    given = [torch.rand(shape.layers, shape.batch, shape.units) for _ in range(states if shape.streaming else 0)]
    arguments = [x] if not given else [x, tuple(given)] if states > 1 else [x, *given]
    module = module.eval()

    def contender(runs: int) -> list[float]:
        with torch.inference_mode():
            return timed(lambda: module(*arguments), runs)

    return contender


class InOpenVino:
    def __init__(self, path: Path, feeds: Mapping[str, np.ndarray], threads: int):
        outputs = (Port(SECONDS, np.dtype(np.float64), ("runs",)),)
        inputs = tuple(Port(name, array.dtype, array.shape) for name, array in feeds.items())
        self._process = EngineProcess(TimedOpenVino(), path, inputs, outputs, options={"threads": str(threads)})
        self._process.run({**feeds, "runs": np.array(1)})

    def __call__(self, runs: int) -> list[float]:
        return self._process.run({"runs": np.array(runs)})[SECONDS].tolist()

    def close(self) -> None:
        self._process.close()


def op_alone(shape: Shape) -> onnx.ModelProto:
    """One layer's SRURecurrence and nothing else."""
    steps, rows, units = shape.steps, shape.batch, shape.units
    inputs = {"u": [steps, rows, 3 * units], "x": [steps, rows, units], "v": [1, 1, 2 * units], "bias": [2 * units]}
    inputs |= {"c0": [rows, units]}
    options = {"direction": "forward", "activation": "identity", "masked": 0, "v_per_step": 0}
    outputs = {"h": inputs["x"], "c": inputs["c0"]}
    node = helper.make_node("SRURecurrence", [*inputs, "mask"], [*outputs], domain=DOMAIN, **options)
    model = graph([node], inputs, outputs, [numpy_helper.from_array(np.zeros((1, 1), np.int32), "mask")])
    model.opset_import.append(helper.make_opsetid(DOMAIN, DOMAIN_VERSION))
    return model


def sru_op_alone(shape: Shape) -> Contender:
    """What the package's layer calls behind its product (`sru.ops`, for one direction), in the package's layout."""
    sru_package()
    steps, rows, units = shape.steps, shape.batch, shape.units
    u, x, c0 = torch.rand(steps, rows, 3 * units), torch.rand(steps, rows, units), torch.rand(rows, units)
    weight_c, bias = torch.rand(2 * units), torch.rand(2 * units)
    identity, has_skip_term, scale_x, is_custom = 0, True, 1.0, False

    def op() -> Any:
        return torch.ops.sru_cpu.cpu_forward(
            u, x, weight_c, bias, c0, None, steps, rows, units, 3, identity, has_skip_term, scale_x, is_custom
        )

    def contender(runs: int) -> list[float]:
        with torch.inference_mode():
            return timed(op, runs)

    return contender


def contenders(
    shape: Shape, kernels: Path, threads: int, folder: Path, stack: ExitStack
) -> tuple[dict[str, Contender], float]:
    """All that can run a shape here, and how far ours is from the function body, relative to the largest value.

    Args:
        folder: for the files.
        stack: closes what has to be closed.

    Raises:
        Disagreement: it is farther than AGREEMENT.
    """
    path = folder / "sru.onnx"
    exported(shape, path)
    onnx.save(products(onnx.load(path), shape), folder / "products.onnx")
    ours, body = InOnnxRuntime(path, shape, threads, kernels), InOnnxRuntime(path, shape, threads)
    difference = max(
        float(np.abs(a - b).max() / np.abs(b).max()) for a, b in zip(ours.outputs, body.outputs, strict=True)
    )
    if not difference <= AGREEMENT:
        raise Disagreement(f"{shape.name}: ours is {difference:.1e} from the function body; allowed {AGREEMENT:.0e}")
    found: dict[str, Contender] = {
        OURS: ours,
        PRODUCTS: InOnnxRuntime(folder / "products.onnx", shape, threads),
        BODY: body,
    }
    if shape.linear:  # held against its function body only
        return found, difference
    form = convert(ir.load(path), FORMS["lstm"], Settings(ranges=dict.fromkeys(ours.feeds, (-RANGE, RANGE))))
    ir.save(form.model, folder / "form.onnx")
    onnx.save(lstm(shape), folder / "lstm.onnx")
    in_runtime = InOnnxRuntime(folder / "lstm.onnx", shape, threads)
    found |= {
        FORM: InOnnxRuntime(folder / "form.onnx", shape, threads),
        ORT_LSTM: in_runtime,
        TORCH_LSTM: in_torch(nn.LSTM(shape.units, shape.units, shape.layers), shape, 2),
    }
    onnx.save(op_alone(shape), folder / "op.onnx")
    found[OP] = InOnnxRuntime(folder / "op.onnx", shape, threads, kernels)
    if importlib.util.find_spec("sru") is not None:
        found[SRU_PACKAGE] = in_torch(sru_package().SRU(shape.units, shape.units, shape.layers), shape, 1)
        found[SRU_OP] = sru_op_alone(shape)
    if environments.version(TimedOpenVino()) is not None:
        found[OPENVINO_LSTM] = stack.enter_context(closing(InOpenVino(folder / "lstm.onnx", in_runtime.feeds, threads)))
    return found, difference


def in_this_environment() -> None:
    """Look for what `scripts/environment` puts into .venv there, also where that script was not sourced."""
    home = Path(sys.prefix)
    os.environ.setdefault("TORCH_EXTENSIONS_DIR", str(home / "torch_extensions"))
    if (home / "engines").is_dir():
        os.environ.setdefault("SRUEXPORT_ENGINES", str(home / "engines"))
    # ninja, with which sru compiles itself on its first import.
    os.environ["PATH"] = f"{home / 'bin'}{os.pathsep}{os.environ.get('PATH', '')}"


def sru_package() -> Any:
    """The package. Its first import compiles it, also for CUDA, which fails with a warning."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import sru
    return sru
