"""Gradients summed by a loop are those of the batches in turn, on the CPU."""

import copy

import pytest
import torch
from torch.nn.functional import mse_loss

import torch_xla
from torch_xdist.errors import ArgumentError, ImpureError
from torch_xdist.metrics import counter_value
from torch_xla.experimental.gradient_accumulation import (
    GradientAccumulationContext,
    XlaBuildHelper,
    gradient_accumulation,
)
from torch_xla.experimental.scan_layers import scan_layers


@pytest.fixture
def models():
    """The same model on the CPU and on the device; its last layer is used by nobody."""
    torch.manual_seed(0)
    layers = [torch.nn.Linear(4, 8), torch.nn.Dropout(0.0), torch.nn.Linear(8, 3)]
    model = torch.nn.ModuleDict(
        {"used": torch.nn.Sequential(*layers), "idle": torch.nn.Linear(2, 2)}
    )
    return model, copy.deepcopy(model).to("xla")


def batches(turns=5):
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(turns, 2, size, generator=generator) for size in (4, 3)]


def accumulated(model, x, y):
    total = torch.zeros(())
    for turn in range(len(x)):
        loss = mse_loss(model["used"](x[turn]), y[turn]) / len(x)
        loss.backward()
        total += loss.detach()
    return total


def assert_same_gradients(cpu, device):
    for expected, got in zip(cpu.parameters(), device.parameters()):
        assert (expected.grad is None) == (got.grad is None)
        if expected.grad is not None:
            torch.testing.assert_close(got.grad.cpu(), expected.grad)


def test_loss_and_gradients_are_those_of_the_batches_in_turn(models):
    cpu, device = models
    x, y = batches()

    def step(inputs, targets):
        return mse_loss(device["used"](inputs), targets)

    # The second call adds to the gradients of the first.
    for _ in range(2):
        loss = gradient_accumulation(step, (x.to("xla"), y.to("xla")), device)
        torch.testing.assert_close(loss.cpu(), accumulated(cpu, x, y))
        assert_same_gradients(cpu, device)


def test_what_is_carried_goes_from_turn_to_turn(models):
    _, device = models
    x, y = batches()

    def step(inputs, targets, count, noise):
        loss = mse_loss(device["used"](inputs), targets)
        return loss, count + 5, torch.rand_like(noise) - noise

    start = torch.tensor([5, 5], device="xla"), torch.zeros((), device="xla")
    loss, count, noise = gradient_accumulation(step, (x.to("xla"), y.to("xla")), device, *start)
    assert not loss.requires_grad
    assert count.tolist() == [30, 30]
    # Two equal draws would leave one of them, and five equal ones one or none.
    assert noise.item() != 0


def test_a_step_may_hold_a_loop_over_layers():
    torch.manual_seed(0)
    cpu = torch.nn.ModuleList(torch.nn.Linear(4, 4) for _ in range(3))
    device = copy.deepcopy(cpu).to("xla")
    x, y = torch.randn(5, 2, 4), torch.randn(5, 2, 4)

    def step(inputs, targets):
        return mse_loss(scan_layers(device, inputs), targets)

    loss = gradient_accumulation(step, (x.to("xla"), y.to("xla")), device)
    expected = accumulated({"used": torch.nn.Sequential(*cpu)}, x, y)
    torch.testing.assert_close(loss.cpu(), expected)
    assert_same_gradients(cpu, device)


def test_many_turns_are_one_program(models):
    _, device = models
    x, y = batches(turns=7)

    def step(inputs, targets):
        return mse_loss(device["used"](inputs), targets)

    counts = []
    for _ in range(3):
        for parameter in device.parameters():
            parameter.grad = None
        gradient_accumulation(step, (x.to("xla"), y.to("xla")), device)
        torch_xla.sync()
        counts.append(counter_value("UncachedCompile"))
    assert counts[1] == counts[2]


def test_a_step_that_writes_to_its_arguments_is_refused(models):
    _, device = models
    x, y = batches()
    before = torch.ones_like(next(device.parameters()))
    next(device.parameters()).grad = before

    def step(inputs, targets, count):
        count += 1
        return mse_loss(device["used"](inputs), targets), count

    words = r"train_step wrote to its argument 2 of shape \(2,\); compute a new tensor"
    with pytest.raises(ImpureError, match=words):
        gradient_accumulation(
            step, (x.to("xla"), y.to("xla")), device, torch.zeros(2, device="xla")
        )
    assert next(device.parameters()).grad is before


@pytest.mark.parametrize(
    ("tensors", "words"),
    [
        ([], "iterable_tensors cannot be empty; give"),
        ([3], "element 0 of iterable_tensors is a int; give a tensor"),
        ([torch.ones(())], r"element 0 of iterable_tensors has shape \(\), so there is no turn"),
        ([torch.ones(0, 2)], r"element 0 .* has shape \(0, 2\), so there is no turn"),
        ([torch.ones(2), torch.ones(3)], "element 1 .* has 3 slices along dim 0, element 0 has 2"),
    ],
)
def test_tensors_that_give_no_turns_are_refused(models, tensors, words):
    with pytest.raises(ArgumentError, match=words):
        gradient_accumulation(lambda *_: None, tensors, models[1])


def test_a_loop_is_told_by_three_numbers():
    context = GradientAccumulationContext(4, 2, num_carried_tensors=1)
    assert context.num_gradient_steps == 4 and context.num_iterable_tensors == 2
    assert context == GradientAccumulationContext(4, 2, 1) and "num_carried_tensors=1" in repr(
        context
    )


def test_parameters_of_a_loop_are_numbered_as_told():
    helper = XlaBuildHelper("body")
    x, y = torch.ones(2, 3).to("xla"), torch.ones(4).to("xla")
    assert [helper.add_param(x, idx=1), helper.add_param(y, idx=0)] == [1, 0]
    assert helper.num_params == 2 and helper.param_tensors == (x, y)
    assert [op.shape().sizes for op in helper.params] == [(2, 3), (4,)]
    made = helper.params[0].slice([0, 0], [1, 3], [1, 1]).build("body")
    assert [tuple(kind.shape) for kind in made.parameters] == [(4,), (2, 3)]
