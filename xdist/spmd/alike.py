"""Two arrays that XLA shards alike, also where JAX has no function for it any more."""

import itertools
from typing import Any

import jax
from jax.extend.core import Primitive
from jax.interpreters import mlir
from jaxlib.mlir.dialects import sdy

try:
    from jax.experimental.shard_alike import shard_alike
except ImportError:
    # jax 0.11.2 and 0.12 have it no more, and no other partitioner than Shardy.
    shard_alike = None  # type: ignore[assignment]

_alike_p = Primitive("xla_shard_as")
_alike_p.multiple_results = True
# What is in one group is sharded alike; a module may hold several.
_groups = itertools.count()


@_alike_p.def_abstract_eval
def _types(one: Any, other: Any) -> Any:
    return [one, other]


def _lowering(ctx: Any, one: Any, other: Any) -> Any:
    group = next(_groups)
    for array in (one, other):
        sdy.sharding_group(array, group)
    return [one, other]


mlir.register_lowering(_alike_p, _lowering)


def alike(one: jax.Array, other: jax.Array) -> Any:
    """The arrays, of one shape, sharded alike however XLA does it."""
    if shard_alike is not None:
        return shard_alike(one, other)
    return _alike_p.bind(one, other)
