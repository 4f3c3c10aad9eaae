"""Collectives in captured graphs and on fake tensors: one operator, which computes the same."""

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from torch_xdist.core.torch_side import registration
from torch_xdist.errors import DeviceError
from torch_xdist.ranks import collective_ops as xm

registration.register()


def captured(rank, size):
    import torch_xla
    import torch_xla.core.functions as xf
    from torch_xdist.core.run import cuts
    from torch_xdist.ranks import collective_ops as xm

    def exchange(x):
        total = xm.all_reduce("sum", x, scale=0.5) + 3
        written = [x * 2, x.int()]
        xm.all_reduce("max", written)
        ring = [[0, 1], [1, 0]]
        out = x.new_zeros(4, 4)
        xm.all_gather(x, dim=1, output=out)
        return (
            total,
            *written,
            out,
            xm.reduce_scatter("sum", x, 1.0, 0, size),
            xm.all_to_all(x, 0, 1, size),
            xm.collective_permute(x, ring),
            xf.all_gather(x.sin()),
        )

    def shared(x):
        return torch.ops._c10d_functional.broadcast(x * 2, 1, "default").cos()

    def run(function, *, like):
        x = like.clone().requires_grad_()
        torch_xla.sync()
        before = len(cuts.LOG)
        found = function(x)
        torch_xla.sync()
        found[-1].square().sum().backward()
        return [t.tolist() for t in (*found, x.grad)], len(cuts.LOG) - before

    x = torch.arange(8.0, device="xla").view(4, 2) + rank
    compiled = torch.compile(exchange, backend="openxla", fullgraph=True)
    expected, _ = run(exchange, like=x)
    found, _ = run(compiled, like=x)
    again, programs = run(compiled, like=x)
    one = torch.compile(shared, backend="openxla", fullgraph=True)(x)
    return expected == found == again, programs, one.tolist()


def test_collectives_inside_a_compiled_function_give_what_they_give_outside(two):
    expected = (torch.arange(8.0).view(4, 2) * 2 + 2).cos()
    for is_same, programs, shared in two.run(captured):
        assert is_same
        # Forward, and what reads the gradient.
        assert programs <= 4
        torch.testing.assert_close(torch.tensor(shared), expected)


def test_fake_tensors_have_the_shapes_of_the_results():
    with FakeTensorMode():
        x = torch.empty(4, 2, dtype=torch.bfloat16, device="xla", requires_grad=True)
        gathered = xm.all_gather(x, dim=1, pin_layout=False)
        assert (gathered.shape, gathered.dtype) == ((4, 2), torch.bfloat16)
        assert gathered.device.type == "xla" and not gathered.requires_grad
        assert xm.reduce_scatter("sum", x, 1.0, 0, 1).shape == (4, 2)
        assert xm.all_to_all(x, 0, 1, 1).shape == (4, 2)
        assert [t.shape for t in xm.collective_permute([x, x[0]], [[0, 0]])] == [(4, 2), (2,)]
        assert xm.all_reduce("sum", x).shape == (4, 2)


def test_an_operator_of_another_process_and_of_the_cpu_is_refused():
    collective = torch.ops.xla.collective
    with pytest.raises(DeviceError, match=r"xla.sum with \(1\) was captured in another process"):
        collective([torch.ones(2).to("xla")], "xla.sum", "(1)")
    with pytest.raises(DeviceError, match=r"xla.sum: its tensors are on cpu; move them"):
        collective([torch.ones(2)], "xla.sum", "(1)")
