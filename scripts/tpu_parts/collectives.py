"""Every collective of `xla_model` over slices of flat and of cubic chips, and between slices."""

from collections.abc import Callable, Iterator
from typing import Any

import torch

import torch_xla.core.xla_model as xm
from torch_xdist.ahead.compiler import Compiler
from torch_xdist.ahead.sweep import Found, tried
from torch_xdist.ahead.topology import Topology, devices
from torch_xdist.core.devices import aim

TOPOLOGIES = (Topology("v5e:16x16"), Topology("v5p:4x4x4"), Topology("v5e:4x4", 2))


def _pairs(count: int) -> list[list[int]]:
    return [[rank, (rank + 1) % count] for rank in range(count)]


def _halves(count: int) -> list[list[int]]:
    return [[*range(count // 2)], [*range(count // 2, count)]]


# Of a tensor [rows, 128] with as many rows as there are ranks.
COLLECTIVES: dict[str, Callable[[torch.Tensor, int], Any]] = {
    **{
        f"all_reduce {name}": lambda x, n, name=name: xm.all_reduce(name, x)
        for name in (xm.REDUCE_SUM, xm.REDUCE_MIN, xm.REDUCE_MAX, xm.REDUCE_MUL)
    },
    "all_reduce in halves": lambda x, n: xm.all_reduce(xm.REDUCE_SUM, x, groups=_halves(n)),
    "all_gather": lambda x, n: xm.all_gather(x, dim=0),
    "reduce_scatter": lambda x, n: xm.reduce_scatter(xm.REDUCE_SUM, x, 1.0, 0, n),
    "all_to_all": lambda x, n: xm.all_to_all(x, 0, 0, n),
    "collective_permute": lambda x, n: xm.collective_permute(x, _pairs(n)),
    "collective_broadcast": lambda x, n: xm.collective_broadcast([x]),
}


def sweep(names: str, limit_s: float) -> Iterator[Found]:
    """Each collective over each topology."""
    for topology in TOPOLOGIES:
        there = devices(topology)
        with Compiler(limit_s) as compiler, aim.at(there, ranks=True):
            for name, call in COLLECTIVES.items():
                if names in ("", name):
                    yield of_collective(name, call, topology, len(there), compiler)


def of_collective(
    name: str,
    call: Callable[[torch.Tensor, int], Any],
    topology: Topology,
    count: int,
    compiler: Compiler,
) -> Found:
    """The program of one collective, and of what computes on both sides of it."""

    def make() -> torch.Tensor:
        return torch.ones(count, 128).to("xla")

    def both(x: torch.Tensor) -> Any:
        y = x * 2
        found = call(y, count)
        return (y if found is None else found) + 1

    return tried(f"{name} over {topology}", make, both, topology, compiler)
