"""Every public collective of torch.distributed, called the same way on any backend.

A call is a function (rank, size, device) that returns what this rank got.
"""

import warnings
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
import torch_releases
from torch.distributed.nn import functional as differentiable

CALLS: dict[str, Callable[[int, int, str], Any]] = {}


def call(function):
    CALLS[function.__name__] = function
    return function


def full(device, *values):
    return torch.tensor([float(value) for value in values], device=device)


def zeros(device, *shape):
    return torch.zeros(shape, device=device)


@call
def all_gather_into_tensor(rank, size, device):
    flat, stacked = zeros(device, 2 * size), zeros(device, size, 2)
    dist.all_gather_into_tensor(flat, full(device, rank, 1))
    torch_releases.all_gather_single(stacked, full(device, rank, 2)[None])
    return flat, stacked


@call
def reduce_scatter_tensor(rank, size, device):
    flat, rows = zeros(device, 2), zeros(device, 1, 3)
    dist.reduce_scatter_tensor(flat, torch.arange(2.0 * size, device=device) + rank)
    torch_releases.reduce_scatter_single(
        rows, torch.arange(3.0 * size, device=device).reshape(size, 3) + rank
    )
    return flat, rows


@call
def coalescing_manager(rank, size, device):
    gathered, scattered = [zeros(device, size), zeros(device, 2 * size)], [zeros(device, 2)]
    with dist.distributed_c10d._coalescing_manager(async_ops=True) as works:
        dist.all_gather_into_tensor(gathered[0], full(device, rank))
        dist.all_gather_into_tensor(gathered[1], full(device, rank, 5))
    works.wait()
    with dist.distributed_c10d._coalescing_manager():
        dist.reduce_scatter_tensor(scattered[0], torch.arange(2.0 * size, device=device))
    reduced = [full(device, rank), full(device, rank, 1)]
    with dist.distributed_c10d._coalescing_manager():
        for value in reduced:
            dist.all_reduce(value)
    return gathered, scattered, reduced


@call
def coalesced(rank, size, device):
    outputs = [[zeros(device, 1), zeros(device, 2)] for _ in range(size)]
    dist.all_gather_coalesced(outputs, [full(device, rank), full(device, rank, 7)])
    values = [full(device, rank), full(device, rank, 1)]
    dist.all_reduce_coalesced(values, op=dist.ReduceOp.MAX)
    return outputs, values


@call
def dtypes(rank, size, device):
    found = []
    for dtype in (
        *(torch.float64, torch.float16, torch.bfloat16, torch.int8, torch.uint8, torch.int32),
        *(torch.int64, torch.bool, torch.complex64),
    ):
        value = torch.tensor([1, rank, 2]).to(dtype).to(device)
        outputs = [torch.zeros(3, dtype=dtype, device=device) for _ in range(size)]
        dist.all_gather(outputs, value)
        dist.broadcast(value, 1)
        found.append((outputs, value))
    return found


@call
def views_and_sizes(rank, size, device):
    base, empty = torch.arange(6.0, device=device) + rank, zeros(device, 0)
    dist.all_reduce(base[2:4])
    dist.broadcast(base[:1], size - 1)
    dist.all_reduce(empty)
    outputs = [zeros(device, 0) for _ in range(size)]
    dist.all_gather(outputs, empty)
    number = torch.tensor(float(rank), device=device)
    dist.all_reduce(number)
    return base, empty, outputs, number


@call
def asynchronous(rank, size, device):
    one, other = full(device, rank), full(device, rank)
    works = [
        dist.all_reduce(one, async_op=True),
        dist.broadcast(other, 0, async_op=True),
        dist.all_gather([zeros(device, 1) for _ in range(size)], one, async_op=True),
        dist.barrier(async_op=True),
    ]
    doubled = works[0].get_future().then(lambda done: done.value()[0] * 2).wait()
    for work in works:
        work.wait()
    return one, other, doubled, [work.is_completed() for work in works]


@call
def groups(rank, size, device):
    mine, everyone = dist.new_subgroups(group_size=1)
    alone, rest = full(device, rank), full(device, rank)
    dist.all_reduce(alone, group=mine)
    other, _ = dist.new_subgroups_by_enumeration([[0], list(range(1, size))])
    dist.all_reduce(rest, group=other)
    group = dist.new_group(list(range(size)), group_desc="all")
    outputs = [zeros(device, 1) for _ in range(size)]
    dist.all_gather(outputs, full(device, rank), group=group)
    facts = (
        dist.get_group_rank(group, rank),
        dist.get_global_rank(group, 0),
        dist.get_process_group_ranks(other),
        (dist.get_rank(group), dist.get_world_size(group), dist.get_pg_count() > 1),
        group.group_desc,
    )
    dist.destroy_process_group(group)
    return alone, rest, outputs, len(everyone), facts


@call
def objects(rank, size, device):
    where = torch.device(device)
    everybody: list[Any] = [None] * size
    dist.all_gather_object(everybody, {"rank": rank, "ones": torch.ones(2) * rank})
    on_one = [None] * size if rank == 1 else None
    dist.gather_object((rank, "x" * rank), on_one, dst=1)
    shared, one = [rank, str(rank)], [None]
    dist.broadcast_object_list(shared, src=1, device=where)
    dist.scatter_object_list(one, [10 * r for r in range(size)] if rank == 0 else None, src=0)
    message: list[Any] = [{"a": 1}, 2] if rank == 0 else [None, None]
    if rank == 0:
        dist.send_object_list(message, dst=1, device=where)
    if rank == 1:
        dist.recv_object_list(message, src=0, device=where)
    return everybody, on_one, shared, one, message


@call
def messages(rank, size, device):
    dist.barrier()
    two, one, ring = zeros(device, 2), zeros(device, 1), zeros(device, 1)
    if rank == 0:
        dist.send(full(device, 1, 2), 1)
        dist.isend(full(device, 3), 1, tag=4).wait()
    if rank == 1:
        dist.recv(two, 0)
        dist.irecv(one, 0, tag=4).wait()
    works = dist.batch_isend_irecv(
        [
            dist.P2POp(dist.isend, full(device, rank), (rank + 1) % size),
            dist.P2POp(dist.irecv, ring, (rank - 1) % size),
        ]
    )
    for work in works:
        work.wait()
    return two, one, ring


@call
def rooted(rank, size, device):
    outputs = [zeros(device, 2, 2) for _ in range(size)] if rank == 0 else None
    dist.gather(torch.ones(2, 2, device=device) * rank, outputs, dst=0)
    part, most = zeros(device, 2, 2), full(device, rank, 1)
    inputs = [torch.ones(2, 2, device=device) * r for r in range(size)] if rank == 1 else None
    dist.scatter(part, inputs, src=1)
    dist.reduce(most, 0, op=dist.ReduceOp.MAX)
    return outputs, part, most if rank == 0 else None


@call
def exchanged(rank, size, device):
    whole, parts = zeros(device, size, 2), [zeros(device, 2) for _ in range(size)]
    dist.all_to_all_single(whole, torch.arange(2.0 * size, device=device).reshape(size, 2) + rank)
    torch_releases.all_to_all(parts, [full(device, rank, r) for r in range(size)])
    uneven = zeros(device, size * (rank + 1))
    source = torch.arange(size * (size + 1) / 2, device=device) + 100 * rank
    sizes = [r + 1 for r in range(size)]
    dist.all_to_all_single(uneven, source, [rank + 1] * size, sizes)
    shares = zeros(device, 2)
    dist.reduce_scatter(shares, [full(device, rank, r) for r in range(size)])
    return whole, parts, uneven, shares


@call
def functional_collectives(rank, size, device):
    group, x = dist.group.WORLD, full(device, rank, 1)
    flat = torch.arange(2.0 * size, device=device) + rank
    splits = [rank + 1] * size, [r + 1 for r in range(size)]
    source = torch.arange(size * (size + 1) / 2, device=device) + 100 * rank
    found = [
        functional.all_reduce(x, "sum", group),
        functional.all_reduce(x, "max", list(range(size))),
        functional.broadcast(x, 1, group),
        functional.all_gather_tensor(x, 0, group),
        functional.all_gather_tensor(x[None], 1, group),
        functional.reduce_scatter_tensor(flat, "sum", 0, group),
        functional.reduce_scatter_tensor(flat[None], "sum", 1, group),
        *functional.all_reduce_coalesced([x, x * 2], "sum", group),
        *functional.all_gather_into_tensor_coalesced([x, x * 2], group),
        *functional.reduce_scatter_tensor_coalesced([flat, flat * 2], "sum", [0, 0], group),
        functional.all_to_all_single(flat, None, None, group),
        functional.all_to_all_single(source, *splits, group),
        functional.permute_tensor(x, [(r + 1) % size for r in range(size)], group),
    ]
    return [functional.wait_tensor(value) + 0 for value in found], x


@call
def differentiable_functional_collectives(rank, size, device):
    group, found = dist.group.WORLD, []
    for function, leaf in (
        (lambda x: functional.all_gather_tensor_autograd(x, 0, group), full(device, rank, 1)),
        (
            lambda x: functional.reduce_scatter_tensor_autograd(x, "sum", 0, group),
            torch.arange(2.0 * size, device=device),
        ),
        (
            lambda x: functional.all_to_all_single_autograd(x, [2] * size, [2] * size, group),
            torch.arange(2.0 * size, device=device),
        ),
    ):
        leaf.requires_grad_()
        result = function(leaf)
        (result * torch.arange(result.numel(), device=device) * (rank + 1)).sum().backward()
        found.append((result + 0, leaf.grad))
    return found


@call
def differentiable_collectives(rank, size, device):
    def leaves(count):
        return [full(device, rank, r).requires_grad_() for r in range(count)]

    outputs = [zeros(device, 2) for _ in range(size)]
    found = []
    for function, count in (
        (lambda x: differentiable.all_reduce(x), 1),
        (lambda x: differentiable.broadcast(x, 1), 1),
        (lambda x: differentiable.all_gather(x), 1),
        (lambda *xs: differentiable.scatter(list(xs), 0), size),
        (lambda *xs: differentiable.reduce_scatter(zeros(device, 2), list(xs)), size),
        (lambda *xs: differentiable.all_to_all(outputs, list(xs)), size),
        (lambda x: differentiable.all_to_all_single(zeros(device, 2 * size), x.repeat(size)), 1),
    ):
        inputs = leaves(count)
        result = function(*inputs)
        parts = list(result) if isinstance(result, tuple) else [result]
        (torch.stack(parts) * (rank + 1)).sum().backward()
        # Gradients of a scatter arrive at its root.
        grads = [x.grad for x in inputs] if inputs[0].grad is not None else []
        found.append(([part.detach() for part in parts], grads))
    for function in (differentiable.reduce, differentiable.gather):
        (x,) = leaves(1)
        result = function(x, 1)
        parts = list(result) if isinstance(result, tuple) else [result]
        (torch.stack(parts) * (rank + 1)).sum().backward()
        found.append(([part.detach() for part in parts] if rank == 1 else [], x.grad))
    return found


@call
def facts(rank, size, device):
    with torch_releases.record_comm("named"):
        value = full(device, rank)
        dist.all_reduce(value)
    there = [dist.is_initialized(), dist.supports_complex(dist.ReduceOp.SUM)]
    return value, there, dist.get_node_local_rank(fallback_rank=rank)


def plain(value):
    """The same with lists in the place of tensors."""
    if isinstance(value, torch.Tensor):
        return value.detach().cpu().tolist()
    if isinstance(value, dict):
        return {key: plain(part) for key, part in value.items()}
    return [plain(part) for part in value] if isinstance(value, (list, tuple)) else value


def results(rank, size, device):
    """What every call gives this rank, by the calls' names."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return {name: plain(function(rank, size, device)) for name, function in CALLS.items()}
