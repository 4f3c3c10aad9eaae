"""`torch.autocast("xla")`: which operators run in the lower precision and which in float32.

The wrapper carries the AutocastXLA key; the kernels entered here cast and call on. Outside of
autocast the key is off and nothing of this runs. The lists are torch_xla's.
"""

from collections.abc import Callable
from typing import Any

import torch

from torch_xdist.core.devices.tensor import AUTOCAST_KEYS, XlaTensor
from torch_xdist.core.trace.plans import flat

LOWER = """
__matmul__ matmul mm bmm addmm addbmm addmv baddbmm mv linear einsum chain_matmul linalg_multi_dot
conv1d conv2d conv3d conv_transpose1d conv_transpose2d.input conv_transpose3d.input convolution
_convolution _convolution.deprecated conv_tbc prelu scaled_dot_product_attention
""".split()
FLOAT32 = """
avg_pool3d binary_cross_entropy grid_sampler_2d grid_sampler_3d mse_loss l1_loss smooth_l1_loss
huber_loss cosine_embedding_loss nll_loss nll_loss2d hinge_embedding_loss cross_entropy_loss
ctc_loss.IntList ctc_loss.Tensor kl_div margin_ranking_loss multilabel_margin_loss soft_margin_loss
triplet_margin_loss multi_margin_loss poisson_nll_loss cosine_similarity cdist dist renorm
softplus layer_norm group_norm native_layer_norm logsumexp cumsum cumprod prod log_softmax.int
softmax.int norm.Scalar norm.ScalarOpt_dim pow.Tensor_Scalar pow.Tensor_Tensor exp expm1 log log10
log2 log1p rsqrt sinh cosh tan acos asin erfinv reciprocal trace
""".split()
WIDEST = (
    "stack cat index_copy addcdiv addcmul atan2 bilinear cross dot scatter_add tensordot".split()
)

_CASTABLE = frozenset(
    dtype
    for dtype in vars(torch).values()
    if isinstance(dtype, torch.dtype) and dtype.is_floating_point and dtype is not torch.float64
)
_NO_TENSORS = frozenset({None.__class__, bool, int, float})
# Without the look at devices that `to` of a device tensor takes.
_to = torch.Tensor.to
_libraries: list[torch.library.Library] = []


def _cast(value: Any, dtype: torch.dtype) -> Any:
    if isinstance(value, torch.Tensor):
        own = value.dtype
        return _to(value, dtype) if own is not dtype and own in _CASTABLE else value
    if isinstance(value, list | tuple):
        return type(value)(_cast(part, dtype) for part in value)
    return value


def _widest(value: Any) -> torch.dtype:
    dtypes = [t.dtype for t in flat(value) if isinstance(t, torch.Tensor) and t.is_floating_point()]
    return torch.float32 if torch.float32 in dtypes else torch.get_autocast_dtype("xla")


def _kernel(func: Any, dtype_for: Callable[[Any], torch.dtype]) -> Callable[..., Any]:
    def run(*args: Any, **kwargs: Any) -> Any:
        dtype = dtype_for(args)
        with torch._C._ExcludeDispatchKeyGuard(AUTOCAST_KEYS):
            cast = []
            for a in args:
                if a.__class__ is not XlaTensor:
                    a = a if a.__class__ in _NO_TENSORS else _cast(a, dtype)
                elif (own := a.dtype) is not dtype and own in _CASTABLE:
                    # `_cast`, without its frame.
                    a = _to(a, dtype)
                cast.append(a)
            if kwargs:
                kwargs = {n: _cast(a, dtype) for n, a in kwargs.items()}
            return func(*cast, **kwargs)

    return run


def register() -> None:
    """Enter the kernels; names torch does not have are left out."""
    library = torch.library.Library("aten", "IMPL", "AutocastXLA")
    lists: list[tuple[list[str], Callable[[Any], torch.dtype]]] = [
        (LOWER, lambda args: torch.get_autocast_dtype("xla")),
        (FLOAT32, lambda args: torch.float32),
        (WIDEST, _widest),
    ]
    for names, dtype_for in lists:
        for name in names:
            _enter(library, name, dtype_for)
    _libraries.append(library)


def _enter(
    library: torch.library.Library, name: str, dtype_for: Callable[[Any], torch.dtype]
) -> None:
    packet_name, _, overload = name.partition(".")
    packet = getattr(torch.ops.aten, packet_name, None)
    func = getattr(packet, overload or "default", None) if packet is not None else None
    if func is not None:
        library.impl(name, _kernel(func, dtype_for))
