"""A pickle read as data: tensors, plain containers, torch.nn modules and known layer classes. All else is refused."""

from __future__ import annotations

import importlib
import pickle
import sys
from types import SimpleNamespace
from typing import Any

from torch import nn

from sruexport.errors import UnsafeCheckpointError
from sruexport.layers import FAMILIES

_BUILTINS = {"set", "frozenset", "dict", "list", "tuple", "int", "float", "bool", "str", "bytes", "slice"}
#: Names that build plain data and run nothing else.
_PLAIN = {
    "torch._utils": {"_rebuild_tensor", "_rebuild_tensor_v2", "_rebuild_parameter"},
    "torch": {
        *("Size", "device", "dtype", "Tensor", "float16", "bfloat16", "float32", "float64", "half", "float", "double"),
        *("int8", "int16", "int32", "int64", "uint8", "bool", "complex64"),
    },
    "torch.nn.parameter": {"Parameter", "Buffer"},
    "torch.serialization": {"_get_layout"},
    "collections": {"OrderedDict", "defaultdict", "Counter"},
    "builtins": _BUILTINS,
    "__builtin__": _BUILTINS,  # what protocol 2, torch's own, calls it
    "argparse": {"Namespace"},
    "numpy": {"dtype", "ndarray"},
    "numpy.core.multiarray": {"scalar", "_reconstruct"},
    "numpy._core.multiarray": {"scalar", "_reconstruct"},
    "_codecs": {"encode"},
}  # fmt: skip


class Unpickler(pickle.Unpickler):
    """Finds only what `_PLAIN` names, modules of torch.nn and of ours, and stand-ins for known third-party layers."""

    def find_class(self, module: str, name: str) -> Any:
        if name in _PLAIN.get(module, ()):
            return getattr(importlib.import_module(_PYTHON_2.get(module, module)), name)
        if module.startswith(("torch.nn.modules.", "sruexport.layers.")):
            found = getattr(sys.modules.get(module), name, None)
            if isinstance(found, type) and issubclass(found, nn.Module):
                return found
        if any(f"{module}.{name}" in family.constructors for family in FAMILIES.values()):
            return _placeholder(module, name)
        raise UnsafeCheckpointError(
            f"the pickle asks for {module}.{name}, which is code and no model data: nothing was run. "
            "Save the weights alone, torch.save(model.state_dict(), FILE), and give the code with "
            "--model package.module:factory"
        )


_PYTHON_2 = {"__builtin__": "builtins"}


def _placeholder(module: str, name: str) -> type[nn.Module]:
    """A stand-in class for a third-party layer: it takes the attributes and runs nothing."""
    return type(name, (nn.Module,), {"__module__": module, "__qualname__": name})


#: For torch.load(pickle_module=...).
RESTRICTED = SimpleNamespace(
    Unpickler=Unpickler,
    load=lambda file, **keywords: Unpickler(file, **keywords).load(),
    __name__="sruexport.checkpoint.unpickler",
)
