"""Changes to a model as a whole, before its recurrences are written anew: sizes fixed, the opset raised."""

from __future__ import annotations

from collections.abc import Mapping

import onnx
import onnx_ir as ir

from sruexport.errors import ConversionError, OptionError, closest
from sruexport.metadata import pack, unpack


def fix_sizes(model: ir.Model, sizes: Mapping[str, int]) -> ir.Model:
    """Give dynamic dims of the inputs a size, everywhere.

    Args:
        model: left as it is.
        sizes: by the dim's name: ``{"T": 50, "B": 1}``.

    Raises:
        OptionError: no input has such a dim, or the size is no positive number.
    """
    proto = ir.serde.serialize_model(model)
    dims = [dim for value in proto.graph.input for dim in value.type.tensor_type.shape.dim]
    names = list(dict.fromkeys(dim.dim_param for dim in dims if dim.dim_param))
    for name, size in sizes.items():
        if name not in names:
            raise OptionError(
                f"size '{name}': no input has this dynamic dim{closest(name, names)} "
                f"({'they are ' + ', '.join(names) if names else 'all are static'})"
            )
        if size < 1:
            raise OptionError(f"size {name}={size}: give 1 or more")
    for dim in dims:
        if dim.dim_param in sizes:
            dim.dim_value = sizes[dim.dim_param]
    for value in proto.graph.output:
        for dim in value.type.tensor_type.shape.dim:
            if dim.dim_param in sizes:
                dim.dim_value = sizes[dim.dim_param]
            elif dim.dim_param and dim.dim_param not in names:
                dim.ClearField("value")  # an expression of dims: it is inferred anew
    del proto.graph.value_info[:]
    fixed = ir.serde.deserialize_model(onnx.shape_inference.infer_shapes(proto, data_prop=True))
    metadata = unpack(fixed.metadata_props)
    if metadata:
        dynamic = {
            name: {axis: dim for axis, dim in axes.items() if dim not in sizes}
            for name, axes in metadata.get("dynamic", {}).items()
        }
        states = [
            state | {"shape": [sizes.get(dim, dim) for dim in state["shape"]]} for state in metadata.get("states", [])
        ]
        time = None if metadata.get("time") in sizes else metadata.get("time")
        fixed.metadata_props.update(pack({"dynamic": dynamic, "states": states, "time": time, "sizes": dict(sizes)}))
    return fixed


def raise_opset(model: ir.Model, opset: int) -> ir.Model:
    """The model in a newer opset; the functions of its recurrences are left out.

    Raises:
        ConversionError: onnx has no way there for one of its ops.
    """
    proto = ir.serde.serialize_model(model)
    nodes = {node.output[0]: list(node.metadata_props) for node in proto.graph.node if node.output}
    del proto.functions[:]
    try:
        raised = onnx.version_converter.convert_version(proto, opset)
    except Exception as error:
        raise ConversionError(f"onnx cannot raise its opset to {opset}: {str(error).splitlines()[0]}") from error
    del raised.metadata_props[:]
    raised.metadata_props.extend(proto.metadata_props)
    raised.ir_version = max(raised.ir_version, proto.ir_version)
    for node in raised.graph.node:
        if node.output and not node.metadata_props:
            node.metadata_props.extend(nodes.get(node.output[0], []))
    found = ir.serde.deserialize_model(raised)
    if unpack(found.metadata_props):
        found.metadata_props.update(pack({"opset": opset}))
    return found
