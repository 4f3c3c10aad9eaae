"""What the parameters of FSDP mean: checks, defaults, and the small decisions they lead to."""

import warnings
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from torch_xdist import world
from torch_xdist.collectives.errors import ArgumentError
from torch_xdist.collectives.groups import checked, equal_sized, group_of
from torch_xdist.ranks.fsdp.shards import Members

Groups = Sequence[Sequence[int]] | None
# In-place operators are functional here, whatever torch_xla's variable of that name says.
XLA_DISABLE_FUNCTIONALIZATION = False
FLOAT_DTYPES = [torch.float32, torch.float16, torch.bfloat16]
# Accepted, and without effect here: what they work around does not exist.
_NO_EFFECT = {
    "_use_xla_patched_linear": True,
    "_debug_dummy_forward_pass": False,
    "_debug_msg": "xla_fsdp",
    "_debug_print": False,
    "_debug_dummy_all_gather_op": False,
    "_debug_dummy_all_reduce_op": False,
    "_debug_dummy_reduce_scatter_op": False,
    "_debug_dummy_optimization_barrier_op": False,
}


def check_dtypes(**dtypes: torch.dtype | None) -> None:
    for name, dtype in dtypes.items():
        if dtype is not None and dtype not in FLOAT_DTYPES:
            raise ValueError(f"FSDP: {name} must be one of {FLOAT_DTYPES}, not {dtype}")


def tell_no_effect(options: dict[str, Any]) -> None:
    for name, value in options.items():
        if value != _NO_EFFECT[name]:
            warnings.warn(f"FSDP: {name}={value!r} has no effect here", stacklevel=3)


def members_of(groups: Groups, rank: int | None, size: int | None) -> Members:
    found = checked(groups, world.world_size(), of="FSDP")
    count = equal_sized(found, world.world_size(), of="FSDP")
    member = group_of(world.rank(), found, world.world_size()).index(world.rank())
    for name, given, is_ in (
        ("sharding_rank", rank, member),
        ("sharding_world_size", size, count),
    ):
        if given is not None and given != is_:
            raise ArgumentError(
                f"FSDP: {name} is {given}, and by its groups rank {world.rank()} has {is_}; "
                "leave it out, or correct sharding_groups"
            )
    return Members(count, member, found)


def predivide_factor(count: int) -> float:
    """About the root of `count`: 16-bit gradients overflow neither before nor in the sum."""
    factor = 1
    while count % factor == 0 and count / factor > factor:
        factor *= 2
    return float(factor)


def groups_to_join(parameters: Sequence[nn.Parameter]) -> list[list[nn.Parameter]]:
    groups: dict[Any, list[nn.Parameter]] = {}
    for parameter in sorted(parameters, key=lambda p: not p.requires_grad):
        groups.setdefault((parameter.requires_grad, parameter.dtype), []).append(parameter)
    return list(groups.values())


def sum_of(one: torch.Tensor | None, other: torch.Tensor | None) -> torch.Tensor | None:
    return other if one is None else one if other is None else one + other


def is_unit(module: nn.Module) -> bool:
    """Whether a module is wrapped by FSDP."""
    return hasattr(type(module), "get_shard_metadata")


def units_of(module: nn.Module) -> list[Any]:
    """The units at and below a module."""
    return [m for m in module.modules() if is_unit(m)]


def check_module(module: nn.Module) -> None:
    if is_unit(module):
        raise RuntimeError(
            "FSDP: the module is a unit of FSDP already; wrap inner modules before outer ones, "
            "each once"
        )
    if getattr(module.forward, "__func__", None) is nn.Module.forward:
        raise RuntimeError(
            f"FSDP: {type(module).__name__} has no forward(), in which its parameters would be "
            "gathered; wrap its children instead"
        )


def check_has_no_units(module: nn.Module) -> None:
    for name, part in module.named_modules():
        if is_unit(part):
            raise ValueError(
                f"FSDP: {name} is a unit of FSDP already; use auto_wrap_policy on modules "
                "without units"
            )
