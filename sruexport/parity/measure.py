"""The rule: an engine is right when it is no farther from float64 than PyTorch's own rounding explains.

    e = |engine - f64|,  p = |PyTorch - f64|,  scale = max |f64|
    passed when  max e <= max(8 * max p, floor * scale),  floor = 1e-6 for float32

PyTorch runs in the file's dtype. The floor is in proportion to that dtype's epsilon: about 8 epsilons for each.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

FACTOR = 8.0
_FLOAT32_FLOOR = 1e-6
#: PyTorch so far from float64 (in floors) is no rounding: the layer was read wrongly, or the model amplifies noise.
_UNEXPLAINED = 1000.0


def floor(dtype: str) -> float:
    """The relative error that is always allowed, for a file of `dtype`."""
    return _FLOAT32_FLOOR * torch.finfo(getattr(torch, dtype)).eps / torch.finfo(torch.float32).eps


@dataclass(frozen=True)
class Errors:
    """One output in one case.

    Attributes:
        engine_max, engine_mean, engine_p99: of |engine - f64|; infinite where the shapes, or the places of NaN
            and infinity, are not the same.
        pytorch_max: of |PyTorch - f64|.
        scale: max |f64|.
        bound: what engine_max may be.
        reason: why it failed, if not by its numbers alone.
        not_finite: how many values are NaN or infinite in float64 itself, and in the engine alike.
    """

    engine_max: float
    engine_mean: float
    engine_p99: float
    pytorch_max: float
    scale: float
    bound: float
    reason: str = ""
    not_finite: int = 0

    @property
    def passed(self) -> bool:
        return not self.reason and self.engine_max <= self.bound

    @property
    def ratio(self) -> float:
        """How much of the bound is used: above 1 it failed."""
        if self.reason:
            return np.inf
        return self.engine_max / self.bound if self.bound else (np.inf if self.engine_max else 0.0)


def compare(
    engine: np.ndarray,
    pytorch: np.ndarray,
    exact: np.ndarray,
    dtype: str,
    allowance: float = 1.0,
    whose: str = "PyTorch",
) -> Errors:
    """Judge one output: the engine's and PyTorch's arrays against float64's.

    Args:
        allowance: what the bound is multiplied with, for a form of the recurrence that costs accuracy.
        whose: what to call that which `pytorch` and `exact` are of.
    """
    engine, pytorch, exact = (np.asarray(array, dtype=np.float64) for array in (engine, pytorch, exact))
    if engine.shape != exact.shape:
        reason = f"the engine gives shape {list(engine.shape)}, {whose} {list(exact.shape)}"
        return failure(reason)
    if exact.size == 0:
        return Errors(0.0, 0.0, 0.0, 0.0, 0.0, 0.0)
    finite = np.isfinite(exact)
    scale = float(np.abs(exact[finite]).max(initial=0.0))
    e, p = distance(engine, exact), distance(pytorch, exact)
    bound = allowance * max(FACTOR * float(p.max()), floor(dtype) * scale)
    reason = ""
    if not np.isfinite(e).all() and np.isfinite(p).all():
        reason = f"the engine has NaN or infinity where {whose} has none, or the other way around"
    elif p.max() > _UNEXPLAINED * floor(dtype) * max(scale, np.finfo(np.float32).tiny):
        reason = f"{whose} itself is farther from float64 than rounding explains"
    # A quantile that is one of the values: between infinities there is nothing to interpolate.
    p99 = float(np.sort(e, axis=None)[-(-99 * (e.size - 1) // 100)])
    return Errors(float(e.max()), float(e.mean()), p99, float(p.max()), scale, bound, reason, int((~finite).sum()))


def failure(reason: str) -> Errors:
    """An output that the engine did not give at all."""
    return Errors(np.inf, np.inf, np.inf, 0.0, 0.0, 0.0, reason)


def distance(values: np.ndarray, exact: np.ndarray) -> np.ndarray:
    """|values - exact|; 0 where both are the same NaN or infinity, infinite where only one is."""
    with np.errstate(invalid="ignore"):
        difference = np.abs(values - exact)
    same = (np.isnan(values) & np.isnan(exact)) | (values == exact)
    return np.where(np.isfinite(exact) & np.isfinite(values), difference, np.where(same, 0.0, np.inf))
