"""Collectives by their private names: alone, between two ranks, and among threads."""

import pytest
import torch
from device_ranks import on_threads

from torch_xdist.errors import DeviceError
from torch_xla import _XLAC


def test_a_rank_alone_gets_what_it_gave():
    x = torch.arange(4.0, device="xla")
    groups = [[0]]
    assert _XLAC._xla_all_reduce("sum", x, 1.0, groups, True).tolist() == [0, 1, 2, 3]
    assert _XLAC._xla_all_reduce_inplace("sum", [x], 1.0, [], True) is None
    assert _XLAC._xla_all_gather(x, 0, 1, groups, True).tolist() == [0, 1, 2, 3]
    token = _XLAC._get_all_reduce_token("xla:0")
    exchanged, token = _XLAC._xla_all_to_all(x, token, 0, 0, 1, groups, True)
    scattered, token = _XLAC._xla_reduce_scatter("sum", x, token, 2.0, 0, 1, groups, True)
    assert exchanged.tolist() == [0, 1, 2, 3] and scattered.tolist() == [0, 2, 4, 6]
    permuted, token = _XLAC._xla_collective_permute(x, token, [[0, 0]])
    assert permuted.tolist() == [0, 1, 2, 3] and isinstance(token, _XLAC.IrValue)
    _XLAC._xla_optimization_barrier_([x])
    assert x.tolist() == [0, 1, 2, 3]


def test_a_device_keeps_the_token_it_is_given():
    token = _XLAC.IrValue()
    _XLAC._set_all_reduce_token("xla:0", token)
    assert _XLAC._get_all_reduce_token("xla:0") is token
    _XLAC._set_all_reduce_token("xla:0", None)
    assert _XLAC._get_all_reduce_token("xla:0") is not token


def exchange(rank, size):
    from torch_xla import _XLAC

    token = _XLAC._get_all_reduce_token("xla:0")
    x = torch.tensor([1.0, 2.0], device="xla") * (rank + 1)
    outs = [torch.empty(0, device="xla") for _ in range(6)]
    _XLAC._xla_all_gather_out(outs[0], x, token, 0, size, [], True)
    *gathered, token = _XLAC._xla_all_gather_coalesced([x, x + 10], token, 0, size, [], True)
    _XLAC._xla_all_gather_coalesced_out(outs[1:3], [x, x], token, 0, size, [], True)
    _XLAC._xla_reduce_scatter_out("sum", outs[3], x, token, 0.5, 0, size, [], True)
    scattered = _XLAC._xla_reduce_scatter_coalesced("max", [x], token, 1.0, 0, size, [[0, 1]], True)
    _XLAC._xla_reduce_scatter_coalesced_out(
        "sum", outs[4:6], [x, -x], token, 1.0, 0, size, [], True
    )
    assert isinstance(scattered.pop(), _XLAC.IrValue)
    if rank == 0:
        sent, token = _XLAC._xla_send(x, token, 5)
        assert sent.tolist() == [1, 2]
    else:
        received, token = _XLAC._xla_recv(torch.zeros(2, device="xla"), token, 5)
        assert received.tolist() == [1, 2]
    return [t.tolist() for t in (*gathered, *scattered, *outs)]


def test_two_ranks_exchange_into_outputs_and_lists(two):
    first, second = two.run(exchange)
    assert first[:2] == second[:2] == [[1, 2, 2, 4], [11, 12, 12, 14]]
    assert first[3:6] == second[3:6] == [[1, 2, 2, 4]] * 3
    assert first[2:3] + first[6:] == [[2], [1.5], [3], [-3]]
    assert second[2:3] + second[6:] == [[4], [3], [6], [-6]]


def replicas(rank, size):
    from torch_xla import _XLAC

    names = [f"CPU:{i}" for i in range(size)]
    _XLAC._xla_set_replication_devices(names)
    known, count = _XLAC._xla_get_replication_devices(), _XLAC._xla_get_replication_devices_count()
    total = _XLAC._xla_all_reduce("sum", torch.ones(1, device="xla") * (rank + 1), 1.0, []).item()
    _XLAC._xla_set_replication_devices([])
    return known == names, count, total, _XLAC._xla_get_replication_devices()


def test_threads_become_replicas_by_the_names_of_their_devices():
    assert on_threads(2, replicas) == [(True, 2, 3.0, [])] * 2


def test_replicas_of_unknown_devices_are_refused():
    with pytest.raises(DeviceError, match=r"no device CPU:9 here; this process has CPU:0"):
        _XLAC._xla_set_replication_devices(["CPU:0", "CPU:9"])
