"""Functions without side effects, traced once: each call of them is one row.

What Python and torch do between the operators of a layer, autograd included, is done at the first
call with such arguments; later ones record one row for the forward pass and one for the backward.
"""

import functools
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree

from torch_xdist.core.devices.tensor import XlaTensor
from torch_xdist.core.jax_side.joint import record_joint
from torch_xdist.core.trace import global_state
from torch_xdist.errors import ArgumentError, ImpureError
from torch_xdist.torch_xla_compat.jax_calls import KEPT, call_jax, hold
from torch_xdist.training.pure_rows import PureRows


class PureFunction:
    """A function that is traced once per form of its arguments.

    Attributes:
        _cache: one entry per forward and per backward pass that was traced; the oldest go.
    """

    def __init__(self, function: Callable[..., Any], is_seeded: bool) -> None:
        self.function = function
        self.name = getattr(function, "__name__", type(function).__name__)
        self.is_seeded = is_seeded
        self._cache: dict[Hashable, Any] = {}

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        seed = self._seed(kwargs)
        leaves, spec = pytree.tree_flatten((args, kwargs))
        tensors = [leaf for leaf in leaves if leaf.__class__ is XlaTensor]
        self._check(leaves, tensors)
        plain = tuple(_plain(leaf) for leaf in leaves)
        key = spec, plain, _global_state(), tuple(map(_form, tensors))
        rows = self._cache.get((key, "forward"))
        if rows is None:
            rows = self._cache[key, "forward"] = self._traced(leaves, spec, tensors)
            hold(("assume_pure", id(self)), self)
            # A plain argument may be another one at every call.
            while len(self._cache) > KEPT:
                self._cache.pop(next(iter(self._cache)), None)
        backward = (key, "backward")
        results = rows(tensors, seed, lambda: self._cache.setdefault(backward, rows))
        filled = iter(results)
        nest = [next(filled) if is_tensor else leaf for is_tensor, leaf in rows.results]
        return pytree.tree_unflatten(nest, rows.spec)

    def _seed(self, kwargs: dict[str, Any]) -> Any:
        if not self.is_seeded:
            return None
        seed = kwargs.pop("rng_seed", None)
        if seed is None:
            raise ArgumentError(
                f"assume_pure: {self.name} draws random numbers from a seed. Missing keyword"
                " argument rng_seed: give an int, another one for other numbers"
            )
        return seed

    def _check(self, leaves: Sequence[Any], tensors: Sequence[Any]) -> None:
        """Raise ArgumentError for tensors elsewhere, or where there are none."""
        elsewhere = [x for x in leaves if isinstance(x, torch.Tensor) and not _is_ours(x)]
        if elsewhere or not tensors:
            found = f"a tensor on {elsewhere[0].device}" if elsewhere else "no tensor"
            raise ArgumentError(
                f"assume_pure: {self.name} is called with {found}; give it tensors of one xla"
                " device, at least one, and plain values"
            )

    def _traced(self, leaves: Sequence[Any], spec: Any, tensors: Sequence[XlaTensor]) -> PureRows:
        places = [i for i, leaf in enumerate(leaves) if _is_ours(leaf)]
        constants = [None if _is_ours(leaf) else leaf for leaf in leaves]
        said: list[Any] = []
        is_grad_enabled = torch.is_grad_enabled()

        def flat(*inputs: XlaTensor) -> list[XlaTensor]:
            filled = list(constants)
            for place, tensor in zip(places, inputs):
                filled[place] = tensor
            args, kwargs = pytree.tree_unflatten(filled, spec)
            with torch.set_grad_enabled(is_grad_enabled):
                results, form = pytree.tree_flatten(self.function(*args, **kwargs))
            said.extend([form, [(_is_ours(x), None if _is_ours(x) else x) for x in results]])
            return [x for x in results if _is_ours(x)]

        needs = [t.requires_grad and is_grad_enabled for t in tensors]
        joint = record_joint(f"assume_pure({self.name})", flat, tensors, needs)
        if joint.written:
            raise ImpureError(
                f"assume_pure: {self.name} writes to {len(joint.written)} tensor(s) from outside,"
                " which a pure function does not; return the new values instead"
            )
        return PureRows(self.name, joint, said[0], said[1], tensors[0].device)


def _is_ours(leaf: Any) -> bool:
    return leaf.__class__ is XlaTensor


def _plain(leaf: Any) -> Hashable:
    """2, 2.0 and True are equal, but torch promotes by their types."""
    return None if _is_ours(leaf) else (type(leaf), leaf)


def _form(tensor: XlaTensor) -> Hashable:
    return tensor.shape, tensor.dtype, tensor.requires_grad, tensor.device


def _global_state() -> Hashable:
    is_cast = torch.is_autocast_enabled("xla") and torch.get_autocast_dtype("xla")
    return (
        torch.is_grad_enabled(),
        is_cast,
        global_state.of_plan(),
        global_state.of_program(),
    )


def assume_pure(
    fn: Callable[..., Any], *, add_rng_seed_argument: bool = False
) -> Callable[..., Any]:
    """A function that is traced once for each form of its arguments, gradients included.

    Args:
        fn: takes and returns nests of device tensors and plain values. What it computes must
            follow from its arguments alone, and it must not write to anything. What it reads from
            outside, such as a module's parameters, is read at every call, with gradients.
        add_rng_seed_argument: the function draws random numbers; calls take `rng_seed=`, an int or
            a tensor. Without it the numbers are those of the first call.

    Raises ImpureError at the first call where `fn` writes to a tensor from outside.
    """
    pure = PureFunction(fn, add_rng_seed_argument)

    def call(*args: Any, **kwargs: Any) -> Any:
        return pure(*args, **kwargs)

    return functools.update_wrapper(call, fn) if hasattr(fn, "__name__") else call


class PureModule(torch.nn.Module):
    """A module whose forward pass is traced once: `assume_pure` of its parameters and arguments.

    What the module writes to its buffers, such as running statistics, is lost.
    """

    def __init__(self, module: torch.nn.Module) -> None:
        super().__init__()
        self._module = module
        self._pure_forward = assume_pure(functools.partial(_pure_forward, module))

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        params = dict(self._module.named_parameters())
        buffers = dict(self._module.named_buffers())
        return self._pure_forward(params, buffers, args, kwargs)


def _pure_forward(
    module: torch.nn.Module, params: Any, buffers: Any, args: Any, kwargs: Any
) -> Any:
    return torch.func.functional_call(module, (params, buffers), args, kwargs)


def j2t_autograd(fn: Callable[..., Any]) -> Callable[..., Any]:
    """A JAX function as a function of device tensors, with gradients by `jax.vjp`."""

    @functools.wraps(fn)
    def call(*args: Any, **kwargs: Any) -> Any:
        return call_jax(fn, args, kwargs)

    return call
