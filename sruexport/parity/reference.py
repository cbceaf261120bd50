"""The model in PyTorch: in float64, and in the file's dtype by its own layers where they run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import nn

from sruexport.errors import SruExportError
from sruexport.exporter.call import Call, result
from sruexport.exporter.model import borrowed
from sruexport.layers import adapt, family_of
from sruexport.layers.states import StateBank, state_bank
from sruexport.recurrences import state_type


class Reference:
    """Runs one model the way a file of it runs.

    Args:
        model: as the caller has it, with third-party layers or with ours.
        metadata: of the file: dtype, states.
        outputs: names of the file's outputs, in order.
        example: a call of forward whose arguments are more than a tensor each: its nesting and constants are kept.
    """

    def __init__(self, model: nn.Module, metadata: Mapping[str, Any], outputs: list[str], example: Call | None = None):
        self.model = model
        self.dtype: torch.dtype = getattr(torch, metadata.get("dtype", "float32"))
        self._states = list(metadata.get("states", []))
        self._outputs = outputs
        self._example = example
        own = {tensor.dtype for tensor in [*model.parameters(), *model.buffers()] if tensor.is_floating_point()}
        foreign = any(adapt(module) is not None for module in model.modules())
        self._run_own = foreign and own == {self.dtype}

    def keywords(self, feeds: Mapping[str, np.ndarray], dtype: torch.dtype) -> dict[str, Any]:
        """Forward's arguments from a file's inputs: without the states, floats in `dtype`."""
        states = {state["input"] for state in self._states}
        tensors = {name: torch.from_numpy(np.ascontiguousarray(a)) for name, a in feeds.items() if name not in states}
        cast = {name: t.to(dtype) if t.is_floating_point() else t for name, t in tensors.items()}
        if self._example is None:
            return cast
        return self._example.keywords([cast[name] for name in self._example.names])

    def exact(self, feeds: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """In float64, by our layers."""
        return self._by_ours(feeds, torch.float64)

    def rounded(self, feeds: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """In the file's dtype: by the model's own layers if they are third-party ones and run here, else by ours."""
        values = self._by_ours(feeds, self.dtype)
        if self._run_own:
            try:
                values |= self._by_own(feeds)
            except SruExportError:
                raise
            except Exception:
                self._run_own = False  # no CPU op for it, or it was unpickled without its code: ours has to do
        return values

    def _by_ours(self, feeds: Mapping[str, np.ndarray], dtype: torch.dtype) -> dict[str, np.ndarray]:
        with borrowed(self.model, dtype=dtype) as ours:
            family = family_of(ours)
            bank = StateBank()
            for state in self._states:
                if state["input"] in feeds:
                    cell = ours.get_submodule(state["layer"])
                    bank.given[cell] = torch.from_numpy(feeds[state["input"]]).to(state_type(dtype))
            with state_bank(bank):
                output = ours(**self.keywords(feeds, dtype))
            values = list(result(output, family.outputs if family else ()).values())
            values += [bank.last[ours.get_submodule(state["layer"])] for state in self._states]
        return {name: _numpy(value) for name, value in zip(self._outputs, values, strict=True)}

    def _by_own(self, feeds: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        for module in self.model.modules():
            reset = getattr(module, "reset", None)
            if callable(reset) and adapt(module) is not None:  # a layer that keeps its last input, as QRNN can
                reset()
        with borrowed(self.model, replace=lambda module: None) as model:
            output = model(**self.keywords(feeds, self.dtype))
        values = result(output).values()
        return {name: _numpy(value) for name, value in zip(self._outputs, values)}


def _numpy(tensor: torch.Tensor) -> np.ndarray:
    return tensor.detach().to(torch.float64).numpy()
