"""The numbers of an LSTM that carries a recurrence: its weights, and the scale of its state.

    W[i,o,f,c] = [-W_f ; 0 ; W_f ; e*W_u]     bias = [-b_f ; open ; b_f ; e*b_u]     R or P = [-v/e ; 0 ; v/e ; 0]
    i = 1 - f, since sigmoid(-z) = 1 - sigmoid(z);  o = sigmoid(open) = 1, so Y = h(C);  c_t = Y_t / e

e = 2^-k costs no bits. What tanh takes of c, (e*c)^2 / 3 of it, is kept under a quarter of an epsilon by k.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

#: sigmoid(40) rounds to 1 in float64, float32 and float16; sigmoid(-40) is 4e-18.
OPEN = 40.0
#: What shuts a gate at padding: finite in float16, since engines may compute a float32 graph in that, and infinity
#: times the 0 of a step that is no padding would be NaN. Where v * c can be larger, so is it.
SHUT = 1e4
_SHUT_FOR_ANY_STATE = 1e30
#: ONNX's order of the gates in W, R and B, and PyTorch's.
ONNX_ORDER: Sequence[str] = ("i", "o", "f", "c")
TORCH_ORDER: Sequence[str] = ("i", "f", "c", "o")


@dataclass(frozen=True)
class Gates:
    """What the forget gate and the candidate are made of, over the channels C of all directions.

    Attributes:
        forget, candidate: [n, C], their weights on X [T, B, n].
        forget_bias, candidate_bias: [C].
        v: [C], what c_{t-1} weighs in the forget gate.
        tied: whether the input gate is 1 - f; else it is 1.
    """

    forget: np.ndarray
    candidate: np.ndarray
    forget_bias: np.ndarray
    candidate_bias: np.ndarray
    v: np.ndarray
    tied: bool


def scale_exponent(bound: float, eps: float) -> int:
    """k for states up to `bound` in a dtype of this epsilon."""
    return max(0, math.ceil(math.log2(max(bound, 1e-30) * math.sqrt(4 / (3 * eps)))))


def relative_error(bound: float, k: int) -> float:
    """How much of a state up to `bound` tanh takes at most."""
    return (bound * 2.0**-k) ** 2 / 3


def weights(
    gates: Gates, direction: int, directions: int, k: int, order: Sequence[str] = ONNX_ORDER, recurrent: bool = True
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """W [4H, n], R [4H, H] and the bias [4H] of one direction.

    Args:
        recurrent: whether v goes into R; else R is zero, and v is for peepholes.
    """
    hidden = gates.v.size // directions
    own = slice(direction * hidden, (direction + 1) * hidden)
    forget, nothing, scale = gates.forget[:, own], np.zeros_like(gates.forget[:, own]), 2.0**-k
    rows = {"i": -forget if gates.tied else nothing, "o": nothing, "f": forget, "c": scale * gates.candidate[:, own]}
    biases = {
        "i": -gates.forget_bias[own] if gates.tied else np.full(hidden, OPEN),
        "o": np.full(hidden, OPEN),
        "f": gates.forget_bias[own],
        "c": scale * gates.candidate_bias[own],
    }
    diagonal = np.diag(gates.v[own] / scale) if recurrent else np.zeros((hidden, hidden))
    closing = {"i": -diagonal, "f": diagonal}
    return (
        np.concatenate([rows[gate].T for gate in order]),
        np.concatenate([closing.get(gate, np.zeros_like(diagonal)) for gate in order]),
        np.concatenate([biases[gate] for gate in order]),
    )


def peepholes(gates: Gates, direction: int, directions: int, k: int) -> np.ndarray:
    """P [3H] of one direction, in ONNX's order i, o, f."""
    hidden = gates.v.size // directions
    v = gates.v[direction * hidden : (direction + 1) * hidden] * 2.0**k
    return np.concatenate([-v, np.zeros_like(v), v])


def largest_state(k: int, eps: float) -> float:
    """The bound that `scale_exponent` gives this k for."""
    return 2.0**k * math.sqrt(3 * eps / 4)


def masked(gates: Gates, state: float, largest: float = math.inf) -> Gates:
    """With one more channel of X: 1 at padding, where it opens f and closes i.

    Args:
        state: a bound on |c|; infinite where there is none.
        largest: the largest number of the LSTM's dtype.
    """
    channels = gates.v.size
    reach = float(np.abs(gates.v).max(initial=0.0)) * state if gates.v.any() else 0.0
    others = float(np.abs(gates.forget_bias).max(initial=0.0))
    shut = max(SHUT, 2 * (reach + others)) if math.isfinite(reach) else _SHUT_FOR_ANY_STATE
    return Gates(
        np.concatenate([gates.forget, np.full((1, channels), min(shut, largest / 2))]),
        np.concatenate([gates.candidate, np.zeros((1, channels))]),
        gates.forget_bias,
        gates.candidate_bias,
        gates.v,
        gates.tied,
    )
