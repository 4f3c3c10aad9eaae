"""What torch's `openxla` backend of torch.compile calls with a captured graph."""

from collections.abc import Callable, Sequence
from typing import Any

import torch

from torch_xdist import cuts


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
    cells = [t.cell for t in xla_args if isinstance(t, torch.Tensor) and t.device.type == "xla"]  # type: ignore[attr-defined]
    if cells:
        cuts.buffers_of(cells, reason="dynamo")

    def run(*args: Any) -> tuple[Any, ...]:
        results = xla_model(*args)
        tensors = results if isinstance(results, tuple | list) else (results,)
        made = [t.cell for t in tensors if isinstance(t, torch.Tensor) and t.device.type == "xla"]  # type: ignore[attr-defined]
        if made:
            cuts.buffers_of(made, reason="dynamo")
        return tuple(tensors)

    return run
