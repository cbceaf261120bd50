"""What all tests share: two threads, and sru's warnings at its import kept out of the reports."""

from __future__ import annotations

import warnings

import torch

torch.set_num_threads(1)

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import sru  # noqa: F401
