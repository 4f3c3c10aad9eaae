"""Activation checkpoints: the forward pass of a block is computed again in its backward pass."""

from collections.abc import Callable
from typing import Any

import torch.utils.checkpoint


def checkpoint(
    function: Callable[..., Any],
    *args: Any,
    use_reentrant: bool = True,
    preserve_rng_state: bool = True,
    **kwargs: Any,
) -> Any:
    """`function(*args)` with its activations dropped, and computed again in the backward pass.

    Args:
        use_reentrant: torch's two ways. torch_xla refused False; here both work.
        preserve_rng_state: draw the same random numbers the second time.
    """
    return torch.utils.checkpoint.checkpoint(
        function,
        *args,
        use_reentrant=use_reentrant,
        preserve_rng_state=preserve_rng_state,
        **kwargs,
    )
