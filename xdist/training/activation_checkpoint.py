"""Activation checkpoints: the forward pass of a block is computed again in its backward pass.

Both passes are in one program, where XLA would notice that the second computes what the first did,
and keep the activations after all. A barrier around the block's inputs and the gradients that
arrive prevents that, and lets the second pass begin when its gradients are there.
"""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch.utils.checkpoint as torch_checkpoint
from torch.autograd.function import once_differentiable

from torch_xdist.core.devices import rng
from torch_xdist.core.devices.tensor import XlaTensor
from torch_xdist.errors import ArgumentError
from torch_xdist.ranks.fsdp.passes import barrier

_DEVICES = ("xla", "cpu")


class CheckpointStatus:
    """Whether a backward pass is in a block that it computes again.

    Attributes:
        in_chkpt_bwd: True from its beginning to its end.
    """

    def __init__(self) -> None:
        self.in_chkpt_bwd = False


chkpt_status = CheckpointStatus()


def get_device_states(*args: Any) -> tuple[list[torch.device], list[int]]:
    """The xla devices of the tensors among the arguments, and the state of each one's random
    numbers."""
    devices = list(dict.fromkeys(a.device for a in args if isinstance(a, XlaTensor)))
    return devices, [rng.get_rng_state(device) for device in devices]


def set_device_states(devices: Sequence[torch.device], states: Sequence[int]) -> None:
    """Give devices the states that `get_device_states` told."""
    for device, state in zip(devices, states):
        rng.set_rng_state(state, device)


class CheckpointFunction(torch.autograd.Function):
    """`checkpoint`, as autograd sees it: the way with a backward pass inside the backward pass."""

    @staticmethod
    def forward(ctx: Any, run_function: Any, preserve_rng_state: bool, *args: Any) -> Any:  # type: ignore[override]
        torch_checkpoint.check_backward_validity(args)
        ctx.run_function = run_function
        ctx.random = _random_state(args) if preserve_rng_state else None
        ctx.autocasts = _autocasts()
        tensors = [a for a in args if isinstance(a, torch.Tensor)]
        ctx.others = [None if isinstance(a, torch.Tensor) else a for a in args]
        ctx.places = [i for i, a in enumerate(args) if isinstance(a, torch.Tensor)]
        ctx.save_for_backward(*tensors)
        with torch.no_grad():
            return run_function(*args)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *args: Any) -> Any:  # type: ignore[override]
        if not torch.autograd._is_checkpoint_valid():  # type: ignore[attr-defined]
            raise RuntimeError(
                "checkpoint(use_reentrant=True): it needs loss.backward() without `inputs`, and"
                " does not go with torch.autograd.grad; use that, or use_reentrant=False"
            )
        outer, chkpt_status.in_chkpt_bwd = chkpt_status.in_chkpt_bwd, True
        try:
            return None, None, *_gradients(ctx, args)
        finally:
            chkpt_status.in_chkpt_bwd = outer


def _gradients(ctx: Any, arrived: Sequence[Any]) -> list[Any]:
    saved = ctx.saved_tensors
    both = _behind_barrier([*saved, *arrived])
    gradients, inputs = both[len(saved) :], list(ctx.others)
    for place, value, original in zip(ctx.places, both, saved):
        inputs[place] = value.detach().requires_grad_(original.requires_grad)
    with _as_it_was(ctx), torch.enable_grad():
        outputs = ctx.run_function(*inputs)
    if isinstance(outputs, torch.Tensor):
        outputs = (outputs,)
    pairs = [
        (output, gradient)
        for output, gradient in zip(outputs, gradients)
        if isinstance(output, torch.Tensor) and output.requires_grad
    ]
    if not pairs:
        raise RuntimeError(
            "checkpoint: none of output has requires_grad=True, so this checkpoint() is not"
            " necessary; leave it out, or let a parameter of the block require gradients"
        )
    torch.autograd.backward([o for o, _ in pairs], [g for _, g in pairs])
    return [inp.grad if isinstance(inp, torch.Tensor) else None for inp in inputs]


def _behind_barrier(values: Sequence[Any]) -> list[Any]:
    """The same values; those of the device behind one barrier."""
    ours = [value if isinstance(value, XlaTensor) else None for value in values]
    if not any(value is not None for value in ours):
        return list(values)
    with torch.no_grad():
        return [
            value if own is None else own for value, own in zip(values, barrier(ours), strict=True)
        ]


def _autocasts() -> list[dict[str, Any]]:
    return [
        {
            "device_type": kind,
            "enabled": torch.is_autocast_enabled(kind),
            "dtype": torch.get_autocast_dtype(kind),
            "cache_enabled": torch.is_autocast_cache_enabled(),
        }
        for kind in _DEVICES
    ]


def _random_state(args: Sequence[Any]) -> Any:
    return torch.get_rng_state(), *get_device_states(*args)


@contextlib.contextmanager
def _as_it_was(ctx: Any) -> Iterator[None]:
    """Autocast and random numbers of the first pass, for the second."""
    with contextlib.ExitStack() as stack:
        for options in ctx.autocasts:
            stack.enter_context(torch.autocast(**options))
        if ctx.random is not None:
            of_cpu, devices, states = ctx.random
            stack.enter_context(torch.random.fork_rng(devices=[]))
            stack.callback(set_device_states, devices, [rng.get_rng_state(d) for d in devices])
            torch.set_rng_state(of_cpu)
            set_device_states(devices, states)
        yield


class _Barrier(torch.autograd.Function):
    """Tensors behind a barrier, through which gradients pass."""

    @staticmethod
    def forward(ctx: Any, *tensors: torch.Tensor) -> Any:
        return tuple(_behind_barrier(tensors))

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return gradients


def checkpoint(
    function: Callable[..., Any],
    *args: Any,
    use_reentrant: bool = True,
    preserve_rng_state: bool = True,
    **kwargs: Any,
) -> Any:
    """`function(*args)` with its activations dropped, and computed again in the backward pass.

    Args:
        use_reentrant: torch's two ways. torch_xla refused False; here both work.
        preserve_rng_state: draw the same random numbers the second time.
        kwargs: of the function; with `use_reentrant=False` only.
    """
    if use_reentrant:
        if kwargs:
            raise ArgumentError(
                f"checkpoint: Unexpected keyword arguments: {','.join(kwargs)}; give them by place,"
                " or use use_reentrant=False"
            )
        return CheckpointFunction.apply(function, preserve_rng_state, *args)
    is_again = [False]

    @contextlib.contextmanager
    def again() -> Iterator[None]:
        is_again[0] = True
        try:
            yield
        finally:
            is_again[0] = False

    def run(*given: Any, **named: Any) -> Any:
        if is_again[0]:
            given = _apart(given)
        return function(*given, **named)

    return torch_checkpoint.checkpoint(
        run,
        *args,
        use_reentrant=False,
        preserve_rng_state=preserve_rng_state,
        context_fn=lambda: (contextlib.nullcontext(), again()),
        **kwargs,
    )


def _apart(values: Sequence[Any]) -> tuple[Any, ...]:
    """The arguments, with device tensors behind a barrier."""
    places = [i for i, value in enumerate(values) if isinstance(value, XlaTensor)]
    if not places:
        return tuple(values)
    apart = list(values)
    for place, value in zip(places, _Barrier.apply(*[values[i] for i in places])):
        apart[place] = value
    return tuple(apart)
