"""Borrowing the caller's model: known layers replaced, another dtype, eval mode; and everything put back.

Nothing is copied: models with computed tensors, such as weight norm, cannot be, and large ones should not be.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from sruexport.layers import adapt, family_of
from sruexport.layers.packed import padded_packing


@contextmanager
def borrowed(
    model: nn.Module,
    *,
    dtype: torch.dtype | None = None,
    replace: Callable[[nn.Module], nn.Module | None] = adapt,
) -> Iterator[nn.Module]:
    """The model for inference, with its known layers replaced by ours; on leaving it is as it was.

    Args:
        dtype: what all floating parameters, buffers and other tensors of modules are meanwhile; None leaves them.
        replace: gives the module to put in another's place, or None.

    Yields:
        the model itself, or, if it is a known layer, what replaces it.
    """
    with ExitStack() as stack:
        _eval_mode(model, stack)
        root = replace(model) or model
        _replace_below(root, replace, {}, stack)
        _eval_mode(root, stack)
        if dtype is not None:
            _cast(root, dtype, stack)
            # What forward makes itself, such as torch.zeros(B, C), has to fit too.
            stack.callback(torch.set_default_dtype, torch.get_default_dtype())
            torch.set_default_dtype(dtype)
            if dtype == torch.float64:
                stack.enter_context(_Float64())
        for module in root.modules():
            choose = getattr(module, "choose_recurrence", None)
            if callable(choose):
                choose()
        stack.enter_context(torch.no_grad())
        yield root


class _Float64(TorchFunctionMode):
    """Reads an explicit float32 in a model's code as float64."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Iterable[type], args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if func is torch.Tensor.float:
            func = torch.Tensor.double
        args = tuple(torch.float64 if value is torch.float32 else value for value in args)
        named = {name: torch.float64 if value is torch.float32 else value for name, value in (kwargs or {}).items()}
        return func(*args, **named)


@contextmanager
def padded_for_graph() -> Iterator[None]:
    """While a graph is traced: packed sequences stay padded, since a graph has no packed form."""
    with padded_packing():
        yield


def recurrent_layers(model: nn.Module) -> dict[str, nn.Module]:
    """The outermost known layers of a borrowed model by path; {"": model} if it is one itself."""
    found: dict[str, nn.Module] = {}
    for path, module in model.named_modules():
        inside = any(path.startswith(f"{outer}." if outer else "") and outer != path for outer in found)
        if family_of(module) is not None and not inside:
            found[path] = module
    return found


def _replace_below(
    parent: nn.Module,
    replace: Callable[[nn.Module], nn.Module | None],
    seen: dict[int, nn.Module],
    stack: ExitStack,
) -> None:
    seen[id(parent)] = parent
    for name, child in list(parent._modules.items()):
        if child is None:
            continue
        if id(child) in seen:
            replacement = seen[id(child)]
        else:
            replacement = replace(child) or child
            seen[id(child)] = replacement
            _replace_below(replacement, replace, seen, stack)
        if replacement is not child:
            stack.callback(parent._modules.__setitem__, name, child)
            parent._modules[name] = replacement


def _eval_mode(model: nn.Module, stack: ExitStack) -> None:
    for module in model.modules():
        if module.training:
            stack.callback(setattr, module, "training", True)
            module.training = False


def _cast(model: nn.Module, dtype: torch.dtype, stack: ExitStack) -> None:
    seen: set[int] = set()
    # Tensors that are plain attributes too: constants that were not registered, results that eval mode caches.
    plain = [value for module in model.modules() for value in vars(module).values() if isinstance(value, torch.Tensor)]
    for tensor in [*model.parameters(), *model.buffers(), *plain]:
        if tensor.is_floating_point() and tensor.dtype != dtype and id(tensor) not in seen:
            seen.add(id(tensor))
            stack.callback(setattr, tensor, "data", tensor.data)
            tensor.data = tensor.data.to(dtype)
