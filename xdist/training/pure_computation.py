"""`assume_pure_torch`: the forward pass of a function as one computation, lowered once."""

import functools
from collections.abc import Callable, Sequence
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch.utils import _pytree as pytree

from torch_xdist.builder import hlo_modules
from torch_xdist.builder.lowering_context import LoweringContext
from torch_xdist.builder.placeholders import create_placeholder_tensor
from torch_xdist.builder.user_computation import user_computation
from torch_xdist.core.devices.tensor import XlaTensor
from torch_xdist.errors import ImpureError

# By the function: its computation, the form of its result, which input each parameter is, and what
# the other parameters are.
_XLA_COMPUTATION_CACHE: WeakKeyDictionary[Any, tuple[Any, Any, dict[int, int], dict[int, Any]]]
_XLA_COMPUTATION_CACHE = WeakKeyDictionary()


def make_fake_inputs(input: Any) -> Any:
    """A placeholder like a tensor; anything else as it is."""
    if not isinstance(input, torch.Tensor):
        return input
    placeholder = create_placeholder_tensor(input.shape, input.dtype)
    return placeholder.requires_grad_(input.requires_grad)


def prepare_computation_inputs(
    fn_ctx: LoweringContext, flat_fake_inputs: Sequence[Any], flat_inputs: Sequence[Any]
) -> tuple[list[Any], dict[int, Any], dict[int, int]]:
    """What a lowered function's parameters are.

    Returns the tensors in the order of the parameters; those that are none of the inputs, by
    parameter; and the place among the inputs of the others, by parameter.
    """
    hoisted: dict[int, Any] = dict(fn_ctx.device_parameter_id_tensor_mapping())
    place_of: dict[int, int] = {}
    for place, fake in enumerate(flat_fake_inputs):
        number = fn_ctx.tensor_parameter_id(fake) if isinstance(fake, XlaTensor) else -1
        if number != -1:
            place_of[number] = place
            del hoisted[number]
    return _inputs(flat_inputs, hoisted, place_of), hoisted, place_of


def _inputs(
    flat_inputs: Sequence[Any], hoisted: dict[int, Any], place_of: dict[int, int]
) -> list[Any]:
    found = {**hoisted, **{number: flat_inputs[place] for number, place in place_of.items()}}
    return [found[number] for number in sorted(found)]


def assume_pure_torch(func: Callable[..., Any], use_cache: bool = False) -> Callable[..., Any]:
    """A function whose graph is lowered and then recorded as one row; without gradients.

    Args:
        func: takes and returns nests of device tensors.
        use_cache: lower it once, whatever it is called with afterwards, so give it tensors of the
            same shapes and dtypes at every call.

    Raises ImpureError while gradients are recorded.
    """
    if torch.is_grad_enabled():
        raise ImpureError(
            f"assume_pure_torch: {func.__name__} is made pure while gradients are recorded, which"
            " it has none of; do it under torch.no_grad(), or use assume_pure"
        )

    @functools.wraps(func)
    def inner(*args: Any, **kwargs: Any) -> Any:
        flat_inputs, spec = pytree.tree_flatten((args, kwargs))
        name = f"xla::xb_computation_{func.__name__}"
        held = _XLA_COMPUTATION_CACHE.get(func) if use_cache else None
        if held is None:
            held = _lowered(func, name, flat_inputs, spec)
            if use_cache:
                _XLA_COMPUTATION_CACHE[func] = held
        computation, form, place_of, hoisted = held
        inputs = _inputs(flat_inputs, hoisted, place_of)
        return pytree.tree_unflatten(user_computation(name, inputs, computation), form)

    return inner


def _lowered(func: Callable[..., Any], name: str, flat_inputs: Sequence[Any], spec: Any) -> Any:
    fakes = [make_fake_inputs(value) for value in flat_inputs]
    args, kwargs = pytree.tree_unflatten(fakes, spec)
    results, form = pytree.tree_flatten(func(*args, **kwargs))
    context = LoweringContext("FnComputation")
    context.build(results)
    computation = hlo_modules.from_proto(name, context.hlo())
    _, hoisted, place_of = prepare_computation_inputs(context, fakes, flat_inputs)
    return computation, form, place_of, hoisted
