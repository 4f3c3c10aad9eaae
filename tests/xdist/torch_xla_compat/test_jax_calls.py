"""JAX functions and loops by torch_xla's names."""

import jax.numpy as jnp
import torch

import torch_xla.core.xla_builder as xb
from torch_xdist.core.run import cuts
from torch_xla.experimental.fori_loop import fori_loop, while_loop
from torch_xla.experimental.scan import scan


def weighted(pair, factor, *, shift):
    return jnp.sin(pair["a"]) * factor + pair["b"] * shift


def test_a_jax_function_is_a_row_with_a_gradient():
    a = torch.rand(3).to("xla").requires_grad_()
    b = torch.rand(3).to("xla")
    before = cuts.REASONS.total()
    out = xb.call_jax(weighted, ({"a": a, "b": b}, 2.0), {"shift": 3.0})
    out.sum().backward()
    assert cuts.REASONS.total() == before
    torch.testing.assert_close(out.detach().cpu(), a.detach().cpu().sin() * 2 + b.cpu() * 3)
    torch.testing.assert_close(a.grad.cpu(), a.detach().cpu().cos() * 2)


def test_plain_values_of_other_types_are_other_constants():
    x = torch.tensor([1, 2]).to("xla")
    times = [xb.call_jax(jnp.multiply, (x, factor)) for factor in (2, 2.0, True)]
    assert [t.is_floating_point() for t in times] == [False, True, False]
    assert [t.tolist() for t in times] == [[2, 4], [2.0, 4.0], [1, 2]]


def test_a_scan_carries_and_stacks():
    xs = torch.arange(4.0).to("xla")
    carry, ys = scan(lambda c, x: (c + x, c * 2), torch.zeros(()).to("xla"), xs)
    assert carry.item() == 6 and ys.tolist() == [0, 0, 2, 6]


def test_loops_run_inside_the_program():
    one = torch.ones(2).to("xla")
    assert fori_loop(0, 5, lambda i, value: value * 2, one).tolist() == [32, 32]
    n = torch.tensor(0, device="xla")
    (last,) = while_loop(lambda i: i < 7, lambda i: (i + 3,), (n,))
    assert last.item() == 9
