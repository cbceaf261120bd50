"""What an exported file says of itself, in metadata_props: JSON under keys that begin with "sruexport."."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from sruexport.errors import ModelFileError

PREFIX = "sruexport."


def pack(entries: Mapping[str, Any]) -> dict[str, str]:
    """metadata_props of the entries."""
    return {f"{PREFIX}{key}": json.dumps(value, sort_keys=True) for key, value in entries.items()}


def unpack(props: Mapping[str, str], path: object = "the file") -> dict[str, Any]:
    """The entries in metadata_props; empty if the file is not of sruexport.

    Raises:
        ModelFileError: an entry is not JSON.
    """
    try:
        return {k.removeprefix(PREFIX): json.loads(v) for k, v in props.items() if k.startswith(PREFIX)}
    except json.JSONDecodeError as error:
        raise ModelFileError(f"{path}: its metadata is damaged ({error}); export it again") from None
