"""Collectives of a program on the host transport: each is one custom call into `transport`.

All functions get the Program, whose token they take and replace. The rank is not part of the
program: it is looked up while the program runs, so that all ranks compile the same one.
"""

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax.extend import core as jax_core
from jax.interpreters import mlir

from torch_xdist.collectives.buckets import plan
from torch_xdist.collectives.groups import Groups, shortened
from torch_xdist.collectives.shared_memory.endpoint import Spec
from torch_xdist.collectives.shared_memory.transport import CALL

# Smaller ones overlap better with the backward pass; each costs two barriers.
BUCKET_BYTES = 8 * 2**20

_exchange = jax_core.Primitive("xdist_exchange")
_exchange.multiple_results = True


@_exchange.def_abstract_eval
def _results(*operands: Any, spec: str, shapes: Any, aliases: Any) -> list[Any]:
    return [jax.core.ShapedArray(shape, dtype) for shape, dtype in shapes]


def _lower(context: Any, *operands: Any, spec: str, shapes: Any, aliases: Any) -> Any:
    # To XLA the call has a side effect, so it is neither dropped nor merged with an equal one. To
    # JAX it has none: effects cost 90 us per dispatch. The token keeps it alive there.
    rule = jax.ffi.ffi_lowering(CALL, has_side_effect=True, operand_output_aliases=dict(aliases))
    return rule(context, *operands, spec=spec)


mlir.register_lowering(_exchange, _lower, platform="cpu")


def _call(
    here: Any, spec: Spec, xs: Sequence[jax.Array], outs: Sequence[Any], *, in_place: bool = False
) -> list[jax.Array]:
    shapes = tuple((tuple(out.shape), np.dtype(out.dtype)) for out in (*outs, here.token))
    last = (len(xs), len(outs))
    pairs = tuple((i, i) for i in range(len(xs))) if in_place else ()
    *results, here.token = _exchange.bind(
        *xs, here.token, spec=spec.encoded(), shapes=shapes, aliases=(*pairs, last)
    )
    return results


def all_reduce(
    here: Any, xs: Sequence[jax.Array], reduction: str, groups: Groups | None
) -> list[jax.Array]:
    """In place: XLA copies only what somebody else still reads.

    The arrays travel in buckets, the last ones first: gradients of the last layers are ready first,
    and XLA exchanges them while it computes those of the layers before.
    """
    spec = Spec("all_reduce", _title(f"all_reduce({reduction})", groups), reduction, groups)
    results: list[Any] = [None] * len(xs)
    backwards = range(len(xs) - 1, -1, -1)
    for bucket in plan([(xs[i].size, xs[i].dtype.itemsize) for i in backwards], BUCKET_BYTES):
        places = [backwards[i] for i in bucket]
        given = [xs[i] for i in places]
        for place, value in zip(places, _call(here, spec, given, given, in_place=True)):
            results[place] = value
    return results


def all_gather(
    here: Any, x: jax.Array, size: int, groups: Groups | None, what: str = ""
) -> jax.Array:
    """[size, *x.shape]. `what`, here and below: what the user gave, for messages."""
    out = jax.ShapeDtypeStruct((size, *x.shape), x.dtype)
    spec = Spec("all_gather", _title("all_gather", groups), "", groups, what=what)
    return _call(here, spec, [x], [out])[0]


def reduce_scatter(
    here: Any, rows: jax.Array, reduction: str, groups: Groups | None, what: str = ""
) -> jax.Array:
    """[members, ...] to this member's row of the reduction."""
    title = _title(f"reduce_scatter({reduction})", groups)
    out = jax.ShapeDtypeStruct(rows.shape[1:], rows.dtype)
    spec = Spec("reduce_scatter", title, reduction, groups, what=what)
    return _call(here, spec, [rows], [out])[0]


def all_to_all(here: Any, rows: jax.Array, groups: Groups | None, what: str = "") -> jax.Array:
    """[members, ...] to [members, ...]."""
    spec = Spec("all_to_all", _title("all_to_all", groups), "", groups, what=what)
    return _call(here, spec, [rows], [rows])[0]


def permute(here: Any, x: jax.Array, pairs: Groups) -> jax.Array:
    """Each target's array comes from its source."""
    sources = [-1] * here.world_size
    for source, target in pairs:
        sources[target] = source
    title = f"collective_permute({shortened(pairs)})"
    return _call(here, Spec("permute", title, "", None, tuple(sources)), [x], [x])[0]


def broadcast(here: Any, x: jax.Array, root: int, groups: Groups | None) -> jax.Array:
    """A permute whose sources are all the root."""
    sources = [root] * here.world_size
    for group in groups or ():
        if root not in group:
            for rank in group:
                sources[rank] = -1
    title = _title(f"broadcast(from rank {root})", groups)
    return _call(here, Spec("permute", title, "", groups, tuple(sources)), [x], [x])[0]


def send(here: Any, x: jax.Array, channel: int) -> jax.Array:
    """`x`, in place, when it is on its way."""
    spec = Spec("send", f"send(channel {channel})", channel=channel)
    return _call(here, spec, [x], [x], in_place=True)[0]


def receive(here: Any, like: jax.Array, channel: int) -> jax.Array:
    """What somebody sends, of the shape and dtype of `like`."""
    return _call(here, Spec("recv", f"recv(channel {channel})", channel=channel), [], [like])[0]


def _title(name: str, groups: Groups | None) -> str:
    return name if groups is None else f"{name} in groups {shortened(groups)}"
