"""Batch norm without what torch puts around it for other libraries.

`aten::batch_norm` looks at all operands for the libraries it knows, and makes an empty tensor for
what theirs would save, before it calls `aten::native_batch_norm`. A kernel under the AutogradLazy
key calls that at once, which takes two thirds of the time. torch's own function says what is wrong
with operands, of which it sees meta tensors once for all of their types.
"""

from typing import Any

import torch

_libraries: list[torch.library.Library] = []
_decomposed = torch.ops.aten.batch_norm.default.decompose
_native = torch.native_batch_norm
# Types of operands that torch has let pass.
_passed: set[tuple[Any, ...]] = set()
_MOST = 4096


def batch_norm(
    input: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    running_mean: torch.Tensor | None,
    running_var: torch.Tensor | None,
    training: bool,
    momentum: float,
    eps: float,
    cudnn_enabled: bool,
) -> torch.Tensor:
    """`input` [n, c, ...] normalized over all dims but the second; the others are [c] or None."""
    operands = input, weight, bias, running_mean, running_var
    try:
        types = [None if x is None else x.value.type for x in operands]  # type: ignore[attr-defined]
    except AttributeError:
        # One is on another device.
        types = None
    if types is None or not input.numel():
        found: torch.Tensor = _decomposed(*operands, training, momentum, eps, cudnn_enabled)
        return found
    known = (training, *types)
    if known not in _passed:
        with torch.no_grad():
            _decomposed(*[t and t.meta for t in types], training, momentum, eps, cudnn_enabled)
        if len(_passed) >= _MOST:
            _passed.clear()
        _passed.add(known)
    return _native(*operands, training, momentum, eps)[0]


def register() -> None:
    """Let batch norms go the short way; called once."""
    library = torch.library.Library("aten", "IMPL", "AutogradLazy")
    library.impl("batch_norm", batch_norm)
    _libraries.append(library)
