"""The fused optimizers' updates equal eager torch's."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

import torch_xla

Make = Callable[..., torch.optim.Optimizer]


def trained(make: Make, options: dict[str, Any], device: str) -> list[torch.Tensor]:
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 3).double().to(device)
    optimizer = make(model.parameters(), lr=0.05, fused=True, **options)
    x = torch.linspace(-1, 1, 8, dtype=torch.float64).reshape(2, 4).to(device)
    for _ in range(4):
        optimizer.zero_grad()
        model(x).square().sum().backward()
        optimizer.step()
        if device == "xla":
            torch_xla.sync()
    return [p.detach().cpu() for p in model.parameters()]


@pytest.mark.parametrize(
    ("make", "options"),
    [
        (torch.optim.AdamW, {"weight_decay": 0.1}),
        (torch.optim.Adam, {"weight_decay": 0.1, "amsgrad": True}),
        (torch.optim.Adam, {"maximize": True}),
        (torch.optim.SGD, {"momentum": 0.9, "nesterov": True, "weight_decay": 0.1}),
        (torch.optim.SGD, {}),
        (torch.optim.Adagrad, {"lr_decay": 0.1, "weight_decay": 0.1}),
    ],
    ids=["adamw", "amsgrad", "maximize", "nesterov", "sgd", "adagrad"],
)
def test_four_fused_steps_equal_eager(make: Make, options: dict[str, Any]) -> None:
    torch.testing.assert_close(trained(make, options, "xla"), trained(make, options, "cpu"))


def test_a_found_infinity_skips_the_step_and_a_scale_divides_the_gradients() -> None:
    p, g, m = (torch.full((2,), v, dtype=torch.float64) for v in (1.0, 8.0, 0.0))
    for skip in (0.0, 1.0):
        results = []
        for device in ("cpu", "xla"):
            lists = [[t.to(device, copy=True)] for t in (p, g, m)]
            torch._fused_sgd_(
                *lists,
                weight_decay=0.0,
                momentum=0.9,
                lr=0.1,
                dampening=0.0,
                nesterov=False,
                maximize=False,
                is_first_step=False,
                grad_scale=torch.tensor(4.0, device=device),
                found_inf=torch.tensor(skip, device=device),
            )
            results.append([t[0].cpu() for t in lists])
        torch.testing.assert_close(results[1], results[0])
