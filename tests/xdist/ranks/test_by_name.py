"""What scripts call of several ranks by torch_xla's names: kinds of reductions, replicas, spawn."""

import functools
import os
import subprocess
import sys
import textwrap

import pytest
import torch
from device_ranks import on_threads
from torch import nn

import torch_xla._internal.pjrt as pjrt
import torch_xla.core.xla_model as xm
import torch_xla.runtime as xr
from torch_xla.core import functions


@functools.cache
def of_two(function):
    """What the function returned on each of two ranks."""
    return on_threads(2, function)


def reduced(rank, size):
    x = torch.tensor([rank, 1, 2 + rank], dtype=torch.int32).to("xla")
    kinds = xm.REDUCE_SUM, xm.REDUCE_MUL, xm.REDUCE_AND, xm.REDUCE_OR, xm.REDUCE_MIN, xm.REDUCE_MAX
    return [xm.all_reduce(kind, x).tolist() for kind in kinds]


def test_each_kind_of_reduction_is_what_its_name_says():
    expected = [[1, 2, 5], [0, 1, 6], [0, 1, 2], [1, 1, 3], [0, 1, 2], [1, 1, 3]]
    assert of_two(reduced) == [expected, expected]


def in_buckets(rank, size):
    gradients = [torch.full((3,), rank + 1.0).to("xla"), torch.full((2, 2), 10.0 * rank).to("xla")]
    assert xm.all_reduce_bucketized_gradients(gradients, 0.5, None, False, bucket_cap_mb=1) is None
    alone = [torch.full((2,), rank + 1.0).to("xla")]
    xm.all_reduce_bucketized_gradients(alone, 2.0, [[0], [1]], False)
    return [t.flatten().unique().tolist() for t in (*gradients, *alone)]


def test_gradients_are_summed_in_place_and_scaled():
    assert of_two(in_buckets) == [[[1.5], [5.0], [2.0]], [[1.5], [5.0], [4.0]]]


def differentiated(rank, size):
    x = torch.tensor([1.0 + rank, 5.0]).to("xla").requires_grad_()
    total = functions.AllReduce.apply(x, xm.REDUCE_SUM, 2.0, None)
    (total * (rank + 1)).sum().backward()
    y = torch.tensor([10.0 + rank]).to("xla").requires_grad_()
    side_by_side = functions.AllGather.apply(y, 0)
    (side_by_side * torch.tensor([3.0, 4.0]).to("xla") * (rank + 1)).sum().backward()
    return total.tolist(), x.grad.tolist(), side_by_side.tolist(), y.grad.tolist()


def test_the_functions_of_autograd_reduce_and_gather_with_gradients():
    # The gradient of a sum is each rank's own, scaled; that of parts side by side is its part.
    first, second = of_two(differentiated)
    assert first == ([6, 20], [2, 2], [10, 11], [3])
    assert second == ([6, 20], [4, 4], [10, 11], [8])


def multiplied(rank, size):
    whole = torch.arange(12.0).reshape(3, 4)
    x = torch.arange(16.0).reshape(4, 4) + rank
    part = whole[:, 2 * rank : 2 * rank + 2].to("xla").requires_grad_()
    products = [functions.distributed_mm(part, x.to("xla"), split=split) for split in (1, 2)]
    products[1].sum().backward()
    return [torch.equal(p.cpu(), whole @ x) for p in products], part.grad.shape


def test_a_weight_whose_columns_are_divided_multiplies_the_x_of_each_rank():
    assert of_two(multiplied) == [([True, True], (3, 2))] * 2


def placed(rank, size):
    devices = xr.addressable_device_count(), xr.local_device_count(), xr.global_device_count()
    processes = xr.process_index(), xr.process_count(), xr.local_process_count(), xr.host_index()
    return (xr.global_ordinal(), xr.local_ordinal()), xr.world_size(), devices, processes


def test_threads_of_a_process_are_ranks_and_the_process_is_one():
    places = of_two(placed)
    assert [numbers for numbers, *_ in places] == [(0, 0), (1, 1)]
    assert {tuple(rest) for _, *rest in places} == {(2, (2, 2, 2), (0, 1, 1, 0))}


def replicated(rank, size):
    devices = [f"xla:{n}" for n in range(size)]
    xm.set_replication(devices[rank], devices)
    together = xm.all_reduce(xm.REDUCE_SUM, torch.tensor(rank + 1.0).to(devices[rank])).item()
    xm.set_replication(devices[rank], [])
    alone = xm.all_reduce(xm.REDUCE_SUM, torch.tensor(rank + 1.0).to(devices[rank])).item()
    xm.set_replication(devices[rank], devices)
    return together, alone, xr.world_size()


def test_a_thread_is_a_replica_among_the_devices_it_names_or_alone():
    assert on_threads(2, replicated) == [(3, 1, 2), (3, 2, 2)]


def test_a_replica_among_other_devices_is_refused():
    with pytest.raises(RuntimeError, match="xla:5"):
        xm.set_replication("xla:0", ["xla:0", "xla:5"])


def divided(rank, size):
    from torch_xla.distributed.fsdp import XlaFullyShardedDataParallel

    torch.manual_seed(0)
    inner = XlaFullyShardedDataParallel(nn.Linear(2, 2, bias=False))
    model = XlaFullyShardedDataParallel(nn.Sequential(inner, nn.Linear(2, 1, bias=False)))
    text, before = model.extra_repr(), len(model.params_with_grad)
    found = []
    for factors in ((1.0, 1.0), (2.0, 4.0)):
        model.set_gradient_divide_factors(*factors, recursive=True)
        model.zero_grad(set_to_none=True)
        model(torch.ones(1, 2).to("xla")).sum().backward()
        found.append([p.grad.abs().sum().item() for p in model.params_with_grad])
    return text, before, found


def test_divided_modules_tell_their_state_and_divide_gradients_as_told():
    for rank, (text, before, (summed, scaled)) in enumerate(of_two(divided)):
        assert f"world_size=2, rank={rank}, " in text and before == 0
        assert len(summed) == 2 and scaled == pytest.approx([value / 8 for value in summed])


# A script of its own: what other tests made of this process decides where ranks go.
RUN_BY_PRIVATE_NAMES = """
    import torch_xla.runtime as xr
    import torch_xla._internal.pjrt as pjrt

    def without_index(offset, *, more=0):
        return xr.global_ordinal() + offset + more

    if __name__ == "__main__":
        assert pjrt.run_multiprocess(without_index, 10, more=5) == {0: 15, 1: 16}
"""


def test_processes_run_by_the_runtimes_private_names(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(textwrap.dedent(RUN_BY_PRIVATE_NAMES))
    kept = {n: v for n, v in os.environ.items() if n not in ("RANK", "WORLD_SIZE", "LOCAL_RANK")}
    command = [sys.executable, str(script)]
    env = {**kept, "CPU_NUM_DEVICES": "2", "PJRT_DEVICE": "CPU"}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr


def test_spawn_passes_the_rank_before_the_arguments(tmp_path):
    pjrt.spawn(_writes, nprocs=1, args=(str(tmp_path),))
    assert (tmp_path / "0").read_text() == "1"


def _writes(index, folder):
    from pathlib import Path

    (Path(folder) / str(index)).write_text(str(xr.world_size()))


def test_a_process_says_which_of_its_host_it_is(monkeypatch):
    from torch_xdist import settings, world

    told = []
    monkeypatch.setattr(settings, "set_local_rank", lambda *numbers: told.append(numbers))
    monkeypatch.setattr(world, "forget", lambda: told.append("forgotten"))
    pjrt.initialize_multiprocess(1, 4)
    assert told == [(1, 4), "forgotten"]
