"""The errors that sruexport raises: one line each, naming the file, the key or option, and the way out.

All are something that the caller can mend: exit code 2. Numbers that do not agree are no error but a report.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class SruExportError(Exception):
    """Base of every error that sruexport raises on purpose."""

    exit_code = 2


class CheckpointError(SruExportError):
    """A checkpoint file cannot be read, or does not hold what it should."""


class UnsafeCheckpointError(CheckpointError):
    """A pickle asks for a class or function that is not plain model data. Nothing of it was run."""


class OptionsNeeded(CheckpointError):
    """The tensors do not tell some options of a family; they have to be given.

    Attributes:
        options: the names of exactly the options that are missing.
    """

    def __init__(self, message: str, options: list[str]):
        super().__init__(message)
        self.options = options


class OptionError(SruExportError):
    """An option, argument or name is unknown, or does not fit the model or file."""


class ExportError(SruExportError):
    """The model cannot be turned into the ONNX file that was asked for."""


class DynamicAxesError(ExportError):
    """The dims in the file are not the dims that were asked for, or it was not said which are dynamic."""


class OutputError(SruExportError):
    """The output cannot be written. Nothing was left behind."""


class ModelFileError(SruExportError):
    """An ONNX file cannot be read or run, or was not written by sruexport."""


class ConversionError(SruExportError):
    """A model cannot be written in the form that was asked for."""


class EngineError(SruExportError):
    """An engine is not installed, or does not take a file."""


class EngineCrash(EngineError):
    """An engine's process died, or ran past its time limit."""


class InputError(SruExportError):
    """An array given to a model has the wrong name, type, shape or length."""


class ModelWarning(UserWarning):
    """Something in a model that is exported as it is, but that its user should know."""


def closest(name: str, known: Iterable[str]) -> str:
    """A hint such as ``; did you mean 'hidden_size'?``, or an empty string when nothing is near."""
    near = difflib.get_close_matches(name, list(known), n=1, cutoff=0.5)
    return f"; did you mean '{near[0]}'?" if near else ""
