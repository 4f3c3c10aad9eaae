"""torch.compile on the device: the `openxla` backend, and the call that torch's own makes.

A captured graph is run as it is: its rows are recorded like any others, so a whole training step
is still one program, and dynamo's guards take the place of the Python between the operators.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch

from torch_xdist.core.run.device_trace import buffers_of
from torch_xdist.core.trace.values import Value
from torch_xdist.releases import patches


def extract_compiled_graph(
    xla_model: torch.fx.GraphModule, xla_args: Sequence[Any]
) -> Callable[..., tuple[Any, ...]]:
    """A function that runs the captured graph as one program of the device.

    Args:
        xla_model: the graph; its parameters may still be on the CPU, then so are the results.
        xla_args: example arguments, tensors on the device; what is pending for them runs first.

    The function takes and returns tensors like the graph. It records the graph's rows and cuts,
    so a call is one cached program from the second time on.
    """
    buffers_of(_values(xla_args), reason="dynamo")

    def run(*args: Any) -> tuple[Any, ...]:
        results = xla_model(*args)
        tensors = results if isinstance(results, tuple | list) else (results,)
        buffers_of(_values(tensors), reason="dynamo")
        return tuple(tensors)

    return run


def _values(tensors: Sequence[Any]) -> list[Value]:
    """What those of the tensors point at that are on the device."""
    found = [t for t in tensors if isinstance(t, torch.Tensor) and t.device.type == "xla"]
    return [t.value for t in found]  # type: ignore[attr-defined]


def openxla(model: torch.fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
    """The backend: run the captured graph on the device's tensors, in training and inference."""
    return model.forward


_compile_torch = torch.compile


@functools.wraps(_compile_torch)
def compile(*args: Any, backend: Any = "inductor", **kwargs: Any) -> Any:
    """`torch.compile`, whose backend "openxla" is ours."""
    chosen = openxla if backend in ("openxla", "openxla_eval") else backend
    return _compile_torch(*args, backend=chosen, **kwargs)


def register() -> None:
    """Make `torch.compile(backend="openxla")` use `openxla`; a second call changes nothing.

    torch's own backend of that name goes through AOT autograd, which cannot hold device tensors.
    """
    patches.replace("torch.compile", compile)
