"""The private names of torch_xla for shardings, and what stands behind a tensor."""

import contextlib
import io

import numpy as np
import pytest
import torch
from spmd_process import SpmdProcess

import torch_xla
import torch_xla.distributed.spmd as xs
from torch_xdist.errors import ShardingError
from torch_xdist.spmd import pictures

four = SpmdProcess(4)
late = SpmdProcess(2, spmd=False)
automatic = SpmdProcess(2, spmd=False)
_XLAC = torch_xla._XLAC
TILED, PARTIAL, MANUAL = (
    xs.ShardingType.TILED,
    xs.ShardingType.PARTIAL,
    xs.ShardingType.MANUAL,
)


@four
def test_a_sharding_is_made_of_lists_of_devices():
    tiled = _XLAC.OpSharding([[0, 1], [2, 3]], [], [], TILED)
    assert repr(tiled) == "{devices=[2,2]0,1,2,3}"
    partial = _XLAC.OpSharding([[0, 1], [2, 3]], [[0], [1]], [[0, 1], [2, 3]], PARTIAL)
    assert repr(partial) == "{devices=[2,1,2]0,1,2,3 last_tile_dim_replicate}"
    assert repr(_XLAC.OpSharding([], [], [], xs.ShardingType.REPLICATED)) == "{replicated}"
    assert repr(_XLAC.OpSharding([], [], [], MANUAL)) == "{manual}"
    same = xs.Mesh(np.arange(4), (2, 2)).get_op_sharding((0, 1))
    assert same == tiled and hash(same) == hash(tiled) and same != partial


@four
def test_every_kind_of_sharding_has_a_meaning_or_is_refused():
    kinds = xs.ShardingType
    numbers = [0, 1, 2, 3, 4, 5, 6]
    assert [kind.value for kind in kinds] == numbers and kinds(1) is kinds.MAXIMAL
    # All of it on the only device there is.
    one = _XLAC.OpSharding([0], [], [], kinds.MAXIMAL)
    assert repr(one) == "{replicated}" and one.type == kinds.REPLICATED
    for kind in (kinds.TUPLE, kinds.UNKNOWN):
        with pytest.raises(ShardingError, match=f"a sharding of the kind {kind.name} says nothing"):
            _XLAC.OpSharding([0], [], [], kind)
    with pytest.raises(ShardingError, match="PARTIAL has 0 tiles and 0 replication groups; give"):
        _XLAC.OpSharding([], [], [], PARTIAL)
    with pytest.raises(ShardingError, match="PARTIAL has 2 tiles and 1 replication groups; give"):
        _XLAC.OpSharding([[0, 1]], [0, 1], [[0, 1]], PARTIAL)


@four
def test_a_tensor_of_the_host_comes_to_the_devices_as_its_spec_says():
    mesh, x = xs.Mesh(np.arange(4), (4,)), torch.arange(8.0).requires_grad_()
    spec = xs.ShardingSpec(mesh, (0,)).xla_spec(x)
    assert isinstance(spec, _XLAC.XlaShardingSpec) and spec.tensor is x
    count = torch.ones(3, dtype=torch.int64)
    cut, whole = _XLAC._xla_tensors_from_aten([x, count], ["xla:0"] * 2, [spec, None])
    assert _XLAC._get_xla_sharding_specs([cut, whole]) == ["{devices=[4]0,1,2,3}", ""]
    assert cut.requires_grad and cut.tolist() == x.tolist()
    assert not whole.requires_grad and whole.tolist() == [1, 1, 1]
    with pytest.raises(ShardingError, match=r"_xla_tensors_from_aten: the sharding .* is for 1 di"):
        _XLAC._xla_tensors_from_aten([torch.ones(2, 2)], ["xla:0"], [spec])


@four
def test_parts_become_a_whole_and_a_whole_parts():
    x = torch.arange(8.0).to("xla")
    mesh = xs.get_1d_mesh()
    xs.mark_sharding(x, mesh, (0,))
    parts = _XLAC._spmd_full_to_shard_shape(x)
    assert parts.shape == (2,)
    cut = mesh.get_op_sharding((0,))
    whole = _XLAC._spmd_shard_to_full_shape(parts * 2, cut, x.shape, x.dtype)
    assert whole.tolist() == [2 * n for n in range(8)]
    assert _XLAC._get_xla_op_sharding(whole) == cut
    with pytest.raises(ShardingError, match="_spmd_shard_to_full_shape: MANUAL sharding; use"):
        manual = _XLAC.OpSharding([], [], [], MANUAL)
        _XLAC._spmd_shard_to_full_shape(parts, manual, x.shape, x.dtype)


@four
def test_a_pending_tensor_is_marked_by_hand():
    x = torch.ones(3).to("xla") + 1
    _XLAC._mark_manual_sharding(x, _XLAC.OpSharding([], [], [], MANUAL))
    assert _XLAC._get_xla_sharding_type(x) == MANUAL
    total = _XLAC._xla_spmd_all_reduce("sum", x, 1.0, [[0, 1, 2, 3]])
    replicated = _XLAC.OpSharding([], [], [], xs.ShardingType.REPLICATED)
    whole = _XLAC._spmd_shard_to_full_shape(total, replicated, total.shape, total.dtype)
    assert whole.tolist() == [8, 8, 8]


@late
def test_a_late_process_may_still_make_one_device_of_all():
    assert not _XLAC._xla_get_spmd_config_is_locked()
    assert torch.ones(2).to("xla:1").sum().item() == 2
    assert _XLAC._xla_get_spmd_config_is_locked()
    assert _XLAC._xla_get_runtime_devices() == ["CPU:0", "CPU:1"]
    _XLAC._xla_force_spmd_device()
    assert _XLAC._xla_get_devices() == ["xla:0"]
    assert _XLAC._xla_get_runtime_devices() == ["CPU:0", "CPU:1"]
    x = torch.arange(4.0).to("xla")
    xs.mark_sharding(x, xs.Mesh(np.arange(2), (2,)), (0,))
    assert [len(shard.data) for shard in xs.XLAShardedTensor(x).local_shards] == [2, 2]


@automatic
def test_shardings_may_be_left_to_xla():
    assert not _XLAC._xla_get_auto_sharding()
    _XLAC._xla_set_auto_sharding()
    assert _XLAC._xla_get_auto_sharding() and torch_xla.runtime.is_spmd()
    assert (torch.ones(4).to("xla") * 2).tolist() == [2, 2, 2, 2]


@four
def test_tensors_are_marked_annotated_and_cleared_by_such_objects():
    x = torch.ones(4, 4).to("xla")
    mesh = xs.Mesh(np.arange(4), (4,))
    _XLAC._xla_mark_sharding(x, mesh.get_op_sharding((0, None)))
    assert _XLAC._get_xla_op_sharding(x) == mesh.get_op_sharding((0, None))
    _XLAC._xla_annotate_custom_sharding(x, mesh.get_op_sharding((None, 0)))
    assert _XLAC._get_xla_sharding_specs([x]) == ["{devices=[1,4]0,1,2,3}"]
    assert _XLAC._get_xla_sharding_type(x) == TILED
    _XLAC._xla_clear_sharding(x)
    assert _XLAC._get_xla_sharding_type(x) is None
    assert _XLAC._get_xla_op_sharding(x) is None
    assert _XLAC._get_xla_op_sharding_v2_params(x) is None


@four
def test_an_object_of_another_rank_is_refused():
    x = torch.ones(4, 4).to("xla")
    with pytest.raises(ShardingError, match="is for 1 dims, and the tensor has 2"):
        _XLAC._xla_mark_sharding(x, xs.get_1d_mesh().get_op_sharding((0,)))
    with pytest.raises(ShardingError, match="MANUAL sharding; use _mark_manual_sharding"):
        _XLAC._xla_mark_sharding(x, _XLAC.OpSharding([], [], [], MANUAL))


@four
def test_parts_of_the_host_make_a_tensor():
    make = _XLAC._global_tensor_from_cpu_shards
    cut = xs.get_1d_mesh().get_op_sharding((0,))
    parts = [torch.tensor([2 * n, 2 * n + 1]) for n in range(4)]
    assert make(parts, cut).tolist() == list(range(8))
    assert make(parts, cut, torch.Size((7,))).tolist() == list(range(7))
    with pytest.raises(RuntimeError, match=r"shard 0 has shape \[2\]; a tensor of shape \[9\]"):
        make(parts, cut, torch.Size((9,)))
    with pytest.raises(RuntimeError, match="3 shards for 4 local devices"):
        make(parts[:3], cut)
    with pytest.raises(RuntimeError, match="no shards; give one for each local device"):
        make([], cut)
    whole = _XLAC.OpSharding([], [], [], xs.ShardingType.REPLICATED)
    assert make([torch.arange(3)] * 4, whole).tolist() == [0, 1, 2]


@four
def test_local_parts_are_told_and_loaded():
    x = torch.arange(8.0).to("xla")
    xs.mark_sharding(x, xs.get_1d_mesh(), (0,))
    (parts,) = _XLAC._get_local_shards([x])
    assert [(data.tolist(), name) for data, name in parts][1] == ([2, 3], "CPU:1")
    (places,) = _XLAC._get_local_shard_replica_and_indices([x])
    assert places[3] == (0, [slice(6, 8, 1)])
    _XLAC._load_local_shards(x, [data + 1 for data, _ in parts], [name for _, name in parts])
    assert x.tolist() == list(range(1, 9))
    assert _XLAC._xla_get_cpu_tensors([x])[0].device.type == "cpu"


@four
def test_a_tensor_tells_where_its_values_are():
    info = _XLAC._get_xla_tensor_debug_info
    x = torch.ones(4, 4).to("xla")
    assert "Tensor on host: with size [4, 4]" in info(x)
    assert "IR: None" in info(x) and "XLAData: None" in info(x)
    y = x * 2
    assert "xla::device_data" in info(x) and "Tensor on host: None" in info(x)
    assert "IR: f32[4,4]{1,0} aten::mul(" in info(y)
    xs.mark_sharding(x, xs.get_1d_mesh(), (0, None))
    assert "Device: SPMD:0" in info(x)
    cut = xs.mark_sharding(torch.ones(4, 4).to("xla"), xs.get_1d_mesh(), (0, None))
    assert "xla::device_data" in info(cut.global_tensor)
    assert "XLAShardedData" in info(x) and "NumShards: 4" in info(x)
    assert "OpSharding: {devices=[4,1]0,1,2,3}" in info(x)
    assert info(torch.ones(2)) == "Not a XLATensor\n"


def test_outside_of_spmd_mode_a_tensor_tells_its_device():
    x = torch.ones(2, device="xla") + 1
    torch_xla.sync()
    text = _XLAC._get_xla_tensor_debug_info(x)
    assert "Device: CPU:0" in text and "ShardingSpec: None" in text and "Data Handle: " in text
    assert "IR: None" in text


@four
def test_a_picture_shows_which_devices_hold_which_tile():
    grid = pictures._grid
    assert grid("{replicated}").tolist() == [[[0, 1, 2, 3]]]
    assert grid("{devices=[2,2]0,1,2,3}").tolist() == [[[0], [1]], [[2], [3]]]
    assert grid("{devices=[2,1,2]0,1,2,3 last_tile_dim_replicate}").tolist() == [
        [[0, 1]],
        [[2, 3]],
    ]
    assert grid("{devices=[1,2,2]0,1,2,3}").tolist() == [[[0], [2]]]
    with pytest.raises(ValueError, match="sharding 'nonsense' is not organized as expected"):
        grid("nonsense")


@four
def test_a_sharding_is_drawn_from_its_text():
    draw = xs.debugging.visualize_sharding
    if not xs.debugging.RICH_ENABLED:
        with pytest.raises(ValueError, match="requires `rich` to be installed: pip install"):
            draw("{devices=[2,2]0,1,2,3}")
        return
    with contextlib.redirect_stdout(io.StringIO()) as told:
        table = draw("{devices=[2,2]0,1,2,3}", use_color=False)
    assert (table.row_count, len(table.columns)) == (2, 2)
    assert "Visualizing {devices=[2,2]0,1,2,3} (showing up to" in told.getvalue()
    assert all(f"CPU [{n}]" in told.getvalue() for n in range(4))


@four
def test_a_picture_needs_a_package():
    x = torch.ones(4, 4).to("xla")
    xs.mark_sharding(x, xs.get_1d_mesh(), (0, None))
    assert pictures.construct_v1_sharding_str(x) == "{devices=[4,1]0,1,2,3}"
    if pictures.RICH_ENABLED:
        assert pictures.visualize_tensor_sharding(x, use_color=False).row_count == 4
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pictures, "RICH_ENABLED", False)
        with pytest.raises(ValueError, match="requires `rich` to be installed: pip install"):
            pictures.visualize_tensor_sharding(x)
