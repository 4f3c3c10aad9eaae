"""`nn.GRU` under torch_xla's name of it.

torch_xla puts a loop of its own in the place of torch's GRU. Here torch's GRU is one row with such
a loop already (`core/composites/recurrent`), so the class adds nothing but its name.
"""

from typing import Any

import torch

from torch_xdist.releases import patches


class GRU(torch.nn.GRU):
    """`torch.nn.GRU`; a bidirectional one is torch's own class, as in torch_xla.

    Attributes:
        _orig: torch's class.
    """

    _orig = torch.nn.GRU

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        if kwargs.get("bidirectional", False):
            return cls._orig(*args, **kwargs)
        return super().__new__(cls)


def register() -> None:
    """Make `torch.nn.GRU` that class; a second call changes nothing."""
    patches.replace("torch.nn.GRU", GRU)
