"""torch.nn.LSTM, GRU and RNN as ONNX's own LSTM, GRU and RNN nodes.

The PyTorch exporter traces these with their length fixed, whatever was asked for. They are not families of
sruexport: they are replaced while a graph is traced, so that a model which has them beside its linear RNNs keeps its
dynamic axes.

Gate orders: PyTorch LSTM i, f, g, o and ONNX i, o, f, c; PyTorch GRU r, z, n and ONNX z, r, h with
linear_before_reset = 1 (torch.nn docs; ONNX operator docs).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from sruexport.errors import ExportError

from .packed import pack_like, unpack
from .states import keep_state

_HOOKS = (
    *("_forward_hooks", "_forward_hooks_with_kwargs", "_forward_hooks_always_called"),
    "_forward_pre_hooks_with_kwargs",
)
_GATES = {"LSTM": (0, 3, 1, 2), "GRU": (1, 0, 2), "RNN_TANH": (0,), "RNN_RELU": (0,)}


class StandardRNN(nn.Module):
    """A torch.nn.LSTM, GRU or RNN that leaves ONNX nodes in a traced graph, one per layer."""

    def __init__(self, original: nn.RNNBase):
        super().__init__()
        if getattr(original, "proj_size", 0):
            raise ExportError("a torch.nn.LSTM with proj_size has no ONNX node")
        # Not as a child, which would be replaced in its turn: its parameters, the modules that compute some of them,
        # and its hooks are this module's own.
        self.__dict__["original"] = original
        for table in ("_parameters", "_modules", *_HOOKS):
            self.__dict__[table] = getattr(original, table)
        # All but weight norm's, which only compute a weight: they are run now.
        self.__dict__["_forward_pre_hooks"] = hooks = original._forward_pre_hooks.copy()
        for key, hook in original._forward_pre_hooks.items():
            if type(hook).__module__.startswith("torch.nn.utils"):
                hook(original, ())
                del hooks[key]
        for name, value in vars(original).items():
            if isinstance(value, Tensor):
                self.__dict__[name] = value

    def __getattr__(self, name: str) -> Any:
        if "original" not in self.__dict__:  # torch.export's proxy of a shared module, before it has anything
            raise AttributeError(name)
        return getattr(self.__dict__["original"], name)

    def forward(self, input: Tensor | PackedSequence, hx: Any = None) -> tuple[Any, Any]:
        packed, lengths = input, None
        rnn = self.original
        if self._gates(self.original._all_weights[0][0]).dtype == torch.float64:
            raise ExportError(f"torch.nn.{rnn.mode.split('_')[0]} has no float64 in ONNX Runtime: use dtype='float32'")
        if isinstance(input, PackedSequence):
            x, mask = unpack(input)
            lengths = (~mask).sum(0).to(torch.int32)
        else:
            x = input.transpose(0, 1) if rnn.batch_first and input.dim() == 3 else input
        single = x.dim() == 2
        if single:
            x = x.unsqueeze(1)
        directions = 2 if rnn.bidirectional else 1
        lstm = rnn.mode == "LSTM"
        states = None if hx is None else (hx if lstm else (hx,))
        if states is None:
            keep_state(self, x, "a torch.nn.LSTM, GRU or RNN starts from zero in each call: give it its state")
        elif single:
            states = tuple(state.unsqueeze(1) for state in states)
        last: list[list[Tensor]] = [[], []]
        for layer in range(rnn.num_layers):
            first = [s[layer * directions : (layer + 1) * directions] for s in states] if states is not None else None
            x, *ends = self._node(x, layer, directions, first, lengths)
            for collected, end in zip(last, ends):
                collected.append(end)
        h_n = torch.cat(last[0])
        c_n = torch.cat(last[1]) if lstm else None
        if single:
            x, h_n, c_n = x.squeeze(1), h_n.squeeze(1), c_n.squeeze(1) if c_n is not None else None
        if isinstance(packed, PackedSequence):
            output: Any = pack_like(x, packed)
        else:
            output = x.transpose(0, 1) if rnn.batch_first and not single else x
        return output, (h_n, c_n) if lstm else h_n

    def _node(
        self, x: Tensor, layer: int, directions: int, first: list[Tensor] | None, lengths: Tensor | None
    ) -> tuple[Tensor, ...]:
        rnn = self.original
        lstm = rnn.mode == "LSTM"
        size, batch = rnn.hidden_size, x.shape[1]
        suffixes = ["", "_reverse"][:directions]
        w = torch.stack([self._gates(f"weight_ih_l{layer}{s}") for s in suffixes])
        r = torch.stack([self._gates(f"weight_hh_l{layer}{s}") for s in suffixes])
        if rnn.bias:
            b = torch.stack([torch.cat([self._gates(f"bias_{k}_l{layer}{s}") for k in ("ih", "hh")]) for s in suffixes])
        else:
            b = torch.zeros(directions, 2 * w.shape[1], dtype=x.dtype)
        if lengths is None:
            lengths = torch.full((batch,), 1, dtype=torch.int32) * x.shape[0]
        if first is None:
            first = [torch.zeros(directions, batch, size, dtype=x.dtype) for _ in range(2 if lstm else 1)]
        attributes: dict[str, Any] = {
            "hidden_size": size,
            "direction": "bidirectional" if directions == 2 else "forward",
        }
        if rnn.mode == "GRU":
            attributes["linear_before_reset"] = 1
        if rnn.mode == "RNN_RELU":
            attributes["activations"] = ["Relu"] * directions
        op = "RNN" if rnn.mode.startswith("RNN") else rnn.mode
        state = [directions, batch, size]
        outputs = torch.onnx.ops.symbolic_multi_out(
            op,
            [x, w, r, b, lengths.to(torch.int32), *first],
            attrs=attributes,
            dtypes=[x.dtype] * (3 if lstm else 2),
            shapes=[[x.shape[0], directions, batch, size], state] + ([state] if lstm else []),
        )
        # No reshape: it would ask how the data lie in memory, and so put a condition on the batch axis.
        return torch.cat(outputs[0].unbind(1), dim=-1), *outputs[1:]

    def _gates(self, name: str) -> Tensor:
        # By slices, which the exporter folds; a Split of weights it leaves in the graph.
        weight, size = getattr(self, name), self.original.hidden_size
        return torch.cat([weight.narrow(0, i * size, size) for i in _GATES[self.original.mode]])


def for_graph(module: nn.Module) -> nn.Module | None:
    """What stands in for a torch.nn recurrent layer, or a subclass that keeps its forward, while a graph is traced.

    None for anything else.
    """
    known = any(getattr(type(module), "forward", None) is own.forward for own in (nn.LSTM, nn.GRU, nn.RNN))
    return StandardRNN(module) if known else None  # type: ignore[arg-type]


__all__ = ["StandardRNN", "for_graph"]
