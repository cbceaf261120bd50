"""minGRU and minLSTM: the layers of the package mingru-pytorch, for inference.

    minGRU    z = sigmoid(gate)                                h_t = (1 - z) * h_{t-1} + z * g(hidden)
    minLSTM   f' = f / (f + i), i' = i / (f + i)               h_t = f' * h_{t-1} + i' * g(hidden)
              with f = sigmoid(f_gate), i = sigmoid(i_gate)
    g(x) = x + 0.5 where x >= 0, else sigmoid(x)               out = to_out(h)

(Feng et al. 2024, "Were RNNs All We Needed?"; mingru-pytorch 0.2.1.) Batch comes first: [B, T, C].

The package scans in log space from T = 2 up and steps plainly at T = 1. For minLSTM the two differ: the scan puts g on
a `prev_hidden` that it is given, the step does not. A `prev_hidden` argument is treated as the package treats it; a
streamed state is carried as it is, so that chunks equal the whole.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from sruexport.errors import CheckpointError
from sruexport.recurrences import LINEAR_RECURRENCE, state_type

from .family import Argument, Family, Tensors, settle
from .states import initial_state, keep_state


class MinRNN(nn.Module, ABC):
    """What minGRU and minLSTM share. The constructor's arguments are the package's.

    Parameters (D = dim, D' = int(dim * expansion_factor)): the gates' weight [gates * D', D], planar, and
    `to_out.weight` [D, D'] when projecting.
    """

    #: Name of the gates' Linear, and how many blocks it has.
    gates_name: str
    gates: int

    def __init__(self, dim: int, expansion_factor: float = 1.0, proj_out: bool | None = None):
        super().__init__()
        inner = int(dim * expansion_factor)
        project = expansion_factor != 1.0 if proj_out is None else proj_out
        self.add_module(self.gates_name, nn.Linear(dim, self.gates * inner, bias=False))
        self.to_out: nn.Module = nn.Linear(inner, dim, bias=False) if project else nn.Identity()
        self.dim, self.inner = dim, inner
        #: What runs the recurrence; a converter puts another in its place.
        self.recurrence: Any = LINEAR_RECURRENCE

    def forward(
        self, x: Tensor, prev_hidden: Tensor | None = None, return_next_prev_hidden: bool = False
    ) -> Tensor | tuple[Tensor, Tensor]:
        """Run the layer over a sequence.

        Args:
            x: [B, T, dim].
            prev_hidden: [B, 1, D'], zeros if left out.
            return_next_prev_hidden: whether to return the last hidden state too.

        Returns:
            [B, T, dim] ([B, T, D'] without projection), and, if asked for, the last hidden state [B, 1, D'].
        """
        planes = getattr(self, self.gates_name)(x).transpose(0, 1).to(state_type(x.dtype)).chunk(self.gates, dim=-1)
        decay, share = self.decay_and_share(*planes[1:])
        if prev_hidden is None:
            h0 = initial_state(self, x, x.shape[0], self.inner)
        else:
            h0 = self.given(prev_hidden.squeeze(1).to(decay.dtype), x)
        no_mask = torch.zeros(1, 1, dtype=torch.int32, device=x.device)
        h, last = self.recurrence(decay, share * _g(planes[0]), h0, no_mask, direction="forward", masked=0)
        if prev_hidden is None:
            keep_state(self, last)
        out = self.to_out(h.transpose(0, 1).to(x.dtype))
        return (out, last.unsqueeze(1).to(x.dtype)) if return_next_prev_hidden else out

    @abstractmethod
    def decay_and_share(self, *gates: Tensor) -> tuple[Tensor, Tensor]:
        """What the last state and what the candidate are multiplied with, [T, B, D']."""

    def given(self, prev_hidden: Tensor, x: Tensor) -> Tensor:
        """The state [B, D'] that a given `prev_hidden` stands for."""
        return prev_hidden


class MinGRU(MinRNN):
    """minGRU: order of the planes: hidden, gate."""

    gates_name, gates = "to_hidden_and_gate", 2

    def decay_and_share(self, *gates: Tensor) -> tuple[Tensor, Tensor]:
        return torch.sigmoid(-gates[0]), torch.sigmoid(gates[0])


class MinLSTM(MinRNN):
    """minLSTM: order of the planes: hidden, f_gate, i_gate."""

    gates_name, gates = "to_hidden_and_f_i_gate", 3

    def decay_and_share(self, *gates: Tensor) -> tuple[Tensor, Tensor]:
        # f / (f + i) by the difference of the logarithms, which stands gates that are both nearly 0.
        difference = functional.softplus(-gates[0]) - functional.softplus(-gates[1])
        return torch.sigmoid(-difference), torch.sigmoid(difference)

    def given(self, prev_hidden: Tensor, x: Tensor) -> Tensor:
        single = torch.ones_like(x[:1, :, :1]).sum() == 1  # T as a tensor, since a graph may be run at any T
        return torch.where(single, prev_hidden, _g(prev_hidden))


def _g(x: Tensor) -> Tensor:
    return torch.where(x >= 0, x + 0.5, torch.sigmoid(x))


def prefixes(names: Iterable[str]) -> list[str]:
    ends = tuple(f"{cls.gates_name}.weight" for cls in (MinGRU, MinLSTM))
    found = (name.removesuffix(end) for name in names for end in ends if name.endswith(end))
    return sorted({prefix for prefix in found if not prefix or prefix.endswith(".")})


def read(tensors: Tensors, options: Mapping[str, Any]) -> MinRNN:
    """Build MinGRU or MinLSTM from a state_dict. The tensors tell everything.

    Raises:
        CheckpointError: a key is missing, unknown, or has a shape that does not fit.
    """
    cls = MinGRU if f"{MinGRU.gates_name}.weight" in tensors else MinLSTM
    if f"{cls.gates_name}.weight" not in tensors:
        raise CheckpointError(f"key {MinGRU.gates_name}.weight or {MinLSTM.gates_name}.weight is missing")
    weight = tensors[f"{cls.gates_name}.weight"]
    known = {f"{cls.gates_name}.weight", "to_out.weight"}
    for key in tensors:
        if key not in known:
            raise CheckpointError(f"key {key} is none of a {cls.__name__}'s ({', '.join(sorted(known))})")
    if weight.dim() != 2 or weight.shape[0] % cls.gates:
        raise CheckpointError(
            f"key {cls.gates_name}.weight has shape {list(weight.shape)}: it needs a multiple of {cls.gates} rows"
        )
    inner, dim = weight.shape[0] // cls.gates, weight.shape[1]
    out = tensors.get("to_out.weight")
    if out is not None and out.shape != (dim, inner):
        raise CheckpointError(f"key to_out.weight has shape {list(out.shape)}, expected {[dim, inner]}")
    with torch.device("meta"):
        gates = nn.Linear(dim, weight.shape[0], bias=False)
        to_out = nn.Linear(inner, dim, bias=False) if out is not None else nn.Identity()
    module = _of(cls, gates, to_out)
    module.load_state_dict({key: tensor.detach() for key, tensor in tensors.items()}, assign=True)
    return module


def adapt(theirs: Any, base: type) -> nn.Module:
    """Our layer with the very Linear layers of a minGRU or minLSTM of mingru-pytorch.

    Raises:
        ExportError: it is of a subclass with a forward of its own, or has hooks that would be lost.
    """
    settle(theirs, base)
    cls = MinGRU if hasattr(theirs, MinGRU.gates_name) else MinLSTM
    return _of(cls, getattr(theirs, cls.gates_name), theirs.to_out)


def _of(cls: type[MinRNN], gates: nn.Linear, to_out: nn.Module) -> MinRNN:
    """A layer made of these very modules."""
    with torch.device("meta"):
        module = cls(gates.in_features, proj_out=False)
    module.add_module(cls.gates_name, gates)
    module.to_out, module.inner = to_out, gates.out_features // cls.gates
    return module


FAMILY = Family(
    name="mingru",
    title="minGRU and minLSTM (mingru-pytorch)",
    recurrences=("LinearRecurrence",),
    modules=(MinGRU, MinLSTM),
    constructors={
        "minGRU_pytorch.minGRU.minGRU": adapt,
        "minGRU_pytorch.minLSTM.minLSTM": adapt,
    },
    prefixes=prefixes,
    read=read,
    options=(),
    required=("dim",),
    describe=lambda module: {
        "cell": type(module).__name__,
        "dim": module.dim,
        "inner": module.inner,
        "to_out": not isinstance(module.to_out, nn.Identity),
    },
    arguments=(
        Argument("x", lambda m: ("B", "T", m.dim), "sequence"),
        Argument("prev_hidden", lambda m: ("B", 1, m.inner), "state"),
    ),
    outputs=("out", "next_prev_hidden"),
    stand_ins={
        "minGRU_pytorch": {"minGRU": MinGRU},
        "minGRU_pytorch.minGRU": {"minGRU": MinGRU},
        "minGRU_pytorch.minLSTM": {"minLSTM": MinLSTM},
    },
    keys=("to_hidden_and_gate.weight", "to_hidden_and_f_i_gate.weight", "to_out.weight"),
)
