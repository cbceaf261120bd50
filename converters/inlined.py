"""The form `inlined`: every recurrence replaced by its function body, so that only standard ops are left.

For engines that take neither functions nor custom ops, but take Scan.
"""

from __future__ import annotations

import onnx_ir as ir
import onnx_ir.passes.common as passes

from sruexport.recurrences import DOMAIN


def inline(model: ir.Model) -> ir.Model:
    """Inline the functions of a model that `sruexport.export` wrote.

    Args:
        model: left as it is.

    Returns:
        a model with the same inputs, outputs and metadata, without functions and without domain `sruexport`.

    Example:
        >>> onnx_ir.save(inline(onnx_ir.load("model.onnx")), "plain.onnx")
    """
    copy = ir.serde.deserialize_model(ir.serde.serialize_model(model))
    passes.InlinePass()(copy)
    passes.RemoveUnusedNodesPass()(copy)
    copy.opset_imports.pop(DOMAIN, None)
    return copy
