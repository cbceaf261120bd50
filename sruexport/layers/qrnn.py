"""QRNN: the layers of salesforce/pytorch-qrnn and of fastai (text.models.qrnn, v1 and v2), for inference.

    Z, F, O = split(W [x_t ; x_{t-1}] + b)                window 2; with window 1 the product is W x_t + b
    c_t = F * tanh(Z) + (1 - F) * c_{t-1}                 F = sigmoid; it multiplies the new value
    h_t = sigmoid(O) * c_t                                h_t = c_t without the output gate

(Bradbury et al. 2016, "Quasi-Recurrent Neural Networks".) What differs between the two packages: salesforce scales F by
1 - zoneout at inference, fastai does not; salesforce puts time first, fastai the batch unless batch_first=False; fastai
has a second stack that runs backward, whose window looks at x_{t+1}, and joins the two after the last layer only.

Both packages can keep the last input of a layer between calls (`save_prev_x`). Here that is a state as any other: a
streaming export carries it, and without one every call starts as after `reset()`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from sruexport.errors import CheckpointError, ExportError
from sruexport.recurrences import LINEAR_RECURRENCE, state_type

from .family import Argument, Family, Option, Tensors, known_base, settle
from .states import initial_state, keep_state

_BACKWARD = "it runs backward"
_KEY = re.compile(r"^((?:.*\.)?)(layers|layers_bwd)\.(\d+)\.linear\.(?:module\.)?(weight|weight_raw|bias)$")


class PreviousInput(nn.Module):
    """The sequence one step earlier, [T, B, I]; its state is the last input, [B, I]."""

    def forward(self, x: Tensor, backward: bool) -> Tensor:
        state = initial_state(self, x, x.shape[1], x.shape[2])
        keep_state(self, x[-1].to(state.dtype), _BACKWARD if backward else "")
        edge = state.to(x.dtype).unsqueeze(0)
        return torch.cat([x[1:], edge] if backward else [edge, x[:-1]])


class QRNNLayer(nn.Module):
    """One layer of salesforce/pytorch-qrnn. `save_prev_x` and `use_cuda` have no meaning here (see above).

    Parameters: `linear.weight` [gates * hidden_size, window * input_size], planar in the order Z, F, O, its columns x_t
    then x_{t-1}; `linear.bias`.
    """

    #: Whether zoneout scales F at inference.
    scales_zoneout = True

    def __init__(
        self,
        input_size: int,
        hidden_size: int | None = None,
        save_prev_x: bool = False,
        zoneout: float = 0.0,
        window: int = 1,
        output_gate: bool = True,
        batch_first: bool = False,
        backward: bool = False,
        use_cuda: bool = True,
    ):
        super().__init__()
        self.input_size, self.hidden_size = input_size, hidden_size or input_size
        self.zoneout, self.window, self.output_gate = float(zoneout), window, bool(output_gate)
        self.batch_first, self.backward = bool(batch_first), bool(backward)
        self.linear = nn.Linear(window * input_size, (3 if output_gate else 2) * self.hidden_size)
        self.previous = PreviousInput() if window == 2 else None
        #: What runs the recurrence; a converter puts another in its place.
        self.recurrence: Any = LINEAR_RECURRENCE

    def reset(self) -> None:
        """For code that calls it between sequences: nothing is kept here that would have to go."""

    def forward(self, X: Tensor, hidden: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """[T, B, input_size] and [B, hidden_size] to [T, B, hidden_size] and the last state, [1, B, hidden_size]."""
        h, last = self.run(X, hidden)
        return h, last.unsqueeze(0)

    def run(self, x: Tensor, hidden: Tensor | None) -> tuple[Tensor, Tensor]:
        """The layer, with the last state as [B, hidden_size]."""
        x = x.transpose(0, 1) if self.batch_first else x
        source = x if self.previous is None else torch.cat([x, self.previous(x, self.backward)], dim=-1)
        planes = self.linear(source).to(state_type(x.dtype)).chunk(3 if self.output_gate else 2, dim=-1)
        f = torch.sigmoid(planes[1])
        if self.scales_zoneout and self.zoneout:
            f = f * (1 - self.zoneout)
        c0 = initial_state(self, x, x.shape[1], self.hidden_size) if hidden is None else hidden.to(f.dtype)
        no_mask = torch.zeros(1, 1, dtype=torch.int32, device=x.device)
        direction = "reverse" if self.backward else "forward"
        c, last = self.recurrence(1 - f, f * torch.tanh(planes[0]), c0, no_mask, direction=direction, masked=0)
        if hidden is None:
            keep_state(self, last, _BACKWARD if self.backward else "")
        h = (torch.sigmoid(planes[2]) * c if self.output_gate else c).to(x.dtype)
        return (h.transpose(0, 1) if self.batch_first else h), last.to(x.dtype)


class FastaiQRNNLayer(QRNNLayer):
    """One layer of fastai's QRNN."""

    scales_zoneout = False

    def forward(self, inp: Tensor, hid: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """As salesforce's, but batch first unless told otherwise, and with the last state as [B, hidden_size]."""
        return self.run(inp, hid)


class QRNN(nn.Module):
    """A stack of layers of salesforce/pytorch-qrnn."""

    layer_class: type[QRNNLayer] = QRNNLayer

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        zoneout: float = 0.0,
        window: int = 1,
        output_gate: bool = True,
        batch_first: bool = False,
        bidirectional: bool = False,
        save_prev_x: bool = False,
        dropout: float = 0.0,
        use_cuda: bool = True,
    ):
        super().__init__()
        self._make([window] * num_layers, input_size, hidden_size, zoneout, output_gate, batch_first, bidirectional)

    def _make(
        self,
        windows: list[int],
        input_size: int,
        hidden_size: int,
        zoneout: float,
        output_gate: bool,
        batch_first: bool,
        bidirectional: bool,
    ) -> None:
        def stack(backward: bool) -> nn.ModuleList:
            return nn.ModuleList(
                self.layer_class(
                    input_size if i == 0 else hidden_size,
                    hidden_size,
                    zoneout=zoneout,
                    window=window,
                    output_gate=output_gate,
                    batch_first=batch_first,
                    backward=backward,
                )
                for i, window in enumerate(windows)
            )

        self.layers = stack(False)
        self.layers_bwd = stack(True) if bidirectional else None
        self.input_size, self.hidden_size, self.num_layers = input_size, hidden_size, len(windows)
        self.batch_first, self.bidirectional = batch_first, bidirectional

    def reset(self) -> None:
        """As a layer's."""

    def forward(self, input: Tensor, hidden: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Run the stack over a sequence.

        Args:
            input: [T, B, input_size].
            hidden: [num_layers, B, hidden_size], zeros if left out.

        Returns:
            h [T, B, hidden_size] and the last states [num_layers, B, hidden_size].
        """
        return self.run(input, hidden)

    def run(self, x: Tensor, hidden: Tensor | None) -> tuple[Tensor, Tensor]:
        """The stack; with two directions the states alternate: layer 0 forward, layer 0 backward, layer 1 ..."""
        stacks = [self.layers] if self.layers_bwd is None else [self.layers, self.layers_bwd]
        ends: list[Tensor] = [x for _ in stacks]
        last = []
        for i in range(self.num_layers):
            for j, stack in enumerate(stacks):
                layer: Any = stack[i]
                ends[j], state = layer.run(ends[j], None if hidden is None else hidden[len(stacks) * i + j])
                last.append(state)
        return (ends[0] if len(ends) == 1 else torch.cat(ends, dim=-1)), torch.stack(last)


class FastaiQRNN(QRNN):
    """A stack of fastai's QRNN. `window` None is 2 in the first layer and 1 in the others."""

    layer_class = FastaiQRNNLayer

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        n_layers: int = 1,
        batch_first: bool = True,
        dropout: float = 0.0,
        bidirectional: bool = False,
        save_prev_x: bool = False,
        zoneout: float = 0.0,
        window: int | None = None,
        output_gate: bool = True,
    ):
        nn.Module.__init__(self)
        windows = [2 if i == 0 else 1 for i in range(n_layers)] if window is None else [window] * n_layers
        self._make(windows, input_size, hidden_size, zoneout, output_gate, batch_first, bidirectional)
        self.n_layers = n_layers

    def forward(self, inp: Tensor, hid: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """As salesforce's, but [B, T, C] unless batch_first=False; states [n_layers * directions, B, hidden_size]."""
        return self.run(inp, hid)


def prefixes(names: Iterable[str]) -> list[str]:
    """Where below "layers" there is nothing but Linear layers called "linear", or a weight-drop wrapper of them."""
    names = list(names)
    matches = [match for name in names if (match := _KEY.match(name))]
    found = {match[1] for match in matches if match[2] == "layers" and match[4] == "bias"}
    stacks = tuple(f"{prefix}layers{end}." for prefix in found for end in ("", "_bwd"))
    others = [name for name in names if name.startswith(stacks) and not _KEY.match(name)]
    return sorted(prefix for prefix in found if not any(name.startswith(f"{prefix}layers") for name in others))


def read(tensors: Tensors, options: Mapping[str, Any]) -> QRNN:
    """Build a stack from a state_dict of either package. A dropped weight is read from its `weight_raw`.

    Args:
        tensors: by key, relative to the stack.
        options: those that are known; with input_size and hidden_size, what is left out has its default.

    Raises:
        OptionsNeeded: the tensors do not tell an option. Exactly those are listed.
        CheckpointError: a key is missing or unknown, or shapes do not fit together.
    """
    weights, wrapped = _weights(tensors)
    complete = {"input_size", "hidden_size"} <= options.keys()
    known = dict(options)
    backward = ("layers_bwd", 0) in weights
    if wrapped or backward or "n_layers" in options:
        known["fastai"] = True
    shapes = [tuple(weights["layers", i][0].shape) for i in range(sum(name == "layers" for name, _ in weights))]
    gates = [gate for gate in (True, False) if _hidden(shapes, gate)]
    if not gates:
        raise CheckpointError(f"weights of shapes {[list(shape) for shape in shapes]}: no QRNN is like that")
    if len(gates) == 1:
        known.setdefault("output_gate", gates[0])
    if complete:
        known = {"output_gate": True, "zoneout": 0.0, "batch_first": True, **known}
        known.setdefault("window", 2 if known.get("fastai") and len(shapes) else 1)
    elif known.get("output_gate") is not None and len(shapes) > 1 and known.get("fastai") is False:
        known.setdefault("window", shapes[1][1] // _hidden(shapes, known["output_gate"]))
    fastai = known.get("fastai")
    asked = ["fastai", "output_gate", "window"]
    asked += ["batch_first"] if fastai or fastai is None else []
    asked += ["zoneout"] if not fastai else []
    missing = [name for name in asked if name not in known]
    if missing:
        raise FAMILY.missing(missing)
    hidden = _hidden(shapes, known["output_gate"])
    if not hidden or known["window"] not in (1, 2) or shapes[0][1] % known["window"]:
        raise CheckpointError(
            f"options output_gate={known['output_gate']}, window={known['window']} contradict the weights' shapes "
            f"{[list(shape) for shape in shapes]}"
        )
    windows = [known["window"]] + [shape[1] // hidden for shape in shapes[1:]]
    with torch.device("meta"):
        stack = (FastaiQRNN if fastai else QRNN)(1, 1, 0)
        stack._make(
            windows,
            shapes[0][1] // known["window"],
            hidden,
            float(known.get("zoneout", 0.0)),
            known["output_gate"],
            bool(fastai and known["batch_first"]),
            backward,
        )
    for (name, i), (weight, bias) in weights.items():
        layer: Any = getattr(stack, name)[i] if i < len(windows) else None
        if layer is None or layer.linear.weight.shape != weight.shape or layer.linear.bias.shape != bias.shape:
            raise CheckpointError(
                f"key {name}.{i}.linear.weight has shape {list(weight.shape)}, unlike the other layers"
            )
        layer.linear.weight, layer.linear.bias = nn.Parameter(weight.detach()), nn.Parameter(bias.detach())
    return stack


def _weights(tensors: Tensors) -> tuple[dict[tuple[str, int], tuple[Tensor, Tensor]], bool]:
    """Weight and bias by stack and layer, and whether they are wrapped as fastai's WeightDropout does it."""
    found: dict[tuple[str, int], dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        match = _KEY.match(name)
        if match is None or match[1]:
            raise CheckpointError(f"key {name} is none of a QRNN stack's")
        # The raw weight is the trained one; the other is what dropout last made of it.
        found.setdefault((match[2], int(match[3])), {})[match[4]] = tensor
    wrapped = any(name.endswith("linear.weight_raw") for name in tensors)
    pairs: dict[tuple[str, int], tuple[Tensor, Tensor]] = {}
    for (stack, i), parts in sorted(found.items()):
        weight = parts.get("weight_raw", parts.get("weight"))
        if weight is None or "bias" not in parts or (stack, i) != (stack, len([k for k in pairs if k[0] == stack])):
            raise CheckpointError(f"key {stack}.{i}.linear.{'bias' if weight is not None else 'weight'} is missing")
        if weight.dim() != 2:
            raise CheckpointError(f"key {stack}.{i}.linear.weight has shape {list(weight.shape)}, expected a matrix")
        pairs[stack, i] = (weight, parts["bias"])
    return pairs, wrapped


def _hidden(shapes: list[tuple[int, ...]], output_gate: bool) -> int:
    """The hidden size that explains all weights' shapes, or 0."""
    blocks = 3 if output_gate else 2
    hidden, rest = divmod(shapes[0][0], blocks)
    fits = not rest and all(rows == blocks * hidden for rows, _ in shapes)
    return hidden if fits and all(columns in (hidden, 2 * hidden) for _, columns in shapes[1:]) else 0


def adapt_layer(theirs: Any, base: type) -> nn.Module:
    """Our layer with the parameters of a QRNNLayer of either package, weight-drop wrappers taken off.

    Raises:
        ExportError: it holds an input of an earlier call, with which the file would not start, or `settle` refuses it.
    """
    settle(theirs, base, ("forward", "_get_source"))
    if theirs.prevX is not None:
        raise ExportError("a QRNN layer holds the last input of an earlier call: call its reset() first")
    fastai = base.__module__.startswith("fastai.")
    weight, bias = _unwrapped(theirs.linear)
    with torch.device("meta"):
        layer = (FastaiQRNNLayer if fastai else QRNNLayer)(
            weight.shape[1] // theirs.window,
            weight.shape[0] // (3 if theirs.output_gate else 2),
            zoneout=theirs.zoneout,
            window=theirs.window,
            output_gate=theirs.output_gate,
            batch_first=getattr(theirs, "batch_first", False),
            backward=getattr(theirs, "backward", False),
        )
    layer.linear.weight, layer.linear.bias = weight, bias
    return layer


def adapt_stack(theirs: Any, base: type) -> nn.Module:
    """Our stack with the layers of a QRNN of either package."""
    settle(theirs, base)
    layers = [_adapted(layer) for layer in theirs.layers]
    first: Any = layers[0]
    stack = (FastaiQRNN if base.__module__.startswith("fastai.") else QRNN)(1, 1, 0)
    stack.layers = nn.ModuleList(layers)
    if getattr(theirs, "layers_bwd", None) is not None:
        stack.layers_bwd = nn.ModuleList(_adapted(layer) for layer in theirs.layers_bwd)
    stack.input_size, stack.hidden_size, stack.num_layers = first.input_size, first.hidden_size, len(layers)
    stack.batch_first, stack.bidirectional = first.batch_first, stack.layers_bwd is not None
    return stack


def _adapted(layer: Any) -> nn.Module:
    return adapt_layer(layer, known_base(layer, (f"{home}.QRNNLayer" for home in _HOMES)))


def _unwrapped(linear: Any) -> tuple[nn.Parameter, nn.Parameter]:
    """Weight and bias of a Linear, or of a wrapper that has the trained weight as `weight_raw`, in itself or inside."""
    inside = getattr(linear, "module", linear)
    places = [(linear, "weight_raw"), (inside, "weight_raw"), (inside, "weight")]
    weight = next(getattr(place, name) for place, name in places if getattr(place, name, None) is not None)
    return weight, inside.bias


def describe(module: Any) -> dict[str, Any]:
    """The options that decide what the layer computes."""
    layers = list(module.layers) if isinstance(module, QRNN) else [module]
    return {
        "package": "fastai" if isinstance(module, (FastaiQRNN, FastaiQRNNLayer)) else "salesforce",
        "input_size": module.input_size,
        "hidden_size": module.hidden_size,
        "num_layers": len(layers),
        "windows": [layer.window for layer in layers],
        "output_gate": layers[0].output_gate,
        "zoneout": layers[0].zoneout,
        "batch_first": module.batch_first,
        "bidirectional": bool(getattr(module, "bidirectional", False)),
    }


def _sequence(module: Any) -> tuple[str | int, ...]:
    return ("B", "T", module.input_size) if module.batch_first else ("T", "B", module.input_size)


def _state(module: Any) -> tuple[str | int, ...]:
    if isinstance(module, QRNN):
        return (module.num_layers * (2 if module.bidirectional else 1), "B", module.hidden_size)
    return ("B", module.hidden_size)


_HOMES = ("torchqrnn.qrnn", "torchqrnn", "fastai.text.models.qrnn")

FAMILY = Family(
    name="qrnn",
    title="QRNN (salesforce/pytorch-qrnn, fastai)",
    recurrences=("LinearRecurrence",),
    modules=(QRNN, FastaiQRNN, QRNNLayer, FastaiQRNNLayer),
    constructors={
        **{f"{home}.QRNNLayer": adapt_layer for home in _HOMES},
        **{f"{home}.QRNN": adapt_stack for home in _HOMES},
    },
    prefixes=prefixes,
    read=read,
    options=(
        Option("fastai", bool, "fastai's layers, or salesforce's?"),
        Option("output_gate", bool, "is there an output gate?"),
        Option("window", int, "how many steps does the first layer's product see, 1 or 2?"),
        Option("zoneout", float, "salesforce's zoneout, which scales F at inference"),
        Option("batch_first", bool, "fastai's: is the batch in front of time?"),
    ),
    required=("input_size", "hidden_size"),
    describe=describe,
    arguments=(
        Argument("input", _sequence, "sequence"),
        Argument("inp", _sequence, "sequence"),
        Argument("X", _sequence, "sequence"),
        Argument("hidden", _state, "state"),
        Argument("hid", _state, "state"),
    ),
    outputs=("h", "c"),
    stand_ins={name: {"QRNN": QRNN, "QRNNLayer": QRNNLayer} for name in ("torchqrnn", "torchqrnn.qrnn")},
    keys=("layers.0.linear.weight", "layers.0.linear.bias", "layers.0.linear.weight_raw"),
)
