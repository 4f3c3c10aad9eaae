"""The namespace `torch.ops.xla`: what it holds, on the CPU, for fake tensors and on the device.

An operator is defined with a form for CPU tensors, in plain torch, and one that says the shape of
its result. So fake tensors, `torch.compile` and `torch.export` see one operator, whatever it is on
the device.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch

from torch_xdist.core.record import dispatch
from torch_xdist.core.trace.operators import Op

# Operators of other parts of torch_xla are in this namespace as well, so a fragment of it.
LIBRARY = torch.library.Library("xla", "FRAGMENT")
Kernel = Callable[..., Any]


def define(
    schema: str, cpu: Kernel, *, meta: Kernel | None = None, device: Kernel | None = None
) -> None:
    """Define `torch.ops.xla.NAME`.

    Args:
        schema: "name(Tensor x, ...) -> Tensor".
        cpu: computes it in torch on the CPU.
        meta: what the result looks like; where `cpu` itself reads no values it is not needed.
        device: a function of device tensors; without one a lowering has the operator's name.
    """
    name = schema.partition("(")[0]
    LIBRARY.define(schema)
    LIBRARY.impl(name, cpu, "CompositeExplicitAutograd" if meta is None else "CPU")
    if meta is not None:
        LIBRARY.impl(name, meta, "Meta")
    if device is not None:
        dispatch.install({f"xla.{name}.default": _handler(device)})


def _handler(device: Kernel) -> dispatch.Handler:
    def call(op: Op, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        return device(*args, **kwargs)

    return call
