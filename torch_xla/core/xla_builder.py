"""`xb`: computations made by hand, and JAX functions inside the trace."""

from torch_xdist.builder.callables import (
    CompiledCallableWithCache,
    FlattenedInputFunc,
    JaxCallable,
    JaxFlattenedInputFunc,
    XlaCallable,
    xla_computation_as_func,
)
from torch_xdist.builder.op import (
    Op,
    create_computation,
    mkleaf,
    mkop,
    mkparam,
)
from torch_xdist.builder.placeholders import (
    create_placeholder_tensor,
)
from torch_xdist.builder.private_names import (
    _xla_computation_text as get_computation_hlo,
)
from torch_xdist.builder.private_names import (
    _xla_op_computation_from_module_proto as computation_from_module_proto,
)
from torch_xdist.builder.private_names import (
    _xla_op_create_builder as create_builder,
)
from torch_xdist.builder.shapes import (
    TO_TORCH as _XLA_PT_TYPE_MAP,
)
from torch_xdist.builder.shapes import (
    Shape,
    Type,
    mkshape,
    tensor_shape,
)
from torch_xdist.dtypes import XLA_NAMES as _PT_XLA_TYPE_MAP
from torch_xdist.torch_xla_compat.jax_calls import (
    _JAX_TO_XLA_COMPUTATION_CACHE,
    _jax_to_xla_computation_cache_elements,
    call_jax,
)
from torch_xdist.torch_xla_compat.jax_imports import (
    jax_env_context,
    jax_import_guard,
    maybe_get_jax,
    maybe_get_torchax,
    requires_jax,
)

__all__ = [
    "_JAX_TO_XLA_COMPUTATION_CACHE",
    "_PT_XLA_TYPE_MAP",
    "_XLA_PT_TYPE_MAP",
    "CompiledCallableWithCache",
    "FlattenedInputFunc",
    "JaxCallable",
    "JaxFlattenedInputFunc",
    "Op",
    "Shape",
    "Type",
    "XlaCallable",
    "_jax_to_xla_computation_cache_elements",
    "call_jax",
    "computation_from_module_proto",
    "create_builder",
    "create_computation",
    "create_placeholder_tensor",
    "get_computation_hlo",
    "jax_env_context",
    "jax_import_guard",
    "maybe_get_jax",
    "maybe_get_torchax",
    "mkleaf",
    "mkop",
    "mkparam",
    "mkshape",
    "requires_jax",
    "tensor_shape",
    "xla_computation_as_func",
]
