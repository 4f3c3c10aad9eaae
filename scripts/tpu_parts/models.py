"""A training step of each family of `tests/families.py`, on one chip and data parallel on more."""

import warnings
from collections.abc import Iterator
from typing import Any

import torch
from families import FAMILIES, Family

import torch_xla.core.xla_model as xm
from torch_xdist.ahead.compiler import Compiler
from torch_xdist.ahead.sweep import Found, tried
from torch_xdist.ahead.topology import Topology, devices
from torch_xdist.core.devices import aim

# One chip is the first of a slice.
TOPOLOGIES = {1: "v5e:2x2", 4: "v5e:2x2", 8: "v5e:2x4", 256: "v5e:16x16"}


def sweep(names: str, limit_s: float) -> Iterator[Found]:
    """Each family on 1, 4, 8 and 256 chips: what became of its second step."""
    for name, family in FAMILIES.items():
        if names not in ("", name):
            continue
        for chips, topology in TOPOLOGIES.items():
            there = Topology(topology)
            with Compiler(limit_s) as compiler, aim.at(devices(there), ranks=chips > 1):
                yield of_family(f"{name} on {chips}", family, there, compiler)


def of_family(name: str, family: Family, topology: Topology, compiler: Compiler) -> Found:
    """The program of a step with AdamW, whose state is there already."""

    def make() -> Any:
        torch.manual_seed(0)
        model = family.model().to("xla")
        optimizer = torch.optim.AdamW(model.parameters())
        # As after a first step, which ranks that are not here cannot take.
        for parameter in model.parameters():
            parameter.grad = torch.zeros_like(parameter)
        optimizer.step()
        optimizer.zero_grad()
        return model, optimizer, *(part.to("xla") for part in family.batch())

    def call(made: Any) -> Any:
        model, optimizer, inputs, target = made
        loss = family.loss(model(inputs), target)
        loss.backward()
        xm.optimizer_step(optimizer)
        optimizer.zero_grad()
        return loss.detach()

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return tried(name, make, call, topology, compiler)
