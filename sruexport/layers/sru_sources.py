"""The family of SRU, and its layers from state_dicts of every layout: `sru` 2.0 to 2.6, 3.0.0-dev, the code of 2017."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from sruexport.errors import CheckpointError, closest

from .family import Argument, Family, Option, Tensors
from .sru import SRU, SRUCell
from .sru_adapter import HOMES, adapt_cell, adapt_stack, biased_norm

STACK_KEY = re.compile(r"^((?:.*\.)?)rnn_lst\.(\d+)\.(.+)$")
_LAYER_NORM_2_0_EPS = 1e-6  # sru 2.0, sru_functional.py


def prefixes(names: Iterable[str]) -> list[str]:
    """Where SRU stacks and single cells are among tensor names (SRU++ is another family's)."""
    names = set(names)
    stacks: dict[str, bool] = {}
    for name in names:
        if match := STACK_KEY.match(name):
            prefix, _, rest = match.groups()
            stacks.setdefault(prefix, False)
            stacks[prefix] |= rest.startswith("transform_module.linear1.")
    cells = {
        name.removesuffix("weight_c")
        for name in names
        if name.endswith("weight_c") and f"{name.removesuffix('weight_c')}bias" in names and not STACK_KEY.match(name)
    }
    return sorted([prefix for prefix, other in stacks.items() if not other] + list(cells))


def read(tensors: Tensors, options: Mapping[str, Any]) -> nn.Module:
    """Build SRU or SRUCell from a state_dict of sru 2.0 to 2.6, 3.0.0-dev, or the code of 2017.

    Args:
        tensors: by key, relative to the layer.
        options: constructor options that are known. With input_size and hidden_size among them they are taken
            as all of the constructor's arguments, so that what is left out has its default.

    Raises:
        OptionsNeeded: the tensors do not tell an option. Exactly those are listed.
        CheckpointError: a key is missing, unknown, or has a shape that does not fit.
    """
    stacked = any(STACK_KEY.match(name) for name in tensors)
    cells = _cells(tensors) if stacked else [dict(tensors)]
    weights = [_normal_cell(cell, f"rnn_lst.{i}." if stacked else "") for i, cell in enumerate(cells)]
    for key, with_it in (("weight_c", {"weight_c", "scale_x"}), ("scale_x", {"scale_x"})):  # the code of 2017 has none
        for i, cell in enumerate(cells):
            if key not in cell and any(with_it & other.keys() for other in cells):
                raise CheckpointError(f"key {f'rnn_lst.{i}.' if stacked else ''}{key} is missing")
    told = _told(weights)
    if stacked and "input_to_hidden.weight" in tensors:
        shape = list(tensors["input_to_hidden.weight"].shape)
        if len(shape) != 2 or shape[0] != told["output_size"]:
            raise CheckpointError(
                f"key input_to_hidden.weight has shape {shape}, expected [{told['output_size']}, input_size]"
            )
        told["proj_input_to_hidden_first"] = True
        told["input_size"] = shape[1]
    for name, value in told.items():
        if name in options and options[name] != value and name not in ("rescale", "v1"):
            raise CheckpointError(f"option {name}={options[name]} contradicts the tensors, which say {name}={value}")
    known = {**told, **options}
    complete = {"input_size", "hidden_size"} <= options.keys()
    asked = ["bidirectional", "use_tanh", "has_skip_term"]
    if any("layer_norm.weight" in cell for cell in weights):
        asked.append("normalize_after")
    missing = [name for name in asked if name not in known]
    if missing and not complete:
        raise FAMILY.missing(missing)
    known["num_layers"] = len(weights)
    known["projection_size"] = known["n_proj"] = 0
    known["hidden_size"] = told["output_size"] // (2 if known.get("bidirectional", False) else 1)
    if options.get("hidden_size", known["hidden_size"]) != known["hidden_size"]:
        raise CheckpointError(
            f"option hidden_size={options['hidden_size']} contradicts the tensors, which say {known['hidden_size']}"
        )
    cls = SRU if stacked else SRUCell
    names = inspect.signature(cls).parameters
    module = cls(**{name: value for name, value in known.items() if name in names})
    for made, held in zip(module.rnn_lst if isinstance(module, SRU) else [module], weights):
        if "weight_proj" in held:
            _project(made, held["weight_proj"].shape[1])
    flat = {f"rnn_lst.{i}.{key}" if stacked else key: t for i, cell in enumerate(weights) for key, t in cell.items()}
    if "input_to_hidden.weight" in tensors:
        flat["input_to_hidden.weight"] = tensors["input_to_hidden.weight"]
    load_checked(module, flat)
    if isinstance(module, SRU):
        first: Any = module.rnn_lst[0]
        module.projection_size = first.projection_size
        for i, made in enumerate(module.rnn_lst):
            _convert_2_0_norm(tensors, f"ln_lst.{i}.", made)
    return module


def _cells(tensors: Tensors) -> list[dict[str, Tensor]]:
    """The tensors of each layer of a stack, with the LayerNorm that 2.0 keeps beside the layers."""
    found: dict[int, dict[str, Tensor]] = {}
    others = {}
    for name, tensor in tensors.items():
        if match := re.match(r"^rnn_lst\.(\d+)\.(.+)$", name):
            found.setdefault(int(match[1]), {})[match[2]] = tensor
        elif match := re.match(r"^ln_lst\.(\d+)\.(a|b|weight|bias)$", name):
            key = {"a": "weight", "b": "bias"}.get(match[2], match[2])
            found.setdefault(int(match[1]), {})[f"post_norm.{key}"] = tensor
        elif name != "input_to_hidden.weight":
            others[name] = tensor
    if others:
        raise CheckpointError(f"key {min(others)} is none of an SRU stack's")
    if sorted(found) != list(range(len(found))):
        raise CheckpointError(f"layers {sorted(found)} of rnn_lst: some are missing in between")
    return [found[i] for i in range(len(found))]


def _normal_cell(cell: dict[str, Tensor], where: str) -> dict[str, Tensor]:
    """Rename and transpose the tensors of one layer to the keys of 2.6, from whatever version they are."""
    cell = dict(cell)
    custom = next((key for key in cell if key.startswith("custom_m.")), None)
    if custom:
        raise CheckpointError(
            f"key {where}{custom}: a custom_m is code that a state_dict does not hold; give the model with --model"
        )
    for old, new in (
        ("transform_module.weight", "weight"),
        ("transform_module.0.weight", "weight_proj"),
        ("transform_module.1.weight", "weight"),
    ):
        if old in cell:
            if cell[old].dim() != 2:
                raise CheckpointError(f"key {where}{old} has shape {list(cell[old].shape)}, expected a matrix")
            cell[new] = cell.pop(old).t().contiguous()
    for key in ("weight", "bias"):
        if key not in cell:
            raise CheckpointError(f"key {where}{key} is missing{closest(key, cell)}")
    if "weight_proj" in cell and cell["weight_proj"].dim() != 2:
        raise CheckpointError(f"key {where}weight_proj has shape {list(cell['weight_proj'].shape)}, expected a matrix")
    if cell["bias"].dim() != 1 or cell["bias"].numel() % 2 or cell["weight"].dim() != 2:
        raise CheckpointError(
            f"key {where}weight has shape {list(cell['weight'].shape)} and {where}bias {list(cell['bias'].shape)}: "
            "not those of an SRU layer"
        )
    if "gain" in cell:  # weight normalization of 2.0
        if cell["gain"].shape != cell["weight"].shape[1:]:
            raise CheckpointError(
                f"key {where}gain has shape {list(cell['gain'].shape)}, expected {list(cell['weight'].shape[1:])}"
            )
        cell["weight"] = cell.pop("gain") * cell["weight"] / cell["weight"].norm(2, 0)
    cell.setdefault("weight_c", torch.zeros_like(cell["bias"]))
    cell.setdefault("scale_x", torch.ones(1))
    if cell["scale_x"].numel() == 1:
        cell["scale_x"] = cell["scale_x"].reshape(1)
    size = cell["bias"].numel() // 2
    if cell["weight"].shape[1] not in (3 * size, 4 * size):
        raise CheckpointError(
            f"key {where}weight has shape {list(cell['weight'].shape)}: "
            f"with a bias of {2 * size} it needs {3 * size} or {4 * size} columns"
        )
    for key in ("weight", "bias"):
        if f"post_norm.{key}" in cell:
            cell[f"layer_norm.{key}"] = cell.pop(f"post_norm.{key}")
            cell.setdefault("post", torch.ones(()))
    return cell


def _told(weights: list[dict[str, Tensor]]) -> dict[str, Any]:
    """The options that the tensors tell."""
    size = weights[0]["bias"].numel() // 2
    told: dict[str, Any] = {
        "output_size": size,
        "layer_norm": "layer_norm.weight" in weights[0],
        "rescale": any(bool((cell["scale_x"] != 1).any()) for cell in weights),
        "v1": not any(bool(cell["weight_c"].any()) for cell in weights),
    }
    if size % 2:
        told["bidirectional"] = False
    for i, cell in enumerate(weights):
        rows = cell.get("weight_proj", cell["weight"]).shape[0]
        if i == 0:
            told["input_size"] = rows
        elif rows != size:
            key = "weight_proj" if "weight_proj" in cell else "weight"
            raise CheckpointError(
                f"key rnn_lst.{i}.{key} has shape {list(cell[key].shape)}, expected {[size, cell[key].shape[1]]}: "
                "a row for each output of the layer before"
            )
        if cell["weight"].shape[1] == 4 * size:
            told["has_skip_term"] = True
        elif rows != size:
            told["has_skip_term"] = False
        if cell.pop("post", None) is not None:
            told["normalize_after"] = True
        elif rows != size and "layer_norm.weight" in cell:
            told["normalize_after"] = cell["layer_norm.weight"].numel() == size
    return told


def _project(cell: Any, size: int) -> None:
    """Make room for a product of two matrices; 3.0.0-dev has one of its own size in any layer, however wide."""
    cell.projection_size = size
    cell.weight_proj = nn.Parameter(torch.empty(cell.input_size, size))
    cell.weight = nn.Parameter(torch.empty(size, cell.weight.shape[1]))


def load_checked(module: nn.Module, tensors: Tensors) -> None:
    """Load with the keys and shapes checked, into tensors of the checkpoint's own dtype."""
    expected = module.state_dict()
    for key in sorted(expected.keys() | tensors.keys()):
        if key not in tensors:
            raise CheckpointError(f"key {key} is missing{closest(key, tensors)}")
        if key not in expected:
            raise CheckpointError(f"key {key} is not one of this layer's: do the options fit the checkpoint?")
        if expected[key].shape != tensors[key].shape:
            raise CheckpointError(
                f"key {key} has shape {list(tensors[key].shape)}, expected {list(expected[key].shape)}"
            )
    module.load_state_dict({key: tensor.detach() for key, tensor in tensors.items()}, assign=True)


def _convert_2_0_norm(tensors: Tensors, prefix: str, cell: nn.Module) -> None:
    """The LayerNorm of 2.0 divides by the unbiased deviation: a LayerNorm with scaled weight and epsilon.

    a * (x - mean) / sqrt(var * n/(n-1) + eps)  =  (a * sqrt((n-1)/n)) * (x - mean) / sqrt(var + eps * (n-1)/n)
    """
    if f"{prefix}a" in tensors:
        cell.layer_norm = biased_norm(tensors[f"{prefix}a"], tensors[f"{prefix}b"], _LAYER_NORM_2_0_EPS)


def describe(module: SRU | SRUCell) -> dict[str, Any]:
    """The options that decide what the layer computes."""
    cell: Any = module.rnn_lst[0] if isinstance(module, SRU) else module
    options: dict[str, Any] = {"input_size": module.input_size, "hidden_size": module.hidden_size}
    if isinstance(module, SRU):
        options |= {
            "num_layers": module.num_layers,
            "nn_rnn_compatible_return": module.nn_rnn_compatible_return,
            "proj_input_to_hidden_first": module.input_to_hidden is not None,
        }
    return options | {
        "bidirectional": module.bidirectional,
        "projection_size": cell.projection_size,
        "use_tanh": bool(cell.activation_type),
        "has_skip_term": cell.has_skip_term,
        "layer_norm": cell.layer_norm is not None,
        "normalize_after": cell.normalize_after,
        "rescale": cell.rescale,
        "v1": not cell.weight_c.detach().any().item(),
        "custom_m": type(cell.custom_m).__name__ if cell.custom_m is not None else None,
    }


def _state_shape(module: SRU | SRUCell) -> tuple[str | int, ...]:
    layers = (module.num_layers,) if isinstance(module, SRU) else ()
    return (*layers, "B", module.output_size)


FAMILY = Family(
    name="sru",
    title="SRU (`sru` 2.0 to 2.6 and 3.0.0-dev)",
    recurrences=("SRURecurrence", "LinearRecurrence"),
    modules=(SRU, SRUCell),
    constructors={
        **{f"{home}.SRUCell": adapt_cell for home in HOMES},
        **{f"{home}.SRU": adapt_stack for home in HOMES},
        "sru.sru_functional.LayerNorm": lambda norm, base: biased_norm(norm.a, norm.b, norm.eps),
    },
    prefixes=prefixes,
    read=read,
    options=(
        Option("bidirectional", bool, "does it run in both directions?"),
        Option("use_tanh", bool, "tanh on the state, or identity?"),
        Option("has_skip_term", bool, "is there a highway connection?"),
        Option("normalize_after", bool, "is LayerNorm on the layer's output, or on its input?"),
        Option("nn_rnn_compatible_return", bool, "c as [layers * directions, B, hidden]?"),
        Option("rescale", bool, "is scale_x applied to the highway connection?"),
    ),
    required=("input_size", "hidden_size"),
    describe=describe,
    arguments=(
        Argument("input", lambda m: ("T", "B", m.input_size), "sequence"),
        Argument("c0", _state_shape, "state"),
        Argument("mask_pad", lambda m: ("T", "B"), "mask"),
    ),
    outputs=("h", "c"),
    stand_ins={
        "sru": {"SRU": SRU, "SRUCell": SRUCell, "__version__": "2.6.0"},
        "sru.modules": {"SRU": SRU, "SRUCell": SRUCell},
    },
    keys=("rnn_lst.0.weight", "rnn_lst.0.weight_c", "rnn_lst.0.bias", "rnn_lst.0.scale_x"),
)
