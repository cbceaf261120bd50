"""Keeps what PyTorch's exporter and onnxscript say to themselves off the user's terminal."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

from torch.export import _trace

from sruexport.errors import ModelWarning

_TALKERS = ("torch.onnx", "torch.export", "torch.fx", "onnxscript", "onnx_ir")


@contextmanager
def quiet() -> Iterator[None]:
    """They warn of much that their caller's user cannot mend. Errors, and our own warnings, still come through."""
    loggers = [logging.getLogger(name) for name in _TALKERS]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL)
    try:
        # torch.export prints the graph so far when it fails on a value.
        with mock.patch.object(_trace, "print", _nothing, create=True), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            warnings.simplefilter("always", ModelWarning)
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


def _nothing(*words: Any, **options: Any) -> None:
    pass
