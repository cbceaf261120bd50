"""Makes reference models with versions of `sru` other than the installed one, each in a process of its own.

Run as a script it is that process: `python tests/oracles.py OUT` with PYTHONPATH at the version wanted. It writes one
entry per configuration: constructor arguments, state_dict, the pickled module, inputs and outputs.
"""

from __future__ import annotations

import io
import os
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import torch

SRU_2_0 = [
    {},
    {"bidirectional": True},
    {"use_tanh": True, "rescale": False},
    {"layer_norm": True},
    {"weight_norm": True},
    {"n_proj": 3, "bidirectional": True, "highway_bias": -1},
    {"v1": True},
]
SRU_3_0 = [
    {},
    {"bidirectional": True, "projection_size": 3},
    {"layer_norm": True, "normalize_after": True},
    {"layer_norm": True, "normalize_after": False, "use_tanh": True},
    {"v1": True, "rescale": True},
]
SRUPP_3_0 = [
    {},
    {"bidirectional": True, "num_heads": 2},
    {"layer_norm": True},
    {"layer_norm": True, "normalize_after": True, "bidirectional": True},
    {"attn_layer_norm": False},
    {"attention_every_n_layers": 2},
    {"attention_last_n_layers": 1, "rescale": True},
    {"proj_input_to_hidden_first": True, "nn_rnn_compatible_return": True},
]


def oracle(version: str, folder: Path) -> list[dict[str, Any]]:
    """The entries of one version of `sru`, made once per `folder`."""
    made = folder / f"sru-{version}.pt"
    if not made.exists():
        places = os.environ.get("SRUEXPORT_ORACLES")
        assert places, "SRUEXPORT_ORACLES is not set: run the tests by scripts/test, which installs them"
        extensions = f"{os.environ.get('TORCH_EXTENSIONS_DIR', places)}-{version}"
        environment = os.environ | {"PYTHONPATH": f"{places}/{version}", "TORCH_EXTENSIONS_DIR": extensions}
        subprocess.run([sys.executable, __file__, str(made)], check=True, env=environment, capture_output=True)
    entries = torch.load(made, weights_only=True)
    assert entries, "the oracle made nothing"
    return entries


def _entry(kind: str, module: torch.nn.Module, kwargs: dict[str, Any], calls: list[dict[str, Any]]) -> dict[str, Any]:
    module.eval()
    outputs = []
    with torch.no_grad():
        for call in calls:
            h, c = module(**call)[:2]
            if kwargs.get("bidirectional") and kind == "SRU" and hasattr(module, "n_out"):
                c = _c_of_2_0(c, module.n_out)
            outputs.append([h, c])
    pickled = io.BytesIO()
    torch.save(module, pickled)
    return {
        "class": kind,
        "kwargs": kwargs,
        "state_dict": module.state_dict(),
        "pickled": pickled.getvalue(),
        "calls": calls,
        "outputs": outputs,
    }


def _c_of_2_0(c: torch.Tensor, hidden: int) -> torch.Tensor:
    """Undo what 2.0.0 does to c on the CPU in both directions: it lays out [2, B, d] as [B, 2 * d]. 2.6 does not."""
    layers, batch, _ = c.shape
    return c.view(layers, 2, batch, hidden).transpose(1, 2).reshape(layers, batch, 2 * hidden)


def _make() -> list[dict[str, Any]]:
    import sru

    torch.manual_seed(0)
    entries = []
    old = sru.__version__.startswith("2.0")
    mask = torch.rand(7, 2) < 0.3
    for options in SRU_2_0 if old else SRU_3_0:
        kwargs = {"input_size": 6, "hidden_size": 5, "num_layers": 3, **options}
        module = sru.SRU(**kwargs)
        size = 10 if options.get("bidirectional") else 5
        x, c0 = torch.randn(7, 2, 6), torch.randn(3, 2, size)
        entries.append(_entry("SRU", module, kwargs, [{"input": x}, {"input": x, "c0": c0, "mask_pad": mask}]))
    for options in [] if old else SRUPP_3_0:
        kwargs = {"input_size": 6, "hidden_size": 8, "proj_size": 4, "num_layers": 3, **options}
        module = sru.SRUpp(**kwargs)
        for parameter in module.parameters():  # alpha starts at zero, which would hide the attention
            parameter.data.normal_(0, 0.4)
        size = 16 if options.get("bidirectional") else 8
        x, c0 = torch.randn(7, 2, 6), torch.randn(3, 2, size)
        padding = torch.zeros(7, 2, dtype=torch.bool)
        padding[5:, 1] = True
        causal = torch.triu(torch.full((7, 7), -1e4), 1)
        with torch.no_grad():
            memory = [torch.randn(3, 2, saved.shape[-1]) for saved in module(x)[2]["saved_inputs"]]
        calls = [
            {"input": x},
            {"input": x, "c0": c0, "mask_pad": padding},
            {"input": x, "attn_mask": causal},
            {"input": x, "memory": memory},
        ]
        entries.append(_entry("SRUpp", module, kwargs, calls))
    return entries


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    torch.save(_make(), sys.argv[1])
