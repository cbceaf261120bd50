"""From a checkpoint file to a module.

contents.py   a file taken apart: state_dicts, settings, pickled modules
unpickler.py  pickles as data; code is refused
layers.py     which known layers are in it, and the module of one of them
"""

from __future__ import annotations

from .contents import Contents, open_checkpoint
from .layers import Found, build, find_layers, read

__all__ = ["Contents", "Found", "build", "find_layers", "open_checkpoint", "read"]
