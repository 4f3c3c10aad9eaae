"""torch's control flow operators and JAX functions as operators, with their gradients."""

import jax.numpy as jnp
import pytest
import torch

import torch_xdist.core.torch_side.registration  # noqa: F401
from torch_xdist.core.devices import steps
from torch_xdist.core.jax_side.control_flow import scan, while_loop
from torch_xdist.core.jax_side.from_jax import from_jax
from torch_xdist.core.run import cuts
from torch_xdist.errors import CutError


def test_cond_chooses_on_the_device_without_a_read():
    x = torch.arange(3.0, device="xla", requires_grad=True)
    factor = torch.tensor([10.0]).to("xla")
    before = cuts.REASONS.copy()
    for flag, expected, slope in ((True, [0, 10, 20], 10), (False, [1, 2, 3], 1)):
        pred = torch.tensor(flag).to("xla")
        y = torch.cond(pred, lambda x: x * factor, lambda x: x + 1, (x,))
        (g,) = torch.autograd.grad(y.sum(), x)
        assert before == cuts.REASONS
        assert y.tolist() == expected
        assert g.tolist() == [slope] * 3
        before = cuts.REASONS.copy()


def made_constant(x, value):
    return x + torch.tensor([value, value], device="xla")


@pytest.mark.parametrize(
    ("branch", "values"),
    [
        (lambda x, mode: torch.div(x, 2, rounding_mode=mode), ["floor", "trunc"]),
        (made_constant, [1.0, 100.0]),
    ],
    ids=["keyword arguments", "constants"],
)
def test_bodies_that_differ_in_one_value_are_different_rows(branch, values):
    x = torch.tensor([7.0, -7.0])
    on_device, pred = x.to("xla"), torch.tensor(True).to("xla")
    for value in values:
        y = torch.cond(pred, lambda x, v=value: branch(x, v), lambda x: x * 1, (on_device,))
        plain = x + value if branch is made_constant else branch(x, value)
        assert y.tolist() == plain.tolist()


def test_bodies_that_differ_in_what_a_factory_makes_are_different_rows():
    x, pred = torch.zeros(2, device="xla"), torch.tensor(True).to("xla")
    for rows, columns in ((3, 3), (6, 1)):
        y = torch.cond(
            pred,
            lambda x, r=rows, c=columns: x + torch.tril_indices(r, c, device="xla").sum(1).float(),
            lambda x: x * 1,
            (x,),
        )
        assert y.tolist() == torch.tril_indices(rows, columns).sum(1).tolist()


def test_cond_refuses_branches_of_different_shapes():
    x = torch.ones(3, device="xla")
    with pytest.raises(CutError, match="both must return tensors of the same shapes and dtypes"):
        torch.cond(x.sum() > 1, lambda x: x, lambda x: x.sum(), (x,))


def test_while_loop_runs_until_its_condition_fails():
    n, total = torch.tensor(0).to("xla"), torch.tensor(1.0).to("xla")
    n, total = while_loop(lambda n, t: n < 5, lambda n, t: (n + 1, t * 2), (n, total))
    assert (n.item(), total.item()) == (5, 32.0)


@pytest.mark.parametrize("turns", [0, 5, 150])
def test_while_loop_has_the_gradient_of_its_turns(turns):
    def run(device):
        x = torch.tensor([0.3, 0.7], device=device, requires_grad=True)
        w = torch.tensor([0.9, 1.1], device=device, requires_grad=True)
        n = torch.tensor(0, device=device)
        if device == "xla":
            n, y = while_loop(lambda n, y: n < turns, lambda n, y: (n + 1, (y * w).sin()), (n, x))
        else:
            y = x
            for _ in range(turns):
                y = (y * w).sin()
        grads = torch.autograd.grad(y.sum() * 3, (x, w), allow_unused=True)
        return [torch.zeros(2) if g is None else g.cpu() for g in grads]

    torch.testing.assert_close(run("xla"), run("cpu"))


def test_while_loop_refuses_a_body_that_changes_shapes():
    x = torch.ones(3, device="xla")
    with pytest.raises(CutError, match="shapes and dtypes of what is carried must not change"):
        while_loop(lambda x: x.sum() < 5, lambda x: (x[:2],), (x,))


def test_operands_of_control_flow_must_be_device_tensors():
    with pytest.raises(CutError, match="is not an xla tensor; pass tensors of one device"):
        while_loop(lambda x: x < 5, lambda x: (x + 1,), (torch.ones(1),))


def test_scan_carries_and_stacks_with_gradients():
    xs = torch.arange(4.0, device="xla", requires_grad=True)
    start = torch.tensor(0.0).to("xla")
    last, sums = scan(lambda c, x: (c + x, c * x), start, xs)
    assert last.item() == 6
    assert sums.tolist() == [0, 0, 2, 9]
    (g,) = torch.autograd.grad(last * 2, xs)
    assert g.tolist() == [2] * 4


def test_nothing_has_a_place_in_what_a_body_takes_and_returns():
    rows = torch.arange(6.0, device="xla").reshape(3, 2)
    start = {"sum": torch.zeros(2, device="xla"), "nothing": None}

    def body(carry, x):
        assert carry["nothing"] is None and x[1] is None
        return {"sum": carry["sum"] + x[0], "nothing": None}, None

    carry, ys = scan(body, start, (rows, None))
    assert carry["sum"].tolist() == [6, 9]
    assert (carry["nothing"], ys) == (None, None)
    x = torch.ones((), device="xla")
    taken, nothing = torch.cond(x > 0, lambda x: (x, None), lambda x: (-x, None), (x,))
    assert (taken.item(), nothing) == (1, None)
    last, nothing = while_loop(lambda x, _: x < 4, lambda x, _: (x + 1, None), (x, None))
    assert (last.item(), nothing) == (4, None)


@pytest.mark.parametrize("needs_grad", [False, True])
def test_a_body_may_write_to_what_it_is_given(needs_grad):
    def body(carry, x):
        with torch.no_grad():
            x.add_(1)
            carry.mul_(2)
        return carry + x, x

    rows = torch.arange(6.0).reshape(3, 2)
    start = torch.ones(2, device="xla")
    there = rows.to("xla").requires_grad_(needs_grad)
    last, ys = scan(body, start, there)
    expected, written = torch.ones(2), []
    for row in rows.clone():
        expected, y = body(expected, row)
        written.append(y)
    assert last.tolist() == expected.tolist()
    assert ys.tolist() == torch.stack(written).tolist()
    # It was given copies.
    assert (start.tolist(), there.tolist()) == ([1, 1], rows.tolist())

    def turn(n, x):
        return n.add_(1), x.mul_(2)

    count = torch.zeros((), device="xla")
    assert [t.tolist() for t in while_loop(lambda n, x: n < 3, turn, (count, start))] == [3, [8, 8]]
    taken = torch.cond(start.sum() > 0, lambda x: x.add_(1), lambda x: x, (start,))
    assert (taken.tolist(), start.tolist()) == ([2, 2], [1, 1])


def test_what_a_body_reads_from_outside_has_a_gradient():
    w = torch.tensor([[2.0, 3.0], [5.0, 7.0]], device="xla", requires_grad=True)
    x = torch.ones(2, device="xla")
    chosen = torch.cond(x.sum() > 1, lambda x: x * w[0], lambda x: x - w[1].detach(), (x,))
    _, sums = scan(lambda c, row: (c, row * w[1]), x.sum(), torch.stack([x, x]))
    (g,) = torch.autograd.grad(chosen.sum() + sums.sum(), w)
    assert g.tolist() == [[1, 1], [2, 2]]


def test_a_jax_function_is_a_torch_operator_with_its_gradient():
    @from_jax
    def swish(x):
        return x * (1 / (1 + jnp.exp(-x)))

    x = torch.linspace(-2, 2, 5)
    there = x.to("xla").requires_grad_()
    y = swish(there)
    y.sum().backward()
    here = x.clone().requires_grad_()
    torch.nn.functional.silu(here).sum().backward()
    torch.testing.assert_close(y.detach().cpu(), torch.nn.functional.silu(x))
    torch.testing.assert_close(there.grad.cpu(), here.grad)


def _orders(function, leaves, orders):
    """The gradients of a function, then of the sum of their absolute squares, and so on."""
    found, value = [], function(*leaves)
    for _ in range(orders):
        grads = torch.autograd.grad(value.sum(), leaves, create_graph=True)
        found += [g.detach().cpu() for g in grads]
        value = sum((g.abs() ** 2).sum() for g in grads)
    return found


def _in_turns(x, w):
    n = torch.tensor(0, device="xla")
    return while_loop(lambda n, y: n < 10, lambda n, y: (n + 1, (y * w + n).sin()), (n, x))[1]


def _in_plain_turns(x, w):
    for n in range(10):
        x = (x * w + n).sin()
    return x


def _along(x, w):
    return scan(lambda c, row: ((c * w[0]).sin() * row, c * c), x.sum(), x)[1]


def _along_plainly(x, w):
    carry, rows = x.sum(), []
    for row in x:
        rows.append(carry * carry)
        carry = (carry * w[0]).sin() * row
    return torch.stack(rows)


_ONE_OF = (torch.add, torch.mul)


@pytest.mark.parametrize(
    ("ours", "plain", "orders"),
    [
        (from_jax(lambda x, w: x**3 * jnp.sin(w)), lambda x, w: x**3 * w.sin(), 3),
        (
            lambda x, w: torch.cond(x.sum() > 0, *_ONE_OF, (x * x, w * x)),
            lambda x, w: x * x + w * x,
            2,
        ),
        (_along, _along_plainly, 2),
        (_in_turns, _in_plain_turns, 2),
        pytest.param(_in_turns, _in_plain_turns, 3, marks=pytest.mark.long),
    ],
    ids=["from_jax", "cond", "scan", "while_loop", "while_loop, third"],
)
def test_second_derivatives_equal_eager(ours, plain, orders):
    def run(function, device):
        x = torch.tensor([0.3, 0.9], dtype=torch.float64, device=device, requires_grad=True)
        w = torch.tensor([1.2, -0.7], dtype=torch.float64, device=device, requires_grad=True)
        # Times x: what a derivative leaves out would be missed without an error.
        return _orders(lambda x, w: function(x, w) * x, (x, w), orders)

    torch.testing.assert_close(run(ours, "xla"), run(plain, "cpu"))


def test_gradients_by_complex_numbers_are_torchs():
    def run(function, device):
        z = torch.tensor([1 + 2j, 3 - 1j], device=device, requires_grad=True)
        return _orders(lambda z: (function(z) * (2 + 1j)).abs(), (z,), 2)

    yes = torch.tensor(True).to("xla")
    expected = run(lambda z: z * z * z, "cpu")
    torch.testing.assert_close(run(from_jax(lambda z: z * z * z), "xla"), expected)
    branch = run(lambda z: torch.cond(yes, lambda z: z * z * z, lambda z: z, (z,)), "xla")
    torch.testing.assert_close(branch, expected)


def test_a_gradient_can_be_given_by_hand():
    halve = from_jax(lambda x: x / 2, gradient=lambda inputs, outputs, grads: (grads[0] * 100,))
    x = torch.ones(2, device="xla", requires_grad=True)
    halve(x).sum().backward()
    assert x.grad.tolist() == [100.0, 100.0]


def test_a_loop_of_another_length_is_a_reported_recompilation_not_a_failure():
    def run(n):
        x = torch.ones(2, device="xla")
        for _ in range(n):
            x = x * 2
        steps.sync()
        return x.tolist(), cuts.LOG[-1].compiled

    assert run(3) == ([8.0, 8.0], True)
    assert run(3) == ([8.0, 8.0], False)
    assert run(4) == ([16.0, 16.0], True)


def noisy(x):
    return x + torch.rand_like(x)


def test_a_branch_draws_new_numbers_at_every_call_and_the_same_from_one_seed():
    yes, x = torch.tensor(True, device="xla"), torch.zeros(4, device="xla")

    def draws():
        torch.manual_seed(7)
        return [torch.cond(yes, noisy, lambda x: x, (x,)).tolist() for _ in range(2)]

    first, second = draws()
    assert first != second
    assert draws() == [first, second]


def test_every_turn_of_a_loop_draws_its_own_numbers():
    steps = torch.zeros(3, 4, device="xla")
    _, ys = scan(lambda c, x: (c + 1, noisy(x)), torch.zeros((), device="xla"), steps)
    rows = ys.tolist()
    assert rows[0] != rows[1] != rows[2]

    def turn(i, x):
        return i + 1, torch.where(torch.arange(3, device="xla")[:, None] == i, noisy(x), x)

    start = torch.zeros((), dtype=torch.int64, device="xla")
    _, filled = while_loop(lambda i, x: i < 3, turn, (start, steps))
    rows = filled.tolist()
    assert rows[0] != rows[1] != rows[2]


def test_the_way_back_draws_the_numbers_of_the_way_there():
    x = torch.ones(2, device="xla", requires_grad=True)
    start = torch.zeros((), dtype=torch.int64, device="xla")
    _, y = while_loop(
        lambda i, x: i < 70, lambda i, x: (i + 1, x * (0.5 + noisy(x * 0))), (start, x)
    )
    (gradient,) = torch.autograd.grad(y.sum(), x)
    torch.testing.assert_close(gradient.cpu(), y.detach().cpu(), rtol=1e-4, atol=0.0)
