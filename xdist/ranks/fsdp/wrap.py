"""Which submodules become units of FSDP: wrap policies; and how a module is readied for it."""

import functools
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

Policy = Callable[..., bool]


def always_wrap_policy(*args: Any, **kwargs: Any) -> bool:
    """Every submodule becomes a unit."""
    return True


def lambda_auto_wrap_policy(
    module: nn.Module, recurse: bool, unwrapped_params: int, lambda_fn: Callable[[nn.Module], bool]
) -> bool:
    """A submodule becomes a unit where `lambda_fn(submodule)` says so."""
    return recurse or bool(lambda_fn(module))


def transformer_auto_wrap_policy(
    module: nn.Module,
    recurse: bool,
    unwrapped_params: int,
    transformer_layer_cls: Iterable[type[nn.Module]],
) -> bool:
    """Each instance of these classes becomes a unit."""
    return recurse or isinstance(module, tuple(transformer_layer_cls))


def size_based_auto_wrap_policy(
    module: nn.Module,
    recurse: bool,
    unwrapped_params: int,
    min_num_params: int = int(1e8),
    force_leaf_modules: set[type[nn.Module]] | None = None,
    exclude_wrap_modules: set[type[nn.Module]] | None = None,
) -> bool:
    """A submodule becomes a unit when that many of its parameters are in no unit yet.

    Args:
        force_leaf_modules: classes whose children stay with them; nn.MultiheadAttention.
        exclude_wrap_modules: classes that never become units; nn.ModuleList and nn.ModuleDict.
    """
    leaves = _LEAVES if force_leaf_modules is None else force_leaf_modules
    excluded = _EXCLUDED if exclude_wrap_modules is None else exclude_wrap_modules
    stopped = leaves if recurse else excluded
    return unwrapped_params >= min_num_params and not isinstance(module, tuple(stopped))


_LEAVES: set[type[nn.Module]] = {nn.MultiheadAttention}
_EXCLUDED: set[type[nn.Module]] = {nn.ModuleList, nn.ModuleDict}
# Scripts read and extend these.
size_based_auto_wrap_policy.FORCE_LEAF_MODULES = _LEAVES  # type: ignore[attr-defined]
size_based_auto_wrap_policy.EXCLUDE_WRAP_MODULES = _EXCLUDED  # type: ignore[attr-defined]


def recursive_wrap(
    module: nn.Module,
    auto_wrap_policy: Policy,
    wrapper_cls: Callable[..., nn.Module],
    ignored_modules: Iterable[nn.Module] = (),
    ignored_params: Iterable[nn.Parameter] = (),
    only_wrap_children: bool = False,
    **kwargs: Any,
) -> tuple[nn.Module, int]:
    """Wrap the submodules the policy chooses, innermost first.

    Args:
        auto_wrap_policy: called as policy(module=, recurse=, unwrapped_params=).
        wrapper_cls: called as wrapper_cls(submodule, **kwargs).
        only_wrap_children: leave `module` itself alone.

    Returns the module, wrapped or not, and how many parameters are in units now.
    """
    left_out, unseen = list(ignored_modules), set(ignored_params)
    count = sum(p.numel() for p in module.parameters() if p not in unseen)
    if not auto_wrap_policy(module=module, recurse=True, unwrapped_params=count):
        return module, 0
    wrapped_count = 0
    for name, child in module.named_children():
        if any(child is other for other in left_out):
            continue
        wrapped, number = recursive_wrap(
            child, auto_wrap_policy, wrapper_cls, left_out, unseen, **kwargs
        )
        setattr(module, name, wrapped)
        wrapped_count += number
    rest = count - wrapped_count
    if only_wrap_children or not auto_wrap_policy(
        module=module, recurse=False, unwrapped_params=rest
    ):
        return module, wrapped_count
    overrides = getattr(module, "_wrap_overrides", {})
    return wrapper_cls(module, **{**kwargs, **overrides}), count


def checkpoint_module(module: nn.Module) -> nn.Module:
    """Drop the module's activations after its forward pass; the backward pass makes them again.

    Wrap the result with FSDP: `XlaFullyShardedDataParallel(checkpoint_module(block))`.
    """
    if not isinstance(module, nn.Module):
        raise TypeError(
            f"checkpoint_module: {type(module).__name__} is not a module; give it an nn.Module"
        )
    module.forward = functools.partial(_checkpointed, module.forward)  # type: ignore[method-assign]
    return module


def _checkpointed(forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    if not torch.is_grad_enabled():
        return forward(*args, **kwargs)
    return checkpoint(forward, *args, use_reentrant=False, **kwargs)


def materialize(
    module: nn.Module,
    param_init_fn: Callable[[nn.Module], None] | None,
    is_done: Callable[[nn.Module], bool],
) -> None:
    """Give parameters on the meta device memory and values.

    Args:
        param_init_fn: called for each module that has some; else its `reset_parameters()`.
        is_done: for submodules to leave alone.
    """
    for part in [m for m in module.modules() if not is_done(m)]:
        values = [*part._parameters.values(), *part._buffers.values()]
        if not any(value is not None and value.is_meta for value in values):
            continue
        if param_init_fn is not None:
            param_init_fn(part)
            continue
        reset = getattr(part, "reset_parameters", None)
        if reset is None:
            raise TypeError(
                f"FSDP: {type(part).__name__} has parameters on the meta device and no "
                "reset_parameters(); give XlaFullyShardedDataParallel a param_init_fn"
            )
        part.to_empty(device="cpu", recurse=False)
        with torch.no_grad():
            reset()
