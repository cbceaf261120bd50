"""Objects of the `sru` package, live or unpickled, as ours.

`sru` itself is never imported: it compiles C++ when it is. Its objects are known by the names of their classes and read
by their attributes, over the versions 2.0 to 3.0.0-dev.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from sruexport.errors import ExportError

from .family import overridden, settle_hooks, third_party_name
from .sru import SRU, SRUCell

HOMES = ("sru", "sru.modules", "sru.sru_functional", "sru.cuda_functional")
_CELL_NAMES = frozenset(f"{home}.SRUCell" for home in HOMES)


def adapt_cell(theirs: Any, base: type) -> nn.Module:
    """Our SRUCell with the parameters and the options of an `sru.SRUCell`.

    A subclass that has a forward of its own keeps it: only the recurrence underneath is replaced.

    Raises:
        ExportError: the subclass replaces the recurrence itself, or the activation is ReLU or SeLU (gone since 2.1.9).
    """
    settle_hooks(theirs)
    own = overridden(theirs, base, ("forward", "apply_recurrence", "compute_UV", "compute_U", "compute_gates"))
    if "apply_recurrence" in own or (own and not hasattr(base, "apply_recurrence")):
        raise ExportError(
            f"class {third_party_name(type(theirs))} overrides {', '.join(sorted(own))} of {base.__name__}: "
            "its equation is not known; write it as a recurrence (see CONTRIBUTING.md)"
        )
    if int(getattr(theirs, "activation_type", 0)) > 1:
        raise ExportError("an SRU with ReLU or SeLU activation: sru itself has dropped them in 2.1.9")
    with torch.device("meta"):
        cell = SRUCell(
            getattr(theirs, "input_size", None) or theirs.n_in,
            getattr(theirs, "hidden_size", None) or theirs.n_out,
            bidirectional=theirs.bidirectional,
            use_tanh=bool(theirs.activation_type),
            has_skip_term=theirs.has_skip_term,
            rescale=getattr(theirs, "rescale", True),
            v1=getattr(theirs, "v1", False),
            normalize_after=getattr(theirs, "normalize_after", False),
        )
    cell.num_matrices = getattr(theirs, "num_matrices", None) or theirs.k
    cell.projection_size = getattr(theirs, "projection_size", 0) or getattr(theirs, "n_proj", 0)
    cell.layer_norm = getattr(theirs, "layer_norm", None) or None
    cell.custom_m = getattr(theirs, "custom_m", None)
    product = _plain_product(getattr(theirs, "transform_module", None))
    if product is None:
        cell.custom_m = getattr(theirs, "transform_module", cell.custom_m)
    names = ["weight_c", "bias", "scale_x"]
    if cell.custom_m is None:
        owned = [] if product else ["weight", "weight_proj"]
        names += [name for name in owned if getattr(theirs, name, None) is not None]
    else:
        del cell.weight
    for name in names:
        _share(cell, name, getattr(theirs, name))
    for name, matrix in (product or {}).items():
        _share(cell, name, matrix.t())
    if getattr(theirs, "weight_norm", False) and hasattr(theirs, "gain"):
        _share(cell, "weight", theirs.gain * theirs.weight / theirs.weight.norm(2, 0))
    return _keep_forward(theirs, cell) if own else cell


def adapt_stack(theirs: Any, base: type) -> nn.Module | None:
    """Our SRU with the cells of an `sru.SRU`; None for a subclass with a forward of its own, which keeps it."""
    if overridden(theirs, base, ("forward",)):
        return None
    settle_hooks(theirs)
    cells = [adapt_layer_by_name(cell) for cell in theirs.rnn_lst]
    first = cells[0]
    with torch.device("meta"):
        stack = SRU(
            getattr(theirs, "input_size", None) or theirs.n_in,
            getattr(theirs, "hidden_size", None) or theirs.n_out,
            num_layers=0,
            bidirectional=theirs.bidirectional,
            layer_norm=getattr(theirs, "use_layer_norm", False),
            has_skip_term=theirs.has_skip_term,
            nn_rnn_compatible_return=getattr(theirs, "nn_rnn_compatible_return", False),
        )
    for norm, cell in zip(getattr(theirs, "ln_lst", ()), cells):
        cell.normalize_after = True
        cell.layer_norm = biased_norm(norm.a, norm.b, norm.eps) if hasattr(norm, "a") else norm
    stack.input_to_hidden = getattr(theirs, "input_to_hidden", None)
    stack.rnn_lst = nn.ModuleList(cells)
    stack.num_layers = len(cells)
    stack.projection_size = first.projection_size if isinstance(first, SRUCell) else 0
    return stack


def adapt_layer_by_name(cell: Any) -> Any:
    """A cell of a stack, which may be of ours already, of the package, or of a subclass."""
    for base in type(cell).__mro__:
        if third_party_name(base) in _CELL_NAMES:
            return adapt_cell(cell, base)
    return cell


def _plain_product(transform: nn.Module | None) -> dict[str, Tensor] | None:
    """The matrices of a 3.0.0-dev transform_module that is one Linear, or two in a row; None if it is anything else."""
    linears = list(transform) if type(transform) is nn.Sequential else [transform]
    if not all(type(linear) is nn.Linear and linear.bias is None for linear in linears) or len(linears) > 2:
        return None
    matrices = [linear.weight for linear in linears if isinstance(linear, nn.Linear)]
    return dict(zip(["weight"] if len(matrices) == 1 else ["weight_proj", "weight"], matrices, strict=True))


def _share(cell: nn.Module, name: str, tensor: Tensor) -> None:
    """Give `cell` the very tensor, as the parameter it is or, if it is computed (a parametrization), as a buffer."""
    cell._parameters.pop(name, None)
    cell._buffers.pop(name, None)
    cell.__dict__.pop(name, None)
    if isinstance(tensor, nn.Parameter):
        cell.register_parameter(name, tensor)
    else:
        cell.register_buffer(name, tensor.detach())


def _keep_forward(theirs: Any, cell: SRUCell) -> nn.Module:
    """A shallow copy of a subclass's object that runs its own forward over our recurrence."""
    clone: Any = object.__new__(type(theirs))
    clone.__dict__ = dict(theirs.__dict__)
    for table in ("_parameters", "_buffers", "_modules"):
        clone.__dict__[table] = dict(theirs.__dict__[table])

    def apply_recurrence(u, v, residual, c0, scale_val, mask_c, mask_pad):  # type: ignore[no-untyped-def]
        x = residual if residual.dim() == 3 else residual.unsqueeze(0)
        gates, projected = cell.planar_gates(u, x)
        custom = cell.planar_v(v, x) if v.dim() > 1 else None
        h, c = cell.run(gates, projected, custom, x, c0, scale_val, mask_pad)
        return h, c.to(x.dtype)

    clone.__dict__["apply_recurrence"] = apply_recurrence
    return clone


def biased_norm(a: Tensor, b: Tensor, eps: float) -> nn.Module:
    n = a.numel()
    if n == 1:
        return nn.Identity()
    norm = nn.LayerNorm(n, eps=eps * (n - 1) / n, dtype=a.dtype)
    norm.weight.data = a.detach() * ((n - 1) / n) ** 0.5
    norm.bias.data = b.detach()
    return norm
