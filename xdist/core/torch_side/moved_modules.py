"""Modules that move or change their dtype: parameters stay the same Python objects, with their
ties, optimizers and attributes.

Of one that is on the device already torch sets the data. For others it swaps what the parameter
holds, and refuses where an autograd graph still holds the old tensor, after a forward pass on the
CPU whose result is alive. Such a parameter becomes a new one first, in all modules that share it,
as each does with torch_xla. So do those of scripted modules, which C++ holds.
"""

import functools
import threading
import warnings
from collections.abc import Callable
from typing import Any

import torch

from torch_xdist.core.devices.tensor import XlaTensor, attributes_of
from torch_xdist.releases import patches

_PARAMETERS = (torch.nn.Parameter, XlaTensor)


class _Converting(threading.local):
    """The device on which the tensor was that this thread's `Module._apply` last converted."""

    device: torch.device | None = None


_converting = _Converting()


def _swapping(is_wrapper: Callable[[Any], bool]) -> Callable[[Any], bool]:
    """Makes `Module.to` swap parameters for those on the device, of those that were not there."""

    @functools.wraps(is_wrapper)
    def is_traceable_wrapper_subclass(tensor: Any) -> bool:
        if tensor.__class__ is XlaTensor:
            return tensor.device != _converting.device
        return is_wrapper(tensor)

    return is_traceable_wrapper_subclass


class _Noting:
    """What a module's tensors are converted by, which notes where each was."""

    def __init__(self, convert: Callable[[torch.Tensor], torch.Tensor]) -> None:
        self._convert = convert

    def __call__(self, tensor: torch.Tensor) -> torch.Tensor:
        _converting.device = tensor.device
        return self._convert(tensor)


def _keeping(usual: Callable[..., Any]) -> Callable[..., Any]:
    """`Module._apply` after which parameters have the attributes that users gave them.

    Those of other classes keep what they are made of there.
    """

    @functools.wraps(usual)
    def _apply(self: torch.nn.Module, fn: Any, *args: Any, **kwargs: Any) -> Any:
        if isinstance(self, torch.jit.ScriptModule) and _move_scripted(self, fn, *args, **kwargs):
            return self
        noting = fn if isinstance(fn, _Noting) else _Noting(fn)
        known = {n: p for n, p in self._parameters.items() if p is not None}
        owned = {n: p for n, p in known.items() if type(p) in _PARAMETERS}
        attributes = {name: attributes_of(parameter) for name, parameter in owned.items()}
        result = usual(self, noting, *args, **kwargs)
        for name, had in attributes.items():
            for attribute, value in had.items():
                self._parameters[name].__dict__.setdefault(attribute, value)
        return result

    return _apply


def _move_scripted(
    module: torch.jit.ScriptModule, fn: Callable[..., Any], recurse: bool = True
) -> bool:
    """Give a scripted module new tensors, where those are on the device or were; whether it did.

    torch can neither swap what C++ holds nor, in a module that was loaded, tell parameters.
    """
    owners: list[Any] = [*module.modules()] if recurse else [module]
    known = [t for owner in owners for t in (*owner._parameters.values(), *owner._buffers.values())]
    if XlaTensor not in map(type, known) and not any(type(fn(t)) is XlaTensor for t in known[:1]):
        return False
    # Those that are tied stay so.
    new = {id(t): _renewed(t, fn) for owner in owners for t in owner._parameters.values()}
    for owner in owners:
        for name, parameter in dict(owner._parameters).items():
            owner._parameters[name] = new[id(parameter)]
        for name, buffer in dict(owner._buffers).items():
            owner._buffers[name] = fn(buffer)
    return True


def _freeing(usual: Callable[..., Any]) -> Callable[..., Any]:
    """`Module.to` after which no graph holds a parameter that goes to the device."""

    @functools.wraps(usual)
    def to(self: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
        if _go_to_xla(args, kwargs):
            _free_parameters(self)
        return usual(self, *args, **kwargs)

    return to


def _go_to_xla(args: Any, kwargs: dict[str, Any]) -> bool:
    try:
        device = torch._C._nn._parse_to(*args, **kwargs)[0]
    except (TypeError, RuntimeError):
        return False  # The usual one says what is wrong.
    return device is not None and device.type == "xla"


def _free_parameters(module: torch.nn.Module) -> None:
    new: dict[int, torch.nn.Parameter] = {}
    names = []
    for prefix, owner in module.named_modules():
        if isinstance(owner, torch.jit.ScriptModule):
            continue
        for name, parameter in owner._parameters.items():
            if type(parameter) is not torch.nn.Parameter:
                continue
            if id(parameter) not in new and _is_held(parameter):
                new[id(parameter)] = _renewed(parameter)
                names.append(f"{prefix}.{name}" if prefix else name)
            owner._parameters[name] = new.get(id(parameter), parameter)
    if names:
        more = f" and {len(names) - 3} more" if len(names) > 3 else ""
        warnings.warn(
            f"{type(module).__name__}.to('xla'): an autograd graph on the CPU still holds "
            f"{', '.join(names[:3])}{more}, which become new parameters. An optimizer made before "
            "goes on with the old ones: make it after this line, or run what came before under "
            "torch.no_grad() or let its result go.",
            stacklevel=3,
        )


def _is_held(parameter: torch.nn.Parameter) -> bool:
    """Whether more than its Python object and the node that takes its gradient hold it."""
    if parameter._use_count() != 2 or not parameter.requires_grad:  # type: ignore[attr-defined]
        return parameter._use_count() > 1  # type: ignore[attr-defined, no-any-return]
    edge = torch.autograd.graph.get_gradient_edge(parameter)  # A new one is one more.
    return parameter._use_count() > 2 and edge is not None  # type: ignore[attr-defined]


def _renewed(
    parameter: torch.Tensor, fn: Callable[[torch.Tensor], torch.Tensor] = lambda tensor: tensor
) -> torch.nn.Parameter:
    """Another parameter of what `fn` makes of one and of its gradient, with its attributes."""
    other = torch.nn.Parameter(fn(parameter.detach()), parameter.requires_grad)
    other.grad = None if parameter.grad is None else fn(parameter.grad.detach())
    other.__dict__.update(attributes_of(parameter))
    return other


def register() -> None:
    patches.wrap("torch.nn.modules.module.is_traceable_wrapper_subclass", _swapping)
    patches.wrap("torch.nn.Module._apply", _keeping)
    patches.wrap("torch.nn.Module.to", _freeing)
