"""What the bodies of control flow may hold: layers with state, writes to tensors from outside."""

import copy

import pytest
import torch
from torch import nn

import torch_xla
from torch_xdist.core.jax_side.control_flow import scan, while_loop
from torch_xdist.core.run import cuts


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
