"""What the bodies of control flow may hold: layers with state, writes to tensors from outside."""

import copy
import functools

import pytest
import torch
from torch import nn

import torch_xla
from torch_xdist.core.jax_side.control_flow import scan, while_loop
from torch_xdist.core.record.jax_ops import record_jax
from torch_xdist.core.run import cuts
from torch_xdist.errors import CutError


def on_device(value: float | list[float]) -> torch.Tensor:
    return torch.tensor(value).to("xla")


def test_a_write_to_a_tensor_from_outside_is_done_by_the_branch_that_is_taken():
    state = torch.ones(3, device="xla")

    def add(x):
        state.add_(x)
        return x * 2

    def multiply(x):
        state[1:2].mul_(5)
        return x * 3

    ones = torch.ones(3, device="xla")
    assert torch.cond(on_device(True), add, multiply, (ones,)).tolist() == [2, 2, 2]
    assert state.tolist() == [2, 2, 2]
    assert torch.cond(on_device(False), add, multiply, (ones,)).tolist() == [3, 3, 3]
    assert state.tolist() == [2, 10, 2]


def test_a_write_to_a_tensor_from_outside_is_done_in_every_turn():
    count, total = torch.zeros((), device="xla"), torch.zeros(3, device="xla")

    def turn(carry, x):
        count.add_(1)
        return carry + x, carry * x

    carry, _ = scan(turn, on_device(0.0), torch.arange(100.0).to("xla"))
    assert (carry.item(), count.item()) == (4950, 100)

    def more(i):
        total[1:].add_(i)
        return (i + 1,)

    (last,) = while_loop(lambda i: i < 4, more, (on_device(0.0),))
    assert (last.item(), total.tolist()) == (4, [0, 6, 6])


def test_a_turn_reads_what_the_turn_before_wrote():
    memory = torch.zeros(4, device="xla")

    def turn(carry, x):
        memory[1:3].mul_(0.5).add_(x)
        return carry + memory.sum(), memory * 1

    expected, rows, total = torch.zeros(4), [], 0.0
    for x in range(3):
        expected[1:3] = expected[1:3] * 0.5 + x
        total += expected.sum().item()
        rows.append(expected.tolist())
    carry, ys = scan(turn, on_device(0.0), torch.arange(3.0).to("xla"))
    assert carry.item() == total
    assert ys.tolist() == rows
    assert memory.tolist() == rows[-1]


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(4, 6, batch_first=True)
        self.out = nn.Linear(6, 4)

    def forward(self, x):
        return self.out(self.lstm(x)[0])


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention = nn.MultiheadAttention(4, 2, batch_first=True)
        self.norm = nn.LayerNorm(4)

    def forward(self, x):
        return self.norm(x + self.attention(x, x, x, need_weights=False)[0])


class Chosen(nn.Module):
    """Nested control flow; on the CPU, Python's."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x):
        branches = (lambda x: self.linear(x) * 2, lambda x: self.linear(x).sin())
        if x.device.type == "cpu":
            return branches[0 if x.sum() > 0 else 1](x)
        return torch.cond(x.sum() > 0, *branches, (x,))


class Detached(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x):
        return x.detach() * self.linear(x) * self.linear.weight[0].detach()


class _StraightThrough(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.round()

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 3


class Rounded(nn.Module):
    """A gradient that the user wrote."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x):
        return _StraightThrough.apply(self.linear(x)) + x


def normalized():
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 4))


def scanned(layer, xs):
    def turn(carry, x):
        y = layer(x)
        return carry + y.sum(), y

    return scan(turn, torch.zeros((), device="xla"), xs)


def unrolled(layer, xs):
    ys = torch.stack([layer(x) for x in xs])
    return ys.sum(), ys


@pytest.mark.parametrize(
    ("make", "shape"),
    [
        (normalized, (5, 4)),
        (Recurrent, (2, 5, 4)),
        (Attention, (2, 5, 4)),
        (Chosen, (5, 4)),
        (Detached, (5, 4)),
        (Rounded, (5, 4)),
    ],
)
def test_a_layer_in_a_scan_has_the_values_gradients_and_state_of_a_loop(make, shape):
    torch.manual_seed(0)
    expected = make().train()
    found = copy.deepcopy(expected).to("xla")
    xs = torch.randn(3, *shape)
    everything = []
    for layer, loop, values in ((expected, unrolled, xs), (found, scanned, xs.to("xla"))):
        total, ys = loop(layer, values)
        (total * 0.1 + ys.square().mean()).backward()
        gradients = [p.grad.cpu() for p in layer.parameters()]
        state = [buffer.cpu() for buffer in layer.buffers()]
        everything.append([total.detach().cpu(), ys.detach().cpu(), *gradients, *state])
    for wanted, one in zip(*everything):
        torch.testing.assert_close(one, wanted, rtol=1e-4, atol=1e-5)


def test_dropout_in_a_scan_drops_others_in_each_turn_and_the_same_on_the_way_back():
    drop = nn.Dropout(0.5)
    x = torch.ones(3, 1000, device="xla", requires_grad=True)
    _, ys = scan(lambda carry, row: (carry, drop(row)), torch.zeros((), device="xla"), x)
    ys.sum().backward()
    assert torch.equal(x.grad.cpu(), ys.detach().cpu())
    one, other, third = ys.detach().cpu()
    assert not torch.equal(one, other) and not torch.equal(other, third)
    for row in (one, other, third):
        assert 0.8 < row.mean() < 1.2


def test_a_scan_with_a_number_that_changes_compiles_nothing_new():
    w = torch.randn(4, 4, device="xla", requires_grad=True)
    compiled = []
    for number in range(5):
        xs = torch.zeros(6, 2, 4, device="xla")
        factor = 0.1 * number + 1
        carry, _ = scan(
            lambda c, x, w=w, f=factor: ((c @ w * f).tanh() + x, c.sum()),
            torch.ones(2, 4, device="xla"),
            xs,
        )
        carry.sum().backward()
        with torch.no_grad():
            w -= 0.1 * w.grad
        w.grad = None
        torch_xla.sync()
        compiled.append(cuts.LOG[-1].compiled)
    assert compiled[2:] == [False] * 3


def test_a_tensor_that_a_body_makes_of_host_data_is_new_in_every_turn():
    def turn(carry, x):
        made = torch.tensor(0.0, device="xla")
        made.add_(x)
        moved = torch.tensor([1.0, 2.0]).to("xla")
        moved[0] = moved[0] + x
        filled = torch.zeros(2, device="xla").copy_(torch.tensor([3.0, 4.0]))
        filled.add_(x)
        return carry + made, torch.stack([made * 1, moved[0], moved[1], filled[0]])

    carry, ys = scan(turn, on_device(0.0), on_device([1.0, 2.0, 3.0]))
    assert carry.item() == 6
    assert ys.tolist() == [[1, 2, 2, 4], [2, 3, 2, 5], [3, 4, 2, 6]]

    def more(i, total):
        step = torch.tensor(1.0, device="xla")
        step.add_(i)
        return i + 1, total + step

    _, total = while_loop(lambda i, _: i < 3, more, (on_device(0.0), on_device(0.0)))
    assert total.item() == 1 + 2 + 3


def test_a_branch_writes_to_what_it_made_of_host_data_while_gradients_are_recorded():
    x = on_device([1.0, 2.0]).requires_grad_()

    def scaled(x):
        weight = torch.tensor([3.0, 4.0], device="xla")
        weight.mul_(x)
        return (x * weight,)

    (found,) = torch.cond(on_device(True), scaled, lambda x: (x * 1,), (x,))
    found.sum().backward()
    assert found.tolist() == [3, 16]
    assert x.grad.tolist() == [6, 16]


@pytest.mark.parametrize("write", ["copy_", "fill", "add"])
def test_a_body_takes_the_host_data_of_its_own_call(write):
    state = torch.zeros(2, device="xla")

    def add_state(x, number):
        host = torch.tensor([number, number])
        if write == "copy_":
            state.copy_(host)
        elif write == "fill":
            state[:] = host.to("xla")
        else:
            state.mul_(0).add_(host.to("xla"))
        return x + state

    for number in (1.0, 100.0):
        taken = functools.partial(add_state, number=number)
        found = torch.cond(on_device(True), taken, lambda x: x * 2, (torch.ones(2, device="xla"),))
        assert found.tolist() == [1 + number] * 2
        assert state.tolist() == [number] * 2


def test_a_generator_gives_a_body_other_numbers_at_each_draw():
    generator = torch.Generator("xla").manual_seed(3)

    def turn(carry, x):
        first = torch.rand(4, device="xla", generator=generator)
        second = torch.rand(4, device="xla", generator=generator)
        return carry + x, torch.stack([first, second])

    _, drawn = scan(turn, on_device(0.0), on_device([1.0, 2.0]))
    assert len(set(drawn.flatten().tolist())) == 16


def test_a_collective_in_a_body_is_refused():
    def turn(carry, x):
        (summed,) = record_jax("xla.all_reduce", lambda a: a, [x], collective=True)
        return carry + summed, x

    with pytest.raises(CutError, match=r"xla.all_reduce: a collective in a body of control flow"):
        scan(turn, on_device(0.0), on_device([1.0, 2.0]))


def test_bodies_that_differ_in_a_constant_are_other_programs_in_the_reports():
    carry = torch.arange(4.0).to("xla")

    def rolled(by):
        last, _ = scan(lambda carry, x: (carry.roll(by), x), carry, on_device([1.0]))
        last.tolist()
        return cuts.LOG[-1].fingerprint

    assert rolled(1) != rolled(2)
    assert rolled(1) == rolled(1)


def give_data(outer, x):
    outer.data = x * 2


def give_room(outer, x):
    torch.cat([x, x], out=outer)


@pytest.mark.parametrize("give", [give_data, give_room])
def test_a_tensor_from_outside_gets_no_other_memory_in_a_body(give):
    outer, x = torch.ones(2, device="xla"), torch.ones(2, device="xla")

    def taken(x):
        give(outer, x)
        return x + 1

    with (
        torch.no_grad(),
        pytest.raises(CutError, match=r"gives a tensor float32\[2\] from outside"),
    ):
        torch.cond(on_device(True), taken, lambda x: x * 1, (x,))
    assert outer.tolist() == [1, 1]
