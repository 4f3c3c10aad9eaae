"""`torch.cond`, `while_loop` and `scan` on device tensors, as JAX's own control flow.

A row holds the bodies, so no value is read from the device and nothing is cut; the program is the
same whichever branch is taken and however many turns there are.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torch.utils import _pytree as pytree

from torch_xdist.core.devices.tensor import XlaTensor
from torch_xdist.core.jax_side.calls import Flat, Tensors, divided
from torch_xdist.core.jax_side.cond import Cond
from torch_xdist.core.jax_side.scan import Scan
from torch_xdist.core.jax_side.while_loop import While
from torch_xdist.errors import CutError


def has_ours(*values: Any) -> bool:
    """Whether a device tensor stands anywhere inside."""
    return any(leaf.__class__ is XlaTensor for leaf in pytree.tree_leaves(values))


def cond(
    pred: Any, true_fn: Callable[..., Any], false_fn: Callable[..., Any], operands: Any = ()
) -> Any:
    """`torch.cond`: one of two functions by a boolean tensor, without reading it.

    Raises CutError where the functions return different shapes or dtypes.
    """
    inputs, form = flattened(operands)
    forms: list[Form] = []
    branches = [_flat(lambda given, f=f: f(*given), forms, form) for f in (true_fn, false_fn)]
    results = Cond(pred, branches, _checked(inputs, "cond")).results()
    return forms[0].filled(results)


def while_loop(cond_fn: Callable[..., Any], body_fn: Callable[..., Any], carried: Any) -> Any:
    """Repeat `body_fn` while `cond_fn` is true; one program whatever the number of turns.

    What the condition reads has no gradient.
    """
    inputs, form = flattened(carried)
    forms: list[Form] = []
    test = _flat(lambda given: cond_fn(*given), [], form)
    body = _flat(lambda given: body_fn(*given), forms, form)
    results = While(test, body, _checked(inputs, "while_loop")).results()
    return forms[0].filled(results)


def scan(
    combine_fn: Callable[..., Any], init: Any, xs: Any, *, dim: int = 0, reverse: bool = False
) -> tuple[Any, Any]:
    """Carry a state along a dimension: `combine_fn(carry, x) -> (carry, y)`, ys stacked.

    Args:
      dim: the dimension of every x that is walked along; the ys are stacked along dim 0.
    """
    start, of_carry = flattened(init)
    rows, of_x = flattened(xs)
    rows = [x.movedim(dim, 0) for x in _checked(rows, "scan")] if dim else _checked(rows, "scan")
    forms: list[Form] = []
    body = _flat(combine_fn, forms, of_carry, of_x)
    call = Scan(body, _checked(start, "scan"), rows, reverse)
    results = call.results()[: len(start) + call.ys]
    carry, ys = forms[0].filled(results)
    return carry, ys


def _checked(tensors: Tensors, where: str) -> list[XlaTensor]:
    for tensor in tensors:
        if tensor.__class__ is not XlaTensor:
            raise CutError(
                f"{where}: operand {tensor!r} is not an xla tensor; pass tensors of one device, "
                "and close over numbers"
            )
    return list(tensors)


@dataclass(frozen=True, slots=True)
class Form:
    """A nest without its tensors. None has a place in it, and is no tensor.

    Attributes:
        spec: torch's description of the nest.
        is_tensor: of each of its leaves.
    """

    spec: pytree.TreeSpec
    is_tensor: tuple[bool, ...]

    def filled(self, tensors: Sequence[Any]) -> Any:
        """The nest with these tensors."""
        rest = iter(tensors)
        leaves = [next(rest) if place else None for place in self.is_tensor]
        return pytree.tree_unflatten(leaves, self.spec)


def flattened(nest: Any) -> tuple[list[Any], Form]:
    """The tensors of a nest in order, and its form."""
    leaves, spec = pytree.tree_flatten(nest)
    form = Form(spec, tuple(leaf is not None for leaf in leaves))
    return [leaf for leaf in leaves if leaf is not None], form


def _flat(function: Callable[..., Any], results: list[Form], *forms: Form) -> Flat:
    """A function of nested arguments as one of flat tensors; the form of its result is noted."""

    def flat(*tensors: Any) -> list[Any]:
        parts = divided(tensors, *(range(sum(form.is_tensor)) for form in forms))
        result = function(*(form.filled(part) for form, part in zip(forms, parts, strict=True)))
        leaves, form = flattened(result)
        results.append(form)
        return leaves

    return flat
