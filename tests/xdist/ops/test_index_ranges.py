"""Indices at the ends of what they may be and beyond: the device refuses what CPU torch does."""

import pytest
import torch
import torch.nn.functional as F

from torch_xdist.ops import index_ranges

ROWS, COLUMNS = 3, 4
# Number beside others, which are in range; by what an operator does with it.
ALONG = {
    "gather": lambda x, i: x.gather(0, i[:, None]),
    "scatter": lambda x, i: x.scatter(0, i[:, None], x),
    "scatter of a number": lambda x, i: x.scatter(0, i[:, None], 2.0),
    "scatter_": lambda x, i: x.scatter_(0, i[:, None], x.clone()),
    "scatter with a sum": lambda x, i: x.scatter(0, i[:, None], x, reduce="add"),
    "scatter of a number with a sum": lambda x, i: x.scatter(0, i[:, None], 2.0, reduce="add"),
    "scatter_add": lambda x, i: x.scatter_add(0, i[:, None], x),
    "scatter_reduce": lambda x, i: x.scatter_reduce(0, i[:, None], x, "amax"),
    "take_along_dim": lambda x, i: x.take_along_dim(i[:, None], 0),
    "index_select": lambda x, i: x.index_select(0, i),
    "index_add": lambda x, i: x.index_add(0, i, x[:2]),
    "index_copy": lambda x, i: x.index_copy(0, i, x[:2]),
    "index_copy_": lambda x, i: x.index_copy_(0, i, x[:2].clone()),
    "index_reduce": lambda x, i: x.index_reduce(0, i, x[:2], "mean"),
    "embedding": lambda x, i: F.embedding(i, x),
    "embedding with a gradient": lambda x, i: F.embedding(i, x.requires_grad_()),
    "cross entropy": lambda x, i: F.cross_entropy(x.T[:2], i),
    "cross entropy of images": lambda x, i: F.cross_entropy(x.T[None, :3, None, :2], i[None, None]),
    "index_fill": lambda x, i: x.index_fill(0, i, 2.0),
    "index": lambda x, i: x[i],
    "index of the second dim": lambda x, i: x.T[:, i],
    "two indices": lambda x, i: x[torch.zeros_like(i), i],
    "index in front of a new dim": lambda x, i: x[None, i],
    "write": lambda x, i: x.__setitem__(i, 1.0),
    "put": lambda x, i: x.flatten()[:ROWS].put_(i, torch.ones(2, device=x.device)),
    "take": lambda x, i: x.flatten()[:ROWS].take(i),
}


def outcome(run, number, device):
    """The error of a call, or None; its result is that of the other tests."""
    x = torch.arange(float(ROWS * COLUMNS)).reshape(ROWS, COLUMNS).to(device)
    index = torch.tensor([0, number]).to(device)
    try:
        run(x, index)
    except (IndexError, RuntimeError) as error:
        return error
    return None


@pytest.mark.parametrize("number", [-5, -4, -3, -1, 0, 2, 3, 4])
@pytest.mark.parametrize("name", ALONG)
def test_the_device_refuses_what_the_cpu_refuses(name, number):
    expected, found = (outcome(ALONG[name], number, device) for device in ("cpu", "xla"))
    assert (type(found), str(found)) == (type(expected), str(expected))


@pytest.mark.parametrize(
    "lists", [([0, 3],), ([0, 1], [1, 4]), (slice(None), [0, -5]), ([[0, 9]],)]
)
def test_lists_of_pythons_numbers_are_looked_at(lists):
    with pytest.raises(IndexError) as expected:
        torch.zeros(ROWS, COLUMNS)[lists]
    with pytest.raises(IndexError) as found:
        torch.zeros(ROWS, COLUMNS, device="xla")[lists]
    assert str(found.value) == str(expected.value)


@pytest.mark.parametrize("ignored", [-100, 255, 1])
@pytest.mark.parametrize("labels", [[0, 2], [0, 3], [0, -1], [-100, 255], [1, 1]])
def test_a_class_that_is_ignored_may_be_any_number(labels, ignored):
    def error_on(device):
        target = torch.tensor([*labels, ignored]).to(device)
        scores = torch.zeros(3, 3, device=device)
        try:
            F.cross_entropy(scores, target, ignore_index=ignored)
        except IndexError as error:
            return str(error)
        return None

    assert error_on("xla") == error_on("cpu")


def test_bags_name_the_index_and_its_value():
    weight, index = torch.zeros(3, 2, device="xla"), torch.tensor([[0, 9]]).to("xla")
    with pytest.raises(RuntimeError, match=r"Index 1 of input takes value 9 .* range \[0, 3\)"):
        F.embedding_bag(index, weight)


def test_a_dim_that_is_none_is_another_error():
    with pytest.raises(IndexError, match="Dimension out of range"):
        torch.zeros(3, 2, device="xla").index_select(5, torch.tensor([9]).to("xla"))


def test_operators_that_write_have_the_rule_of_those_that_do_not():
    assert index_ranges.rule_of("aten.scatter_.src") is index_ranges.rule_of("aten.scatter.src")
    assert index_ranges.rule_of("aten.add.Tensor") is None
