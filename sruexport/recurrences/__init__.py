"""The recurrences: one file each, one custom ONNX op each. This table is all that the rest of the package knows."""

from __future__ import annotations

from .base import DOMAIN, DOMAIN_VERSION, Recurrence, graph_tracing, is_tracing, state_type
from .linear import LINEAR_RECURRENCE
from .sru import SRU_RECURRENCE

RECURRENCES: dict[str, Recurrence] = {r.op_type: r for r in (SRU_RECURRENCE, LINEAR_RECURRENCE)}

__all__ = [
    "DOMAIN",
    "DOMAIN_VERSION",
    "LINEAR_RECURRENCE",
    "RECURRENCES",
    "SRU_RECURRENCE",
    "Recurrence",
    "graph_tracing",
    "is_tracing",
    "state_type",
]
