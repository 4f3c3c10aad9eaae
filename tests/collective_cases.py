"""Every collective in every dtype, as one body that each rank of a world runs: what it gives beside
what CPU torch computes from all ranks' inputs, which every rank can make by itself.

The rows of a family of cases are recorded into one program, so that a world of any size costs a few
compilations.
"""

import functools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

Tensors = list[torch.Tensor]
Groups = list[list[int]] | None

DTYPES = (
    torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int8, torch.int16,
    torch.int32, torch.int64, torch.uint8, torch.bool, torch.complex64,
)  # fmt: skip
WHOLE = tuple(d for d in DTYPES if not d.is_floating_point and not d.is_complex)
REAL = tuple(d for d in DTYPES if not d.is_complex)
FLOATING = tuple(d for d in DTYPES if d.is_floating_point)
REDUCTIONS = {"sum": DTYPES, "mul": DTYPES, "and": WHOLE, "or": WHOLE, "min": REAL, "max": REAL}

_COMBINE: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "sum": torch.add, "mul": torch.mul, "min": torch.minimum, "max": torch.maximum,
    "and": torch.bitwise_and, "or": torch.bitwise_or,
}  # fmt: skip


@dataclass(frozen=True)
class Case:
    """What a rank records, and what it must find: `want` has one tensor per tensor of `got`."""

    name: str
    got: Tensors
    want: Tensors


def values(rank: int, dtype: torch.dtype, *shape: int) -> torch.Tensor:
    """What a rank brings, on the CPU: all of an integer dtype's range, or numbers around 1."""
    generator = torch.Generator().manual_seed(100 * rank + DTYPES.index(dtype))
    if dtype is torch.bool:
        return torch.randint(0, 2, shape, generator=generator).bool()
    if dtype in WHOLE:
        bounds = torch.iinfo(dtype)
        return torch.randint(bounds.min, bounds.max, shape, generator=generator, dtype=dtype)
    if dtype.is_complex:
        return torch.randn(shape, generator=generator, dtype=dtype)
    return (torch.rand(shape, generator=generator) + 0.5).to(dtype)


def folded(reduction: str, parts: Tensors, scale: float = 1.0) -> torch.Tensor:
    """The reduction on CPU torch; 16-bit floats are rounded once."""
    dtype = parts[0].dtype
    if dtype in (torch.float16, torch.bfloat16):
        parts = [part.float() for part in parts]
    total = functools.reduce(_COMBINE[reduction], parts).to(dtype)
    if scale == 1.0:
        return total
    return ((total.double() if dtype in WHOLE else total) * scale).to(dtype)


def partitions(size: int) -> list[Groups]:
    """The world, and its halves: neighbours, and every other rank."""
    half = size // 2
    if size % 2 or size == 2:
        return [None, [[rank] for rank in range(size)]]
    ranks = list(range(size))
    return [None, [ranks[:half], ranks[half:]], [ranks[::2], ranks[1::2]]]


def members(groups: Groups, rank: int, size: int) -> list[int]:
    """The group of a rank."""
    return next((g for g in groups or () if rank in g), list(range(size)))


def brought(rank: int, dtypes: Iterable[torch.dtype], *shape: int) -> Tensors:
    """One tensor per dtype on the device: what `values` says of this rank."""
    return [values(rank, dtype, *shape).to("xla") for dtype in dtypes]


def all_reduces(rank: int, size: int) -> Iterator[Case]:
    """Each reduction with every grouping, as a list of all dtypes in place; tensors alone."""
    import torch_xla.core.xla_model as xm
    from torch_xdist import world

    for reduction, dtypes in REDUCTIONS.items():
        # XLA gathers what it cannot reduce, so there the groups must have one size.
        may_differ = world.transport() != "mesh" or reduction in ("sum", "min", "max")
        uneven = [[[0], list(range(1, size))]] if size > 2 and may_differ else []
        for groups in [*partitions(size), *uneven]:
            here = members(groups, rank, size)
            want = [folded(reduction, [values(r, d, 4, 3) for r in here]) for d in dtypes]
            lists = brought(rank, dtypes, 4, 3)
            assert xm.all_reduce(reduction, lists, groups=groups) is lists
            yield Case(f"all_reduce {reduction} {groups}", lists, want)
        got = [xm.all_reduce(reduction, x) for x in brought(rank, dtypes, 4, 3)]
        want = [folded(reduction, [values(r, d, 4, 3) for r in range(size)]) for d in dtypes]
        yield Case(f"all_reduce {reduction} alone", got, want)


def scaled(rank: int, size: int) -> Iterator[Case]:
    """Scales, which are applied to the sum; shapes without dims and without elements; views."""
    import torch_xla.core.xla_model as xm

    for dtype in DTYPES:
        for shape in ((), (0, 3), (5,)):
            parts = [values(r, dtype, *shape) for r in range(size)]
            got = xm.all_reduce("sum", values(rank, dtype, *shape).to("xla"), scale=0.5)
            scale = 1.0 if size == 1 else 0.5  # as in torch_xla
            yield Case(f"scale {dtype} {shape}", [got], [folded("sum", parts, scale)])
        parts = [values(r, dtype, 3, 4).T for r in range(size)]
        got = xm.all_reduce("sum", values(rank, dtype, 3, 4).to("xla").T)
        yield Case(f"view {dtype}", [got], [folded("sum", parts)])


def gathers(rank: int, size: int) -> Iterator[Case]:
    """Along each dim, tensors and lists, into `output=`, in buckets."""
    import torch_xla.core.xla_model as xm

    for groups in partitions(size):
        xs = [[values(r, d, 2, 3) for d in DTYPES] for r in members(groups, rank, size)]
        for dim in (0, 1, -1):
            got = xm.all_gather(brought(rank, DTYPES, 2, 3), dim, groups, pin_layout=False)
            yield Case(f"all_gather dim {dim} {groups}", got, [torch.cat(x, dim) for x in zip(*xs)])
        want = [torch.cat(x) for x in zip(*xs)]
        outputs = [torch.zeros_like(x).to("xla") for x in want]
        mine = brought(rank, DTYPES, 2, 3)
        assert xm.all_gather_bucketized(mine, 0, groups, outputs, bucket_cap_mb=0) is outputs
        yield Case(f"all_gather_bucketized {groups}", outputs, want)
    want = [torch.cat([values(r, d, 2) for r in range(size)]) for d in DTYPES]
    outputs = [torch.zeros_like(x).to("xla") for x in want]
    for x, output in zip(brought(rank, DTYPES, 2), outputs):
        assert xm.all_gather(x, output=output) is output
    yield Case("all_gather output", outputs, want)
    want = [torch.stack([values(r, d) for r in range(size)]) for d in DTYPES]
    yield Case("all_gather of scalars", [xm.all_gather(x) for x in brought(rank, DTYPES)], want)


def scatters(rank: int, size: int) -> Iterator[Case]:
    """Each reduction along each dim, tensors and lists, into `output=`, in buckets."""
    import torch_xla.core.xla_model as xm

    for reduction, dtypes in REDUCTIONS.items():
        for groups in partitions(size) if reduction in ("sum", "max") else [None]:
            here = members(groups, rank, size)
            count, place = len(here), here.index(rank)
            shape = (2 * count, 2 * count)
            whole = [folded(reduction, [values(r, d, *shape) for r in here]) for d in dtypes]
            mine = brought(rank, dtypes, *shape)
            for dim in (0, -1):
                got = xm.reduce_scatter(reduction, mine, 1.0, dim, count, groups)
                want = [x.chunk(count, dim)[place] for x in whole]
                yield Case(f"reduce_scatter {reduction} dim {dim} {groups}", got, want)
    halves = [folded("sum", [values(r, d, size) for r in range(size)], 0.5) for d in DTYPES]
    want = [x[rank : rank + 1] for x in halves]
    outputs = [torch.zeros_like(x).to("xla") for x in want]
    mine = brought(rank, DTYPES, size)
    for x, output in zip(mine, outputs):
        assert xm.reduce_scatter("sum", x, 0.5, 0, size, output=output) is output
    yield Case("reduce_scatter output, scaled", outputs, want)
    got = xm.reduce_scatter_bucketized("sum", mine, 0.5, 0, size, bucket_cap_mb=0)
    yield Case("reduce_scatter_bucketized, scaled", got, want)


def moves(rank: int, size: int) -> Iterator[Case]:
    """all_to_all, permute and broadcast."""
    import torch_xla.core.xla_model as xm

    for groups in partitions(size):
        here = members(groups, rank, size)
        count, place = len(here), here.index(rank)
        for split, concat in ((0, 0), (0, 1), (1, 0), (1, -1)):
            dtypes = DTYPES if (split, concat) == (1, 0) else DTYPES[:1]
            xs = [[values(r, d, 2 * count, 2 * count) for d in dtypes] for r in here]
            got = [xm.all_to_all(x.to("xla"), split, concat, count, groups) for x in xs[place]]
            want = [
                torch.cat([x.chunk(count, split)[place] for x in at], concat) for at in zip(*xs)
            ]
            yield Case(f"all_to_all {split} {concat} {groups}", got, want)
        root = here[-1] if groups is None else groups[0][-1]
        sent = brought(rank, DTYPES, 2, 3)
        xm.collective_broadcast(sent, root, groups)
        want = [values(root, d, 2, 3) * (root in here) for d in DTYPES]
        yield Case(f"collective_broadcast {groups}", sent, want)
    for name, pairs in {
        "a ring": [[r, (r + 1) % size] for r in range(size)],
        "one way": [[0, size - 1]],
        "nobody": [],
    }.items():
        source = {target: source for source, target in pairs}.get(rank)
        want = [values(source or 0, d, 3) * (source is not None) for d in DTYPES]
        got = xm.collective_permute(brought(rank, DTYPES, 3), pairs)
        yield Case(f"collective_permute {name}", got, want)
    alone = [xm.collective_permute(x, [[0, size - 1]]) for x in brought(rank, DTYPES, 3)]
    want = [values(0, d, 3) * (rank == size - 1) for d in DTYPES]
    yield Case("collective_permute of tensors", alone, want)


def special_values(rank: int, size: int) -> Iterator[Case]:
    """What is not a number stays so, and reaches nobody it was not sent to."""
    import torch_xla.core.xla_model as xm
    from torch_xdist import world

    # gloo drops NaN in a min or max of three ranks, depending on their order.
    reductions = ("sum", "min", "max") if world.transport() != "mesh" else ("sum",)
    odd = [float("nan"), float("inf"), -float("inf"), -0.0, 1e-45]
    for dtype in FLOATING:
        parts = [torch.tensor(odd[r % 5 :] + odd[: r % 5]).to(dtype) for r in range(size)]
        mine = parts[rank].to("xla")
        for reduction in reductions:
            got = xm.all_reduce(reduction, mine)
            yield Case(f"special {reduction} {dtype}", [got], [folded(reduction, parts)])
        sent = mine.clone()
        xm.collective_broadcast([sent], size - 1)
        yield Case(f"special broadcast {dtype}", [sent], [parts[-1]])


def differentiated(rank: int, size: int) -> Iterator[Case]:
    """xf's collectives and the gradients they pass, which are local."""
    import torch_xla.core.functions as xf

    for dtype in FLOATING:
        parts = [values(r, dtype, 2, 3) for r in range(size)]
        for reduction in ("sum", "mul", "min", "max"):
            x = parts[rank].to("xla").requires_grad_()
            y = xf.all_reduce(reduction, x, scale=2.0)
            y.sum().backward()
            total = folded(reduction, parts)
            passed = {"sum": torch.ones_like(total), "mul": total / parts[rank]}
            local = passed.get(reduction, (total == parts[rank]).to(dtype)) * 2
            yield Case(
                f"xf.all_reduce {reduction} {dtype}", [y.detach(), x.grad], [total * 2, local]
            )
        for dim in (0, 1):
            x = parts[rank].to("xla").requires_grad_()
            y, whole = xf.all_gather(x, dim), torch.cat(parts, dim)
            weights = torch.arange(float(whole.numel())).reshape(whole.shape).to(dtype)
            (y * weights.to("xla")).sum().backward()
            local = weights.narrow(dim, rank * x.shape[dim], x.shape[dim])
            yield Case(f"xf.all_gather {dtype} {dim}", [y.detach(), x.grad], [whole, local])


def messages(rank: int, size: int) -> Iterator[Case]:
    """A ring in each direction, both in flight at once; nothing where a rank is alone."""
    import torch_xla.core.xla_model as xm

    if size == 1:
        return
    after, before = (rank + 1) % size, (rank - 1) % size
    for dtype in DTYPES:
        mine = values(rank, dtype, 2, 3).to("xla")
        xm.send(mine, after)
        xm.send(mine * 1 if dtype is not torch.bool else ~mine, 100 + before)
        got = [torch.zeros(2, 3, dtype=dtype).to("xla") for _ in range(2)]
        xm.recv(got[1], 100 + rank)
        xm.recv(got[0], rank)
        want = [values(r, dtype, 2, 3) for r in (before, after)]
        if dtype is torch.bool:
            want[1] = ~want[1]
        yield Case(f"send and recv {dtype}", got, want)


FAMILIES = (
    all_reduces, scaled, gathers, scatters, moves, special_values, differentiated, messages,
)  # fmt: skip


def differences(rank: int, size: int, families: Any = FAMILIES) -> tuple[int, list[str]]:
    """Run all cases on this rank: how many, and what is wrong with each that fails."""
    from torch_xdist.core.devices import steps

    count, wrong = 0, []
    for family in families:
        cases = list(family(rank, size))
        steps.sync()
        count += len(cases)
        for case in cases:
            try:
                assert len(case.got) == len(case.want)
                for got, want in zip(case.got, case.want):
                    torch.testing.assert_close(got.cpu(), want, equal_nan=True)
            except AssertionError as error:
                wrong.append(f"{case.name}: {error}")
    return count + 3, wrong + rendezvous_and_messages(rank, size)


def rendezvous_and_messages(rank: int, size: int) -> list[str]:
    """What goes from host to host: mesh_reduce, and a model of all dtypes from rank 0."""
    import torch_xla.core.xla_model as xm

    wrong = []
    mine = {dtype: values(rank, dtype, 3).to("xla") for dtype in DTYPES}
    summed = xm.mesh_reduce(
        "all dtypes", mine, lambda parts: {d: folded("sum", [p[d] for p in parts]) for d in DTYPES}
    )
    for dtype in DTYPES:
        want = folded("sum", [values(r, dtype, 3) for r in range(size)])
        if not torch.equal(summed[dtype], want):
            wrong.append(f"mesh_reduce {dtype}: {summed[dtype]} is not {want}")
    model = torch.nn.Module()
    for dtype in DTYPES:
        model.register_buffer(f"a_{str(dtype)[6:]}", values(rank, dtype, 3))
    model.weight = torch.nn.Parameter(values(rank, torch.float32, 2))
    xm.broadcast_master_param(model.to("xla"))
    for name, found in model.named_buffers():
        if not torch.equal(found.cpu(), values(0, getattr(torch, name[2:]), 3)):
            wrong.append(f"broadcast_master_param {name}: {found}")
    if not torch.equal(model.weight.detach().cpu(), values(0, torch.float32, 2)):
        wrong.append(f"broadcast_master_param weight: {model.weight}")
    return wrong
