"""`Layout`: JAX's shardings over all devices, and how arrays come to lie there."""

import itertools

import numpy as np
from spmd_process import SpmdProcess

import torch_xla
import torch_xla.distributed.spmd as xs
from torch_xdist import metrics
from torch_xdist.core.devices import device
from torch_xdist.core.sharding.layout import Layout

four = SpmdProcess(4)
eight = SpmdProcess(8)
late = SpmdProcess(4, spmd=False)
spec_of = torch_xla._XLAC._get_xla_sharding_spec


def layout():
    """A layout of its own over all devices, which no mesh was shown yet."""
    return Layout(device.layout().devices)


def meshes(count):
    """The shapes of meshes of so many devices, and every order of their axes."""
    shapes = [s for n in (1, 2, 3) for s in itertools.product((1, 2, 4, 8), repeat=n)]
    for shape in shapes:
        if np.prod(shape) == count:
            grid = np.arange(count).reshape(shape)
            for order in itertools.permutations(range(len(shape))):
                yield xs.Mesh(grid.transpose(order).ravel(), grid.transpose(order).shape)


def specs(mesh, rank):
    """Every spec of so many dims: no axis, one axis, or two in either order for each dim."""
    axes = range(len(mesh.mesh_shape))
    entries = [None, *axes, *itertools.permutations(axes, 2)]
    for spec in itertools.product(entries, repeat=rank):
        used = [a for e in spec if e is not None for a in (e if isinstance(e, tuple) else (e,))]
        if len(set(used)) == len(used):
            yield spec


def held(sharding, here, shape):
    """The part of an array of `shape` that each device holds, by its number."""
    found = sharding.devices_indices_map(shape)
    return {
        here.devices.index(place): tuple(one.indices(size)[:2] for one, size in zip(part, shape))
        for place, part in found.items()
    }


def check_all_tilings(count):
    """Where the finest mesh has the axes each tiling comes back; returns how many were checked."""
    checked = 0
    for mesh in meshes(count):
        here = layout()
        here.follow(mesh.get_logical_mesh())
        for rank in (1, 2, 3):
            for spec in specs(mesh, rank):
                tiling = mesh.tiling(spec)
                sharding = here.sharding(tiling)
                assert here.tiling(sharding, rank).text == tiling.text
                shape = tiling.padded_shape((8,) * rank)
                expected = {
                    number: tuple((one.start, one.stop) for one in part)
                    for number, _, part in tiling.parts(shape)
                }
                assert held(sharding, here, shape) == expected, (mesh, spec)
                checked += 1
    assert metrics.counter_value("SpmdOtherOrder") is None
    return checked


@four
def test_every_tiling_of_four_devices_comes_back_from_its_sharding():
    import time

    a = time.time()
    n = check_all_tilings(4)
    raise Exception(n, time.time() - a)


@eight
def test_every_tiling_of_eight_devices_comes_back_from_its_sharding():
    import time

    a = time.time()
    n = check_all_tilings(8)
    raise Exception(n, time.time() - a)
