"""Meshes: what they hold, and what cannot be one."""

from collections import OrderedDict

import numpy as np
import pytest
from spmd_process import SpmdProcess

import torch_xla.distributed.spmd as xs
from torch_xdist.core.devices import ordinals
from torch_xdist.errors import ShardingError
from torch_xdist.spmd import hybrid_mesh, mesh

four = SpmdProcess(4)

WRONG = {
    "names": (([0, 1, 2, 3], (2, 2), ("a",)), r"axis names \(1\) must match mesh dimensions \(2\)"),
    "same names": (([0, 1, 2, 3], (2, 2), ("a", "a")), "Axis names must be unique"),
    "few": (([0, 1], (2,)), r"device IDs \(2\) must match the global number of devices \(4\)"),
    "shape": (([0, 1, 2, 3], (2, 4)), r"device IDs \(4\) must match mesh size \(8\)"),
    "twice": (([0, 0, 1, 2], (4,)), "Device IDs must be unique"),
    "too high": (([1, 2, 3, 4], (4,)), r"Device IDs must be less than mesh size \(4\)"),
}


@pytest.mark.parametrize(("arguments", "words"), WRONG.values(), ids=WRONG)
@four
def test_what_does_not_fit_is_no_mesh(arguments, words):
    with pytest.raises(AssertionError, match=words):
        xs.Mesh(*arguments)


SPECS = {
    "name": (("c",), r"Axis name c is not defined in the given mesh, which has \('a', 'b'\)"),
    "index": ((2,), r"contains out of bound index 2 into mesh_shape \(2, 2\)"),
    "twice": ((0, "a"), "Each device mesh dimension should appear at most once"),
    "nested": (((("a",),),), "Partition spec cannot contain nested tuples"),
    "type": ((1.5,), "Spec type <class 'float'> is not supported in partition spec"),
}


@pytest.mark.parametrize(("spec", "words"), SPECS.values(), ids=SPECS)
@four
def test_a_spec_names_axes_of_the_mesh_once(spec, words):
    with pytest.raises(ShardingError, match=words):
        xs.Mesh(np.arange(4), (2, 2), ("a", "b")).tiling(spec)


@four
def test_a_mesh_tells_its_shape_and_devices():
    found = xs.Mesh([3, 2, 1, 0], (1, 4), ("data", "model"))
    assert found.size() == 4
    assert found.shape() == OrderedDict([("data", 1), ("model", 4)])
    assert xs.Mesh(range(4), (2, 2)).shape() == OrderedDict([(0, 2), (1, 2)])
    assert found.get_logical_mesh().tolist() == [[3, 2, 1, 0]]
    assert found.get_axis_name_idx("model") == 1
    assert found.get_axis_name_idx("other") is None


@four
def test_a_mesh_is_jaxs_with_the_same_devices():
    found = xs.Mesh([3, 2, 1, 0], (2, 2), ("a", "b")).get_jax_mesh()
    assert found.axis_names == ("a", "b")
    assert [device.id for device in found.devices.ravel()] == [3, 2, 1, 0]


@four
def test_a_mesh_comes_back_from_its_text():
    for one in (xs.Mesh(range(4), (2, 2), ("a", "b")), xs.Mesh([1, 0, 3, 2], (4,))):
        again = xs.Mesh.from_str(str(one))
        assert str(again) == str(one)
    assert xs.Mesh.from_str("no mesh") is None


@four
def test_the_global_mesh_is_meant_where_none_is_named():
    mesh.set_global_mesh(None)
    with pytest.raises(ShardingError, match=r"here: no mesh: pass mesh=, or call xs.set_global"):
        mesh.mesh_or_global(None, "here")
    one = xs.get_1d_mesh("data")
    xs.set_global_mesh(one)
    assert xs.get_global_mesh() is one
    assert mesh.mesh_or_global(None, "here") is one
    assert (one.mesh_shape, one.axis_names) == ((4,), ("data",))
    assert xs.get_1d_mesh().axis_names is None


@four
def test_a_spec_is_looked_up_once():
    from torch_xdist import metrics

    one = xs.get_1d_mesh()
    for _ in range(3):
        one.get_op_sharding((0, None))
    assert metrics.counter_value("CreateOpSharding") == 1


# Two slices of four chips, in the order the runtime names them.
SLICES = [
    ([0, 0, 0], 0, 2), ([1, 0, 0], 0, 1), ([0, 1, 0], 0, 0), ([1, 1, 0], 0, 3),
    ([0, 0, 0], 1, 4), ([1, 0, 0], 1, 7), ([0, 1, 0], 1, 6), ([1, 1, 0], 1, 5),
]  # fmt: skip


def pretend(monkeypatch, attributes):
    monkeypatch.setattr(hybrid_mesh, "global_runtime_device_attributes", lambda: attributes)
    monkeypatch.setattr(ordinals, "global_runtime_device_count", lambda: len(attributes))


def of_slices():
    return [{"coords": c, "slice_index": s, "name": f"TPU:{n}"} for c, s, n in SLICES]


def test_a_hybrid_mesh_follows_the_links_inside_each_slice(monkeypatch):
    pretend(monkeypatch, of_slices())
    found = xs.HybridMesh(ici_mesh_shape=(2, 2), dcn_mesh_shape=(2, 1))
    assert found.get_logical_mesh().tolist() == [[2, 1], [0, 3], [4, 7], [6, 5]]


def test_a_hybrid_mesh_of_devices_without_places_is_in_their_order(monkeypatch):
    pretend(monkeypatch, [{"name": f"CPU:{n}"} for n in range(4)])
    found = xs.HybridMesh(ici_mesh_shape=(2, 2), axis_names=("a", "b"))
    assert found.get_logical_mesh().tolist() == [[0, 1], [2, 3]]


HYBRIDS = {
    "axes": (True, ((2, 2), (2,)), "must have as many axes"),
    "no slices said": (True, ((2, 4), None), "Provide dcn_mesh_shape to create a mesh for multi"),
    "no slices": (False, ((2, 2), (2, 1)), "Invalid dcn_mesh_shape for single slice mesh"),
    "slices": (True, ((1, 2), (4, 1)), "Number of slices 2 must equal the product of dcn_mesh_sha"),
    "devices": (True, ((2, 4), (2, 1)), "Number of devices 4 must equal the product of mesh_shape"),
}


@pytest.mark.parametrize(("slices", "shapes", "words"), HYBRIDS.values(), ids=HYBRIDS)
def test_shapes_that_do_not_fit_the_slices_are_no_hybrid_mesh(monkeypatch, slices, shapes, words):
    pretend(monkeypatch, of_slices() if slices else [{"name": f"CPU:{n}"} for n in range(4)])
    with pytest.raises(ShardingError, match=words):
        xs.HybridMesh(ici_mesh_shape=shapes[0], dcn_mesh_shape=shapes[1])
