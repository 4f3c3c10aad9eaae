"""Autograd functions of nests: torch's own see no tensors inside of them."""

from typing import Any

import torch
from torch.utils import _pytree as pytree

from torch_xdist.errors import ArgumentError


def pytreeify(cls: Any) -> Any:
    """Let a `torch.autograd.Function` take and return nests of tensors.

    Its `backward` returns one gradient, or nest of gradients, for each argument. Raises
    ArgumentError where that is of another form than the arguments.
    """
    if not issubclass(cls, torch.autograd.Function):
        raise ArgumentError(
            f"pytreeify: {cls!r} is no torch.autograd.Function; decorate a subclass of it"
        )
    own_forward, own_backward, own_apply = cls.forward, cls.backward, cls.apply

    def apply(*inp: Any) -> Any:
        leaves, struct = pytree.tree_flatten(inp)
        form: list[Any] = []
        results = own_apply(struct, form, *leaves)
        return pytree.tree_unflatten(results, form[0])

    def forward(ctx: Any, struct: Any, out_struct_holder: Any, *flat_inp: Any) -> Any:
        result = own_forward(ctx, *pytree.tree_unflatten(flat_inp, struct))
        leaves, ctx._out_struct = pytree.tree_flatten(result)
        ctx._inp_struct = struct
        out_struct_holder.append(ctx._out_struct)
        return tuple(leaves)

    def backward(ctx: Any, *flat_grad_outputs: Any) -> Any:
        grads = pytree.tree_unflatten(flat_grad_outputs, ctx._out_struct)
        found = own_backward(ctx, *(grads if isinstance(grads, tuple) else (grads,)))
        leaves, struct = pytree.tree_flatten(found if isinstance(found, tuple) else (found,))
        if struct != ctx._inp_struct:
            raise ArgumentError(
                f"{cls.__name__}.backward: gradients of the form {struct} for arguments of the"
                f" form {ctx._inp_struct}; return one for each, None where there is none"
            )
        return None, None, *leaves

    cls.apply, cls.forward, cls.backward = apply, staticmethod(forward), staticmethod(backward)
    return cls
