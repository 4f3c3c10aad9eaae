"""Collectives on torch's fake tensors: shapes come out, and nothing is recorded or exchanged."""

import torch


def shapes(rank, size):
    from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

    import torch_xla.core.xla_model as xm

    with FakeTensorMode():
        x = torch.ones(4, 3, device="xla")
        listed = xm.all_reduce(xm.REDUCE_SUM, [x, x * 2])
        into = torch.empty(4 * size, 3, device="xla")
        results = [
            xm.all_reduce(xm.REDUCE_SUM, x, scale=0.5),
            *listed,
            xm.all_gather(x, 1),
            xm.all_gather(x, 0, output=into),
            *xm.all_gather([x, x.bfloat16()], pin_layout=False),
            xm.reduce_scatter(xm.REDUCE_MAX, x, 1.0, 0, size),
            xm.all_to_all(x, 0, 1, size),
            xm.collective_permute(x, [[0, size - 1]]),
            xm.recv(x, 1) if size > 1 else x,
        ]
        if size > 1:
            xm.send(x, 1)
        xm.collective_broadcast([x])
        xm.optimization_barrier_([x])
        assert all(isinstance(r, FakeTensor) and r.device.type == "xla" for r in results)
    # Nothing is pending, so nothing waits for another rank.
    assert xm.all_reduce(xm.REDUCE_SUM, torch.ones(2, device="xla")).tolist() == [size, size]
    return [(tuple(r.shape), r.dtype) for r in results]


def expected(size):
    whole = torch.float32
    return [
        *[((4, 3), whole)] * 3,
        ((4, 3 * size), whole),
        ((4 * size, 3), whole),
        ((4 * size, 3), whole),
        ((4 * size, 3), torch.bfloat16),
        ((4 // size, 3), whole),
        ((4 // size, 3 * size), whole),
        *[((4, 3), whole)] * 2,
    ]


def test_a_rank_alone_sees_the_shapes():
    assert shapes(0, 1) == expected(1)


def test_two_ranks_see_the_shapes_of_two(two):
    assert two.run(shapes) == [expected(2)] * 2
