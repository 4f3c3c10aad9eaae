"""Collectives on device tensors, by torch_xla's names: rows of the trace that exchange data.

Each call records one row and returns at once; the data moves when the trace is cut. Every rank of a
group must record the same ones in the same order. `pin_layout`, `channel_id` and
`use_global_device_ids` are accepted and have no meaning here.
"""

import atexit
import sys
import warnings
from collections.abc import Callable, Hashable, Sequence
from multiprocessing.util import Finalize
from typing import Any

import jax
import torch

from torch_xdist import settings
from torch_xdist.collectives import inside
from torch_xdist.collectives.buckets import plan
from torch_xdist.collectives.errors import ArgumentError
from torch_xdist.core.alias.views import write
from torch_xdist.core.devices import device
from torch_xdist.core.devices.tensor import XlaTensor
from torch_xdist.core.record.jax_ops import record_jax, trace_among
from torch_xdist.core.run.device_trace import trace_of_thread
from torch_xdist.ranks import members
from torch_xdist.ranks.members import GroupLists
from torch_xdist.ranks.tensor_lists import check_lists, dtype_and_shape, is_fake, tensors_of

REDUCE_SUM = "sum"
REDUCE_MUL = "mul"
REDUCE_AND = "and"
REDUCE_OR = "or"
REDUCE_MIN = "min"
REDUCE_MAX = "max"

_MB = 2**20


def record(
    name: str,
    function: Callable[..., Any],
    tensors: Sequence[torch.Tensor],
    key: Hashable = (),
) -> list[XlaTensor]:
    """One row that computes `function(*arrays)`, made of `collectives.inside`, on the tensors.

    `name` and `key` must determine the function.
    """
    count = members.count(tensors)
    among_ranks = count > 1 and members.devices_by_hand(tensors) is None
    if among_ranks and not _at_exit:
        _run_at_exit()
    lowering = inside.standing_alone(function, count)
    return record_jax(name, lowering, tensors, (count, key), collective=among_ranks)  # type: ignore[arg-type]


def run_pending() -> None:
    """Run this thread's pending rows if they hold collectives.

    Called before every wait for other ranks on the host: they may be waiting inside those.
    """
    trace = trace_of_thread(device.device_at(device.index_of(None)))
    if trace.tape.collectives:
        trace.cut("rendezvous")


_at_exit: list[object] = []


def _run_at_exit() -> None:
    """Run what is pending at the end of the process too; JAX is still up then.

    A process ends through atexit, and a rank of our launcher through multiprocessing's finalizers,
    which come before it reports that it finished.
    """
    _at_exit.append(Finalize(None, _finish, exitpriority=100))
    atexit.register(_finish)


def _finish() -> None:
    if not hasattr(sys, "last_value"):  # ended by an exception: the others must not be kept
        run_pending()


def overwrite(targets: Sequence[torch.Tensor], results: Sequence[XlaTensor]) -> None:
    """Make each result the value of its target, in place; shapes and dtypes are equal."""
    for target, result in zip(targets, results):
        write(target.value, result.value)  # type: ignore[attr-defined]
        torch.autograd.graph.increment_version(target)


def all_reduce(
    reduce_type: str,
    inputs: torch.Tensor | Sequence[torch.Tensor],
    scale: float = 1.0,
    groups: GroupLists = None,
    pin_layout: bool = True,
) -> Any:
    """Reduce over all ranks, or over each group, then multiply by `scale`.

    Of a tensor sharded by hand (`xs.enable_manual_sharding`) the devices' parts are reduced, here
    and in the other collectives, and groups list numbers of devices.

    Args:
        reduce_type: sum, mul, and, or, min, max.
        inputs: a tensor gives a new tensor; a list or tuple is written in place and returned.
        groups: lists of ranks, such as [[0, 1], [2, 3]]; every rank in exactly one.

    On a world of one a tensor is cloned, a list is left alone, and `scale` is not applied.
    """
    is_single = isinstance(inputs, torch.Tensor)
    tensors = tensors_of("all_reduce", inputs)
    found = members.groups_of("all_reduce", groups, tensors, any_order=True)
    if members.count(tensors) == 1 and not settings.current().always_all_reduce:
        return inputs.clone() if is_single else inputs  # type: ignore[union-attr]
    if not tensors:
        return inputs
    scale = float(scale)

    def reduce(*arrays: jax.Array) -> list[jax.Array]:
        return [_scaled(x, scale) for x in inside.all_reduce(arrays, reduce_type, found)]

    results = record("xla.all_reduce", reduce, tensors, (reduce_type, scale, found))
    if is_single:
        return results[0]
    overwrite(tensors, results)
    return inputs


def _scaled(x: jax.Array, scale: float) -> jax.Array:
    return x if scale == 1.0 else (x * scale).astype(x.dtype)


def all_gather(
    value: torch.Tensor | Sequence[torch.Tensor],
    dim: int = 0,
    groups: GroupLists = None,
    output: Any = None,
    pin_layout: bool = True,
    channel_id: int | None = None,
    use_global_device_ids: bool | None = None,
) -> Any:
    """Every rank's `value` side by side along `dim`, in the order of the group.

    Args:
        value: a tensor, or (with pin_layout=False) a list of tensors, which gives a list.
        output: becomes the result, and is returned; as many tensors as `value`.
    """
    if not isinstance(value, torch.Tensor) and pin_layout:
        raise RuntimeError(
            "For xm.all_gather with list of tensors input, pin_layout=True is not yet supported."
        )
    tensors = tensors_of("all_gather", value)
    found = members.groups_of("all_gather", groups, tensors)

    def gather(*arrays: jax.Array) -> list[jax.Array]:
        return [inside.all_gather(x, dim, found) for x in arrays]

    is_single = isinstance(value, torch.Tensor)
    return _applied("all_gather", gather, tensors, output, (dim, found), is_single)


def all_gather_bucketized(
    input_list: list[torch.Tensor],
    dim: int = 0,
    groups: GroupLists = None,
    output: list[torch.Tensor] | None = None,
    pin_layout: bool = False,
    bucket_cap_mb: float = 160,
) -> list[torch.Tensor]:
    """`all_gather` of a list, one row per bucket of at most `bucket_cap_mb` MiB of inputs."""

    def gather(inputs: Any, outputs: Any) -> Any:
        return all_gather(inputs, dim, groups, outputs, pin_layout=False)

    return CoalescingBuckets(gather, input_list, output, bucket_cap_mb=bucket_cap_mb)()


def reduce_scatter(
    reduce_type: str,
    input: torch.Tensor | Sequence[torch.Tensor],
    scale: float,
    scatter_dim: int,
    shard_count: int,
    groups: GroupLists = None,
    output: Any = None,
    pin_layout: bool = True,
    channel_id: int | None = None,
    use_global_device_ids: bool | None = None,
) -> Any:
    """This rank's slice along `scatter_dim` of the reduction over its group, times `scale`.

    Args:
        input: a tensor, or a list of tensors, which gives a new list.
        shard_count: the size of the groups; it must divide dimension `scatter_dim`.
        output: becomes the result, and is returned.
    """
    tensors = tensors_of("reduce_scatter", input)
    found = members.groups_of("reduce_scatter", groups, tensors)
    scale = float(scale)

    def scatter(*arrays: jax.Array) -> list[jax.Array]:
        shards = [
            inside.reduce_scatter(x, reduce_type, scatter_dim, shard_count, found) for x in arrays
        ]
        return [_scaled(x, scale) for x in shards]

    key = (reduce_type, scale, scatter_dim, shard_count, found)
    is_single = isinstance(input, torch.Tensor)
    return _applied("reduce_scatter", scatter, tensors, output, key, is_single)


def reduce_scatter_bucketized(
    reduce_type: str,
    input_list: list[torch.Tensor],
    scale: float,
    scatter_dim: int,
    shard_count: int,
    groups: GroupLists = None,
    output: list[torch.Tensor] | None = None,
    pin_layout: bool = False,
    bucket_cap_mb: float = 160,
) -> list[torch.Tensor]:
    """`reduce_scatter` of a list, one row per bucket of at most `bucket_cap_mb` MiB; 0: each."""

    def scatter(inputs: Any, outputs: Any) -> Any:
        return reduce_scatter(reduce_type, inputs, scale, scatter_dim, shard_count, groups, outputs)

    return CoalescingBuckets(scatter, input_list, output, bucket_cap_mb=bucket_cap_mb)()


def all_to_all(
    value: torch.Tensor,
    split_dimension: int,
    concat_dimension: int,
    split_count: int,
    groups: GroupLists = None,
    pin_layout: bool = True,
) -> torch.Tensor:
    """Cut `value` in `split_count` pieces, send piece m to member m, join what arrives."""
    tensors = tensors_of("all_to_all", value)
    found = members.groups_of("all_to_all", groups, tensors)

    def exchange(x: jax.Array) -> jax.Array:
        return inside.all_to_all(x, split_dimension, concat_dimension, split_count, found)

    key = (split_dimension, concat_dimension, split_count, found)
    return record("xla.all_to_all", exchange, tensors, key)[0]


def collective_permute(value: Any, pairs: Sequence[Sequence[int]]) -> Any:
    """What the source of the pair [source, this rank] holds; zeros on ranks no pair targets.

    A list of tensors gives a list.
    """
    tensors = tensors_of("collective_permute", value)
    found = members.pairs_of("collective_permute", pairs, tensors)

    def permute(*arrays: jax.Array) -> list[jax.Array]:
        return [inside.permute(x, found) for x in arrays]

    is_single = isinstance(value, torch.Tensor)
    return _applied("collective_permute", permute, tensors, None, found, is_single)


def collective_broadcast(
    tensors: Sequence[torch.Tensor],
    root_ordinal: int = 0,
    groups: GroupLists = None,
    pin_layout: bool = True,
) -> None:
    """Write rank `root_ordinal`'s values into every rank's tensors, bit by bit.

    With groups, ranks of a group without the root get zeros.
    """
    tensors = tensors_of("collective_broadcast", tensors)
    found = members.groups_of("collective_broadcast", groups, tensors)
    if members.count(tensors) == 1 or not tensors:
        return

    def broadcast(*arrays: jax.Array) -> list[jax.Array]:
        return [inside.broadcast(x, root_ordinal, found) for x in arrays]

    overwrite(tensors, record("xla.broadcast", broadcast, tensors, (root_ordinal, found)))


def optimization_barrier_(tensors: Sequence[torch.Tensor]) -> None:
    """Keep XLA from moving work across this point, for these tensors, in place."""
    tensors = [tensor for tensor in tensors if not is_fake(tensor)]
    if tensors:
        overwrite(tensors, record_jax("xla.optimization_barrier", optimization_barrier, tensors))  # type: ignore[arg-type]


def optimization_barrier(*arrays: jax.Array) -> list[jax.Array]:
    """A lowering: the same arrays, none of which XLA computes before all are there."""
    return list(jax.lax.optimization_barrier(arrays))


class CoalescingBuckets:
    """A function of a list of tensors, called once per bucket.

    Call it, or `add` tensors and `flush` by hand; `results` has what came then.

    Args:
        func: called as func(inputs, outputs), both lists (outputs None where none were given).
        input_list: the tensors.
        output_list: where the results go, one per input.
        bucket_cap_mb: MiB of inputs per call at most; 0: one input per call.
    """

    def __init__(
        self,
        func: Callable[[list[torch.Tensor], list[torch.Tensor] | None], Any],
        input_list: list[torch.Tensor],
        output_list: list[torch.Tensor] | None = None,
        bucket_cap_mb: float = 160,
    ) -> None:
        check_lists("bucketized collective", input_list, output_list)
        if bucket_cap_mb < 0:
            raise ArgumentError(
                f"bucketized collective: bucket_cap_mb is {bucket_cap_mb}; use 0 or more"
            )
        self._func, self._inputs, self._outputs = func, input_list, output_list
        self._cap_bytes = int(bucket_cap_mb * _MB)
        self._bucket: list[tuple[torch.Tensor, int]] = []
        self.results: list[torch.Tensor] = []

    def add(self, tensor: torch.Tensor, idx: int) -> None:
        """Enter a tensor into the bucket; its output is that of place `idx`."""
        self._bucket.append((tensor, idx))

    def flush(self) -> None:
        """Call the function with the bucket, if anything is in it."""
        bucket, self._bucket = self._bucket, []
        if bucket:
            outputs = [self._outputs[i] for _, i in bucket] if self._outputs is not None else None
            self.results.extend(self._func([tensor for tensor, _ in bucket], outputs))

    def __call__(self) -> list[torch.Tensor]:
        """The results in the order of the inputs; the output list itself where it was given."""
        self.results = []
        sizes = [(tensor.numel(), tensor.element_size()) for tensor in self._inputs]
        for bucket in plan(sizes, self._cap_bytes):
            for index in bucket:
                self.add(self._inputs[index], index)
            self.flush()
        return self.results if self._outputs is None else self._outputs


def _applied(
    name: str,
    function: Callable[..., list[jax.Array]],
    tensors: list[torch.Tensor],
    output: Any,
    key: Hashable,
    is_single: bool,
) -> Any:
    """Record the function of one or several tensors, and fill `output` where it is given."""
    outputs = None if output is None else [output] if is_single else output
    check_lists(name, tensors, outputs)
    if not tensors:
        return tensors if output is None else output
    if outputs is not None:
        trace_among(f"{name}: output", outputs)
    results = record(f"xla.{name}", function, tensors, key)
    if outputs is None:
        return results[0] if is_single else results
    for target, result in zip(outputs, results):
        _replace(name, target, result)
    return output


def _replace(name: str, target: torch.Tensor, result: XlaTensor) -> None:
    """Make the result what an output is, of whatever shape and dtype it was."""
    if target.shape == result.shape and target.dtype is result.dtype:
        overwrite([target], [result])
        return
    if target.numel():
        warnings.warn(
            f"{name}: output was {dtype_and_shape(target)} and became {dtype_and_shape(result)};"
            " give it a tensor of the result's shape and dtype, or an empty one",
            stacklevel=4,
        )
    target.data = result
    torch.autograd.graph.increment_version(target)
