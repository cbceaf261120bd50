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

from sruexport.errors import ExportError
from sruexport.layers import adapt, family_of


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
        _restore_afterwards(model, stack)
        _eval_mode(model, stack)
        root = _replacement(model, replace) or model
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


def unwrapped(model: nn.Module) -> nn.Module:
    """The model inside torch.nn.DataParallel or torch.compile, whose forward says nothing of its arguments."""
    while True:
        inside = model.module if isinstance(model, nn.DataParallel) else getattr(model, "_orig_mod", None)
        if not isinstance(inside, nn.Module):
            return model
        model = inside


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
            replacement = _replacement(child, replace) or child
            seen[id(child)] = replacement
            _replace_below(replacement, replace, seen, stack)
        if replacement is not child:
            stack.callback(parent._modules.__setitem__, name, child)
            parent._modules[name] = replacement


def _replacement(module: nn.Module, replace: Callable[[nn.Module], nn.Module | None]) -> nn.Module | None:
    """What `replace` gives for a module, made an instance of the module's class too, since models ask `isinstance`.

    Raises:
        ExportError: the module has a forward of its own as an attribute, which its replacement would not run.
    """
    replacement = replace(module)
    if replacement is None or replacement is module:
        return None
    if "forward" in vars(module):
        raise ExportError(
            f"a layer of class {type(module).__name__} has had its forward replaced, which the file would lose: "
            "put what it does into a module around the layer"
        )
    own = type(replacement)
    if not isinstance(replacement, type(module)):
        # By inheritance, not by a `__class__` that lies: torch.export derives proxies of modules from `__class__`.
        replacement.__class__ = type(own.__name__, (own, type(module)), {"__module__": own.__module__})
    return replacement


def attributes(model: nn.Module) -> dict[nn.Module, dict[str, Any]]:
    """What the modules of a model hold as plain attributes."""
    return {
        module: {name: value for name, value in vars(module).items() if not name.startswith("_") and name != "training"}
        for module in model.modules()
    }


@contextmanager
def holding(kept: Mapping[nn.Module, Mapping[str, Any]]) -> Iterator[None]:
    """Meanwhile modules hold these plain attributes."""
    with ExitStack() as stack:
        for module, values in kept.items():
            stack.callback(_restore_attributes, module, dict(vars(module)), dict(module._buffers))
            vars(module).update(values)
        yield


def _restore_afterwards(model: nn.Module, stack: ExitStack) -> None:
    """See that what forward keeps on its modules (`self.hidden = c`), and what it writes into buffers, goes again.

    Else one run would start from the state that the one before it left.
    """
    seen: set[int] = set()
    for module in model.modules():
        if isinstance(module, torch.jit.ScriptModule):
            continue
        stack.callback(_restore_attributes, module, dict(vars(module)), dict(module._buffers))
        for buffer in module._buffers.values():
            if buffer is not None and id(buffer) not in seen and not buffer.is_inference():
                seen.add(id(buffer))
                stack.callback(_restore_values, buffer, buffer.detach().clone(), buffer._version)


def _restore_attributes(module: nn.Module, attributes: dict[str, Any], buffers: dict[str, Any]) -> None:
    held = vars(module)
    for name in held.keys() - attributes.keys():
        del held[name]
    held.update(attributes)
    module._buffers.clear()
    module._buffers.update(buffers)


def _restore_values(tensor: torch.Tensor, values: torch.Tensor, version: int) -> None:
    if tensor._version != version:
        with torch.no_grad():
            tensor.copy_(values)


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
