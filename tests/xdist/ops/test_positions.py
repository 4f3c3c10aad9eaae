"""Positions of 32 bits inside a program: values are torch's, and what lies outside stays there."""

import jax
import numpy as np
import pytest
import torch
import torch.nn.functional as F

from torch_xdist import platforms
from torch_xdist.ops import positions

NAN = float("nan")


@pytest.fixture
def narrow(choose):
    """The device of this process counts as a TPU does."""
    choose(counts_narrowly=True)
    yield
    positions.count_narrowly(False)


def test_they_are_as_wide_as_what_is_counted(monkeypatch):
    monkeypatch.setattr(positions, "_counts_narrowly", [True])
    assert positions.width(2**31 - 2) == np.int32 and positions.width(2**31 - 1) == np.int64
    assert positions.counted(3).dtype == np.int32
    with jax.enable_x64(True):
        far = jax.numpy.asarray([2**40, -(2**40), 3])
        assert positions.narrowed(far, 10).dtype == np.int32
        # What lies outside stays outside, where it is written.
        assert positions.bounded(far, 10).tolist() == [2**31 - 1, -(2**31), 3]
        assert positions.bounded(far, 2**31).dtype == np.int64


def test_tpus_alone_count_so():
    names = [name for name, choices in platforms.CHOICES.items() if choices.counts_narrowly]
    assert names == ["tpu"]


X = torch.tensor([[3.0, NAN, 1.0, 3.0, -0.0, 0.0, 7.0, -2.0], [1.0, 1.0, 0.5, 9, 2, -1, 4, 8]])
AT = torch.tensor([[0, 7, 2], [5, 5, 1]])
CALLS = {
    "sort": lambda x, at: torch.sort(x, dim=1, stable=True),
    "sort down": lambda x, at: torch.sort(x, dim=0, stable=True, descending=True),
    "sort whole numbers": lambda x, at: torch.sort(at, dim=1, stable=True),
    "argsort": lambda x, at: torch.argsort(x.bfloat16(), dim=1, stable=True),
    "topk": lambda x, at: torch.topk(x[1:], 1, dim=1),
    "topk with nan": lambda x, at: torch.topk(x, 1, dim=1),
    "topk of many": lambda x, at: torch.topk(x, 5, dim=1, largest=False),
    "mode": lambda x, at: torch.mode(x[1:], dim=1),
    "kthvalue": lambda x, at: torch.kthvalue(x[1:], 2, dim=1),
    "median": lambda x, at: torch.median(x[1:, 2:], dim=1),
    "max": lambda x, at: torch.max(x, dim=1),
    "gather": lambda x, at: torch.gather(x, 1, at),
    "index": lambda x, at: x[:, at[0]],
    "index from the end": lambda x, at: x[at % 2 - 2, -at - 1],
    "take": lambda x, at: torch.take(x, at - 8),
    "index_select": lambda x, at: torch.index_select(x, 1, at[1]),
    "scatter_add": lambda x, at: torch.scatter_add(x, 1, at, x[:, :3] + 1),
    "scatter_reduce": lambda x, at: torch.scatter_reduce(x[1:], 1, at[1:], x[1:, :3], "mean"),
    "index_put": lambda x, at: x.clone().index_put_((at % 2, -at - 1), x[:, :3], accumulate=True),
    "index_add": lambda x, at: torch.index_add(x, 1, at[0], x[:, 2:5]),
    "embedding": lambda x, at: F.embedding(at, x.T),
    "masked_scatter": lambda x, at: x.masked_scatter(x > 1, x.flatten()),
    "searchsorted": lambda x, at: torch.searchsorted(x[1].sort().values, x[1, :3].contiguous()),
    "pool": lambda x, at: F.max_pool2d(x[None, None, :, 2:], 2, return_indices=True),
    "tril": lambda x, at: torch.tril(x, 1),
    "bag": lambda x, at: F.embedding_bag(at, x.T[:, 1:].contiguous(), mode="max"),
}  # fmt: skip


@pytest.mark.parametrize("name", CALLS)
def test_values_are_those_of_torch(name, narrow):
    expected = CALLS[name](X, AT)
    found = CALLS[name](X.to("xla"), AT.to("xla"))
    pairs = zip(expected, found) if isinstance(expected, tuple) else [(expected, found)]
    for one, other in pairs:
        torch.testing.assert_close(other.cpu(), one, equal_nan=True)
    assert positions.are_narrow()


@pytest.mark.parametrize("ignored", [-100, 1, 2**40])
def test_targets_that_are_ignored_still_are(ignored, narrow):
    target = torch.tensor([2, ignored, 0, ignored])
    x = torch.linspace(-1, 1, 12).reshape(4, 3)
    grads = []
    for device in ("cpu", "xla"):
        leaf = x.detach().clone().to(device).requires_grad_()
        loss = F.cross_entropy(leaf, target.to(device), ignore_index=ignored)
        loss.backward()
        grads.append((loss.detach().cpu(), leaf.grad.cpu()))
    torch.testing.assert_close(grads[1], grads[0])
