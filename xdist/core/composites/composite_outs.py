"""out= forms that torch's own composites do not serve for tensor subclasses.

For some torch returns a new tensor instead of writing to the given one; matmul takes a view of
the given tensor for another, as neither has storage. The kernels entered here compute the
functional form and write it.
"""

from collections.abc import Callable
from typing import Any

import torch

from torch_xdist.core.alias import writes
from torch_xdist.core.devices.tensor import XlaTensor
from torch_xdist.core.trace.operators import functional_form

_NAMES = (
    "linalg_matrix_rank.out",
    "linalg_matrix_rank.out_tol_tensor",
    "linalg_matrix_rank.atol_rtol_tensor_out",
    "linalg_matrix_rank.atol_rtol_float_out",
    "matmul.out",
)
_libraries: list[torch.library.Library] = []


def _writing(name: str, functional: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    def kernel(*args: Any, out: XlaTensor, **kwargs: Any) -> torch.Tensor:
        result = functional(*args, **kwargs)
        if result.requires_grad:
            raise RuntimeError(
                f"{name}(): functions with out=... arguments don't support automatic "
                "differentiation, but one of the arguments requires grad."
            )
        if out.shape != result.shape:
            writes.resize(out, tuple(result.shape))
        return out.copy_(result)

    return kernel


def register() -> None:
    """Let out= forms of composites write into device tensors."""
    for key in ("AutogradLazy", "Lazy"):
        library = torch.library.Library("aten", "IMPL", key)
        for name in _NAMES:
            packet, overload = name.split(".")
            func = getattr(getattr(torch.ops.aten, packet), overload)
            library.impl(name, _writing(packet, functional_form(func)))  # type: ignore[arg-type]
        _libraries.append(library)
