"""LiteRT (TensorFlow Lite) on the CPU: converted by onnx2tf, without TensorFlow."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from .base import Engine, Job, Opened


class LiteRt(Engine):
    name = "litert"
    title = "LiteRT"
    packages = ("ai-edge-litert",)
    # With all that they need: onnx2tf asks for more than it uses here, and for other versions of it.
    requirements = (
        "ai-edge-litert==2.3.0",
        "onnx2tf==2.6.9",
        "backports.strenum==1.2.8",
        "flatbuffers==25.12.19",
        "markdown-it-py==4.3.0",
        "mdurl==0.1.2",
        "ml_dtypes==0.7.0",
        "numpy==2.2.6",
        "onnx==1.20.1",
        "onnxruntime==1.26.0",
        "onnxsim==0.6.5",
        "protobuf==7.36.2",
        "psutil==7.2.2",
        "Pygments==2.21.0",
        "rich==15.0.0",
        "sng4onnx==2.0.1",
        "tqdm==4.70.1",
        "typing_extensions==4.16.0",
    )
    forms = ("parallel", "lstm", "lstm-forward", "unrolled")
    refuses = MappingProxyType(
        {
            "functions": "onnx2tf does not inline model-local functions",
            "custom ops": "it does not know them",
            "Scan": "unresolved custom op: ONNX_SCAN",
            "Loop": "onnx2tf does not convert it",
            "LinearAttention": "unresolved custom op: ONNX_LINEARATTENTION",
            "LSTM.peepholes": "unresolved custom op: ONNX_LSTM",
            "LSTM.input_forget": "unresolved custom op: ONNX_LSTM",
            "LSTM.layout": "unresolved custom op: ONNX_LSTM",
            "LSTM.sequence_lens": "unresolved custom op: ONNX_LSTM",
            "float16": "onnx2tf makes it float32",
            "bfloat16": "Unsupported ONNX dtype",
            "float64": "most of its ops are in float32 only",
            "empty": "onnx2tf takes some tensors without elements for others",
        }
    )
    wrong = MappingProxyType(
        {
            # Only Y is right: XNNPACK, which is on by default, may read the states before the LSTM has written them.
            "LSTM.last": "Y_h and Y_c come out as the states before the first step (2.6.9, 2.3.0)",
            "LSTM.activations": "they are ignored (2.6.9)",
            "LSTM.clip": "it is ignored (2.6.9)",
            "LSTM.float64": "off by 0.9 (2.6.9)",
        }
    )
    static = True
    notes = ("unrolled, a T of some hundred steps takes a minute to convert",)

    def setup(self, environment: Path, run: Callable[[list[str], str], None]) -> None:
        def exactly(command: list[str], step: str) -> None:
            run([*command, "--no-deps", "--ignore-requires-python"] if "install" in command else command, step)

        super().setup(environment, exactly)

    def open(self, job: Job) -> Opened:
        from ai_edge_litert.interpreter import Interpreter

        interpreter = Interpreter(str(_convert(job)))
        interpreter.allocate_tensors()
        return _Opened(interpreter, job)


class _Opened(Opened):
    def __init__(self, interpreter: Any, job: Job):
        self._interpreter, self._job = interpreter, job
        self._runner = interpreter.get_signature_runner()

    def run(self, feeds: Mapping[str, np.ndarray]) -> Sequence[np.ndarray]:
        self._interpreter.reset_all_variables()  # an LSTM keeps its state from run to run
        wanted = self._runner.get_input_details()
        outputs = self._runner(**{name: np.array(feeds[name], order="C") for name in wanted})
        return [np.array(outputs[port.name]) for port in self._job.outputs]


def _convert(job: Job) -> Path:
    import onnx
    import onnx2tf
    import onnxsim

    # Sizes that are computed are constants here, but onnx2tf takes them for 1. It would call onnxsim against that, but
    # as a program on PATH.
    model, _ = onnxsim.simplify(onnx.load(job.path))
    _name_outputs(model)
    # A file of its own: onnx2tf writes over what it reads.
    copy = job.workdir / "model.onnx"
    onnx.save(model, copy)
    said = io.StringIO()
    try:
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            onnx2tf.convert(
                input_onnx_file_path=str(copy),
                output_folder_path=str(job.workdir),
                not_use_onnxsim=True,
                non_verbose=True,
                verbosity="error",
                # Otherwise inputs of three axes are taken for images, and transposed.
                keep_shape_absolutely_input_names=[port.name for port in job.inputs],
            )
    except SystemExit as error:
        lines = [line.strip() for line in said.getvalue().splitlines() if line.strip()]
        raise RuntimeError(f"onnx2tf: {lines[-1] if lines else 'no reason given'}") from error
    return job.workdir / "model_float32.tflite"


def _name_outputs(model: Any) -> None:
    """Name every output: onnx2tf takes the next one for an output that is left out."""
    for i, node in enumerate(model.graph.node):
        for k, name in enumerate(node.output):
            if not name:
                node.output[k] = f"unused_{i}_{k}"
