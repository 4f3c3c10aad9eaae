"""Kernels: attention, products by groups, and users' own."""

from torch_xdist.kernels.flash_attention import (
    FlashAttention,
    _pad_to_block_size,
    flash_attention,
    flash_attention_non_xla,
    flash_attention_xla,
    generate_ctx_need_grad,
    safe_empty_like,
)
from torch_xdist.kernels.flash_forms import MASK as DEFAULT_MASK_VALUE
from torch_xdist.kernels.flash_ops import (
    _fa_custom_backward_single_device,
    _fa_custom_forward_single_device,
    _maybe_reshape_input_output_funcs,
    fa_custom_backward,
    fa_custom_backward_fake,
    fa_custom_forward,
    fa_custom_forward_fake,
)
from torch_xdist.kernels.gmm import (
    GMM,
    _get_tiling_size_for_gmm_kernel,
    _round_up_to_multiple_of_128_within_limit,
    gmm,
    gmm_backward,
    gmm_non_xla,
    gmm_xla,
    tgmm,
)
from torch_xdist.kernels.int8_matmul import (
    quantized_matmul_int8,
    quantized_matmul_int8_non_xla,
    quantized_matmul_int8_xla,
)
from torch_xdist.kernels.paged_attention import (
    _multi_queries_paged_attention_nonkernel,
    multi_queries_paged_attention,
    multi_queries_paged_attention_non_xla,
    multi_queries_paged_attention_xla,
    paged_attention,
    paged_attention_non_xla,
    paged_attention_xla,
)
from torch_xdist.kernels.pallas import (
    _XLA_USE_BF16,
    _extract_backend_config,
    convert_torch_dtype_to_jax,
    make_kernel_from_pallas,
    to_jax_shape_dtype_struct,
    trace_pallas,
    trace_pallas_arg_to_payload,
)
from torch_xdist.kernels.parts import _shard_map, repeat_with_fixed_output_size
from torch_xdist.kernels.ragged_attention import (
    _ragged_paged_attention_nonkernel,
    _ragged_paged_attention_runtime_check,
    ragged_paged_attention,
    ragged_paged_attention_non_xla,
    ragged_paged_attention_xla,
)
from torch_xdist.kernels.torch_ops import non_xla_attetion, non_xla_ragged_paged_attention
from torch_xdist.spmd.mesh import Mesh
from torch_xdist.torch_xla_compat.jax_imports import jax_import_guard, requires_jax

__all__ = [
    "_XLA_USE_BF16",
    "DEFAULT_MASK_VALUE",
    "FlashAttention",
    "GMM",
    "Mesh",
    "_extract_backend_config",
    "_fa_custom_backward_single_device",
    "_fa_custom_forward_single_device",
    "_get_tiling_size_for_gmm_kernel",
    "_maybe_reshape_input_output_funcs",
    "_multi_queries_paged_attention_nonkernel",
    "_pad_to_block_size",
    "_ragged_paged_attention_nonkernel",
    "_ragged_paged_attention_runtime_check",
    "_round_up_to_multiple_of_128_within_limit",
    "_shard_map",
    "convert_torch_dtype_to_jax",
    "fa_custom_backward",
    "fa_custom_backward_fake",
    "fa_custom_forward",
    "fa_custom_forward_fake",
    "flash_attention",
    "flash_attention_non_xla",
    "flash_attention_xla",
    "generate_ctx_need_grad",
    "gmm",
    "gmm_backward",
    "gmm_non_xla",
    "gmm_xla",
    "jax_import_guard",
    "make_kernel_from_pallas",
    "multi_queries_paged_attention",
    "multi_queries_paged_attention_non_xla",
    "multi_queries_paged_attention_xla",
    "non_xla_attetion",
    "non_xla_ragged_paged_attention",
    "paged_attention",
    "paged_attention_non_xla",
    "paged_attention_xla",
    "quantized_matmul_int8",
    "quantized_matmul_int8_non_xla",
    "quantized_matmul_int8_xla",
    "ragged_paged_attention",
    "ragged_paged_attention_non_xla",
    "ragged_paged_attention_xla",
    "repeat_with_fixed_output_size",
    "requires_jax",
    "safe_empty_like",
    "tgmm",
    "to_jax_shape_dtype_struct",
    "trace_pallas",
    "trace_pallas_arg_to_payload",
]
