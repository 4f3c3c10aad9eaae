"""Which results a step's program announces."""

import pytest
import torch
from torch import nn

import torch_xla
from torch_xdist.core.devices import device
from torch_xdist.core.early import choice
from torch_xdist.core.trace.values import root_of


def step(*, updates=True, width=1000):
    """A recorded step, not run: (its loss, its hits, its gradient's norm, a counter), the model."""
    model = nn.Linear(width, 1000).to("xla")
    images, target = torch.randn(4, width, device="xla"), torch.tensor([0, 2, 1, 1], device="xla")
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    count = torch.zeros((), dtype=torch.int64, device="xla")
    torch_xla.sync()
    scores = model(images)
    count += 1
    loss = nn.functional.cross_entropy(scores, target)
    hits = (scores.argmax(1) == target).sum()
    loss.backward()
    norm = model.weight.grad.norm()
    if updates:
        optimizer.step()
    return (loss.detach(), hits, norm, count), model


def chosen(results, *, gives=True):
    """The indices of the results that would be announced."""
    trace = device.trace_of(0)
    outs = [root_of(result.value).slot for result in results]
    early = choice.early_results(trace.device, trace.tape.entries, [gives], outs)
    return early and list(early.places)


def test_a_loss_and_what_is_computed_of_scores_before_the_backward_pass_are_chosen():
    results, _ = step()
    assert chosen(results) == [0, 1]


def test_the_norm_of_a_gradient_alone_is_not():
    (*_, norm, _), _ = step()
    assert chosen([norm]) is None


def test_results_that_are_no_single_numbers_are_not():
    (loss, *_), model = step()
    assert chosen([model.weight, loss]) == [1]


def test_nothing_is_chosen_of_a_step_that_updates_nothing():
    results, _ = step(updates=False)
    assert chosen(results, gives=False) is None


def test_a_counter_that_goes_on_is_not():
    (loss, *_, count), _ = step()
    assert chosen([count, loss]) == [1]


def test_nothing_is_chosen_of_a_small_step():
    results, _ = step(width=10)
    assert chosen(results) is None


def test_nothing_is_chosen_where_nobody_calls_backward():
    x = torch.ones(4, device="xla")
    torch_xla.sync()
    assert chosen([x.sum()]) is None


def test_nothing_is_chosen_where_the_variable_says_so(ask):
    ask(XDIST_EARLY_RESULTS="0")
    results, _ = step()
    assert chosen(results) is None


@pytest.mark.parametrize(("dtype", "fits"), [(torch.float8_e5m2, False), (torch.bfloat16, True)])
def test_numbers_that_calls_of_xla_do_not_know_are_not_chosen(dtype, fits):
    (loss, *_), _ = step()
    with torch.no_grad():
        assert choice._fits(loss.to(dtype).value.type) is fits
