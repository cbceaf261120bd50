"""The form `torch-lstm`: recurrent layers as PyTorch modules that hold a torch.nn.LSTM with mapped weights.

For engines that convert from PyTorch (Core ML, ExecuTorch, LiteRT): they know torch.nn.LSTM. The embedding is the plain
one of `gates.py`. Each module has the forward of the layer that it replaces, and a state_dict of its own.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor, nn

from sruexport.errors import ConversionError
from sruexport.layers.mingru import MinRNN
from sruexport.layers.qrnn import QRNNLayer
from sruexport.layers.sru import SRUCell, int32_mask, planar
from sruexport.recurrences import state_type

from .gates import TORCH_ORDER, Gates, largest_state, masked, weights

NAME = "torch-lstm"
#: In log(a / (1 - a)), where a is 0 or 1.
_TINY = 1e-30


class EmbeddedLSTM(nn.Module):
    """A torch.nn.LSTM that carries a state c: default activations, no peepholes.

    Args:
        gates: on X [T, B, n]; a channel for padding is added.
        directions: 1 or 2.
        k: the LSTM's own state is c * 2^-k.
        backward: whether the one direction runs backward; torch.nn.LSTM itself has no such option.
    """

    def __init__(
        self, gates: Gates, directions: int, k: int, backward: bool = False, dtype: torch.dtype = torch.float32
    ):
        super().__init__()
        info = torch.finfo(dtype)
        gates = masked(gates, largest_state(k, info.eps), info.max)
        self.hidden, self.directions, self.k, self.backward = gates.v.size // directions, directions, k, backward
        self.dtype = dtype
        self.lstm = nn.LSTM(len(gates.forget), self.hidden, bidirectional=directions == 2, dtype=dtype)
        for direction, suffix in zip(range(directions), ("l0", "l0_reverse")):
            w, r, b = weights(gates, direction, directions, k, TORCH_ORDER)
            for name, array in (("weight_ih", w), ("weight_hh", r), ("bias_ih", b), ("bias_hh", np.zeros_like(b))):
                parameter = getattr(self.lstm, f"{name}_{suffix}")
                parameter.data = torch.from_numpy(array).to(dtype)
                parameter.requires_grad_(False)

    def forward(self, x: Tensor, c0: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        """Run the recurrence.

        Args:
            x: [T, B, n].
            c0: [B, directions * H].
            mask: [T, B], non-zero at padding.

        Returns:
            c at every step [T, B, directions * H], c one step earlier, and the last c, in the dtype of `c0`.
        """
        dtype, batch = self.dtype, x.shape[1]
        padding = torch.zeros_like(x[..., :1], dtype=dtype) if mask is None else (mask != 0).unsqueeze(-1).to(dtype)
        x = x.to(dtype)
        if mask is not None:
            x = torch.where(padding != 0, torch.zeros_like(x), x)  # not a product: 0 * NaN would not be 0
        x = torch.cat([x, padding], dim=-1)
        x = x.flip(0) if self.backward else x
        start = c0.reshape(batch, self.directions, self.hidden).transpose(0, 1) * 2.0**-self.k
        start = start.to(dtype).contiguous()
        y, (_, last) = self.lstm(x, (torch.tanh(start), start))
        y = y.to(c0.dtype) * 2.0**self.k
        y = y.flip(0) if self.backward else y
        last = (last.to(c0.dtype) * 2.0**self.k).transpose(0, 1).reshape(batch, self.directions * self.hidden)
        return y, self._before(y, c0), last

    def get_extra_state(self) -> Tensor:
        """The scale: with another one the weights of a state_dict would be wrong without a word."""
        return torch.tensor(self.k)

    def set_extra_state(self, state: Tensor) -> None:
        self.k = int(state)

    def _before(self, c: Tensor, c0: Tensor) -> Tensor:
        steps, first = c.shape[0], c0.unsqueeze(0)
        if steps == 1:
            return first  # from below Core ML's converter would make integers of it
        if self.directions == 1 and not self.backward:
            return torch.cat([first, c]).narrow(0, 0, steps)
        if self.directions == 1:
            return torch.cat([c, first]).narrow(0, 1, steps)
        ahead, back = c.chunk(2, dim=-1)
        first_ahead, first_back = first.chunk(2, dim=-1)
        before = torch.cat([first_ahead, ahead]).narrow(0, 0, steps)
        return torch.cat([before, torch.cat([back, first_back]).narrow(0, 1, steps)], dim=-1)


class LstmSRUCell(SRUCell):
    """An SRU layer whose c runs in an LSTM, with the gates' weights folded into it.

    Parameters beside the LSTM's: `reset.weight` [O, I] and `.bias`, `skip.weight` [O, I] when k = 4, `v_reset` [O].
    """

    def __init__(self, cell: SRUCell, k: int):
        nn.Module.__init__(self)
        kept = {name: value for name, value in vars(cell).items() if not name.startswith("_")}
        self.__dict__.update(kept)
        self.training = False
        size, dtype = self.output_size, cell.weight.dtype
        columns = planar(cell.weight.detach(), self.directions, self.num_matrices).double().numpy()
        candidate, forget, reset = (columns[:, i * size : (i + 1) * size] for i in range(3))
        b_forget, b_reset = cell.bias.detach().double().chunk(2)
        v_forget, v_reset = cell.weight_c.detach().double().chunk(2)
        gates = Gates(forget, candidate, b_forget.numpy(), np.zeros(size), v_forget.numpy(), tied=True)
        self.embedded = EmbeddedLSTM(gates, self.directions, k, dtype=state_type(dtype))
        self.reset = _linear(reset, b_reset, dtype)
        self.skip = _linear(columns[:, 3 * size :], None, dtype) if self.num_matrices == 4 else None
        self.weight_proj = copy.deepcopy(cell.weight_proj)
        self.layer_norm = copy.deepcopy(cell.layer_norm)
        self.v_reset: Tensor
        self.register_buffer("v_reset", v_reset.to(state_type(dtype)))
        self.register_buffer("scale_x", cell.scale_x.detach().clone())

    def compute_gates(self, x: Tensor) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """What the LSTM and the reset gate take, and the highway part when k = 4."""
        x = x if self.weight_proj is None else x @ self.weight_proj
        return x, None if self.skip is None else self.skip(x), None

    def run(
        self,
        u: Tensor,
        projected: Tensor | None,
        v: Tensor | None,
        x: Tensor,
        c0: Tensor,
        scale: Tensor | None,
        mask_pad: Tensor | None,
    ) -> tuple[Tensor, Tensor]:
        mask = None if mask_pad is None else int32_mask(mask_pad, u)
        c0 = c0.to(self.v_reset.dtype)
        c, before, last = self.embedded(u, c0, mask)
        gate = torch.sigmoid(self.reset(u).to(c.dtype) + self.v_reset * before)
        highway = self.highway(projected, x, scale).to(c.dtype)
        h = ((torch.tanh(c) if self.activation_type else c) - highway) * gate + highway
        if mask is not None:
            h = torch.where((mask != 0).unsqueeze(-1), torch.zeros_like(h), h)
        return h.to(u.dtype), last

    def choose_recurrence(self) -> None:
        """There is no choice: it is an LSTM."""

    def extra_repr(self) -> str:
        return f"{self.input_size}, {self.hidden_size}, k={self.embedded.k}"


class LinearLSTM(nn.Module):
    """LinearRecurrence for a in [0, 1], in an LSTM: called as the recurrence itself is."""

    def __init__(self, channels: int, k: int, backward: bool, dtype: torch.dtype):
        super().__init__()
        nothing, own = np.zeros((channels, channels)), np.eye(channels)
        zero = np.zeros(channels)
        gates = Gates(np.concatenate([own, nothing]), np.concatenate([nothing, own]), zero, zero, zero, tied=False)
        self.embedded = EmbeddedLSTM(gates, 1, k, backward, dtype)

    def forward(
        self, a: Tensor, b: Tensor, h0: Tensor, mask: Tensor, *, direction: str, masked: int
    ) -> tuple[Tensor, Tensor]:
        logit = torch.log(a.clamp(min=_TINY)) - torch.log((1 - a).clamp(min=_TINY))
        h, _, last = self.embedded(torch.cat([logit, b], dim=-1), h0, mask if masked else None)
        return h.to(a.dtype), last


def torch_lstm(model: nn.Module, scales: Mapping[str, int]) -> nn.Module:
    """A copy of a model with its recurrent layers as LSTMs.

    Args:
        model: of sruexport's own layers, as `read` gives it and `borrowed` puts them into any other; left as it is.
        scales: k of each recurrent layer, by its path in the model, or by that of a module that it is in.

    Raises:
        ConversionError: a layer has no such form.
    """
    copied = copy.deepcopy(model)
    # A layer may be in a model more than once, under several names.
    places: dict[nn.Module, list[str]] = {}
    for path, module in copied.named_modules(remove_duplicate=False):
        places.setdefault(module, []).append(path)
    for module, paths in places.items():
        made = _replacement(module, paths, scales)
        if made is None or made is module:
            continue
        for path in paths:
            if not path:
                return made.eval()
            parent, _, name = path.rpartition(".")
            copied.get_submodule(parent)._modules[name] = made
    return copied.eval()


def _replacement(module: nn.Module, paths: Sequence[str], scales: Mapping[str, int]) -> nn.Module | None:
    if isinstance(module, LstmSRUCell):
        return None
    if isinstance(module, SRUCell):
        if type(module).forward is not SRUCell.forward or module.custom_m is not None:
            raise ConversionError(
                f"{paths[0] or 'the layer'}: {type(module).__name__} computes its gates in a way of its own, and has "
                f"no form {NAME}: export it, and convert the file (--to lstm)"
            )
        return LstmSRUCell(module, _scale(paths, scales))
    if isinstance(module, MinRNN):
        module.recurrence = LinearLSTM(module.inner, _scale(paths, scales), False, _dtype(module))
        return module
    if isinstance(module, QRNNLayer):
        module.recurrence = LinearLSTM(module.hidden_size, _scale(paths, scales), module.backward, _dtype(module))
        return module
    return None


def _scale(paths: Sequence[str], scales: Mapping[str, int]) -> int:
    """The largest k of a layer's places."""
    known = []
    for path in paths:
        outer = path
        while outer and outer not in scales:
            outer = outer.rpartition(".")[0]
        known += [scales[outer]] if outer in scales else []
    if not known:
        raise ConversionError(f"{paths[0]}: the exported file has no recurrence of it: does forward run it?")
    return max(known)


def _dtype(module: nn.Module) -> torch.dtype:
    return state_type(next(module.parameters()).dtype)


def _linear(columns: np.ndarray, bias: Tensor | None, dtype: torch.dtype) -> nn.Linear:
    """A Linear with the weight [I, O] as it is used in x @ weight."""
    linear = nn.Linear(columns.shape[0], columns.shape[1], bias=bias is not None, dtype=dtype)
    linear.weight.data = torch.from_numpy(columns.T.copy()).to(dtype)
    if bias is not None:
        linear.bias.data = bias.to(dtype)
    return linear.requires_grad_(False)
