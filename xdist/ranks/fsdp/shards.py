"""Sharded parameters: this rank's shards, and wholes that are gathered whenever they are read.

The whole of a parameter is a view of its shard. Reading it records an all-gather, so it has no
memory of its own between steps, and none in a program once it was let go: the next read, which
may be in the backward pass, gathers again. The parameters of a unit travel together, as one row.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import torch

from torch_xdist.collectives import inside
from torch_xdist.collectives.buckets import CAP_BYTES, plan
from torch_xdist.collectives.groups import Groups
from torch_xdist.core.devices.tensor import XlaTensor, wrap
from torch_xdist.core.record.jax_ops import record_jax
from torch_xdist.core.run.device_trace import trace_here
from torch_xdist.core.trace.plans import PLANS, Plan, jax_plan
from torch_xdist.core.trace.tensor_types import TensorType, dense_type
from torch_xdist.core.trace.trace import Trace
from torch_xdist.core.trace.values import Value, ViewValue, root_of
from torch_xdist.dtypes import to_jax
from torch_xdist.ranks import collective_ops


@dataclass(frozen=True, slots=True)
class Members:
    """The ranks that hold the shards of one parameter, and this rank's place among them."""

    count: int
    member: int
    groups: Groups | None = None


@dataclass(frozen=True, slots=True)
class Layout:
    """How a whole of `shape` is divided: flat and padded with zeros, each shard as `shard_shape`.

    Cutting along dim 0 is the same division, because a row-major array is cut between rows.
    """

    shape: tuple[int, ...]
    shard_shape: tuple[int, ...]

    @property
    def numel(self) -> int:
        """Elements of the whole, without padding."""
        return torch.Size(self.shape).numel()

    @property
    def shard_numel(self) -> int:
        """Elements of one shard, with padding."""
        return torch.Size(self.shard_shape).numel()


def layout_of(shape: Sequence[int], count: int, *, on_dim_0: bool, multiple: int) -> Layout:
    """Equal shards for `count` ranks, of a multiple of `multiple` elements, or of whole rows."""
    shape = tuple(shape)
    if on_dim_0 and shape:
        return Layout(shape, (-(-shape[0] // count), *shape[1:]))
    numel = torch.Size(shape).numel()
    unit = multiple * count
    return Layout(shape, (-(-numel // unit) * multiple,))


def cut_shard(whole: torch.Tensor, layout: Layout, members: Members) -> torch.Tensor:
    """This rank's shard of a whole, on the device of the whole."""
    if isinstance(whole, XlaTensor):
        # The rank is a value, not part of the program: ranks may have to run the same one.
        index = torch.tensor(members.member, dtype=torch.int32).to(whole.device)
        key = (layout, members.count)
        row = lambda x, i: jax.lax.dynamic_index_in_dim(  # noqa: E731
            _rows(x, layout, members.count), i, 0, keepdims=False
        ).reshape(layout.shard_shape)
        return record_jax("xla.fsdp_shard", row, [whole, index], key)[0]  # type: ignore[list-item]
    flat = whole.detach().reshape(-1)
    begin = members.member * layout.shard_numel
    shard = flat.new_zeros(layout.shard_numel)
    part = flat[begin : begin + layout.shard_numel]
    shard[: part.numel()] = part
    return shard.reshape(layout.shard_shape)


def _rows(whole: jax.Array, layout: Layout, count: int) -> jax.Array:
    """A whole as one row per rank: [count, shard_numel]."""
    flat = whole.reshape(-1)
    missing = count * layout.shard_numel - flat.size
    return jnp.pad(flat, (0, missing)).reshape(count, layout.shard_numel)


class Gathered(ViewValue):
    """The whole of a sharded parameter. Its storage is its own, not the shard's.

    `generation` grows with every write to the shard, and when the whole is let go.
    """

    __slots__ = ("bundle", "dropped")

    def __init__(self, type_: TensorType, shard: Value, step: Plan, bundle: "Bundle") -> None:
        super().__init__(type_, shard, step)
        self.bundle = bundle
        self.dropped = 0
        self.root: Value = self

    @property
    def generation(self) -> int:  # type: ignore[override]
        """What views of the whole compare."""
        return _written(self.parent) + self.dropped  # type: ignore[arg-type]

    def reader(self, trace: Trace) -> int:  # type: ignore[override]
        """Gather it, and with it everything of its bundle."""
        self.bundle.gather(trace)
        return self.slot


def _written(value: Value) -> int:
    return root_of(value).generation


def state_of(shard: torch.nn.Parameter) -> tuple[int, int]:
    """What changes when the shard is written, or moved."""
    value: Value = shard.value  # type: ignore[attr-defined]
    return id(value), _written(value)


def _step(shard: TensorType, whole: TensorType, layout: Layout, member: int) -> Plan:
    def make() -> Plan:
        types = [shard], [whole]
        return jax_plan("xla.fsdp_gather", _not_a_row, *types, layout, member, inverse=_write_shard)

    return PLANS.find(("xla.fsdp_gather", shard, whole, layout, member), make)


def _not_a_row(*arrays: Any) -> Any:
    raise AssertionError("a gathered parameter is read by its bundle")


def _write_shard(shard: jax.Array, whole: jax.Array, layout: Layout, member: int) -> jax.Array:
    """The shard after a write to the whole, which every rank does alike."""
    flat = whole.reshape(-1)
    begin = member * layout.shard_numel
    part = flat[begin : begin + layout.shard_numel].astype(shard.dtype)
    return jnp.pad(part, (0, layout.shard_numel - part.size)).reshape(layout.shard_shape)


class Bundle:
    """Sharded parameters that travel together, in both directions.

    Args:
        shards: this rank's shards.
        layouts: of each.
        dtypes: of each whole.
        bucket_bytes: at most as many bytes of shards go in one exchange.
    """

    def __init__(
        self,
        shards: Sequence[torch.nn.Parameter],
        layouts: Sequence[Layout],
        dtypes: Sequence[torch.dtype],
        members: Members,
        bucket_bytes: int = CAP_BYTES,
    ) -> None:
        self.shards = list(shards)
        self.layouts = tuple(layouts)
        self.members = members
        self._bucket_bytes = bucket_bytes
        self._waits_for: list[tuple[TensorType, int, int]] = []
        # Whole gradients of backward passes inside `no_sync`.
        self.held: list[torch.Tensor | None] = [None] * len(self.shards)
        self.values = [self._whole(i, dtype) for i, dtype in enumerate(dtypes)]

    def _whole(self, index: int, dtype: torch.dtype) -> Gathered:
        shard, layout = self.shards[index].value, self.layouts[index]  # type: ignore[attr-defined]
        type_ = dense_type(layout.shape, dtype)
        return Gathered(type_, shard, _step(shard.type, type_, layout, self.members.member), self)

    def is_of(self, shards: Sequence[torch.nn.Parameter]) -> bool:
        """Whether the wholes still look at these tensors; `.to()` and `.data =` move them."""
        return [v.parent for v in self.values] == [s.value for s in shards]  # type: ignore[attr-defined]

    def wait_for(self, tensors: Sequence[Any]) -> None:
        """Let the next gathering begin only when these tensors are there."""
        values = [t.value for t in tensors if isinstance(t, XlaTensor)]
        # Not the values: what is waited for need not stay alive.
        self._waits_for = [(v.type, v.slot, v.epoch) for v in values]

    def drop(self) -> None:
        """Let the wholes go: the next read gathers again."""
        for value in self.values:
            value.dropped += 1

    def gather(self, trace: Trace | None = None) -> None:
        """Record the gathering of every whole, where this thread records."""
        shards = [wrap(value.parent) for value in self.values]  # type: ignore[arg-type]
        trace = trace or trace_here(shards[0].value.trace.device)
        pending = [wait for wait in self._waits_for if wait[2] == trace.tape.epoch]
        waits = [wrap(Value(type_, trace, slot, epoch)) for type_, slot, epoch in pending]
        self._waits_for = []
        results = _gathered(
            shards,
            waits,
            self.layouts,
            tuple(value.type.dtype for value in self.values),
            self.members,
            self._bucket_bytes,
        )
        for value, result in zip(self.values, results):
            trace.keep_view(value, result.value)

    def scatter(
        self, wholes: Sequence[torch.Tensor | None], before: float, after: float, *, wide: bool
    ) -> list[torch.Tensor | None]:
        """This rank's shard of the sum over ranks of each gradient, divided by both factors.

        Args:
            before: divides each rank's gradient.
            after: divides the sum.
            wide: travel as float32.
        """
        used = [i for i, gradient in enumerate(wholes) if gradient is not None]
        shards: list[torch.Tensor | None] = [None] * len(wholes)
        results = _scattered(
            [wholes[i] for i in used],  # type: ignore[misc]
            tuple(self.layouts[i] for i in used),
            tuple(self.shards[i].dtype for i in used),
            self.members,
            (before, after, wide, self._bucket_bytes),
        )
        for index, result in zip(used, results):
            shards[index] = result
        return shards


def _gathered(
    shards: list[XlaTensor],
    waits: list[XlaTensor],
    layouts: tuple[Layout, ...],
    dtypes: tuple[torch.dtype, ...],
    members: Members,
    bucket_bytes: int,
) -> list[XlaTensor]:
    count = len(shards)

    def gather(*arrays: jax.Array) -> list[jax.Array]:
        if waits:
            arrays = jax.lax.optimization_barrier(arrays)
        rows = [x.reshape(-1).astype(to_jax(d)) for x, d in zip(arrays[:count], dtypes)]
        wholes: list[Any] = [None] * count
        for bucket in _buckets(rows, bucket_bytes):
            parts = inside.all_gather_stacked(_beside([rows[i] for i in bucket], 0), members.groups)
            start = 0
            for index in bucket:
                layout = layouts[index]
                part = parts[:, start : start + layout.shard_numel]
                wholes[index] = part.reshape(-1)[: layout.numel].reshape(layout.shape)
                start += layout.shard_numel
        return wholes

    # Without this rank's place: the rows of all ranks have one description.
    key = (layouts, dtypes, members.count, members.groups, bucket_bytes, bool(waits))
    return collective_ops.record("xla.fsdp_gather", gather, [*shards, *waits], key)


def _scattered(
    gradients: list[torch.Tensor],
    layouts: tuple[Layout, ...],
    dtypes: tuple[torch.dtype, ...],
    members: Members,
    static: tuple[float, float, bool, int],
) -> list[XlaTensor]:
    if not gradients:
        return []
    before, after, wide, bucket_bytes = static

    def scatter(*arrays: jax.Array) -> list[jax.Array]:
        sent = [x.astype(jnp.promote_types(x.dtype, jnp.float32)) if wide else x for x in arrays]
        rows = [_rows(x, layout, members.count) for x, layout in zip(sent, layouts)]
        rows = [x if before == 1 else (x / before).astype(x.dtype) for x in rows]
        shards: list[Any] = [None] * len(rows)
        for bucket in _buckets(rows, bucket_bytes * members.count):
            flat = _beside([rows[i] for i in bucket], 1)
            reduced = inside.reduce_scatter(flat, "sum", 0, members.count, members.groups)
            start = 0
            for index in bucket:
                layout = layouts[index]
                part = reduced[0, start : start + layout.shard_numel].reshape(layout.shard_shape)
                part = part.astype(to_jax(dtypes[index]))
                shards[index] = part if after == 1 else part / after
                start += layout.shard_numel
        return shards

    key = (layouts, dtypes, members.count, members.groups, static)
    return collective_ops.record("xla.fsdp_scatter", scatter, gradients, key)


def _buckets(arrays: Sequence[jax.Array], cap_bytes: int) -> list[list[int]]:
    """Which arrays travel together: those of one dtype, up to the cap."""
    buckets: list[list[int]] = []
    for dtype in dict.fromkeys(x.dtype for x in arrays):
        places = [i for i, x in enumerate(arrays) if x.dtype == dtype]
        sizes = [(arrays[i].size, dtype.itemsize) for i in places]
        buckets.extend([places[i] for i in bucket] for bucket in plan(sizes, cap_bytes))
    return buckets


def _beside(arrays: list[jax.Array], axis: int) -> jax.Array:
    return arrays[0] if len(arrays) == 1 else jnp.concatenate(arrays, axis)
