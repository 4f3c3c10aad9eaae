"""Result types read off a lowering, for operators whose types no meta kernel of torch tells.

torch has no meta kernel for a few operators, and for some one that describes another device. Their
lowerings return the dtypes torch returns, so JAX's abstract evaluation is the meta kernel.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import torch
from torch.utils import _pytree as pytree

from torch_xdist.dtypes import nominal, to_torch
from torch_xdist.ops.table import LOWERINGS


class LoweringError(Exception):
    """A lowering that raised; why is its cause."""


def of_lowering(name: str, metas: Sequence[Any], named: Mapping[str, Any]) -> Any:
    """Meta tensors like the results of the lowering `name`.

    Raises NotImplementedError where the lowering says that it does not serve these arguments, and
    LoweringError where it raised anything else.
    """
    leaves, tree = pytree.tree_flatten((list(metas), dict(named)))
    tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]

    def call(arrays: Sequence[jax.Array]) -> Any:
        given = iter(arrays)
        filled = [next(given) if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
        args, kwargs = pytree.tree_unflatten(filled, tree)
        return LOWERINGS[name](*args, **kwargs)

    abstract = [jax.ShapeDtypeStruct(tuple(t.shape), nominal(t.dtype)) for t in tensors]
    try:
        results = jax.eval_shape(call, abstract)
    except NotImplementedError:
        raise
    except Exception as error:
        raise LoweringError(f"{name}: {error}") from error
    return jax.tree.map(_meta, results)


def _meta(result: jax.ShapeDtypeStruct) -> torch.Tensor:
    return torch.empty(result.shape, dtype=to_torch(result.dtype), device="meta")
