"""What a family of layers is, and the table of those that are known.

A family file fills in one `Family`; `layers/__init__.py` has one row for it. The commands, the
checkpoint reader, the exporter and the parity check go through this table and know no family by name.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from sruexport.errors import ExportError, OptionError, OptionsNeeded, closest

Tensors = Mapping[str, torch.Tensor]


@dataclass(frozen=True)
class Option:
    """A constructor option that may have to be given beside the tensors: its name, its type, what it is."""

    name: str
    kind: type
    about: str

    def parse(self, text: str) -> bool | int | float:
        """Read a value as it is typed on the command line.

        Raises:
            OptionError: `text` is not one.
        """
        if self.kind is bool:
            words = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}
            if text.lower() not in words:
                raise OptionError(f"--option {self.name}={text}: write {self.name}=true or {self.name}=false")
            return words[text.lower()]
        if self.kind is float:
            try:
                return float(text)
            except ValueError:
                raise OptionError(f"--option {self.name}={text}: write a number") from None
        if not text.isdecimal():
            raise OptionError(f"--option {self.name}={text}: write a whole number")
        return int(text)

    def fits(self, value: object) -> bool:
        """Whether `value`, from a checkpoint or a caller, is one of this option's."""
        if self.kind is bool:
            return value in (True, False)
        return isinstance(value, (int, float) if self.kind is float else int)

    @property
    def usage(self) -> str:
        return f"--option {self.name}={'true|false' if self.kind is bool else 'X' if self.kind is float else 'N'}"


@dataclass(frozen=True)
class Argument:
    """One argument of a layer's forward, as it is when the layer is exported on its own.

    Attributes:
        shape: from the layer; a text is a dynamic axis ("T" time, "B" batch), a number a fixed one.
        kind: "sequence" (always there), "state" or "mask" (given on demand).
    """

    name: str
    shape: Callable[[Any], tuple[str | int, ...]]
    kind: str


@dataclass(frozen=True)
class Family:
    """One family of recurrent layers.

    Attributes:
        name: short and lower case, as it stands in the metadata.
        title: the name in prose, with the versions that are read.
        recurrences: op_types that its layers may emit.
        modules: our own classes, which hold the family's state_dict keys.
        constructors: third-party classes ("package.module.Class", every home they had) and what adapts an
            object of them or of a subclass, live or unpickled; it is called with the object and the class named here.
            The adapted module shares the parameters. None: keep this one, its children are looked at instead.
        prefixes: where the family's layers are among dotted tensor names: "" or texts that end in ".".
        read: builds the layer from the tensors below one prefix and the known options; raises `OptionsNeeded`.
        options: every option that `read` understands.
        required: options that mark a dict as the layer's constructor arguments.
        describe: the options of one of our modules, for the metadata.
        arguments: what forward takes, in order, over all of the family's modules (see `arguments_of`).
        outputs: names of what a layer on its own returns, in order.
        stand_ins: what code that imports a third-party package gets where that is not installed: by module, the names
            in it, of classes with the same constructors.
        keys: typical names of its tensors, to say which family an unknown checkpoint is nearest to.
    """

    name: str
    title: str
    recurrences: tuple[str, ...]
    modules: tuple[type[torch.nn.Module], ...]
    constructors: Mapping[str, Callable[[Any, type], torch.nn.Module | None]]
    prefixes: Callable[[Iterable[str]], list[str]]
    read: Callable[[Tensors, Mapping[str, Any]], torch.nn.Module]
    options: tuple[Option, ...]
    required: tuple[str, ...]
    describe: Callable[[Any], dict[str, Any]]
    arguments: tuple[Argument, ...]
    outputs: tuple[str, ...]
    keys: tuple[str, ...]
    stand_ins: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def option(self, name: str) -> Option:
        """The option of that name.

        Raises:
            OptionError: the family has none such.
        """
        names = [option.name for option in self.options]
        if name not in names:
            raise OptionError(
                f"family {self.name} has no option '{name}'{closest(name, names)} (it has {', '.join(names) or 'none'})"
            )
        return self.options[names.index(name)]

    def arguments_of(self, module: torch.nn.Module) -> tuple[Argument, ...]:
        """Those of `arguments` that this module's forward takes; modules of one family may name theirs differently."""
        taken = inspect.signature(module.forward).parameters
        return tuple(argument for argument in self.arguments if argument.name in taken)

    def missing(self, names: Sequence[str]) -> OptionsNeeded:
        """The error for options that neither the tensors nor the caller tell."""
        usages = ", ".join(f"{self.option(name).usage} ({self.option(name).about})" for name in names)
        return OptionsNeeded(
            f"the tensors of family {self.name} do not tell {', '.join(names)}: give {usages}", list(names)
        )


_HOOKED = "a layer of class {} has a forward hook, which the file would lose: remove it first"


def third_party_name(cls: type) -> str:
    return f"{cls.__module__}.{cls.__qualname__}"


def settle_hooks(module: torch.nn.Module) -> None:
    """Make ready a third-party layer that is about to be replaced: what its hooks do must not be lost.

    The hooks of torch.nn.utils, such as weight norm's, only compute weights; they are run.

    Raises:
        ExportError: it has other forward hooks, which its replacement would not run.
    """
    for hook in module._forward_pre_hooks.values():
        if not type(hook).__module__.startswith("torch.nn.utils"):
            raise ExportError(_HOOKED.format(type(module).__name__))
        hook(module, ())
    if module._forward_hooks:
        raise ExportError(_HOOKED.format(type(module).__name__))


def settle(module: torch.nn.Module, base: type, methods: Iterable[str] = ("forward",)) -> None:
    """Make ready a third-party layer of the known class `base`, or of a subclass, whose replacement runs only our code.

    Raises:
        ExportError: a subclass has one of `methods` of its own, or there are hooks: the replacement would lose either.
    """
    own = overridden(module, base, methods)
    if own:
        raise ExportError(
            f"class {third_party_name(type(module))} overrides {', '.join(sorted(own))} of {base.__name__}: its "
            "equation is not known; let a module of your own hold the layer and do the rest"
        )
    settle_hooks(module)


def known_base(module: torch.nn.Module, names: Iterable[str]) -> type:
    """The nearest class of a module that is one of `names` ("package.module.Class").

    Raises:
        ExportError: none is.
    """
    known = set(names)
    for base in type(module).__mro__:
        if third_party_name(base) in known:
            return base
    raise ExportError(f"a layer holds a {third_party_name(type(module))}, whose equation is not known")


def overridden(module: torch.nn.Module, base: type, methods: Iterable[str]) -> set[str]:
    """Which of `methods` a subclass of the known class `base` has of its own."""
    ahead = type(module).__mro__[: type(module).__mro__.index(base)]
    return {name for cls in ahead for name in vars(cls) if name in set(methods)}
