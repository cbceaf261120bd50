#!/usr/bin/env python3
"""Build the CUDA kernels on a GPU machine, hold them against float64, and time them: with nvcc, PyTorch and no network.

    python scripts/gpu_check.py [--json FILE]

Bandwidth is what a kernel reads and writes once, per second, in parts of what a device-to-device copy moves. It takes
less than six minutes. Exit code 1 where a number is beyond the parity rule.

    python scripts/gpu_check.py --on-cpu

runs the same checks on the CPU, with g++ and the header of the tests that stands in for the CUDA runtime, and times
nothing.
"""

from __future__ import annotations

import argparse
import ctypes
import itertools
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable
from ctypes import POINTER, Structure, byref, c_bool, c_int, c_int64, c_size_t, c_void_p
from functools import partial
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).resolve().parent.parent
KERNELS = ROOT / "plugins" / "kernels" / "cuda"
STAND_IN = ROOT / "tests" / "plugins" / "kernels" / "cuda" / "on_cpu"
DTYPES = {torch.float32: 0, torch.float16: 1, torch.bfloat16: 2}  # enum class DType
DIRECTIONS = ("forward", "reverse", "bidirectional")


class Sizes(Structure):
    _fields_ = [("steps", c_int64), ("batch", c_int64), ("channels", c_int64)]


class SRUParams(Structure):
    """parameters.h, field by field."""

    _fields_ = [
        ("dtype", c_int), ("sizes", Sizes), ("direction", c_int), ("activation", c_int),
        *((name, c_void_p) for name in ("u", "x", "v", "bias", "c0", "mask", "h", "c")),
        ("x_broadcast", c_bool), ("v_per_step", c_bool),
    ]  # fmt: skip


class LinearParams(Structure):
    _fields_ = [
        ("dtype", c_int), ("sizes", Sizes), ("direction", c_int),
        *((name, c_void_p) for name in ("a", "b", "h0", "mask", "h", "h_last")),
    ]  # fmt: skip


def build(folder: Path, on_cpu: bool) -> ctypes.CDLL:
    library = folder / "libsruexport_cuda.so"
    sources = sorted(map(str, KERNELS.glob("*.cu")))
    if on_cpu:
        flags = ["-std=c++17", "-O2", "-fPIC", "-shared", f"-I{STAND_IN}", "-xc++"]
        command = ["g++", *flags, *sources, "-o", str(library)]
    else:
        major, minor = torch.cuda.get_device_capability()
        flags = ["-std=c++17", "-O3", "-Werror=all-warnings", "-Xcompiler=-fPIC", "-shared"]
        command = ["nvcc", *flags, f"-arch=sm_{major}{minor}", *sources, "-o", str(library)]
    subprocess.run(command, check=True)
    loaded = ctypes.CDLL(str(library))
    loaded.sruexport_cuda_sru.argtypes = [POINTER(SRUParams), c_void_p]
    loaded.sruexport_cuda_linear.argtypes = [POINTER(LinearParams), c_void_p]
    loaded.sruexport_cuda_linear_chunked.argtypes = [POINTER(LinearParams), c_void_p, c_void_p]
    loaded.sruexport_cuda_chunked_workspace.argtypes = [POINTER(Sizes)]
    loaded.sruexport_cuda_chunked_workspace.restype = c_size_t
    return loaded


class Kernels:
    """The library's calls on tensors. `stream` is PyTorch's own."""

    def __init__(self, library: ctypes.CDLL, device: str):
        self._library, self._device = library, device

    def _stream(self) -> int | None:
        return torch.cuda.current_stream().cuda_stream if self._device == "cuda" else None

    def sru(self, u, x, v, bias, c0, mask, *, direction, activation, out=None):
        steps, batch, channels = u.shape[0], u.shape[1], c0.shape[1]
        h, c = out or (torch.full_like(u[..., :channels], torch.nan).contiguous(), torch.full_like(c0, torch.nan))
        params = SRUParams(
            DTYPES[u.dtype], Sizes(steps, batch, channels), DIRECTIONS.index(direction), int(activation == "tanh"),
            *(_at(t) for t in (u, x, v, bias, c0, mask, h, c)), x.shape[:2] != u.shape[:2], v.shape[:2] == u.shape[:2],
        )  # fmt: skip
        _checked(self._library.sruexport_cuda_sru(byref(params), self._stream()))
        return h, c

    def workspace(self, sizes: Sizes, device: torch.device) -> torch.Tensor:
        """With anything in it, as an allocator gives it."""
        size = self._library.sruexport_cuda_chunked_workspace(byref(sizes))
        return torch.full((size,), 255, dtype=torch.uint8, device=device)

    def linear(self, a, b, h0, mask, *, direction, chunked=False, out=None, workspace=None):
        h, last = out or (torch.full_like(a, torch.nan), torch.full_like(h0, torch.nan))
        sizes = Sizes(*a.shape)
        params = LinearParams(
            DTYPES[a.dtype], sizes, DIRECTIONS.index(direction), *(_at(t) for t in (a, b, h0, mask, h, last))
        )
        if chunked:
            workspace = self.workspace(sizes, a.device) if workspace is None else workspace
            call = self._library.sruexport_cuda_linear_chunked(byref(params), _at(workspace), self._stream())
        else:
            call = self._library.sruexport_cuda_linear(byref(params), self._stream())
        _checked(call)
        return h, last


def _at(tensor: torch.Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()


def _checked(code: int) -> None:
    if code:
        raise RuntimeError(f"the launch gave CUDA error {code}")


def _order(steps: int, channels: int, direction: str) -> list[list[tuple[int, slice]]]:
    """At each turn, the steps that are taken, with the channels that take them."""
    half = {"forward": channels, "reverse": 0, "bidirectional": channels // 2}[direction]
    turns = ((i, steps - 1 - i) for i in range(steps))
    return [[(t, part) for t, part in ((one, slice(0, half)), (other, slice(half, channels)))
             if part.start != part.stop] for one, other in turns]  # fmt: skip


def sru_reference(u, x, v, bias, c0, mask, *, direction, activation):
    """sruexport/recurrences/sru.py, in the dtype of its arguments."""
    channels = c0.shape[1]
    c, h = c0.clone(), torch.zeros_like(u[..., :channels])
    for turn in _order(len(u), channels, direction):
        for t, part in turn:
            u0, u1, u2 = (u[t, :, i * channels : (i + 1) * channels][:, part] for i in range(3))
            weights = v[t if len(v) == len(u) and len(v) > 1 else 0]
            v_f, v_r = weights[:, :channels][:, part], weights[:, channels:][:, part]
            highway = (x[t] if x.shape[0] == len(u) and x.shape[2] == channels and len(x) > 1 else x[0])[:, part]
            before = c[:, part]
            f = torch.sigmoid(u1 + bias[:channels][part] + v_f * before)
            r = torch.sigmoid(u2 + bias[channels:][part] + v_r * before)
            new = (before - u0) * f + u0
            out = (torch.tanh(new) if activation == "tanh" else new) - highway
            keep = torch.ones_like(new, dtype=torch.bool) if mask is None else (mask[t] == 0)[:, None].expand_as(new)
            c[:, part] = torch.where(keep, new, before)
            h[t][:, part] = torch.where(keep, out * r + highway, torch.zeros_like(new))
    return h, c


def linear_reference(a, b, h0, mask, *, direction):
    state, h = h0.clone(), torch.zeros_like(a)
    for turn in _order(len(a), h0.shape[1], direction):
        for t, part in turn:
            new = a[t][:, part] * state[:, part] + b[t][:, part]
            keep = torch.ones_like(new, dtype=torch.bool) if mask is None else (mask[t] == 0)[:, None].expand_as(new)
            state[:, part] = torch.where(keep, new, state[:, part])
            h[t][:, part] = state[:, part]
    return h, state


def judged(found, rounded, exact, dtype: torch.dtype) -> float:
    """The largest error in parts of what is allowed: 8 times plain float32's, or the dtype's own rounding."""
    worst = 0.0
    for got, plain, right in zip(found, rounded, exact):
        if right.numel() == 0:
            continue
        scale = max(1.0, float(right.abs().max()))
        noise = float((plain.double() - right).abs().max())
        bound = 8 * noise + 8 * torch.finfo(dtype if got is found[0] else torch.float32).eps * scale
        error = (got.double() - right).abs()
        worst = max(worst, float("inf") if bool(error.isnan().any()) else float(error.max()) / bound)
    return worst


def correctness(kernels: Kernels, device: str) -> list[dict[str, Any]]:
    """A grid of options and sizes: the worst of each kernel and dtype."""
    generator = torch.Generator(device=device).manual_seed(0)

    def normal(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        return torch.randn(*shape, generator=generator, device=device).to(dtype)

    sizes = [(1, 1, 2), (9, 3, 34), (40, 2, 6), (131, 1, 64), (33, 5, 130)]
    worst: dict[tuple[str, str], float] = {}
    for dtype, direction, masked, (steps, batch, channels) in itertools.product(DTYPES, DIRECTIONS, (0, 1), sizes):
        mask = (torch.rand(steps, batch, generator=generator, device=device) < 0.3).int() if masked else None
        for activation, v_per_step, one_x in (("identity", 0, 0), ("tanh", 1, 1)):
            rows = (steps, batch) if v_per_step and steps > 1 else (1, 1)
            tensors = [
                normal(steps, batch, 3 * channels, dtype=dtype),
                normal(*((1, 1) if one_x or steps == 1 else (steps, batch)), channels, dtype=dtype),
                0.3 * normal(*rows, 2 * channels, dtype=dtype),
                normal(2 * channels, dtype=dtype),
                normal(batch, channels),
            ]
            options = {"direction": direction, "activation": activation}
            _note(worst, "sru", dtype, tensors, mask, options, kernels.sru, sru_reference)
        tensors = [normal(steps, batch, channels, dtype=dtype).sigmoid(), normal(steps, batch, channels, dtype=dtype)]
        tensors.append(normal(batch, channels))
        for name, chunked in (("linear", False), ("linear, chunked", True)):
            call = partial(kernels.linear, chunked=chunked)
            _note(worst, name, dtype, tensors, mask, {"direction": direction}, call, linear_reference)
    for steps, channels in ((9000, 1), (5000, 40)):  # many tiles, so that they look back
        tensors = [normal(steps, 1, channels).sigmoid(), normal(steps, 1, channels), normal(1, channels)]
        call = partial(kernels.linear, chunked=True)
        _note(worst, "linear, chunked", torch.float32, tensors, None, {"direction": "forward"}, call, linear_reference)
    return [
        {"kernel": name, "dtype": dtype, "worst": value, "passed": value <= 1} for (name, dtype), value in worst.items()
    ]


def _note(worst, name, dtype, tensors, mask, options, kernel, reference) -> None:
    found = kernel(*tensors, mask, **options)
    rounded = reference(*(t.float() for t in tensors), mask, **options)
    exact = reference(*(t.double() for t in tensors), mask, **options)
    key = (name, str(dtype).removeprefix("torch."))
    worst[key] = max(worst.get(key, 0.0), judged(found, rounded, exact, dtype))


def seconds(call: Callable[[], object], repeats: int = 20) -> float:
    """The median of a call, by the GPU's own clock."""
    for _ in range(3):
        call()
    taken = []
    for _ in range(repeats):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        call()
        end.record()
        torch.cuda.synchronize()
        taken.append(begin.elapsed_time(end) / 1e3)
    return sorted(taken)[len(taken) // 2]


def bandwidth(kernels: Kernels) -> list[dict[str, Any]]:
    """Bytes per second of each kernel, in parts of a copy's."""
    copied = _copy()
    shapes = [(512, 64, 1024), (512, 16, 1024), (2048, 8, 512), (16384, 1, 1024), (131072, 1, 128), (2**24, 1, 1)]
    rows = [row for dtype, shape in itertools.product(DTYPES, shapes) for row in _moved(kernels, dtype, shape, copied)]
    return [{"kernel": "copy", "bytes_per_second": copied}, *rows]


def _copy() -> float:
    source = torch.empty(2**30, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    return 2 * source.numel() / seconds(lambda: target.copy_(source))


def _moved(kernels: Kernels, dtype: torch.dtype, shape: tuple[int, int, int], copied: float) -> list[dict[str, Any]]:
    steps, batch, channels = shape
    a, b, h = (torch.rand(*shape, device="cuda").to(dtype) for _ in range(3))
    state, last = (torch.zeros(batch, channels, device="cuda") for _ in range(2))
    workspace = kernels.workspace(Sizes(*shape), h.device)
    tensor = a.numel() * a.element_size()
    rows = []

    def note(name: str, tensors: int, call: Callable[[], object]) -> None:
        taken = seconds(call)
        rows.append(_row(name, dtype, *shape, taken, tensors * tensor / taken / copied))

    def linear(chunked: bool) -> Callable[[], object]:
        out = {"out": (h, last), "workspace": workspace}
        return lambda: kernels.linear(a, b, state, None, direction="forward", chunked=chunked, **out)

    note("linear, chunked", 3, linear(True))
    if steps <= 200_000:  # longer ones take a thread too long
        note("linear", 3, linear(False))
    if steps <= 20_000:
        u, bias = (torch.rand(*s, device="cuda").to(dtype) for s in ((steps, batch, 3 * channels), (2 * channels,)))
        options = {"direction": "forward", "activation": "identity", "out": (h, last)}
        note("sru", 5, lambda: kernels.sru(u, a, bias[None, None], bias, state, None, **options))
    return rows


def _row(kernel, dtype, steps, batch, channels, taken, part) -> dict[str, Any]:
    sizes = {"T": steps, "B": batch, "C": channels}
    return {"kernel": kernel, "dtype": str(dtype).removeprefix("torch."), **sizes, "ms": taken * 1e3, "of_copy": part}


def beside_lstm(kernels: Kernels) -> list[dict[str, Any]]:
    """An SRU layer, product and kernel, beside cuDNN's LSTM of the same size."""
    shapes = [(512, 1, 512), (512, 16, 512), (512, 64, 1024)]
    return [_layer(kernels, dtype, *shape) for dtype, shape in itertools.product(DTYPES, shapes)]


def _layer(kernels: Kernels, dtype: torch.dtype, steps: int, batch: int, units: int) -> dict[str, Any]:
    shapes = ((steps, batch, units), (units, 3 * units), (2 * units,))
    x, weight, bias = (torch.rand(*shape, device="cuda").to(dtype) for shape in shapes)
    lstm = torch.nn.LSTM(units, units).to("cuda", dtype)
    state, last = (torch.zeros(batch, units, device="cuda") for _ in range(2))
    options = {"direction": "forward", "activation": "identity", "out": (torch.empty_like(x), last)}
    with torch.inference_mode():
        ours = seconds(lambda: kernels.sru(x @ weight, x, bias[None, None], bias, state, None, **options))
        theirs = seconds(lambda: lstm(x))
    sizes = {"T": steps, "B": batch, "units": units}
    name = str(dtype).removeprefix("torch.")
    return {"dtype": name, **sizes, "sru_ms": ours * 1e3, "lstm_ms": theirs * 1e3, "times": theirs / ours}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, help="write all figures there")
    parser.add_argument("--on-cpu", action="store_true", help="check the sources on the CPU, and time nothing")
    options = parser.parse_args()
    if not options.on_cpu and not torch.cuda.is_available():
        print("error: there is no GPU here: --on-cpu checks the sources on the CPU", file=sys.stderr)
        return 2
    device = "cpu" if options.on_cpu else "cuda"
    found: dict[str, Any] = {"torch": torch.__version__, "device": device}
    with tempfile.TemporaryDirectory() as folder:
        kernels = Kernels(build(Path(folder), options.on_cpu), device)
        found["correctness"] = correctness(kernels, device)
        show("correct", found["correctness"])
        if device == "cuda":
            found["device"], found["cuda"] = torch.cuda.get_device_name(), torch.version.cuda
            found["bandwidth"] = bandwidth(kernels)
            show("bandwidth", found["bandwidth"])
            found["lstm"] = beside_lstm(kernels)
            show("beside cuDNN's LSTM", found["lstm"])
    if options.json is not None:
        options.json.write_text(json.dumps(found, indent=2) + "\n")
    return 0 if all(row["passed"] for row in found["correctness"]) else 1


def show(title: str, rows: list[dict[str, Any]]) -> None:
    print(f"\n{title}")
    for row in rows:
        print(
            "  ".join(
                f"{key} {value:.4g}" if isinstance(value, float) else f"{key} {value}" for key, value in row.items()
            )
        )


if __name__ == "__main__":
    sys.exit(main())
