"""Ways to train, on two ranks with half of each batch, against eager torch on whole batches."""

import contextlib

import pytest
import torch
from torch import nn


class Whole:
    """One process, eager torch, whole batches."""

    device = "cpu"

    def part(self, batch):
        return batch

    def wrapped(self, model):
        return model

    def reduce(self, optimizer):
        """Average the gradients."""

    def mean(self, loss):
        return loss

    def quiet(self, model):
        return contextlib.nullcontext()

    def step(self, *optimizers):
        for optimizer in optimizers:
            optimizer.step()


class Part(Whole):
    """One of several ranks of the device, its part of each batch."""

    device = "xla"

    def __init__(self, rank, size):
        self.rank, self.size = rank, size

    def part(self, batch):
        return batch.chunk(self.size)[self.rank].to("xla")

    def wrapped(self, model):
        return nn.parallel.DistributedDataParallel(model)

    def quiet(self, model):
        return model.no_sync()

    def reduce(self, optimizer):
        from torch_xdist.ranks import gradients

        gradients.reduce_gradients(optimizer)

    def mean(self, loss):
        from torch_xdist.ranks import collective_ops

        return collective_ops.all_reduce("sum", loss.detach(), scale=1 / self.size)

    def step(self, *optimizers):
        from torch_xdist.core.devices import steps
        from torch_xdist.ranks import gradients

        for optimizer in optimizers:
            gradients.optimizer_step(optimizer)
        steps.sync()


class Tied(nn.Module):
    """Tokens [b, t] to logits [b, t, 9] through one matrix, used at both ends."""

    def __init__(self):
        super().__init__()
        self.tokens = nn.Embedding(9, 6)
        self.middle = nn.Linear(6, 6)
        self.head = nn.Linear(6, 9, bias=False)

    def tie(self):
        self.head.weight = self.tokens.weight

    def forward(self, tokens):
        return self.head(self.middle(self.tokens(tokens)).tanh())


def make_model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1))


def batches(count=4):
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(8, 6, generator=generator) for _ in range(count)]


def loss_of(model, batch):
    return (model(batch) - batch.sum(1, keepdim=True).sin()).square().mean()


def accumulation(side):
    """Three batches make one step."""
    model = make_model().to(side.device)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for number, batch in enumerate(batches(6)):
        (loss_of(model, side.part(batch)) / 3).backward()
        if number % 3 == 2:
            side.step(optimizer)
            optimizer.zero_grad()
    return model


def no_sync(side):
    """DDP adds up gradients of its own rank before it reduces them."""
    model = make_model().to(side.device)
    wrapped = side.wrapped(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for number, batch in enumerate(batches()):
        with contextlib.nullcontext() if number % 2 else side.quiet(wrapped):
            loss_of(wrapped, side.part(batch)).backward()
        if number % 2:
            optimizer.step()
            optimizer.zero_grad()
    return model


def tied(side, *, before):
    torch.manual_seed(0)
    model = Tied()
    if before:
        model.tie()
    model = model.to(side.device)
    if not before:
        model.tie()
    assert model.head.weight is model.tokens.weight and len(list(model.parameters())) == 3
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    generator = torch.Generator().manual_seed(1)
    for _ in range(3):
        tokens = side.part(torch.randint(9, (4, 5), generator=generator))
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten()).backward()
        side.step(optimizer)
    assert torch.equal(model.head.weight, model.tokens.weight)
    return model


def tied_before(side):
    return tied(side, before=True)


def tied_after(side):
    return tied(side, before=False)


def frozen(side):
    """The first layer stays; the last bias begins to learn after two steps."""
    model = make_model().to(side.device)
    model[0].requires_grad_(False)
    model[2].bias.requires_grad_(False)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for number, batch in enumerate(batches()):
        model[2].bias.requires_grad_(number >= 2)
        optimizer.zero_grad()
        loss_of(model, side.part(batch)).backward()
        side.step(optimizer)
    first = make_model()[0].weight
    assert torch.equal(model[0].weight.cpu(), first)
    return model


def several_optimizers(side):
    """One steps always, the other every second time."""
    model = make_model().to(side.device)
    fast = torch.optim.SGD(model[:2].parameters(), lr=0.1, momentum=0.9)
    slow = torch.optim.Adam(model[2:].parameters(), lr=0.01)
    for number, batch in enumerate(batches()):
        model.zero_grad()
        loss_of(model, side.part(batch)).backward()
        side.step(*(fast, slow) if number % 2 else (fast,))
    return model


def average(side):
    """A moving average beside the model, by torch and by hand."""
    model = make_model().to(side.device)
    torchs = torch.optim.swa_utils.AveragedModel(
        model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.8)
    )
    hands = {name: value.detach().clone() for name, value in model.named_parameters()}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for batch in batches():
        optimizer.zero_grad()
        loss_of(model, side.part(batch)).backward()
        side.step(optimizer)
        torchs.update_parameters(model)
        with torch.no_grad():
            for name, value in model.named_parameters():
                hands[name].mul_(0.8).add_(value, alpha=0.2)
    torchs.register_parameter("hand", nn.Parameter(hands["0.weight"]))
    return torchs


def lbfgs(side, line_search=None, max_iter=2):
    """The closure runs several times a step, and every rank must take the same turns."""
    torch.manual_seed(0)
    model = nn.Linear(6, 1).to(side.device)
    optimizer = torch.optim.LBFGS(
        model.parameters(), lr=0.3, max_iter=max_iter, line_search_fn=line_search
    )
    batch = batches(1)[0]

    def closure():
        optimizer.zero_grad()
        loss = loss_of(model, side.part(batch))
        loss.backward()
        side.reduce(optimizer)
        return side.mean(loss)

    for _ in range(2):
        optimizer.step(closure)
    return model


def lbfgs_with_line_search(side):
    return lbfgs(side, "strong_wolfe", max_iter=3)


def sparse_gradients(side):
    """Each step changes the rows of its own words alone."""
    torch.manual_seed(0)
    words = nn.Embedding(9, 6, sparse=True).to(side.device)
    places = nn.Embedding(5, 6, sparse=True).to(side.device)
    optimizers = (
        torch.optim.SparseAdam(words.parameters(), lr=0.05),
        torch.optim.SGD(places.parameters(), lr=0.5),
    )
    generator = torch.Generator().manual_seed(1)
    for _ in range(3):
        tokens = side.part(torch.randint(9, (4, 5), generator=generator))
        for optimizer in optimizers:
            optimizer.zero_grad()
        found = words(tokens) + places(torch.arange(5).to(side.device)).expand(
            tokens.shape[0], 5, 6
        )
        found.tanh().square().mean().backward()
        side.step(*optimizers)
    return nn.ModuleList([words, places])


def other_rows_in_each_step(side):
    """Of which each rank finds another number, so that it runs its step in other parts."""
    from torch_xdist import metrics
    from torch_xdist.core.tapes import changing_rows

    torch.manual_seed(0)
    model = nn.Sequential(*[nn.Sequential(nn.Linear(6, 6), nn.LayerNorm(6)) for _ in range(4)])
    model.to(side.device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(changing_rows, "_LEAST_S", 0.0)
        for step, batch in enumerate(batches(5)):
            optimizer.zero_grad()
            batch = side.part(batch)
            out = model(batch)
            # The host shall not know which they are.
            found = out[out.detach()[:, 0] * 0 + batch[:, 0] < step / 3]
            (found.square().sum() / len(batch)).backward()
            side.step(optimizer)
    assert side.device == "cpu" or metrics.counter_value("RanInParts")
    return model


def on_a_rank(rank, size, way):
    import torch.distributed as dist

    import torch_xdist.ranks.c10d.backend  # noqa: F401

    if not dist.is_initialized():
        dist.init_process_group("xla", init_method="xla://")
    return {name: value.cpu() for name, value in way(Part(rank, size)).state_dict().items()}


WAYS = [
    accumulation, no_sync, tied_before, tied_after, frozen, several_optimizers, average,
    sparse_gradients, other_rows_in_each_step, lbfgs,
    pytest.param(lbfgs_with_line_search, marks=pytest.mark.long),
]  # fmt: skip


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_two_ranks_train_like_one_on_whole_batches(two, way):
    expected = way(Whole()).state_dict()
    for found in two.run(on_a_rank, way):
        torch.testing.assert_close(found, dict(expected), rtol=1e-5, atol=1e-5)
