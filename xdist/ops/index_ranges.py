"""Which operands of an operator are indices, and from where to where each may be.

A rule takes the arguments of a call and gives (indices, least, end, but) for each operand that
holds some: the number `but` may stand beside those from `least` below `end`.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from torch_xdist.ops.doubts import MASKS

Ranges = Iterable[tuple[Any, int, int, int | None]]
Rule = Callable[..., Ranges]


def _rows(weight: Any, indices: Any, *_: Any, **__: Any) -> Ranges:
    return [(indices, 0, weight.shape[0], None)] if weight.ndim else []


def _along(self: Any, dim: int, index: Any, *_: Any, **__: Any) -> Ranges:
    return [(index, 0, _size(self, dim), None)]


def _from_either_end(self: Any, dim: int, index: Any, *_: Any, **__: Any) -> Ranges:
    size = _size(self, dim)
    return [(index, -size, size, None)]


def _in_all(self: Any, index: Any, *_: Any, **__: Any) -> Ranges:
    size = math.prod(self.shape)
    return [(index, -size, size, None)]


def _size(self: Any, dim: int) -> int:
    """One where there is no such dim, which is another error."""
    return self.shape[dim] if -self.ndim <= dim < self.ndim else 1


def _indexed(self: Any, indices: Sequence[Any], *_: Any, **__: Any) -> Ranges:
    dim = 0
    for index in indices:
        is_mask = index is not None and index.dtype in MASKS
        if index is not None and not is_mask and dim < self.ndim:
            yield index, -self.shape[dim], self.shape[dim], None
        dim += index.ndim if is_mask else 1


def _classes(
    self: Any, target: Any, weight: Any, reduction: int, ignore_index: int, *_: Any
) -> Ranges:
    return [(target, 0, self.shape[min(self.ndim - 1, 1)], ignore_index)] if self.ndim else []


# By operator, of the form that writes to nothing, without the namespace.
_RULES: dict[str, Rule] = {
    "_embedding_bag.default": _rows,
    "_embedding_bag_forward_only.default": _rows,
    "embedding.default": _rows,
    "gather.default": _along,
    "index.Tensor": _indexed,
    "index_add.default": _along,
    "index_copy.default": _along,
    "index_fill.int_Scalar": _from_either_end,
    "index_fill.int_Tensor": _from_either_end,
    "index_put.default": _indexed,
    "index_reduce.default": _along,
    "index_select.default": _along,
    "nll_loss2d_forward.default": _classes,
    "nll_loss_forward.default": _classes,
    "put.default": _in_all,
    "scatter.reduce": _along,
    "scatter.src": _along,
    "scatter.value": _along,
    "scatter.value_reduce": _along,
    "scatter_add.default": _along,
    "scatter_reduce.two": _along,
    "take.default": _in_all,
}


def rule_of(name: str) -> Rule | None:
    """The rule of an operator of a name such as "aten.scatter_.src"; None where there is none."""
    packet, _, overload = name.removeprefix("aten.").partition(".")
    return _RULES.get(f"{packet.rstrip('_')}.{overload}")
