"""SRU: the layers of the `sru` package, versions 2.0 to 2.6 and 3.0.0-dev, for inference.

The keys of the state_dict and the numbers are those of `sru` 2.6.0 (modules.py, csrc/sru_cpu_impl.cpp). The matrix
product gives U in the package's own order, [T, B, direction, unit, matrix] with the matrix innermost; here the columns
of the weight are put in planar order first (matrix outermost), so that each gate is one block.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from sruexport.recurrences import LINEAR_RECURRENCE, SRU_RECURRENCE, is_tracing, state_type

from .packed import pack_like, unpack
from .states import initial_state, keep_state


class SRUCell(nn.Module):
    """One SRU layer, in one or both directions.

    The arguments are those of `sru.SRUCell` 2.6.0; dropout and initialization have no meaning at inference
    and are kept as attributes only. Parameters (O = output_size, k = num_matrices):

        weight [I, O*k] (or weight_proj [I, p] and weight [p, O*k]), columns in [direction, unit, matrix] order;
        weight_c, bias [2*O]: forget, reset; scale_x [1]; layer_norm.weight, .bias [I], or [O] with normalize_after.
    """

    scale_x: Tensor
    layer_norm: nn.Module | None
    custom_m: nn.Module | None

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        dropout: float = 0.0,
        rnn_dropout: float = 0.0,
        bidirectional: bool = False,
        n_proj: int = 0,
        use_tanh: bool = False,
        highway_bias: float = 0.0,
        has_skip_term: bool = True,
        layer_norm: bool = False,
        rescale: bool = True,
        v1: bool = False,
        custom_m: nn.Module | None = None,
        amp_recurrence_fp16: bool = False,
        normalize_after: bool = False,
        weight_c_init: float | None = None,
    ):
        super().__init__()
        self.input_size = input_size
        self.hidden_size = hidden_size
        self.directions = 2 if bidirectional else 1
        self.output_size = hidden_size * self.directions
        self.dropout, self.rnn_dropout = float(dropout), float(rnn_dropout)
        self.bidirectional = bool(bidirectional)
        self.has_skip_term = bool(has_skip_term)
        self.highway_bias, self.v1, self.rescale = highway_bias, bool(v1), bool(rescale)
        self.activation_type = int(bool(use_tanh))
        self.activation = "tanh" if use_tanh else "none"
        self.amp_recurrence_fp16, self.weight_c_init = amp_recurrence_fp16, weight_c_init
        self.normalize_after = bool(normalize_after)
        self.projection_size = n_proj if 0 < n_proj < min(input_size, self.output_size) else 0
        self.num_matrices = 4 if has_skip_term and input_size != self.output_size else 3
        self.custom_m = custom_m
        self.linear = False

        columns = self.output_size * self.num_matrices
        self.weight_proj: nn.Parameter | None = None
        if custom_m is None:
            rows = self.projection_size or input_size
            if self.projection_size:
                self.weight_proj = nn.Parameter(_uniform(input_size, input_size, self.projection_size))
            self.weight = nn.Parameter(_uniform(rows, rows, columns))
        bound = 0.0 if v1 else (1.5**0.5 if weight_c_init is None else weight_c_init)
        self.weight_c = nn.Parameter(torch.empty(2 * self.output_size).uniform_(-bound, bound), requires_grad=not v1)
        self.bias = nn.Parameter(torch.zeros(2 * self.output_size))
        self.bias.data[self.output_size :] = highway_bias
        scale = math.sqrt(1 + 2 * math.exp(highway_bias)) if rescale and has_skip_term else 1.0
        self.register_buffer("scale_x", torch.tensor([scale]))
        self.layer_norm = nn.LayerNorm(self.output_size if normalize_after else input_size) if layer_norm else None

    def forward(self, input: Tensor, c0: Tensor | None = None, mask_pad: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Run the layer over a sequence.

        Args:
            input: [T, B, input_size], or [B, input_size] for a single step.
            c0: [B, output_size], zeros if left out.
            mask_pad: [T, B], non-zero at padding.

        Returns:
            h [T, B, output_size] (T = 1 for a single step) and the last c [B, output_size].
        """
        if input.dim() not in (2, 3):
            raise ValueError(f"input must be [T, B, {self.input_size}] or [B, {self.input_size}]")
        x = input if input.dim() == 3 else input.unsqueeze(0)
        state = initial_state(self, x, x.shape[1], self.output_size) if c0 is None else c0
        normed = self.layer_norm(x) if self.layer_norm is not None and not self.normalize_after else x
        u, projected, v = self.compute_gates(normed)
        scale = self.scale_x if self.rescale else None
        h, c = self.run(u, projected, v, x, state, scale, mask_pad)
        if c0 is None:
            keep_state(self, c, "it is bidirectional" if self.bidirectional else "")
        if self.layer_norm is not None and self.normalize_after:
            h = self.layer_norm(h)
        return h, c.to(x.dtype)

    def compute_gates(self, x: Tensor) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """U without its highway part [T, B, 3*O], the highway part [T, B, O] when k = 4, and a custom V [T, B, 2*O]."""
        if self.custom_m is not None:
            result = self.custom_m(x)
            u, v = result if isinstance(result, (tuple, list)) else (result, None)
            return *self.planar_gates(u, x), self.planar_v(v + self.weight_c, x) if v is not None else None
        weight = planar(self.weight, self.directions, self.num_matrices)
        if self.weight_proj is not None:
            x = x @ self.weight_proj
        gates = 3 * self.output_size
        return x @ weight[:, :gates], x @ weight[:, gates:] if self.num_matrices == 4 else None, None

    def planar_gates(self, u: Tensor, like: Tensor) -> tuple[Tensor, Tensor | None]:
        """Split a U in the package's order into its gates [T, B, 3*O] and its highway part."""
        u = planar(u.reshape(*like.shape[:2], u.shape[-1]), self.directions, u.shape[-1] // self.output_size)
        gates = 3 * self.output_size
        return u[..., :gates], u[..., gates:] if u.shape[-1] > gates else None

    def planar_v(self, v: Tensor, like: Tensor) -> Tensor:
        """Put a custom V [T, B, direction, unit, gate] in planar order."""
        return planar(v.reshape(*like.shape[:2], v.shape[-1]), self.directions, 2)

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
        """The recurrence behind the product: LinearRecurrence in a graph where weight_c is zero, else SRURecurrence."""
        highway = self.highway(projected, x, scale)
        mask = int32_mask(mask_pad, u)
        c0 = c0.to(state_type(u.dtype))
        common = {
            "direction": "bidirectional" if self.bidirectional else "forward",
            "masked": int(mask_pad is not None),
        }
        if self.linear and v is None and is_tracing():
            return self.run_linear(u, highway, c0, mask, common)
        per_step = int(v is not None)
        v = self.weight_c.reshape(1, 1, -1) if v is None else v
        activation = "tanh" if self.activation_type else "identity"
        h, c = SRU_RECURRENCE(u, highway, v, self.bias, c0, mask, activation=activation, v_per_step=per_step, **common)
        return h, c

    def highway(self, projected: Tensor | None, x: Tensor, scale: Tensor | None) -> Tensor:
        """x' of the equations: [T, B, O], or [1, 1, O] of zeros without a skip term."""
        if not self.has_skip_term:
            return torch.zeros(1, 1, self.output_size, dtype=x.dtype, device=x.device)
        if projected is not None:
            return projected
        return x if scale is None else x * scale

    def run_linear(
        self, u: Tensor, highway: Tensor, c0: Tensor, mask: Tensor, common: dict[str, Any]
    ) -> tuple[Tensor, Tensor]:
        """With weight_c = 0 the gates do not depend on c, and c_t = f_t * c_{t-1} + (1 - f_t) * u0_t is linear."""
        candidate, forget, reset = u.to(c0.dtype).chunk(3, dim=-1)
        b_forget, b_reset = self.bias.to(c0.dtype).chunk(2)
        f, r = torch.sigmoid(forget + b_forget), torch.sigmoid(reset + b_reset)
        c, last = LINEAR_RECURRENCE(f, (1 - f) * candidate, c0, mask, **common)
        highway = highway.to(c0.dtype)
        h = ((torch.tanh(c) if self.activation_type else c) - highway) * r + highway
        if common["masked"]:
            h = torch.where(mask.unsqueeze(-1) != 0, torch.zeros_like(h), h)
        return h.to(u.dtype), last

    def choose_recurrence(self) -> None:
        """Look at the weights, which a trace cannot: is weight_c zero, so that the layer is linear in c?"""
        self.linear = self.custom_m is None and not bool(self.weight_c.detach().any())

    def extra_repr(self) -> str:
        return f"{self.input_size}, {self.hidden_size}, bidirectional={self.bidirectional}, k={self.num_matrices}"


class SRU(nn.Module):
    """A stack of SRU layers. The arguments are those of `sru.SRU` 2.6.0."""

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 2,
        dropout: float = 0.0,
        rnn_dropout: float = 0.0,
        bidirectional: bool = False,
        projection_size: int = 0,
        use_tanh: bool = False,
        layer_norm: bool = False,
        highway_bias: float = 0.0,
        has_skip_term: bool = True,
        rescale: bool = False,
        v1: bool = False,
        nn_rnn_compatible_return: bool = False,
        custom_m: nn.Module | list[nn.Module] | None = None,
        proj_input_to_hidden_first: bool = False,
        amp_recurrence_fp16: bool = False,
        normalize_after: bool = False,
        weight_c_init: float | None = None,
    ):
        super().__init__()
        output_size = hidden_size * 2 if bidirectional else hidden_size
        project = proj_input_to_hidden_first and input_size != output_size
        self.input_to_hidden = nn.Linear(input_size, output_size, bias=False) if project else None
        self.rnn_lst = nn.ModuleList(
            SRUCell(
                input_size if i == 0 and not project else output_size,
                hidden_size,
                dropout=dropout if i + 1 != num_layers else 0.0,
                rnn_dropout=rnn_dropout,
                bidirectional=bidirectional,
                n_proj=projection_size,
                use_tanh=use_tanh,
                highway_bias=highway_bias,
                has_skip_term=has_skip_term,
                layer_norm=layer_norm,
                rescale=rescale,
                v1=v1,
                custom_m=custom_m[i] if isinstance(custom_m, list) else copy.deepcopy(custom_m),
                amp_recurrence_fp16=amp_recurrence_fp16,
                normalize_after=normalize_after,
                weight_c_init=weight_c_init,
            )
            for i in range(num_layers)
        )
        self.input_size = input_size
        self.hidden_size, self.output_size, self.num_layers = hidden_size, output_size, num_layers
        self.num_directions = 2 if bidirectional else 1
        self.dropout, self.rnn_dropout = dropout, rnn_dropout
        self.projection_size, self.use_layer_norm = projection_size, layer_norm
        self.bidirectional, self.has_skip_term = bool(bidirectional), bool(has_skip_term)
        self.nn_rnn_compatible_return = bool(nn_rnn_compatible_return)

    def forward(
        self, input: Tensor | PackedSequence, c0: Tensor | None = None, mask_pad: Tensor | None = None
    ) -> tuple[Tensor | PackedSequence, Tensor]:
        """Run the stack over a sequence.

        Args:
            input: [T, B, input_size], or a PackedSequence, which brings its own mask.
            c0: [num_layers, B, output_size], zeros if left out.
            mask_pad: [T, B], non-zero at padding.

        Returns:
            h [T, B, output_size] (packed if the input was), and c [num_layers, B, output_size], or
            [num_layers * directions, B, hidden_size] with nn_rnn_compatible_return.
        """
        packed = input
        if isinstance(input, PackedSequence):
            input, mask_pad = unpack(input)
        if input.dim() != 3:
            raise ValueError(f"input must be [T, B, {self.input_size}]")
        if c0 is not None and c0.dim() != 3:
            raise ValueError(f"c0 must be [{self.num_layers}, B, {self.output_size}]")
        h = input if self.input_to_hidden is None else self.input_to_hidden(input)
        last = []
        for i, cell in enumerate(self.rnn_lst):
            h, c = cell(h, None if c0 is None else c0[i], mask_pad)
            last.append(c)
        states = stack_states(last, self.num_directions, self.nn_rnn_compatible_return)
        return (pack_like(h, packed) if isinstance(packed, PackedSequence) else h), states


def stack_states(last: Sequence[Tensor], directions: int, compatible: bool) -> Tensor:
    """The layers' last states [B, directions * d] as [layers, B, directions * d], or, `compatible` with torch.nn's
    recurrent layers, as [layers * directions, B, d]."""
    if compatible:
        return torch.stack([part for state in last for part in state.chunk(directions, dim=-1)])
    return torch.stack(list(last))


def planar(columns: Tensor, directions: int, matrices: int) -> Tensor:
    """Reorder the last axis from [direction, unit, matrix] to [matrix, direction, unit]."""
    split = columns.reshape(*columns.shape[:-1], directions, columns.shape[-1] // (directions * matrices), matrices)
    return torch.movedim(split, -1, -3).reshape(columns.shape)


def int32_mask(mask_pad: Tensor | None, like: Tensor) -> Tensor:
    """The mask as the recurrences take it: INT32 [T, B], or [1, 1] zero for none."""
    if mask_pad is None:
        return torch.zeros(1, 1, dtype=torch.int32, device=like.device)
    if mask_pad.dtype not in (torch.bool, torch.int32, torch.uint8):
        mask_pad = mask_pad != 0
    return mask_pad.reshape(like.shape[:2]).to(torch.int32)


def _uniform(fan_in: int, *shape: int) -> Tensor:
    bound = math.sqrt(3 / fan_in)
    return torch.empty(*shape).uniform_(-bound, bound)
