"""Every optimizer of torch's optimizer database on the device, in every form it has on the CPU.

Three steps of each configuration, one loop per tensor and in its foreach, fused and differentiable
forms; parameters, state, and gradients through differentiable steps must be the CPU's. So must
those of capturable configurations, whose oracle is the same configuration without the flag: CPU
torch refuses it. Where the CPU refuses, the device must.
"""

import copy
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.testing._internal.common_optimizers import optim_db
from torch.utils import _pytree as pytree

import torch_xdist.core.torch_side.registration  # noqa: F401
from torch_xdist.core.devices import steps

STEPS = 3


def forms(info: Any, configurations: int) -> Iterator[dict[str, Any]]:
    """The options of the first configurations in every form the CPU or a capturing device has."""
    names = [n for n in info.supported_impls if n != "fused" or "cpu" in info.supports_fused_on]
    plain = dict.fromkeys(names, False)
    # The database adds its capturable configurations for devices that can capture.
    for config in info.optim_inputs_func("cuda")[:configurations]:
        yield plain | config.kwargs
        for name in names:
            if not (config.kwargs.get("capturable") and name == "differentiable"):
                yield plain | config.kwargs | {name: True}


def starting(info: Any, dtype: torch.dtype) -> list[torch.Tensor]:
    # A step of LBFGS is up to 20 evaluations, whose turns single precision's rounding decides.
    dtype = torch.float64 if info.optim_cls is torch.optim.LBFGS else dtype
    shapes = [(3, 4), (5, 2)] if info.optim_cls is torch.optim.Muon else [(3, 4), (5,), ()]
    torch.manual_seed(0)
    return [torch.randn(shape, dtype=dtype) for shape in shapes]


def loss_of(params: list[torch.Tensor]) -> torch.Tensor:
    """Something with another gradient at every step, in every element."""
    parts = [torch.view_as_real(p) if p.is_complex() else p for p in params]
    return sum(((p * (i + 1)).sin() + p**2).sum() for i, p in enumerate(parts))


class Run:
    """One configuration on one device."""

    def __init__(self, info: Any, options: dict[str, Any], device: str, dtype: torch.dtype) -> None:
        options = copy.deepcopy(options)
        if device == "cpu" and options.pop("capturable", False):
            # With floats the CPU serves both forms.
            options = pytree.tree_map(_number, options)
        self.leaves = [p.to(device).requires_grad_() for p in starting(info, dtype)]
        self.differentiable = options.get("differentiable", False)
        self.params = [p.clone() for p in self.leaves] if self.differentiable else self.leaves
        self.optimizer = info.optim_cls(self.params, **options)
        self.needs_closure = info.step_requires_closure
        self.wants_sparse = info.only_supports_sparse_grads

    def step(self) -> None:
        if self.needs_closure:
            self.optimizer.step(self._closure)
            return
        points = [p.detach().requires_grad_() for p in self.params]
        grads = torch.autograd.grad(loss_of(points), points)
        for p, grad in zip(self.params, grads):
            p.grad = grad.to_sparse() if self.wants_sparse else grad
        self.optimizer.step()

    def _closure(self) -> torch.Tensor:
        self.optimizer.zero_grad()
        loss = loss_of(self.params)
        loss.backward()
        return loss

    def outcome(self) -> list[torch.Tensor]:
        """Parameters, state, and how the differentiable steps carry gradients back."""
        slopes: Any = ()
        if self.differentiable:
            slopes = torch.autograd.grad(loss_of(self.params), self.leaves)
        state = pytree.tree_leaves(self.optimizer.state_dict()["state"])
        return [*self.params, *(torch.as_tensor(x) for x in state if x is not None), *slopes]


def _number(value: Any) -> Any:
    return value.item() if isinstance(value, torch.Tensor) else value


def result_of(run: Run, *, each_step: bool) -> list[torch.Tensor] | Exception:
    """The outcome of three steps, or why there is none."""
    try:
        for _ in range(STEPS):
            run.step()
            if each_step:
                steps.sync()
        return run.outcome()
    except Exception as error:
        return error


def difference(want: Any, have: Any) -> str:
    """How the device's outcome differs from the CPU's; empty where it does not."""
    if isinstance(want, Exception) or isinstance(have, Exception):
        return "" if type(want) is type(have) else f"{have!r} instead of {want!r}"
    if len(want) != len(have):
        return f"{len(have)} tensors instead of {len(want)}"
    for index, (one, other) in enumerate(zip(want, have)):
        try:
            torch.testing.assert_close(other.detach().cpu(), one.detach())
        except AssertionError as error:
            return f"tensor {index}: {error}"
    return ""


def failures(
    info: Any, dtype: torch.dtype, configurations: int = 100, *, each_step: bool
) -> Iterator[str]:
    """What goes wrong on the device; with `each_step` every step runs as a program of its own."""
    for options in forms(info, configurations):
        want = result_of(Run(info, options, "cpu", dtype), each_step=False)
        have = result_of(Run(info, options, "xla", dtype), each_step=each_step)
        if text := difference(want, have):
            yield f"{name_of(info)} {options}: {text}"


def name_of(info: Any) -> str:
    return info.optim_cls.__name__


# Those whose programs take longest to compile, beside Adam and AdamW.
LONG = {"Adadelta", "Adagrad", "Adamax", "NAdam", "RAdam", "Rprop", "ASGD", "LBFGS"}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "info",
    [
        pytest.param(info, id=name_of(info), marks=[pytest.mark.long] * (name_of(info) in LONG))
        for info in optim_db
    ],
)
def test_optimizers_agree_with_the_cpu(info):
    assert not list(failures(info, torch.float32, 1, each_step=False))


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.complex64], ids=str)
@pytest.mark.parametrize("info", optim_db, ids=name_of)
def test_every_configuration_agrees_with_the_cpu_step_by_step(info, dtype):
    if dtype.is_complex and not info.supports_complex:
        pytest.skip("torch's own does not take complex parameters")
    assert not list(failures(info, dtype, each_step=True))
