"""SPMD mode in several processes, as on several hosts: one device stands for the devices of all."""

import os

import numpy as np
import pytest
import torch
import torch.distributed as dist
from rank_pool import RankPool
from spmd_process import SpmdProcess, _become, _free_port

import torch_xla
import torch_xla.core.xla_model as xm
import torch_xla.distributed.spmd as xs
import torch_xla.runtime as xr
from torch_xdist.collectives.errors import MismatchError
from torch_xla.distributed.parallel_loader import MpDeviceLoader
from torch_xla.experimental.distributed_checkpoint import CheckpointManager

both = SpmdProcess(2, processes=2)


def mesh():
    return xs.Mesh(np.arange(4), (2, 2), ("data", "model"))


@both
def test_the_processes_are_one_rank_with_the_devices_of_all():
    assert (xr.process_count(), xr.world_size(), xr.global_ordinal()) == (2, 1, 0)
    assert xr.process_index() == int(os.environ["RANK"])
    assert (xr.addressable_runtime_device_count(), xr.global_runtime_device_count()) == (2, 4)
    assert xm.is_master_ordinal(local=False) == (xr.process_index() == 0)


@both
def test_training_equals_one_device():
    def losses(device, marked):
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
        model = model.to(device)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        data = torch.randn(4, 8)
        if marked:
            xs.mark_sharding(model[0].weight, mesh(), ("model", None))
            xs.mark_sharding(model[2].weight, mesh(), (None, "model"))
        found = []
        for _ in range(3):
            batch = data.to(device)
            if marked:
                xs.mark_sharding(batch, mesh(), ("data", None))
            loss = model(batch).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            torch_xla.sync()
            found.append(loss.item())
        return found, [parameter.detach().cpu() for parameter in model.parameters()]

    torch.testing.assert_close(losses("xla", True), losses("cpu", False))


@both
def test_each_process_holds_the_parts_of_its_devices():
    table = torch.arange(32.0).reshape(8, 4)
    shards = xs.mark_sharding(table.to("xla"), mesh(), (("data", "model"), None)).local_shards
    first = 4 * xr.process_index()
    assert torch.equal(torch.cat([shard.data for shard in shards]), table[first : first + 4])


@both
def test_each_process_may_load_its_part_of_a_batch():
    part = torch.arange(12.0).reshape(4, 3) + 12 * xr.process_index()
    spec = xs.ShardingSpec(mesh(), (("data", "model"), None), minibatch=True)
    for sharding in (spec, {"x": spec}):
        (batch,) = MpDeviceLoader([{"x": part}], "xla", input_sharding=sharding)
        assert batch["x"].shape == (8, 3)
        assert torch.equal(batch["x"].cpu(), torch.arange(24.0).reshape(8, 3))


@both
def test_data_sent_to_the_device_may_be_a_part_of_a_batch():
    part = torch.arange(12.0).reshape(4, 3) + 12 * xr.process_index()
    spec = xs.ShardingSpec(mesh(), (("data", "model"), None), minibatch=True)
    (sent,) = xm.send_cpu_data_to_device(part, "xla", input_sharding=spec)
    given = [part], ["xla:0"], [spec.xla_spec(part)]
    (made,) = torch_xla._XLAC._xla_tensors_from_aten(*given)
    for batch in (sent, made):
        assert torch.equal(batch.cpu(), torch.arange(24.0).reshape(8, 3))


@both
def test_a_part_of_a_batch_must_be_what_the_devices_need():
    part = torch.ones(4, 4).to("xla")
    whole = xs.ShardingSpec(mesh(), (None, "model"), minibatch=True)
    with pytest.raises(ValueError, match=r"each of 2 processes has 4 rows.* need rows 0 to 8; cut"):
        whole.apply(part)
    cut = xs.ShardingSpec(mesh(), ("data", None), minibatch=True)
    with pytest.raises(ValueError, match=r"shape \[4, 4\] is computed or sharded already; only"):
        cut.apply(part + 1)


@both
def test_a_checkpoint_is_gathered_by_all_and_written_by_one(tmp_path):
    table = torch.arange(32.0).reshape(8, 4)
    marked = table.to("xla")
    xs.mark_sharding(marked, mesh(), ("data", "model"))
    path = tmp_path / "state.pt"
    xm.save({"table": marked}, path, global_master=True)
    xm.rendezvous("written")
    assert torch.equal(torch.load(path)["table"], table)
    assert xm._maybe_convert_to_cpu(marked, convert=False) is None


@both
def test_a_sharded_checkpoint_has_the_parts_of_all_processes(tmp_path):
    dist.init_process_group("gloo")
    try:
        table = torch.arange(32.0).reshape(8, 4)
        saved, loaded = table.to("xla"), torch.zeros(8, 4).to("xla")
        xs.mark_sharding(saved, mesh(), (("data", "model"), None))
        xs.mark_sharding(loaded, mesh(), (None, "data"))
        manager = CheckpointManager(str(tmp_path), 1, chkpt_on_preemption=False)
        assert manager.save(1, {"table": xs.wrap_if_sharded(saved)})
        manager.restore(1, {"table": xs.wrap_if_sharded(loaded)})
        assert torch.equal(loaded.cpu(), table)
    finally:
        dist.destroy_process_group()


@both
def test_other_values_on_another_process_are_an_error():
    here = torch.full((4, 4), float(xr.process_index())).to("xla")
    with pytest.raises(MismatchError, match=r"values from the host, which every process must have"):
        (here + 1).sum().item()


@both
def test_another_mesh_on_another_process_is_an_error():
    shape = (4, 1) if xr.process_index() else (1, 4)
    table = torch.ones(8, 8).to("xla")
    with pytest.raises(MismatchError) as raised:
        xs.mark_sharding(table, xs.Mesh(np.arange(4), shape, ("a", "b")), ("a", "b"))
        table.sum().item()
    assert "rank 0: program" in str(raised.value)
    assert "{devices=[1,4]0,1,2,3}" in str(raised.value)
    assert "{devices=[4,1]0,1,2,3}" in str(raised.value)


@both
def test_a_read_that_others_do_not_take_part_in_is_an_error():
    table = torch.ones(8, 8).to("xla")
    xs.mark_sharding(table, mesh(), ("data", "model"))
    with pytest.raises(MismatchError, match=r"read of a sharded tensor of shape \[8, 8\]"):
        table.cpu() if xr.process_index() else (table + 1).sum().item()


def late(rank, size):
    import torch_xla
    import torch_xla.distributed.spmd as xs

    table = torch_xla.device() and torch.ones(8, 8).to("xla")
    xs.mark_sharding(table, xs.get_1d_mesh("a"), ("a", None))
    if rank:
        os._exit(3)
    try:
        table.cpu()
    except Exception as error:
        return str(error)


def test_a_process_that_ends_is_named_by_those_that_wait_for_it():
    with RankPool(2) as pool:
        pool.run(2, _become, 1, True, _free_port(), join=False)
        (is_good, error), (_, problem) = pool.outcomes(2, late, join=False, timeout_s=150)
    assert is_good
    assert "rank 1 " in error
    assert "read of a sharded tensor of shape [8, 8]" in error
    assert problem == "died with exit code 3"
