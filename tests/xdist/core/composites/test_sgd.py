"""SGD's whole update is one row, and what torch's own function makes it."""

from typing import Any

import pytest
import torch

import torch_xla
from torch_xdist.core.run import cuts

SHAPES = ((3, 4), (5,), (), (2, 3, 4))
FORMS: dict[str, dict[str, Any]] = {
    "plain": {},
    "decay": {"weight_decay": 0.3},
    "momentum": {"momentum": 0.9},
    "momentum that is damped": {"momentum": 0.9, "dampening": 0.4, "weight_decay": 0.1},
    "of Nesterov": {"momentum": 0.8, "nesterov": True},
    "up": {"momentum": 0.7, "maximize": True, "weight_decay": 0.2},
}


def made(device: str, dtypes: list[torch.dtype]) -> list[torch.nn.Parameter]:
    """Parameters of every shape, with gradients."""
    generator = torch.Generator().manual_seed(0)
    parameters = []
    for shape, dtype in zip(SHAPES, dtypes, strict=True):
        values, slope = (torch.randn(shape, generator=generator).to(dtype) for _ in range(2))
        parameter = torch.nn.Parameter(values.to(device))
        parameter.grad = slope.to(device)
        parameters.append(parameter)
    return parameters


def trained(
    device: str, dtypes: list[torch.dtype], steps: int = 4, **options: Any
) -> list[torch.Tensor]:
    """The parameters, then the momenta, after some steps on the same gradients."""
    parameters = made(device, dtypes)
    optimizer = torch.optim.SGD(parameters, **{"lr": 0.1, **options})
    for _ in range(steps):
        optimizer.step()
        torch_xla.sync()
    momenta = [state["momentum_buffer"] for state in optimizer.state.values() if state]
    return [t.detach().cpu() for t in (*parameters, *momenta) if t is not None]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("form", FORMS)
def test_parameters_and_momenta_equal_eager(form: str, dtype: torch.dtype) -> None:
    dtypes = [dtype] * len(SHAPES)
    wanted, found = (trained(device, dtypes, **FORMS[form]) for device in ("cpu", "xla"))
    assert len(wanted) == len(found)
    for want, have in zip(wanted, found):
        torch.testing.assert_close(have, want)


@pytest.mark.parametrize("form", FORMS)
def test_each_operator_rounds_to_the_dtype_of_its_parameter(form: str) -> None:
    """As one by one on the device, which takes `alpha` of halves in float32, as cuda does."""
    dtypes = [torch.float32, torch.bfloat16, torch.float64, torch.float16]
    ways = (trained("xla", dtypes, foreach=way, **FORMS[form]) for way in (False, True))
    for want, have in zip(*ways, strict=True):
        torch.testing.assert_close(have, want, rtol=0, atol=0)


def rows_of_a_step(**options: Any) -> int:
    """How many rows the third step has."""
    parameters = made("xla", [torch.float32] * len(SHAPES))
    optimizer = torch.optim.SGD(parameters, **{"lr": 0.1, **options})
    for _ in range(3):
        optimizer.step()
        torch_xla.sync()
    return cuts.LOG[-1].rows


@pytest.mark.parametrize("form", FORMS)
def test_a_step_is_one_row(form: str) -> None:
    assert rows_of_a_step(**FORMS[form]) == 1


def test_a_rate_that_is_a_tensor_goes_torchs_way() -> None:
    for want, have in zip(
        *(trained(d, [torch.float32] * 4, lr=torch.tensor(0.2)) for d in ("cpu", "xla"))
    ):
        torch.testing.assert_close(have, want)


def test_a_momentum_of_another_dtype_goes_torchs_way() -> None:
    def step(device: str) -> list[torch.Tensor]:
        parameters = made(device, [torch.float32] * len(SHAPES))
        optimizer = torch.optim.SGD(parameters, 0.1, momentum=0.9)
        for p in parameters:
            optimizer.state[p]["momentum_buffer"] = torch.ones_like(p, dtype=torch.float64)
        optimizer.step()
        return [t.detach().cpu() for p in parameters for t in (p, *optimizer.state[p].values())]

    for want, have in zip(step("cpu"), step("xla"), strict=True):
        torch.testing.assert_close(have, want)


def test_parameters_that_are_views_are_written_where_they_are() -> None:
    def step(device: str) -> torch.Tensor:
        whole = torch.arange(12.0).to(device)
        parameters = [torch.nn.Parameter(whole[:6].view(2, 3)), torch.nn.Parameter(whole[6:])]
        for p in parameters:
            p.grad = torch.ones_like(p)
        torch.optim.SGD(parameters, 0.5, momentum=0.9).step()
        return whole.cpu()

    torch.testing.assert_close(step("xla"), step("cpu"))


def test_what_was_saved_for_a_gradient_is_known_to_be_written() -> None:
    (parameter,) = made("xla", [torch.float32] * len(SHAPES))[:1]
    loss = parameter.square().sum()
    torch.optim.SGD([parameter], 0.1).step()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()
