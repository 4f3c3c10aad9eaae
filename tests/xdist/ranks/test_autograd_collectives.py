"""Differentiable collectives and gradient reduction, on a world of one."""

import pytest
import torch

import torch_xla.core.functions as xf
import torch_xla.core.xla_model as xm
from torch_xdist.core.run import cuts
from torch_xdist.ranks import gradients


@pytest.mark.parametrize(
    ("reduction", "gradient"), [("sum", 2.0), ("mul", 2.0), ("min", 2.0), ("max", 2.0)]
)
def test_a_reduction_passes_the_scaled_gradient(reduction, gradient):
    x = torch.tensor([1.0, 3.0]).to("xla").requires_grad_()
    y = xf.all_reduce(reduction, x, scale=2.0)
    y.sum().backward()
    assert x.grad.tolist() == [gradient] * 2


def test_a_reduction_without_a_gradient_is_refused():
    with pytest.raises(RuntimeError, match="Unsupported reduce type: and; gradients exist for sum"):
        xf.all_reduce("and", torch.ones(1, device="xla"))


def test_gathering_passes_this_ranks_slice_of_the_gradient():
    x = torch.ones(2, 2, device="xla").requires_grad_()
    y = xf.all_gather(x, dim=1)
    (y * torch.arange(4.0, device="xla").reshape(2, 2)).sum().backward()
    assert x.grad.tolist() == [[0, 1], [2, 3]]


def test_a_sum_over_ranks_sums_the_gradient_too():
    x = torch.arange(3.0, device="xla", requires_grad=True)
    y = xf.AllReduceSumLayer.apply(x)
    (y * y.detach()).sum().backward()
    assert (y.tolist(), x.grad.tolist()) == ([0, 1, 2], [0, 1, 2])


def test_a_distributed_product_is_the_product():
    w, x = torch.rand(4, 6), torch.rand(6, 2)
    for split in (1, 2):
        out = xf.distributed_mm(w.to("xla"), x.to("xla"), split=split)
        torch.testing.assert_close(out.cpu(), w @ x)
    with pytest.raises(RuntimeError, match=r"4 does not divide dim 1 of \(6, 2\)"):
        xf.distributed_mm(w.to("xla"), x.to("xla"), split=4)
    with pytest.raises(
        RuntimeError, match="x has 5 rows, and w 6 columns on each of 1 ranks; they"
    ):
        xf.distributed_mm(w.to("xla"), x[1:].to("xla"))


def test_sync_batch_norm_is_batch_norm_on_one_rank():
    torch.manual_seed(0)
    ours, torchs = xf.SyncBatchNorm(3).to("xla"), torch.nn.BatchNorm2d(3)
    x = torch.rand(4, 3, 2, 2)
    a, b = x.to("xla").requires_grad_(), x.clone().requires_grad_()
    for _ in range(2):
        left, right = ours(a), torchs(b)
    left.square().sum().backward()
    right.square().sum().backward()
    torch.testing.assert_close(left.cpu(), right)
    torch.testing.assert_close(a.grad.cpu(), b.grad, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(ours.running_var.cpu(), torchs.running_var)
    torch.testing.assert_close(ours.eval()(a).cpu(), torchs.eval()(b))
    with pytest.raises(ValueError, match=r"SyncBatchNorm\(3\): the input has shape \(2, 5\)"):
        ours(torch.ones(2, 5, device="xla"))


def test_boxes_that_overlap_a_better_one_are_dropped():
    boxes = torch.tensor([[0, 0, 4, 4], [0, 0, 4, 3], [5, 5, 9, 9], [0, 0, 1, 1]]).float()
    scores = torch.tensor([0.9, 0.8, 0.95, 0.01])
    kept, count = xf.nms(boxes.to("xla"), scores.to("xla"), 0.05, 0.5, 3)
    assert (kept.tolist(), count.item()) == ([2, 0, 0], 2)


def test_buckets_hold_no_more_than_they_may():
    tensors = [torch.zeros(n) for n in (10, 10, 30, 1)]
    sizes = [[t.numel() for t in bucket] for bucket in gradients.buckets(tensors, 80)]
    assert sizes == [[10, 10], [30], [1]]
    assert [len(b) for b in gradients.buckets(tensors, 0)] == [4]
    assert list(gradients.buckets([], 0)) == []


def test_an_optimizer_step_returns_what_the_optimizer_returned():
    weight = torch.ones(2, device="xla").requires_grad_()
    optimizer = torch.optim.SGD([weight], lr=0.5)

    def closure():
        optimizer.zero_grad()
        loss = weight.sum()
        loss.backward()
        return loss

    assert xm.optimizer_step(optimizer, optimizer_args={"closure": closure}).item() == 2
    before = cuts.REASONS["sync"]
    assert xm.optimizer_step(optimizer, closure).item() == 1
    assert cuts.REASONS["sync"] == before + 1 and weight.tolist() == [0, 0]


def test_reducing_and_broadcasting_on_one_rank_change_nothing():
    model = torch.nn.Linear(2, 2).to("xla")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    model(torch.ones(1, 2, device="xla")).sum().backward()
    before = model.weight.grad.tolist()
    xm.reduce_gradients(optimizer)
    xm.broadcast_master_param(model)
    assert model.weight.grad.tolist() == before
    assert [id(g) for g in xm._fetch_gradients(optimizer)] == [
        id(p.grad) for p in model.parameters()
    ]
