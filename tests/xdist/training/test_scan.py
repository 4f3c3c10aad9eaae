"""The loop that saves what its way back needs."""

import pytest
import torch
from functorch.compile import min_cut_rematerialization_partition

import torch_xla
from torch_xdist.errors import ArgumentError, ImpureError
from torch_xla.experimental import scan as scan_module
from torch_xla.experimental.pytreeify import pytreeify
from torch_xla.experimental.scan import Scan, scan, tree_flatten_none, value_and_grad_partitioned


def body(carry, x):
    for _ in range(3):
        carry = torch.sin(carry)
    return carry * x["a"], (torch.sin(x["a"]) + carry, None)


def in_turn(function, carry, xs):
    ys = []
    for i in range(len(xs["a"])):
        carry, (y, _) = function(carry, {"a": xs["a"][i]})
        ys.append(y)
    return carry, (torch.stack(ys), None)


def operands():
    torch.manual_seed(0)
    return torch.rand(4), torch.rand(5, 4)


def sines(partition_fn):
    """Results and gradients are those of a loop in Python; how often the way back has a sine."""
    cpu = [t.requires_grad_() for t in operands()]
    there = [t.detach().to("xla").requires_grad_() for t in cpu]
    carry, (ys, nothing) = scan(body, there[0], {"a": there[1]}, partition_fn=partition_fn)
    assert nothing is None
    torch_xla.sync()
    (carry.sum() + ys.sum()).backward()
    count = torch_xla._XLAC._get_xla_tensors_hlo([t.grad for t in there]).count(" sine(f32")
    last, (stacked, _) = in_turn(body, cpu[0], {"a": cpu[1]})
    (last.sum() + stacked.sum()).backward()
    torch.testing.assert_close(carry.detach().cpu(), last.detach())
    torch.testing.assert_close(ys.detach().cpu(), stacked.detach())
    for one, other in zip(there, cpu):
        torch.testing.assert_close(one.grad.cpu(), other.grad)
    return count


def test_nothing_is_computed_again_unless_a_partitioner_says_so():
    assert sines(None) == 0
    assert sines(min_cut_rematerialization_partition) > 2


def test_a_partitioner_only_chooses():
    def adds(module, examples, *, num_fwd_outputs):
        with module.graph.inserting_before(next(iter(module.graph.nodes))):
            module.graph.call_function(torch.ops.aten.ones.default, ([2],))
        return module, module

    carry, xs = (t.to("xla").requires_grad_() for t in operands())
    with pytest.raises(ArgumentError, match="partition_fn adds adds aten"):
        scan(body, carry, {"a": xs}, partition_fn=adds)


def test_a_pure_body_is_traced_once():
    runs = []

    def counted(carry, x):
        runs.append(1)
        return carry + x, x

    carry, xs = (t.to("xla") for t in operands())
    for _ in range(3):
        scan(counted, carry, xs, is_fn_pure=True)
    # Once to see what it reads, and once with its gradients.
    assert len(runs) == 2 and len(scan_module._SCAN_COMPUTATION_CACHE[counted]) == 1
    scan(counted, carry, xs.requires_grad_(), is_fn_pure=True)
    assert len(scan_module._SCAN_COMPUTATION_CACHE[counted]) == 2
    scan(body, carry, {"a": xs})
    assert body not in scan_module._SCAN_COMPUTATION_CACHE


def test_what_is_saved_of_xs_is_xs_itself():
    carry, xs = (t.to("xla").requires_grad_() for t in operands())
    saved = []

    def pack(tensor):
        saved.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        scan(lambda c, x: (c, torch.sin(x)), carry, xs)
    assert {id(t) for t in saved if t.shape == xs.shape} == {id(xs)}


def test_the_passes_of_a_body_can_be_had():
    carry, x = torch.rand(2, 2).to("xla").requires_grad_(), torch.rand(1, 2, 2).to("xla")
    x = x.requires_grad_()
    passes = value_and_grad_partitioned(lambda c, x: (c @ x, c @ x), carry, x)
    forward, alias_input, backward = passes
    new, (y, partial) = forward(carry, x[0])
    activations = alias_input(partial, x[0])
    torch.testing.assert_close(new.cpu(), carry.cpu() @ x[0].cpu())
    ones = torch.ones_like(y)
    of_carry, of_x = backward(ones, (ones, activations))
    torch.testing.assert_close(of_carry.cpu(), 2 * ones.cpu() @ x[0].cpu().T)
    torch.testing.assert_close(of_x.cpu(), carry.cpu().T @ (2 * ones.cpu()))


def test_random_numbers_differ_from_turn_to_turn():
    carry, xs = torch.zeros(2, device="xla"), torch.zeros(3, 2, device="xla", requires_grad=True)
    _, ys = scan(lambda c, x: (c, x + torch.rand_like(x)), carry, xs)
    assert ys.unique().numel() == 6


def test_gradients_of_tensors_from_outside_and_of_gradients():
    weight = torch.full((), 2.0, device="xla", requires_grad=True)
    one = torch.ones((), device="xla", requires_grad=True)
    zeros = torch.zeros(3, device="xla")
    with pytest.raises(ArgumentError, match=r"`fn` reads 1 tensor\(s\) from outside which need"):
        value_and_grad_partitioned(lambda c, x: (c * weight, None), one, zeros)
    carry, _ = scan(lambda c, x: (c * weight, None), one, zeros)
    carry.backward()
    assert weight.grad.item() == 12
    xs = torch.full((3,), 2.0, device="xla", requires_grad=True)
    carry, _ = scan(lambda c, x: (c * x * x, None), one, xs)
    (first,) = torch.autograd.grad(carry, xs, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), xs)
    x = torch.full((3,), 2.0, requires_grad=True)
    (first,) = torch.autograd.grad(x.prod() ** 2, x, create_graph=True)
    torch.testing.assert_close(second.cpu(), torch.autograd.grad(first.sum(), x)[0])


def test_integers_are_carried_without_gradients():
    start = torch.tensor(0, device="xla"), torch.ones(2, device="xla", requires_grad=True)
    (count, last), _ = scan(
        lambda c, x: ((c[0] + 1, c[1] * x), None), start, torch.full((3,), 2.0, device="xla")
    )
    last.sum().backward()
    assert count.item() == 3 and start[1].grad.tolist() == [8, 8]


def test_what_a_body_may_not_do():
    carry, xs = (t.to("xla").requires_grad_() for t in operands())
    outside = torch.zeros(4, device="xla")
    with pytest.raises(ArgumentError, match="`fn` is 3, which cannot be called; give a function"):
        scan(3, carry, xs)
    with pytest.raises(ArgumentError, match=r"have the lengths \[2, 5\] along dim 0; give one or"):
        scan(body, carry, (xs, xs[:2]))
    with pytest.raises(ImpureError, match=r"writes to 1 tensor.* FakeTensor in torch_xla either"):
        scan(lambda c, x: (c + outside.add_(1), x), carry, xs)
    with pytest.raises(RuntimeError, match="in-place operation"):
        scan(lambda c, x: (c.add_(1), x), carry, xs)


def test_nests_without_their_none():
    flat, unflatten = tree_flatten_none(((1, 2), (None, 3), None))
    assert flat == [1, 2, 3] and unflatten(flat) == ((1, 2), (None, 3), None)


def test_autograd_functions_of_nests():
    @pytreeify
    class Double(torch.autograd.Function):
        @staticmethod
        def forward(ctx, pair):
            return {"a": pair["a"] * 2}

        @staticmethod
        def backward(ctx, grad):
            return {"a": grad["a"] * 2} if grad["a"].sum() < 5 else grad["a"]

    x = torch.ones(2, requires_grad=True)
    Double.apply({"a": x})["a"].sum().backward()
    assert x.grad.tolist() == [2, 2]
    with pytest.raises(ArgumentError, match=r"Double.backward: gradients of the form .*; return"):
        Double.apply({"a": x})["a"].backward(torch.full((2,), 9.0))
    with pytest.raises(ArgumentError, match=r"pytreeify: <class 'int'> is no torch.autograd.Func"):
        pytreeify(int)


def test_the_function_of_autograd_takes_passes_by_hand():
    def forward(carry, x):
        # What the backward needs beside rows of xs: the carry before.
        return carry * x, (carry + x, (carry,))

    def alias_input(partial, xs):
        return [partial[0], xs]

    def backward(grad_carry, of_turn):
        grad_y, (carry, x) = of_turn
        return grad_carry * x + grad_y, grad_carry * carry + grad_y

    def by_hand(init, xs):
        return Scan.apply(forward, alias_input, backward, init, xs)

    def by_torch(init, xs):
        ys = []
        for x in xs:
            ys.append(init + x)
            init = init * x
        return init, torch.stack(ys)

    values = torch.tensor([2.0]), torch.tensor([[3.0], [4.0], [0.5]])
    found = []
    for function, device in ((by_hand, "xla"), (by_torch, "cpu")):
        inputs = [v.to(device).requires_grad_() for v in values]
        carry, ys = function(*inputs)
        grads = torch.autograd.grad(carry.sum() * 2 + (ys**2).sum(), inputs)
        found.append([t.detach().cpu() for t in (carry, ys, *grads)])
    torch.testing.assert_close(*found)
