"""The families of layers that are known: one row each. Nothing else in the package knows a family by name."""

from __future__ import annotations

from torch import nn

from . import mingru, qrnn, sru_sources, srupp
from .family import Family, third_party_name
from .sru import SRU, SRUCell
from .srupp import SRUpp, SRUppCell

FAMILIES: dict[str, Family] = {
    family.name: family for family in (sru_sources.FAMILY, srupp.FAMILY, mingru.FAMILY, qrnn.FAMILY)
}


def family_of(module: nn.Module) -> Family | None:
    """The family whose own class `module` is of, or of the nearest class above."""
    for base in type(module).__mro__:
        for family in FAMILIES.values():
            if base in family.modules:
                return family
    return None


def adapt(module: nn.Module) -> nn.Module | None:
    """Our module in place of a third-party layer, sharing its parameters; None where there is nothing to replace."""
    for base in type(module).__mro__:
        for family in FAMILIES.values():
            adapter = family.constructors.get(third_party_name(base))
            if adapter is not None:
                return adapter(module, base)
    return None


__all__ = ["FAMILIES", "SRU", "Family", "SRUCell", "SRUpp", "SRUppCell", "adapt", "family_of"]
