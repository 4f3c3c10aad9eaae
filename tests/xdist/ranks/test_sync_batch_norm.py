"""Batch norm over the batches of all ranks, against batch norm of one process over all of them."""

import pytest
import torch
from torch import nn

# The ranks' batches differ in size.
ROWS = [3, 5]


def make_model(momentum):
    torch.manual_seed(0)
    norm = nn.BatchNorm2d(4, momentum=momentum)
    nn.init.normal_(norm.weight)
    nn.init.normal_(norm.bias)
    conv = nn.Conv2d(2, 4, 3)
    # What is normalized is far from zero, where sums of squares would cancel.
    nn.init.constant_(conv.bias, 5.0)
    return nn.Sequential(conv, norm)


def batch_of(step):
    generator = torch.Generator().manual_seed(step)
    return torch.randn(sum(ROWS), 2, 6, 6, generator=generator) * 2


def on_ranks(rank, size, momentum, groups):
    """What two training steps and one evaluation give: outputs, gradients, running statistics."""
    import torch.distributed as dist

    import torch_xla
    import torch_xla.distributed.xla_backend
    from torch_xdist.core.run import cuts

    group = None
    if groups:
        if not dist.is_initialized():
            dist.init_process_group("xla", init_method="xla://")
        group = [dist.new_group(ranks) for ranks in groups][rank if len(groups) > 1 else 0]
    model = nn.SyncBatchNorm.convert_sync_batchnorm(make_model(momentum), group).to("xla")
    assert isinstance(model[1], nn.SyncBatchNorm)
    for step in range(2):
        x = batch_of(step).split(ROWS)[rank].to("xla").requires_grad_()
        before = len(cuts.LOG)
        out = model(x)
        (out.square() * out).sum().backward()
        torch_xla.sync()
        assert len(cuts.LOG) == before + 1
    trained = out.detach().cpu(), x.grad.cpu(), [p.grad.cpu() for p in model.parameters()]
    running = [b.cpu() for b in model.buffers()]
    return trained, running, model.eval()(x).detach().cpu()


def on_one(momentum, rows):
    """The same of one process, in float64: torch's float32 is no more exact than ours."""
    model = make_model(momentum).double()
    for step in range(2):
        x = torch.cat([batch_of(step).split(ROWS)[i] for i in rows]).double().requires_grad_()
        out = model(x)
        (out.square() * out).sum().backward()
    trained = out.detach(), x.grad, [p.grad for p in model.parameters()]
    return trained, list(model.buffers()), model.eval()(x).detach()


@pytest.mark.parametrize(
    ("momentum", "groups"),
    [(0.1, None), pytest.param(None, [[0, 1]], marks=pytest.mark.long)],
    ids=["moving", "cumulative"],
)
def test_statistics_and_gradients_are_those_of_the_whole_batch(two, momentum, groups):
    (out, to_x, to_weights), running, evaluated = on_one(momentum, [0, 1])
    results = two.run(on_ranks, momentum, groups)
    close = {"rtol": 1e-4, "atol": 2e-4, "check_dtype": False}
    for whole, index in ((out, 0), (to_x, 1)):
        found = torch.cat([trained[index] for trained, _, _ in results])
        torch.testing.assert_close(found, whole, **close)
    torch.testing.assert_close(torch.cat([r[2] for r in results]), evaluated, **close)
    # Gradients of weights are each rank's part, as elsewhere in data parallel training. They are
    # sums that nearly cancel: exact to 1e-6 of the largest, as torch's float32 is.
    largest = max(gradient.abs().max().item() for gradient in to_weights)
    for found, expected in zip(zip(*[r[0][2] for r in results]), to_weights):
        torch.testing.assert_close(
            sum(found), expected, rtol=0, atol=1e-6 * largest, check_dtype=False
        )
    for _, buffers, _ in results:
        for found, expected in zip(buffers, running):
            torch.testing.assert_close(found, expected, **close)


@pytest.mark.long
def test_ranks_of_different_groups_do_not_share_statistics(two):
    for rank, found in enumerate(two.run(on_ranks, 0.1, [[0], [1]])):
        expected = on_one(0.1, [rank])
        close = {"rtol": 1e-4, "atol": 2e-4, "check_dtype": False}
        torch.testing.assert_close(found[0][0], expected[0][0], **close)
        torch.testing.assert_close(found[1], expected[1], **close)
