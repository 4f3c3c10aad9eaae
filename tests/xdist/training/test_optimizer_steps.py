"""torch_xla's kernels of optimizers, beside torch's own optimizers on the CPU."""

import pytest
import torch

from torch_xla import _XLAC
from torch_xla.amp.syncfree import _functional

SGD = [
    {"momentum": 0.0, "weight_decay": 0.1},
    {"momentum": 0.9, "dampening": 0.1},
    {"momentum": 0.9, "nesterov": True, "maximize": True},
]
ADAM = [
    (torch.optim.Adam, {"weight_decay": 0.1, "maximize": True}),
    (torch.optim.Adam, {"amsgrad": True}),
    (torch.optim.AdamW, {"weight_decay": 0.1}),
]
GRADIENTS = [torch.tensor([1.0, -2.0, 3.0]), torch.tensor([0.5, 0.25, -1.0])]


def steps_of(optimizer_class, options):
    """What torch makes of the gradients, on the CPU."""
    value = torch.nn.Parameter(torch.tensor([1.0, 2.0, 3.0]))
    optimizer = optimizer_class([value], lr=0.1, **options)
    for gradient in GRADIENTS:
        value.grad = gradient.clone()
        optimizer.step()
    return value.detach()


def on_device(step, tensors):
    """The same gradients through a kernel, with a step in between that the flag skips."""
    for flag, gradient in [
        (0.0, GRADIENTS[0]),
        (1.0, torch.full((3,), torch.nan)),
        (0.0, GRADIENTS[1]),
    ]:
        step(torch.tensor(flag, device="xla"), gradient.to("xla"))
    return tensors


@pytest.mark.parametrize("options", SGD)
def test_sgd_steps_as_torch_does_and_skips_what_the_flag_says(options):
    param = torch.tensor([1.0, 2.0, 3.0], device="xla")
    count = torch.zeros((), device="xla")
    buffers = [None]
    defaults = {"dampening": 0.0, "nesterov": False, "maximize": False, "weight_decay": 0.0}

    def step(found_inf, gradient):
        _functional.sgd_step(
            found_inf, [count], [param], [gradient], buffers, lr=0.1, **{**defaults, **options}
        )

    on_device(step, [param])
    torch.testing.assert_close(param.cpu(), steps_of(torch.optim.SGD, options))
    assert count.item() == 2


@pytest.mark.parametrize(("optimizer_class", "options"), ADAM)
def test_adam_steps_as_torch_does_and_skips_what_the_flag_says(optimizer_class, options):
    param = torch.tensor([1.0, 2.0, 3.0], device="xla")
    count, *state = (
        torch.zeros(s, device="xla") for s in ((), 3, 3, 3 if "amsgrad" in options else 0)
    )
    defaults = {"amsgrad": False, "maximize": False, "weight_decay": 0.0, "eps": 1e-8}

    def step(found_inf, gradient):
        _functional.adam_step(
            found_inf, [count], [param], [gradient], *([x] for x in state),
            beta1=0.9, beta2=0.999, lr=0.1, use_adamw=optimizer_class is torch.optim.AdamW,
            **{**defaults, **options},
        )  # fmt: skip

    on_device(step, [param])
    torch.testing.assert_close(param.cpu(), steps_of(optimizer_class, options))
    assert count.item() == 2


def test_one_parameter_is_stepped_by_its_private_name():
    value, gradient = torch.tensor([1.0, 2.0, 3.0]), GRADIENTS[0]
    param, count = value.to("xla"), torch.zeros((), device="xla")
    buffer, flag = torch.zeros(3, device="xla"), torch.zeros((), device="xla")
    sgd = 0.1, 0.9, 0.5, 0.0, True, False
    _XLAC._xla_sgd_optimizer_step_(flag, count, param, buffer, gradient.to("xla"), *sgd)
    options = {"lr": 0.5, "weight_decay": 0.1, "momentum": 0.9, "nesterov": True}
    torch.testing.assert_close(param.cpu(), once(torch.optim.SGD, options))
    assert count.item() == 1

    param, moments = value.to("xla"), [torch.zeros(3, device="xla") for _ in range(3)]
    adam = 0.9, 0.99, 0.1, 0.2, 1e-8, True, False, True
    _XLAC._xla_adam_optimizer_step_(flag, count * 0, param, gradient.to("xla"), *moments, *adam)
    options = {"lr": 0.1, "betas": (0.9, 0.99), "weight_decay": 0.2, "amsgrad": True}
    torch.testing.assert_close(param.cpu(), once(torch.optim.AdamW, options))
    torch.testing.assert_close(moments[1].cpu(), moments[2].cpu())


def once(optimizer_class, options):
    """The values after one step of torch's on the CPU."""
    value = torch.nn.Parameter(torch.tensor([1.0, 2.0, 3.0]))
    value.grad = GRADIENTS[0].clone()
    optimizer_class([value], **options).step()
    return value.detach()
