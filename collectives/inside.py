"""What a collective does inside a program: the functions lowerings call, on JAX arrays.

They are traced inside `with program(kind, world_size):`, which says how data travels:

- "host": ranks of one host share memory; the program is an ordinary single-device one, and each
  collective is a custom call into `shared_memory`.
- "mesh": the program runs inside `shard_map` over the mesh axis "ranks" of all devices, and each
  collective is XLA's own.
- "manual": the same over several axes; ranks are devices of one process, and groups lie along axes.

Collectives of one program run in the order they are traced in, on every rank: each takes the token
of the one before. The program must return the last token (`Program.token`), or a collective whose
result nobody uses is removed on some ranks only.

Groups are given as `groups.checked` returns them. All functions leave values alone that no other
rank has: on a world of one they copy.
"""

import contextlib
import operator
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from torch_xdist.collectives.errors import ArgumentError, CollectiveError
from torch_xdist.collectives.groups import (
    Groups,
    checked,
    checked_pairs,
    equal_sized,
    shard_length,
)
from torch_xdist.collectives.mesh import lowering as mesh_lowering
from torch_xdist.collectives.shared_memory import fold
from torch_xdist.collectives.shared_memory import lowering as shared_memory_lowering

_active = threading.local()


@dataclass(slots=True)
class Program:
    """The program being traced.

    Attributes:
        kind: "host", "mesh" or "manual".
        world_size: the number of ranks.
        axes: of "manual": the axes along which groups lie.
        joins: of "mesh": small arrays travel as one, which the compiler does not see to itself.
        token: what the next collective waits for, the operand of the launch; uint32 [1].
    """

    kind: str
    world_size: int
    axes: Callable[[Groups], tuple[str, ...]] | None = None
    joins: bool = True
    token: jax.Array = field(default_factory=lambda: jnp.zeros(1, jnp.uint32))


@contextlib.contextmanager
def program(
    kind: str,
    world_size: int,
    launch: jax.Array | None = None,
    *,
    axes: Callable[[Groups], tuple[str, ...]] | None = None,
    joins: bool = True,
) -> Iterator[Program]:
    """Trace collectives for this transport; the Program yielded holds the token at the end.

    `launch` is an operand of the program, `Launch.operand()`; None: it is launched without one, and
    its order among the programs of other threads is not looked after.
    """
    if kind not in ("host", "mesh", "manual"):
        raise ArgumentError(f"transport {kind!r} is unknown; use host, mesh or manual")
    outer = getattr(_active, "program", None)
    token = () if launch is None else (launch,)
    _active.program = Program(kind, world_size, axes, joins, *token)
    try:
        yield _active.program
    finally:
        _active.program = outer


def standing_alone(function: Callable[..., Any], world_size: int) -> Callable[..., Any]:
    """`function`, which may also be traced outside a program, to learn its results' shapes."""

    def call(*arrays: Any) -> Any:
        if getattr(_active, "program", None) is not None:
            return function(*arrays)
        with program("host", world_size):
            return function(*arrays)

    return call


def _current() -> Program:
    found = getattr(_active, "program", None)
    if found is None:
        raise CollectiveError(
            "collective: no program is being traced; call it inside `with inside.program(...)`"
        )
    return found


def all_reduce(
    xs: Sequence[jax.Array], reduction: str, groups: Groups | None = None
) -> list[jax.Array]:
    """Reduce each array over the ranks of each group; same on every rank of a group.

    `reduction` is sum, mul, min, max, and, or, xor. Arrays of one dtype travel together.
    """
    here = _current()
    groups = _checked(groups, here, of="all_reduce")
    results: list[jax.Array] = list(xs)
    for dtype in dict.fromkeys(x.dtype for x in xs):
        fold.check(reduction, np.dtype(dtype), of="all_reduce")
        places = [i for i, x in enumerate(xs) if x.dtype == dtype]
        if here.world_size > 1:
            reduced = _transport(here).all_reduce(here, [xs[i] for i in places], reduction, groups)
            for place, value in zip(places, reduced):
                results[place] = value
    return results


def all_gather(x: jax.Array, dim: int, groups: Groups | None = None) -> jax.Array:
    """Every rank's `x` along `dim`, in the order of the group; same on every rank of a group."""
    dim = _dim(x, dim, of="all_gather")
    stacked = _stacked(x, groups, f"{_told(x)} along dim {dim}")
    if x.ndim == 0:
        return stacked
    joined = (*x.shape[:dim], stacked.shape[0] * x.shape[dim], *x.shape[dim + 1 :])
    return jnp.moveaxis(stacked, 0, dim).reshape(joined)


def all_gather_stacked(x: jax.Array, groups: Groups | None = None) -> jax.Array:
    """Every rank's `x`, stacked: [ranks of the group, *x.shape]."""
    return _stacked(x, groups, "")


def _stacked(x: jax.Array, groups: Groups | None, what: str) -> jax.Array:
    here = _current()
    groups = _checked(groups, here, of="all_gather")
    size = equal_sized(groups, here.world_size, of="all_gather")
    if here.world_size == 1:
        return x[None]
    return _transport(here).all_gather(here, x, size, groups, what)


def reduce_scatter(
    x: jax.Array, reduction: str, dim: int, shards: int | None = None, groups: Groups | None = None
) -> jax.Array:
    """This rank's slice along `dim` of the reduction of every rank's `x`; differs per rank."""
    here = _current()
    groups = _checked(groups, here, of="reduce_scatter")
    size = equal_sized(groups, here.world_size, of="reduce_scatter")
    _expect_count("reduce_scatter", "shard_count", shards, size)
    fold.check(reduction, np.dtype(x.dtype), of="reduce_scatter")
    dim = _dim(x, dim, of="reduce_scatter")
    length = shard_length(x.shape, dim, size, of="reduce_scatter")
    if here.world_size == 1:
        return x
    split = x.reshape(*x.shape[:dim], size, length, *x.shape[dim + 1 :])
    rows = jnp.moveaxis(split, dim, 0)
    what = f"{_told(x)} along dim {dim}"
    return _transport(here).reduce_scatter(here, rows, reduction, groups, what)


def all_to_all(
    x: jax.Array,
    split_dim: int,
    concat_dim: int,
    split_count: int | None = None,
    groups: Groups | None = None,
) -> jax.Array:
    """Cut `x` along `split_dim`, send piece m to member m, join what arrives along `concat_dim`."""
    here = _current()
    groups = _checked(groups, here, of="all_to_all")
    size = equal_sized(groups, here.world_size, of="all_to_all")
    _expect_count("all_to_all", "split_count", split_count, size)
    split_dim, concat_dim = (_dim(x, dim, of="all_to_all") for dim in (split_dim, concat_dim))
    length = shard_length(x.shape, split_dim, size, of="all_to_all")
    if here.world_size == 1:
        return x
    split = x.reshape(*x.shape[:split_dim], size, length, *x.shape[split_dim + 1 :])
    what = f"{_told(x)} from dim {split_dim} to dim {concat_dim}"
    rows = _transport(here).all_to_all(here, jnp.moveaxis(split, split_dim, 0), groups, what)
    return jnp.concatenate([rows[m] for m in range(size)], axis=concat_dim)


def permute(x: jax.Array, pairs: Groups) -> jax.Array:
    """What the source of the pair (source, this rank) holds; zeros where there is none."""
    here = _current()
    pairs = checked_pairs(pairs, here.world_size, of="collective_permute")
    if here.world_size == 1:
        return x if pairs else jnp.zeros_like(x)
    return _transport(here).permute(here, x, pairs)


def broadcast(x: jax.Array, root: int, groups: Groups | None = None) -> jax.Array:
    """The `x` of rank `root`, bit by bit; same on every rank of its group, zeros in others."""
    here = _current()
    groups = _checked(groups, here, of="broadcast")
    if not 0 <= root < here.world_size:
        raise ArgumentError(f"broadcast: root {root} is no rank; use 0 to {here.world_size - 1}")
    return x if here.world_size == 1 else _transport(here).broadcast(here, x, root, groups)


def send(x: jax.Array, channel: int) -> jax.Array:
    """`x`, which goes to the rank that receives on `channel`; does not wait for it."""
    return shared_memory_lowering.send(_on_host("send"), x, channel)


def receive(like: jax.Array, channel: int) -> jax.Array:
    """What a rank sends on `channel`, of the shape and dtype of `like`."""
    return shared_memory_lowering.receive(_on_host("recv"), like, channel)


def _on_host(of: str) -> Program:
    here = _current()
    if here.kind != "host":
        raise CollectiveError(
            f"{of}: a program over the mesh holds what all ranks do alike, and only two ranks take "
            "part in this; use permute, or send it between programs through the channel"
        )
    return here


def barrier(groups: Groups | None = None) -> None:
    """Every rank of a group waits here for the others."""
    all_reduce([jnp.zeros(1, jnp.int32)], "sum", groups)


def _transport(here: Program) -> ModuleType:
    return shared_memory_lowering if here.kind == "host" else mesh_lowering


def _checked(groups: Groups | None, here: Program, *, of: str) -> Groups | None:
    return checked(groups, here.world_size, of=of, partial=True)


def _told(x: jax.Array) -> str:
    return f"{x.dtype.name}{list(x.shape)}"


def _dim(x: jax.Array, dim: int, *, of: str) -> int:
    rank = max(x.ndim, 1)
    if not -rank <= operator.index(dim) < rank:
        raise ArgumentError(
            f"{of}: dim {dim} is out of range for shape {tuple(x.shape)}; use {-rank} to {rank - 1}"
        )
    return dim % rank


def _expect_count(of: str, name: str, given: int | None, size: int) -> None:
    if given is not None and given != size:
        raise ArgumentError(
            f"{of}: {name} is {given}, and the group has {size} ranks; use {name}={size}"
        )
