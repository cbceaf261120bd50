"""Gives the recurrence nodes of a graph their function bodies."""

from __future__ import annotations

import onnx_ir as ir

from sruexport.recurrences import DOMAIN, RECURRENCES
from sruexport.recurrences.base import Variant
from sruexport.recurrences.body import function


def recurrence_nodes(model: ir.Model) -> list[ir.Node]:
    return [node for node in model.graph.all_nodes() if node.domain == DOMAIN and node.op_type in RECURRENCES]


def attach_functions(model: ir.Model) -> list[str]:
    """Add one function body per variant of each recurrence, stamped with the model's opset.

    Where a file has several variants of one op, such as a bidirectional encoder and a decoder, they are told apart by
    the overload name. Kernels and plugins go by the op's name alone and do not see it.

    Returns:
        the op_types used, sorted.
    """
    variants: dict[str, dict[Variant, list[ir.Node]]] = {}
    for node in recurrence_nodes(model):
        variant = RECURRENCES[node.op_type].variant(node)
        variants.setdefault(node.op_type, {}).setdefault(variant, []).append(node)
    for op_type, by_variant in variants.items():
        for variant, nodes in by_variant.items():
            overload = variant.overload if len(by_variant) > 1 else ""
            added = function(RECURRENCES[op_type], variant, model.opset_imports[""], overload)
            model.functions[added.identifier()] = added
            for node in nodes:
                node.overload = overload
    return sorted(variants)
