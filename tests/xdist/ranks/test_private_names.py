"""Collectives by their private names, on a world of one."""

import torch

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
    _XLAC._set_all_reduce_token("xla:0", token)
    assert exchanged.tolist() == [0, 1, 2, 3] and scattered.tolist() == [0, 2, 4, 6]
    assert _XLAC._xla_collective_permute(x, [[0, 0]]).tolist() == [0, 1, 2, 3]
    _XLAC._xla_optimization_barrier_([x])
    assert x.tolist() == [0, 1, 2, 3]
