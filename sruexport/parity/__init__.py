"""Parity: does the file compute what PyTorch computes?

validate.py    the way through all cases
cases.py       which inputs are tried
reference.py   the model in PyTorch, in float64 and in the file's dtype
measure.py     the rule
locate.py      the first layer that departs
report.py      what was found
"""

from __future__ import annotations

from .measure import Errors
from .report import CaseResult, Report
from .validate import validate

__all__ = ["CaseResult", "Errors", "Report", "validate"]
