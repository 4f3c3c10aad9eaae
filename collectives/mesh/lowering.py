"""Collectives of a program that runs inside `shard_map` over the mesh axis "ranks": XLA's own.

The same functions as in `shared_memory.lowering`; also over the axes of a program's own mesh. XLA
orders its collectives by itself, so the token passes by. Reductions XLA has no collective for (mul,
and, or, xor) gather and fold.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from torch_xdist.collectives.buckets import joined, plan, separated
from torch_xdist.collectives.errors import ArgumentError
from torch_xdist.collectives.groups import Groups, listed

AXIS = "ranks"

_FOLDS: dict[str, Callable[[jax.Array, jax.Array], jax.Array]] = {
    "mul": jnp.multiply,
    "and": jnp.bitwise_and,
    "or": jnp.bitwise_or,
    "xor": jnp.bitwise_xor,
}


def all_reduce(
    here: Any, xs: Sequence[jax.Array], reduction: str, groups: Groups | None
) -> list[jax.Array]:
    """Flat buckets, each one collective of XLA; where it joins small ones itself, one for each.

    Joined by the compiler they need no copy, and none waits for a gradient that comes later.
    """
    _whole(groups, here.world_size, "all_reduce")
    results: list[Any] = [None] * len(xs)
    sizes = [(x.size, x.dtype.itemsize) for x in xs]
    for bucket in plan(sizes) if here.joins else [[place] for place in range(len(xs))]:
        reduced = _reduced(here, joined([xs[i] for i in bucket]), reduction, groups)
        for place, value in zip(bucket, separated(reduced, [xs[i].shape for i in bucket])):
            results[place] = value
    return results


def _reduced(here: Any, x: jax.Array, reduction: str, groups: Groups | None) -> jax.Array:
    over = _over(here, groups)
    if x.dtype == jnp.bool_ and reduction in ("sum", "max", "or"):
        return lax.pmax(x.astype(jnp.uint8), **over).astype(jnp.bool_)
    if x.dtype == jnp.bool_ and reduction in ("mul", "min", "and"):
        return lax.pmin(x.astype(jnp.uint8), **over).astype(jnp.bool_)
    native = {"sum": lax.psum, "min": lax.pmin, "max": lax.pmax}.get(reduction)
    if native is not None:
        return native(x, **over)
    _even(groups, "all_reduce")
    gathered = lax.all_gather(x, **over)
    if jnp.issubdtype(x.dtype, jnp.floating) and x.dtype.itemsize < 4:
        # Rounded once, not with every rank's part.
        gathered = gathered.astype(jnp.float32)
    return functools.reduce(_FOLDS[reduction], list(gathered)).astype(x.dtype)


def all_gather(
    here: Any, x: jax.Array, size: int, groups: Groups | None, what: str = ""
) -> jax.Array:
    """[size, *x.shape]. `what`, here and below, is for the messages of the host transport."""
    _whole(groups, here.world_size, "all_gather")
    return lax.all_gather(x, **_over(here, groups))


def reduce_scatter(
    here: Any, rows: jax.Array, reduction: str, groups: Groups | None, what: str = ""
) -> jax.Array:
    """[members, ...] to this member's row of the reduction."""
    _whole(groups, here.world_size, "reduce_scatter")
    if reduction == "sum" and rows.dtype != jnp.bool_:
        return lax.psum_scatter(rows, **_over(here, groups))
    reduced = _reduced(here, rows, reduction, groups)
    return lax.dynamic_index_in_dim(reduced, _member(here, groups), 0, keepdims=False)


def all_to_all(here: Any, rows: jax.Array, groups: Groups | None, what: str = "") -> jax.Array:
    """[members, ...] to [members, ...]."""
    _whole(groups, here.world_size, "all_to_all")
    return lax.all_to_all(rows, split_axis=0, concat_axis=0, **_over(here, groups))


def permute(here: Any, x: jax.Array, pairs: Groups) -> jax.Array:
    """Each target's array comes from its source, zeros elsewhere."""
    return lax.ppermute(x, _over(here, None)["axis_name"], pairs) if pairs else jnp.zeros_like(x)


def broadcast(here: Any, x: jax.Array, root: int, groups: Groups | None) -> jax.Array:
    """The root's bits: everybody else adds integer zeros to them. Zeros in groups without it."""
    _whole(groups, here.world_size, "broadcast")
    bits = x.astype(jnp.uint8) if x.dtype == jnp.bool_ else _bits(x)
    sent = jnp.where(_index(here) == root, bits, jnp.zeros_like(bits))
    received = lax.psum(sent, **_over(here, groups))
    if x.dtype == jnp.bool_:
        return received.astype(jnp.bool_)
    return _from_bits(received, x)


def _bits(x: jax.Array) -> jax.Array:
    if jnp.iscomplexobj(x):
        return _bits(jnp.stack([x.real, x.imag]))
    return lax.bitcast_convert_type(x, jnp.dtype(f"uint{x.dtype.itemsize * 8}"))


def _from_bits(bits: jax.Array, like: jax.Array) -> jax.Array:
    if jnp.iscomplexobj(like):
        parts = lax.bitcast_convert_type(bits, like.real.dtype)
        return lax.complex(parts[0], parts[1])
    return lax.bitcast_convert_type(bits, like.dtype)


def _member(here: Any, groups: Groups | None) -> jax.Array:
    members = list(range(here.world_size))
    for group in groups or ():
        for member, rank in enumerate(group):
            members[rank] = member
    return jnp.array(members)[_index(here)]


def _over(here: Any, groups: Groups | None) -> dict[str, Any]:
    """Among whom XLA's collective takes place, as `lax` wants it."""
    if here.axes is not None:
        ranks = (tuple(range(here.world_size)),)
        return {"axis_name": here.axes(groups or ranks)}
    lists = None if groups is None else [list(group) for group in groups]
    return {"axis_name": AXIS, "axis_index_groups": lists}


def _index(here: Any) -> jax.Array:
    """Which rank this is, in a program that is the same on all."""
    return lax.axis_index(_over(here, None)["axis_name"])


def _even(groups: Groups | None, of: str) -> None:
    if groups and len({len(group) for group in groups}) > 1:
        raise ArgumentError(
            f"{of}: groups {listed(groups)} differ in size, which this reduction cannot do between "
            "accelerators or hosts; use groups of equal size, or reduce with sum, min or max"
        )


def _whole(groups: Groups | None, world_size: int, of: str) -> None:
    if groups is not None and sum(len(group) for group in groups) != world_size:
        raise ArgumentError(
            f"{of}: groups {listed(groups)} leave out some of the {world_size} ranks; between "
            "accelerators or hosts every rank must take part; list all ranks in groups"
        )
