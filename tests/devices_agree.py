"""One function on CPU torch and on the device: the same values, dtypes and gradients."""

from collections.abc import Callable
from typing import Any

import torch
from torch.utils import _pytree as pytree

import torch_xla  # noqa: F401
from torch_xdist import metrics


def both(function: Callable[..., Any], *inputs: Any) -> None:
    """Compare results, and the gradients of every floating-point input, on both devices."""
    expected, got = (_run(function, inputs, device) for device in ("cpu", "xla"))
    assert len(expected) == len(got)
    for want, have in zip(expected, got):
        torch.testing.assert_close(have, want, equal_nan=True)


def normal(*shapes: tuple[int, ...]) -> list[torch.Tensor]:
    """Numbers of float64, the same each time."""
    torch.manual_seed(0)
    return [torch.randn(*shape, dtype=torch.float64) for shape in shapes]


def served_by_cpu(function: Callable[..., Any], *inputs: Any) -> list[str]:
    """The operators that ran on the CPU while the function ran on the device."""
    before = {name: metrics.counter_value(name) for name in metrics.missing_lowerings()}
    both(function, *inputs)
    after = {name: metrics.counter_value(name) for name in metrics.missing_lowerings()}
    return [name for name in after if after[name] != before.get(name)]


def _run(function: Callable[..., Any], inputs: Any, device: str) -> list[torch.Tensor]:
    moved = pytree.tree_map(lambda x: _leaf(x, device), inputs)
    result = function(*moved)
    outs = [t for t in pytree.tree_leaves(result) if isinstance(t, torch.Tensor)]
    sums = [_scalar(t) for t in outs if t.requires_grad]
    if sums:
        torch.stack(sums).sum().backward()
    leaves = [t for t in pytree.tree_leaves(moved) if isinstance(t, torch.Tensor)]
    grads = [t.grad for t in leaves if t.grad is not None]
    return [t.detach().cpu() for t in (*outs, *grads)]


def _leaf(value: Any, device: str) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    moved = value.detach().clone().to(device)
    return moved.requires_grad_(value.is_floating_point() or value.is_complex())


def _scalar(t: torch.Tensor) -> torch.Tensor:
    """A sum in which every element has a weight of its own."""
    # The same bits on both devices; made on each they may differ in the last one.
    weights = torch.linspace(0.5, 1.5, t.numel()).reshape(t.shape).to(t.device)
    return ((t.abs() if t.is_complex() else t).to(torch.float32) * weights).sum()
