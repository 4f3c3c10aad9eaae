"""`Layout`: JAX's shardings over all devices, and how arrays come to lie there."""

import itertools

import numpy as np
import pytest
import torch
from spmd_process import SpmdProcess

import torch_xla
import torch_xla.distributed.spmd as xs
import torch_xla.runtime as xr
from torch_xdist import metrics
from torch_xdist.core.devices import device
from torch_xdist.core.sharding.arrays import HostArray
from torch_xdist.core.sharding.layout import Layout
from torch_xdist.core.sharding.tiling import Tiling
from torch_xdist.errors import ShardingError

four = SpmdProcess(4)
six = SpmdProcess(6)
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
    assert check_all_tilings(4) > 500


@eight
def test_every_tiling_of_eight_devices_comes_back_from_its_sharding():
    assert check_all_tilings(8) > 5000


@four
def test_a_mesh_in_another_order_is_served_in_the_order_of_programs():
    reverse = xs.Mesh(np.arange(4)[::-1], (4,))
    forward = xs.Mesh(np.arange(4), (4,))
    a, b = torch.arange(8.0).to("xla"), torch.arange(8.0).to("xla")
    xs.mark_sharding(a, forward, (0,))
    xs.mark_sharding(b, reverse, (0,))
    assert spec_of(b) == "{devices=[4]3,2,1,0}"
    assert (a + b).tolist() == [0, 2, 4, 6, 8, 10, 12, 14]
    assert metrics.counter_value("SpmdOtherOrder") == 1


@four
def test_the_first_mesh_says_in_which_order_programs_take_the_devices():
    here = layout()
    here.follow(np.array([[2, 3], [0, 1]]))
    assert here.order == (2, 3, 0, 1)
    here.follow(np.arange(4))
    assert here.order == (2, 3, 0, 1)
    sharding = here.sharding(Tiling((4,), (2, 3, 0, 1)))
    assert [here.devices.index(d) for d in sharding.mesh.devices.ravel()] == [2, 3, 0, 1]


@six
def test_a_tiling_with_factors_the_first_mesh_has_not_is_replicated():
    here = layout()
    here.follow(np.arange(6).reshape(2, 3))
    sharding = here.sharding(Tiling((3,), (0, 1, 2, 3, 4, 5)))
    assert sharding.is_fully_replicated
    assert metrics.counter_value("SpmdOtherOrder") == 1


@four
def test_groups_lie_along_axes_of_the_mesh():
    here = layout()
    here.follow(np.arange(4).reshape(2, 2))
    assert here.axes_of_groups([[0, 1, 2, 3]]) == ("0", "1")
    assert here.axes_of_groups([[0, 1], [2, 3]]) == ("1",)
    assert here.axes_of_groups([[0, 2], [1, 3]]) == ("0",)
    with pytest.raises(ShardingError, match=r"groups \[\[0, 3\], \[1, 2\]\] do not lie along axes"):
        here.axes_of_groups([[0, 3], [1, 2]])


@four
def test_a_moved_tensor_stays_on_the_host_until_a_program_needs_it():
    x = torch.ones(8, 8).to("xla")
    assert isinstance(x.value.buffer, HostArray)
    assert metrics.metric_data("OutboundData") is None
    assert x.sum().item() == 64
    assert x.value.buffer.placed.sharding.is_fully_replicated
    assert metrics.metric_data("OutboundData")[1] == 8 * 8 * 4


@four
def test_a_moved_tensor_that_is_marked_goes_to_the_devices_in_parts_alone():
    x = torch.ones(8, 8).to("xla")
    xs.mark_sharding(x, xs.Mesh(np.arange(4), (4,)), (0, None))
    assert [part.data.nbytes for part in x.value.buffer.addressable_shards] == [64] * 4
    assert metrics.metric_data("OutboundData")[0] == 1


@late
def test_tensors_from_before_are_copied_to_every_device_when_they_are_used():
    x = torch.arange(4.0).to("xla") * 2
    with pytest.warns(UserWarning, match="use_spmd: there are tensors from before"):
        xr.use_spmd()
    for _ in range(2):
        assert (x + 1).tolist() == [1, 3, 5, 7]
    y = x + 1
    torch_xla.sync()
    assert len(y.value.buffer.sharding.device_set) == 4


@four
def test_automatic_sharding_cuts_the_first_dims_that_the_devices_divide():
    with pytest.MonkeyPatch.context() as env:
        env.setenv("XLA_AUTO_SPMD", "1")
        tall, odd = torch.ones(8, 3).to("xla"), torch.ones(3, 8).to("xla")
        assert (tall @ odd).sum().item() == 8 * 3 * 8
        assert spec_of(tall) == "{devices=[4,1]0,1,2,3}"
        assert spec_of(odd) == "{devices=[1,4]0,1,2,3}"
        env.setenv("XLA_AUTO_SPMD_MESH", "2,2")
        both = torch.ones(4, 4).to("xla")
        both.sum().item()
        assert spec_of(both) == "{devices=[2,2]0,1,2,3}"
        env.setenv("XLA_AUTO_SPMD_MESH", "3")
        with pytest.raises(ShardingError, match="MESH=3 has 3 devices, and there are 4"):
            torch.ones(4).to("xla").sum().item()
        env.setenv("XLA_AUTO_SPMD_MESH", "two")
        with pytest.raises(ValueError, match="XLA_AUTO_SPMD_MESH='two': use sizes such as 2,2"):
            torch.ones(4).to("xla").sum().item()
