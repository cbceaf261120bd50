"""The recurrences as ONNX LSTM, with the weights mapped (`gates.py` has the numbers).

The dependence of the forget gate on c_{t-1} goes in one of three ways, the embedding:

    plain              R = diagonal blocks [-v/e ; 0 ; v/e ; 0] on H = tanh(e*c), which is e*c; default activations
    peephole-tanh      P[i,o,f] = [-v/e ; 0 ; v/e]; default activations
    peephole           P[i,o,f] = [-v ; 0 ; v], g and h the identity (LeakyRelu with alpha 1), e = 1

The reset gate reads c_{t-1} and closes nothing inside the recurrence, where the LSTM's own o gate reads c_t: its
columns stay one product over the whole sequence, outside. A LinearRecurrence with a in [0, 1] goes the same way,
without v: f = a, and i * g = b. Padding: zero inputs, and a channel of X that opens f and closes i.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import onnx_ir as ir

from sruexport.recurrences.body import Body

from .base import Form, Lowering
from .bounds import ASSUMED, Interval
from .gates import Gates, masked, peepholes, relative_error, scale_exponent, weights
from .patterns import Affine, affine, constant, coupled, logit, negative_logit
from .products import product

#: In log(a / (1 - a)), where a is 0 or 1.
_TINY = 1e-30
#: Whether each direction runs backward.
_BACKWARD = {"forward": [False], "reverse": [True], "bidirectional": [False, True]}


@dataclass(frozen=True)
class Style:
    """One way to embed: how c_{t-1} reaches the forget gate, and whether backward directions are flipped outside."""

    peephole: bool = False
    identity: bool = False
    flipped: bool = False


@dataclass
class _Pieces:
    """Gates whose X is still in pieces: sequences [T, B, n], each with its weights [n, C] in forget and candidate."""

    forget_bias: np.ndarray
    candidate_bias: np.ndarray
    v: np.ndarray
    tied: bool
    pieces: list[tuple[ir.Value, np.ndarray, np.ndarray]] = field(default_factory=list)

    def add(self, value: ir.Value, forget: np.ndarray | None = None, candidate: np.ndarray | None = None) -> None:
        """Add a sequence, or more weights on one that is there."""
        given = forget if forget is not None else candidate
        assert given is not None
        f, c = (np.zeros((len(given), self.v.size)) if array is None else array for array in (forget, candidate))
        for index, (known, known_f, known_c) in enumerate(self.pieces):
            if known is value:
                self.pieces[index] = (value, known_f + f, known_c + c)
                return
        self.pieces.append((value, f, c))

    def joined(self) -> Gates:
        """With X the concatenation of the pieces."""
        forget, candidate = (np.concatenate([piece[i] for piece in self.pieces]) for i in (1, 2))
        return Gates(forget, candidate, self.forget_bias, self.candidate_bias, self.v, self.tied)


def lower(lowering: Lowering, style: Style) -> Sequence[ir.Value]:
    """Build the LSTM for one recurrence node, and what stays outside of it."""
    by_op = {"SRURecurrence": _sru, "LinearRecurrence": _linear}
    if lowering.node.op_type not in by_op:
        raise lowering.refuse("no LSTM is known for it")
    return by_op[lowering.node.op_type](lowering, style)


def _sru(lowering: Lowering, style: Style) -> Sequence[ir.Value]:
    build, variant, inputs = lowering.build, lowering.variant, lowering.inputs
    if variant["v_per_step"]:
        raise lowering.refuse("what c weighs in its gates changes from step to step, and an LSTM's weights cannot")
    v, bias = constant(inputs["v"]), constant(inputs["bias"])
    if v is None or bias is None:
        raise lowering.refuse("its weight_c and bias are computed in the graph, and an LSTM's weights are constant")
    v_forget, v_reset = np.split(v.astype(np.float64).reshape(-1), 2)
    b_forget, b_reset = np.split(bias.astype(np.float64), 2)
    size = b_forget.size
    found = affine(inputs["u"])
    gates = _Pieces(b_forget, np.zeros(size), v_forget, tied=True)
    if found is not None:
        _add_affine(lowering, gates, found.columns(size, 2 * size), forget=True)
        _add_affine(lowering, gates, found.columns(0, size), forget=False)
        reset = product(build, lowering.weight, found.columns(2 * size, 3 * size), "reset")
        reset = _cast(build, reset, variant.dtype)
    else:
        candidate, forget, reset = build.split(inputs["u"], 3)
        gates.add(forget, forget=np.eye(size))
        gates.add(candidate, candidate=np.eye(size))
    state = lowering.bounds.candidates(inputs["u"], 3).hull(lowering.bounds.of(inputs["c0"]))
    c, last = _lstm(lowering, style, gates, inputs["c0"], state)

    wide = lowering.state_dtype
    before = _before(lowering, c, inputs["c0"])
    row = [lowering.weight(name, array.reshape(1, 1, -1), wide) for name, array in (("v", v_reset), ("b", b_reset))]
    opened = build.op("Add", [build.cast(reset, variant.dtype, wide), row[1]])
    gate = build.op("Sigmoid", [build.op("Add", [opened, build.op("Mul", [row[0], before])])])
    g = build.op("Tanh", [c]) if variant["activation"] == "tanh" else c
    x = build.cast(inputs["x"], variant.dtype, wide)
    h = build.op("Add", [build.op("Mul", [build.op("Sub", [g, x]), gate]), x])
    if variant["masked"]:
        zero = build.op("Constant", [], value=ir.tensor(np.zeros((), wide.numpy())))
        h = build.op("Where", [build.keep(inputs["mask"], h, "forward"), h, zero])
    return build.cast(h, wide, variant.dtype), last


def _linear(lowering: Lowering, style: Style) -> Sequence[ir.Value]:
    build, inputs, bounds = lowering.build, lowering.inputs, lowering.bounds
    a, b = inputs["a"], inputs["b"]
    decay = bounds.of(a)
    if decay.low < 0 or decay.high > 1:
        raise lowering.refuse(
            f"an LSTM's forget gate is between 0 and 1, and its decay is only known to be in {_shown(decay)}"
        )
    size = _channels(lowering)
    candidate = coupled(a, b)
    z, sign = logit(a), 1.0
    if z is None:
        z, sign = negative_logit(a), -1.0
    gates = _Pieces(np.zeros(size), np.zeros(size), np.zeros(size), tied=candidate is not None)
    forget = affine(z) if z is not None else None
    if forget is not None:
        _add_affine(lowering, gates, forget.scaled(sign), forget=True)
    elif z is not None:
        gates.add(z, forget=sign * np.eye(size))
    else:
        gates.add(_logit(lowering, a), forget=np.eye(size))
    added = affine(candidate) if candidate is not None else None
    if added is not None:
        _add_affine(lowering, gates, added, forget=False)
    else:
        gates.add(candidate if candidate is not None else b, candidate=np.eye(size))
    if candidate is not None:
        state = bounds.of(candidate).hull(bounds.of(inputs["h0"]))
    else:
        # The state, and what is added to it, which can be the larger in a single step.
        state = bounds.of(lowering.node.outputs[0]).hull(bounds.of(b))
    h, last = _lstm(lowering, style, gates, inputs["h0"], state)
    return build.cast(h, lowering.state_dtype, lowering.variant.dtype), last


def _lstm(
    lowering: Lowering, style: Style, pieces: _Pieces, c0: ir.Value, state: Interval
) -> tuple[ir.Value, ir.Value]:
    """The LSTM itself: c [T, B, C] and the last c [B, C]."""
    build, wide = lowering.build, lowering.state_dtype
    dtype = wide if wide == ir.DataType.DOUBLE else lowering.settings.lstm_dtype
    x, gates = _sequence(lowering, pieces, state, dtype)
    k = _choose_scale(lowering, style, gates, state, dtype)
    backward = _BACKWARD[str(lowering.variant["direction"])]
    count = len(backward)
    started = build.split(c0, count) if count > 1 else [c0]
    groups = [[d] for d in range(count)] if style.flipped else [list(range(count))]
    cells = []
    for group in groups:
        names = "bidirectional" if len(group) > 1 else "reverse" if backward[group[0]] else "forward"
        flip = style.flipped and backward[group[0]]
        first = build.op("Concat", [build.op("Unsqueeze", [started[d], build.constant([0])]) for d in group], axis=0)
        first = _scaled(lowering, first, wide, dtype, -k)
        w, r, b, *p = _weights(lowering, style, gates, group, count, k, dtype)
        y = build.op(
            "LSTM",
            [
                build.flip(x) if flip else x,
                *(w, r, b, None),
                # H_{t-1} counts only in the plain embedding: there it is tanh(e * c), at the start too.
                None if style.peephole else build.op("Tanh", [first]),
                first,
                *p,
            ],
            hidden_size=gates.v.size // count,
            direction="forward" if flip else names,
            **_activations(style, len(group)),
        )
        c = _channels_last(build, _scaled(lowering, y, dtype, wide, k), len(group))
        cells.append(build.flip(c) if flip else c)
    c = build.op("Concat", cells, axis=-1) if len(cells) > 1 else cells[0]
    return c, _last(lowering, c)


def _last(lowering: Lowering, c: ir.Value) -> ir.Value:
    """The last state [B, C]: from Y and not from Y_c, which LiteRT 2.3 gets wrong."""
    build, backward = lowering.build, _BACKWARD[str(lowering.variant["direction"])]
    cells = build.split(c, len(backward)) if len(backward) > 1 else [c]
    lasts = []
    for states, back in zip(cells, backward):
        place = build.constant(0 if back else -1)
        lasts.append(build.op("Gather", [states, place], axis=0))
    return build.op("Concat", lasts, axis=-1) if len(lasts) > 1 else lasts[0]


def _channels_last(build: Body, y: ir.Value, directions: int) -> ir.Value:
    """Y [T, D, B, H] as [T, B, D * H].

    Not by Split, Squeeze and Concat, which OpenVINO 2026.4 dies of behind a bidirectional LSTM.
    """
    if directions == 1:
        return build.op("Squeeze", [y, build.constant([1])])
    return build.op("Reshape", [build.op("Transpose", [y], perm=[0, 2, 1, 3]), build.constant([0, 0, -1])])


def _sequence(lowering: Lowering, pieces: _Pieces, state: Interval, dtype: ir.DataType) -> tuple[ir.Value, Gates]:
    """X [T, B, n], and the gates' weights on it."""
    build, gates = lowering.build, pieces.joined()
    values = [_cast(build, value, dtype) for value, _, _ in pieces.pieces]
    if lowering.variant["masked"]:
        kept = build.keep(lowering.inputs["mask"], values[0], "forward")
        zero = build.op("Constant", [], value=ir.tensor(np.zeros((), dtype.numpy())))
        values = [build.op("Where", [kept, value, zero]) for value in values]
        values.append(build.op("Cast", [build.op("Not", [kept])], to=dtype.value))
        gates = masked(gates, state.size, float(np.finfo(dtype.numpy()).max))
    return (build.op("Concat", values, axis=-1) if len(values) > 1 else values[0]), gates


def _weights(
    lowering: Lowering, style: Style, gates: Gates, group: Sequence[int], count: int, k: int, dtype: ir.DataType
) -> list[ir.Value]:
    """W [D, 4H, n], R [D, 4H, H] and B [D, 8H] of a group of directions, and P [D, 3H] where it has peepholes."""
    suffix = "" if len(group) == count else f".{group[0]}"
    each = [weights(gates, d, count, k, recurrent=not style.peephole) for d in group]
    w, r, b = (np.stack(arrays) for arrays in zip(*each))
    found = {"W": w, "R": r, "B": np.concatenate([b, np.zeros_like(b)], axis=1)}
    if style.peephole and gates.v.any():
        found["P"] = np.stack([peepholes(gates, d, count, k) for d in group])
    return [lowering.weight(f"lstm{suffix}.{name}", array, dtype) for name, array in found.items()]


def _activations(style: Style, directions: int) -> dict[str, list]:
    if not style.identity:
        return {}
    return {
        "activations": ["Sigmoid", "LeakyRelu", "LeakyRelu"] * directions,
        "activation_alpha": [1.0, 1.0] * directions,
    }


def _choose_scale(lowering: Lowering, style: Style, gates: Gates, state: Interval, dtype: ir.DataType) -> int:
    """k of e = 2^-k, from the bound on |c|; and what the report says of it."""
    if style.identity:
        lowering.report["scale"] = "none: the embedding is exact"
        return 0
    info = np.finfo(dtype.numpy())
    bound, origin = state.size, _origin(lowering, state)
    if lowering.layer in lowering.settings.measured:
        measured = lowering.settings.measured[lowering.layer]
        if not math.isfinite(bound) or measured > bound:
            bound, origin = measured, "measured on data, times 4"
    if not math.isfinite(bound):
        raise lowering.refuse(
            "no bound on its state can be proven from the weights; give data to measure it on (--data FILE.npz)"
        )
    k = scale_exponent(bound, float(info.eps))
    if gates.v.size and float(np.abs(gates.v).max()) * 2.0**k > float(info.max):
        raise lowering.refuse(
            f"|c| can reach {bound:.3g}, which with this weight_c does not fit {dtype.name.lower()}: "
            "give a narrower range of the inputs, or run the LSTM in float32"
        )
    relative = relative_error(bound, k)
    lowering.report |= {
        "k": k,
        "bound": bound,
        "bound_from": origin,
        "dtype": str(dtype.numpy()),
        # Of each candidate and each reading of the state, relative and absolute.
        "relative_error": relative,
        "absolute_error": relative * bound,
    }
    return k


def _origin(lowering: Lowering, state: Interval) -> str:
    if not state.inputs:
        return "proven from the weights"
    ranges = lowering.settings.ranges
    assumed = sorted(state.inputs - ranges.keys())
    given = sorted(state.inputs & ranges.keys())
    parts = [f"{name} in [{ranges[name][0]:g}, {ranges[name][1]:g}]" for name in given]
    parts += [f"{name} in [{ASSUMED[0]:g}, {ASSUMED[1]:g}], assumed" for name in assumed]
    return f"proven from the weights and {', '.join(parts)}"


def _add_affine(lowering: Lowering, gates: _Pieces, found: Affine, forget: bool) -> None:
    base = found.base
    if found.swapped:
        base = lowering.build.op("Transpose", [base], perm=[1, 0, 2])
        base.dtype = found.base.dtype or lowering.variant.dtype
        for known, _, _ in gates.pieces:
            producer = known.producer()
            if producer is not None and producer.op_type == "Transpose" and producer.inputs[0] is found.base:
                base = known
    if forget:
        gates.add(base, forget=found.weight)
        gates.forget_bias = gates.forget_bias + found.bias
    else:
        gates.add(base, candidate=found.weight)
        gates.candidate_bias = gates.candidate_bias + found.bias


def _logit(lowering: Lowering, a: ir.Value) -> ir.Value:
    """log(a / (1 - a)), finite at 0 and 1."""
    build, wide = lowering.build, lowering.state_dtype
    a = _cast(build, a, wide)
    one, tiny = (build.op("Constant", [], value=ir.tensor(np.array(n, wide.numpy()))) for n in (1.0, _TINY))
    ahead = build.op("Log", [build.op("Max", [a, tiny])])
    z = build.op("Sub", [ahead, build.op("Log", [build.op("Max", [build.op("Sub", [one, a]), tiny])])])
    z.dtype = wide
    return z


def _before(lowering: Lowering, c: ir.Value, c0: ir.Value) -> ir.Value:
    """[T, B, C] of the states one step earlier, in the direction that each channel runs."""
    build, backward = lowering.build, _BACKWARD[str(lowering.variant["direction"])]
    count = len(backward)
    cells, starts = (build.split(value, count) if count > 1 else [value] for value in (c, c0))
    before = []
    for states, start, back in zip(cells, starts, backward):
        if build.length == 1:
            before.append(build.op("Unsqueeze", [start, build.constant([0])]))
        elif back:
            later = build.op("Slice", [states, *(build.constant([n]) for n in (1, 2**31 - 1, 0))])
            before.append(build.op("Concat", [later, build.op("Unsqueeze", [start, build.constant([0])])], axis=0))
        else:
            before.append(build.before(start, states))
    return build.op("Concat", before, axis=-1) if count > 1 else before[0]


def _scaled(lowering: Lowering, value: ir.Value, dtype: ir.DataType, wanted: ir.DataType, k: int) -> ir.Value:
    """``value * 2^k``, in float32 where one of the dtypes is narrower."""
    build, wide = lowering.build, lowering.state_dtype
    value = build.cast(value, dtype, wide)
    if k:
        value = build.op("Mul", [value, build.op("Constant", [], value=ir.tensor(np.array(2.0**k, wide.numpy())))])
    return build.cast(value, wide, wanted)


def _cast(build: Body, value: ir.Value, wanted: ir.DataType) -> ir.Value:
    return value if value.dtype == wanted else build.op("Cast", [value], to=wanted.value)


def _channels(lowering: Lowering) -> int:
    shape = lowering.node.inputs[2].shape if lowering.node.inputs[2] is not None else None
    if shape is None or not isinstance(shape[-1], int):
        raise lowering.refuse("its number of channels is not known")
    return shape[-1]


def _shown(interval: Interval) -> str:
    return f"[{interval.low:.3g}, {interval.high:.3g}]"


def _form(name: str, about: str, style: Style, allowance: float, *features: str) -> Form:
    build: Callable[[Lowering], Sequence[ir.Value]] = lambda lowering: lower(lowering, style)  # noqa: E731
    return Form(name, about, build, allowance, features=("LSTM", *features))


LSTM = _form(
    "lstm", "LSTM without peepholes, with the default activations: any LSTM there is", Style(), 4.0, "LSTM.scaled"
)
LSTM_FORWARD = _form(
    "lstm-forward", "the same with forward LSTMs only, sequences flipped", Style(flipped=True), 4.0, "LSTM.scaled"
)
LSTM_PEEPHOLE = _form(
    "lstm-peephole",
    "LSTM with peepholes and identity activations: exact",
    Style(peephole=True, identity=True),
    1.0,
    "LSTM.peepholes",
    "LSTM.activations",
)
LSTM_PEEPHOLE_TANH = _form(
    "lstm-peephole-tanh",
    "LSTM with peepholes and the default activations",
    Style(peephole=True),
    4.0,
    "LSTM.peepholes",
    "LSTM.scaled",
)
