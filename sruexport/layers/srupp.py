"""SRU++: the layers of `sru` 3.0.0-dev that compute their gates with self-attention, for inference.

`srupp_attention.py` has what is in front of the gates' last matrix; behind it is SRU's recurrence (Lei 2021, "When
Attention Meets Fast Recurrence"; `sru` 3.0.0.dev6, modules.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from sruexport.errors import CheckpointError

from .family import Argument, Family, Option, Tensors, known_base, settle
from .packed import pack_like, unpack
from .sru import SRUCell, planar, stack_states
from .sru_sources import STACK_KEY, load_checked
from .srupp_attention import SRUppAttention, SRUppProjectedLinear
from .states import initial_state, keep_state


class SRUppCell(SRUCell):
    """One SRU++ layer: SRU's recurrence on gates that `transform_module` computes."""

    transform_module: Any

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        bidirectional: bool = False,
        layer_norm: bool = False,
        normalize_after: bool = True,
        highway_bias: float = 0.0,
        rescale: bool = False,
        transform_module: nn.Module | None = None,
        weight_c_init: float = 1.0,
    ):
        super().__init__(
            input_size,
            hidden_size,
            bidirectional=bidirectional,
            layer_norm=layer_norm,
            normalize_after=normalize_after,
            highway_bias=highway_bias,
            rescale=rescale,
            weight_c_init=weight_c_init,
        )
        del self.weight, self.weight_proj
        if transform_module is not None:
            self.transform_module = transform_module

    def forward(
        self,
        input: Tensor,
        c0: Tensor | None = None,
        mask_pad: Tensor | None = None,
        attn_mask: Tensor | None = None,
        memory: Tensor | None = None,
        memory_mask_pad: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Run the layer: as SRUCell, with the attention's arguments (see `SRUppAttention.features`)."""
        x = input
        state = initial_state(self, x, x.shape[1], self.output_size) if c0 is None else c0
        normed = self.layer_norm(x) if self.layer_norm is not None and not self.normalize_after else x
        features = self.transform_module.features(
            normed, mask_pad=mask_pad, attn_mask=attn_mask, memory=memory, memory_mask_pad=memory_mask_pad
        )
        weight = planar(self.transform_module.last.weight.t(), self.directions, self.num_matrices)
        gates = 3 * self.output_size
        u, projected = features @ weight[:, :gates], features @ weight[:, gates:] if self.num_matrices == 4 else None
        h, c = self.run(u, projected, None, x, state, self.scale_x if self.rescale else None, mask_pad)
        if c0 is None:
            sees_all = isinstance(self.transform_module, SRUppAttention)
            refused = "its attention sees the whole sequence" if sees_all else ""
            keep_state(self, c, "it is bidirectional" if self.bidirectional else refused)
        if self.layer_norm is not None and self.normalize_after:
            h = self.layer_norm(h)
        return h, c.to(x.dtype)


class SRUpp(nn.Module):
    """A stack of SRU++ layers. The arguments are those of `sru.SRUpp` 3.0.0.dev6, without the dropouts' effect."""

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        proj_size: int,
        num_layers: int = 2,
        dropout: float = 0.0,
        attn_dropout: float = 0.0,
        num_heads: int = 1,
        bidirectional: bool = False,
        layer_norm: bool = False,
        normalize_after: bool = False,
        attn_layer_norm: bool = True,
        highway_bias: float = -2.0,
        attention_every_n_layers: int = 1,
        attention_last_n_layers: int = -1,
        rescale: bool = False,
        nn_rnn_compatible_return: bool = False,
        proj_input_to_hidden_first: bool = False,
        weight_c_init: float = 1.0,
    ):
        super().__init__()
        if attention_every_n_layers != 1 and attention_last_n_layers != -1:
            raise ValueError("attention_every_n_layers and attention_last_n_layers exclude each other")
        output_size = hidden_size * 2 if bidirectional else hidden_size
        project = proj_input_to_hidden_first and input_size != output_size
        self.input_to_hidden = nn.Linear(input_size, output_size, bias=False) if project else None
        self.rnn_lst = nn.ModuleList()
        for i in range(num_layers):
            features = input_size if i == 0 and not project else output_size
            columns = output_size * (3 if features == output_size else 4)
            transform: nn.Module
            if _has_attention(i, num_layers, attention_every_n_layers, attention_last_n_layers):
                transform = SRUppAttention(features, columns, proj_size, num_heads, attn_layer_norm)
            else:
                transform = SRUppProjectedLinear(features, columns, proj_size, attn_layer_norm)
            self.rnn_lst.append(
                SRUppCell(
                    features,
                    hidden_size,
                    bidirectional=bidirectional,
                    layer_norm=layer_norm,
                    normalize_after=normalize_after,
                    highway_bias=highway_bias,
                    rescale=rescale,
                    transform_module=transform,
                    weight_c_init=weight_c_init,
                )
            )
        self.input_size, self.hidden_size, self.proj_size = input_size, hidden_size, proj_size
        self.output_size, self.num_layers, self.num_heads = output_size, num_layers, num_heads
        self.dropout, self.use_layer_norm = dropout, layer_norm
        self.bidirectional, self.num_directions = bool(bidirectional), 2 if bidirectional else 1
        self.nn_rnn_compatible_return = bool(nn_rnn_compatible_return)

    def forward(
        self,
        input: Tensor | PackedSequence,
        c0: Tensor | None = None,
        mask_pad: Tensor | None = None,
        attn_mask: Tensor | None = None,
        memory: list[Tensor | None] | None = None,
        memory_mask_pad: Tensor | None = None,
    ) -> tuple[Tensor | PackedSequence, Tensor, dict[str, list[Tensor]]]:
        """Run the stack over a sequence: as SRU, with the attention's arguments (see `SRUppAttention.features`).

        Args:
            memory: one [M, B, I] per layer, such as the ``saved_inputs`` of an earlier call.

        Returns:
            h [T, B, output_size], c as SRU gives it, and ``{"saved_inputs": [...]}``: each layer's input [T, B, I].
        """
        packed = input
        if isinstance(input, PackedSequence):
            input, mask_pad = unpack(input)
        h = input if self.input_to_hidden is None else self.input_to_hidden(input)
        inputs, last = [], []
        for i, cell in enumerate(self.rnn_lst):
            inputs.append(h)
            h, c = cell(
                h,
                None if c0 is None else c0[i],
                mask_pad=mask_pad,
                attn_mask=attn_mask,
                memory=None if memory is None else memory[i],
                memory_mask_pad=memory_mask_pad,
            )
            last.append(c)
        states = stack_states(last, self.num_directions, self.nn_rnn_compatible_return)
        output = pack_like(h, packed) if isinstance(packed, PackedSequence) else h
        return output, states, {"saved_inputs": inputs}


def prefixes(names: Iterable[str]) -> list[str]:
    """Where SRU++ stacks are among tensor names."""
    matches = (STACK_KEY.match(name) for name in names)
    return sorted({m[1] for m in matches if m is not None and m[3] == "transform_module.linear1.weight"})


def read(tensors: Tensors, options: Mapping[str, Any]) -> SRUpp:
    """Build SRUpp from a state_dict of `sru` 3.0.0-dev.

    Args:
        tensors, options: as for SRU; `num_heads` cannot be told by the tensors either.

    Raises:
        OptionsNeeded: the tensors do not tell an option. Exactly those are listed.
        CheckpointError: a key is missing, unknown, or has a shape that does not fit.
    """
    layers = 1 + max(int(match[2]) for name in tensors if (match := STACK_KEY.match(name)))

    def tensor(i: int, key: str) -> Tensor:
        name = f"rnn_lst.{i}.{key}"
        if name not in tensors:
            raise CheckpointError(f"key {name} is missing")
        return tensors[name]

    size = tensor(0, "bias").numel() // 2
    sizes = [tensor(i, "transform_module.linear1.weight").shape[1] for i in range(layers)]
    attention = [f"rnn_lst.{i}.transform_module.linear3.weight" in tensors for i in range(layers)]
    told: dict[str, Any] = {
        "input_size": tensors["input_to_hidden.weight"].shape[1] if "input_to_hidden.weight" in tensors else sizes[0],
        "proj_size": tensor(0, "transform_module.linear1.weight").shape[0],
        "num_layers": layers,
        "layer_norm": "rnn_lst.0.layer_norm.weight" in tensors,
        "attn_layer_norm": "rnn_lst.0.transform_module.layer_norm.weight" in tensors,
        "proj_input_to_hidden_first": "input_to_hidden.weight" in tensors,
        "rescale": any(bool((tensor(i, "scale_x") != 1).any()) for i in range(layers)),
        **_attention_options(attention),
    }
    if size % 2:
        told["bidirectional"] = False
    for i, features in enumerate(sizes):
        if told["layer_norm"] and features != size:
            told["normalize_after"] = tensor(i, "layer_norm.weight").numel() == size
    asked = ["bidirectional"]
    asked += ["num_heads"] if any(attention) else []
    asked += ["normalize_after"] if told["layer_norm"] else []
    known = {**told, **{name: value for name, value in options.items() if name not in told or name == "rescale"}}
    for name, value in told.items():
        if name in options and options[name] != value and name not in ("rescale", *_attention_options(attention)):
            raise CheckpointError(f"option {name}={options[name]} contradicts the tensors, which say {name}={value}")
    missing = [name for name in asked if name not in known]
    if missing and not set(FAMILY.required) <= options.keys():
        raise FAMILY.missing(missing)
    known["hidden_size"] = size // (2 if known.get("bidirectional", False) else 1)
    try:
        module = SRUpp(**known)
    except ValueError as error:
        raise CheckpointError(str(error)) from None
    load_checked(module, tensors)
    return module


def adapt_transform(theirs: Any, base: type) -> nn.Module:
    """Our transform with the very matrices of an `sru.modules.SRUppAttention` or `SRUppProjectedLinear`."""
    settle(theirs, base)
    with torch.device("meta"):
        ours: nn.Module
        if hasattr(theirs, "linear3"):
            ours = SRUppAttention(1, 1, theirs.num_heads, theirs.num_heads, False, theirs.normalize_after)
            ours.linear3, ours.alpha = theirs.linear3, theirs.alpha
        else:
            ours = SRUppProjectedLinear(1, 1, 1)
    ours.linear1, ours.linear2, ours.layer_norm = theirs.linear1, theirs.linear2, theirs.layer_norm
    return ours


def adapt_cell(theirs: Any, base: type) -> nn.Module:
    """Our SRUppCell with the parameters and the options of an `sru.SRUppCell`."""
    settle(theirs, base, ("forward", "apply_recurrence"))
    with torch.device("meta"):
        cell = SRUppCell(
            theirs.input_size,
            theirs.hidden_size,
            bidirectional=theirs.bidirectional,
            normalize_after=theirs.normalize_after,
            rescale=theirs.rescale,
        )
    cell.layer_norm = theirs.layer_norm
    cell.weight_c, cell.bias, cell.scale_x = theirs.weight_c, theirs.bias, theirs.scale_x
    transform = theirs.transform_module
    cell.transform_module = adapt_transform(transform, known_base(transform, _TRANSFORMS))
    return cell


def adapt_stack(theirs: Any, base: type) -> nn.Module:
    """Our SRUpp with the cells of an `sru.SRUpp`."""
    settle(theirs, base)
    with torch.device("meta"):
        stack = SRUpp(
            theirs.input_size,
            theirs.hidden_size,
            theirs.proj_size,
            num_layers=0,
            num_heads=theirs.num_heads,
            bidirectional=theirs.bidirectional,
            layer_norm=theirs.use_layer_norm,
            nn_rnn_compatible_return=theirs.nn_rnn_compatible_return,
        )
    stack.input_to_hidden = theirs.input_to_hidden
    stack.rnn_lst = nn.ModuleList(adapt_cell(cell, known_base(cell, [_CELL])) for cell in theirs.rnn_lst)
    stack.num_layers = len(stack.rnn_lst)
    return stack


def describe(module: Any) -> dict[str, Any]:
    """The options that decide what the layer computes."""
    cell = module.rnn_lst[0] if isinstance(module, SRUpp) else module
    options = {"input_size": module.input_size, "hidden_size": module.hidden_size}
    if isinstance(module, SRUpp):
        options |= {"num_layers": module.num_layers, "proj_size": module.proj_size, "num_heads": module.num_heads}
        options["attention"] = [isinstance(c.transform_module, SRUppAttention) for c in module.rnn_lst]
    return options | {
        "bidirectional": module.bidirectional,
        "layer_norm": cell.layer_norm is not None,
        "normalize_after": cell.normalize_after,
        "rescale": cell.rescale,
    }


def _has_attention(i: int, layers: int, every: int, last: int) -> bool:
    return layers - i <= last if last != -1 else (i + 1) % every == 0


def _attention_options(attention: list[bool]) -> dict[str, int]:
    """The two options that put attention into exactly these layers."""
    layers = len(attention)
    choices = [(every, -1) for every in range(1, layers + 1)] + [(1, last) for last in range(layers + 1)]
    for every, last in choices:
        if attention == [_has_attention(i, layers, every, last) for i in range(layers)]:
            return {"attention_every_n_layers": every, "attention_last_n_layers": last}
    raise CheckpointError(f"attention in layers {[i for i, has in enumerate(attention) if has]}: no SRU++ is like that")


_CELL = "sru.modules.SRUppCell"
_TRANSFORMS = ("sru.modules.SRUppAttention", "sru.modules.SRUppProjectedLinear")

FAMILY = Family(
    name="srupp",
    title="SRU++ (`sru` 3.0.0-dev)",
    recurrences=("SRURecurrence", "LinearRecurrence"),
    modules=(SRUpp, SRUppCell),
    constructors={
        "sru.modules.SRUpp": adapt_stack,
        _CELL: adapt_cell,
        **dict.fromkeys(_TRANSFORMS, adapt_transform),
    },
    prefixes=prefixes,
    read=read,
    options=(
        Option("bidirectional", bool, "does it run in both directions?"),
        Option("num_heads", int, "how many attention heads?"),
        Option("normalize_after", bool, "is LayerNorm on the layer's output, or on its input?"),
        Option("nn_rnn_compatible_return", bool, "c as [layers * directions, B, hidden]?"),
        Option("rescale", bool, "is scale_x applied to the highway connection?"),
    ),
    required=("input_size", "hidden_size", "proj_size"),
    describe=describe,
    arguments=(
        Argument("input", lambda m: ("T", "B", m.input_size), "sequence"),
        Argument("c0", lambda m: (*([m.num_layers] if isinstance(m, SRUpp) else []), "B", m.output_size), "state"),
        Argument("mask_pad", lambda m: ("T", "B"), "mask"),
        Argument("attn_mask", lambda m: ("T", "T"), "attention"),
    ),
    outputs=("h", "c", "memory"),
    stand_ins={name: {"SRUpp": SRUpp, "SRUppCell": SRUppCell} for name in ("sru", "sru.modules")},
    keys=("rnn_lst.0.transform_module.linear1.weight", "rnn_lst.0.weight_c", "rnn_lst.0.bias"),
)
