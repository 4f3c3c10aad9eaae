"""A backend by itself: `torch.compile(backend=dynamo_backend)`, for inference and training."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from functorch.compile import aot_function, make_boxed_func

from torch_xdist.dynamo.bridge import extract_compiled_graph


def dynamo_backend(fx: torch.fx.GraphModule, args: Sequence[Any]) -> Callable[..., Any]:
    """The graph of dynamo as programs of the device, one for each pass."""
    return aot_function(fx, fw_compiler=_compiled)  # type: ignore[no-any-return]


def _compiled(graph: torch.fx.GraphModule, like: Sequence[Any]) -> Any:
    """The function of a pass, extracted at its first call: before, all tensors are fake."""
    extracted: list[Callable[..., Any]] = []

    def run(*args: Any) -> Any:
        if not extracted:
            extracted.append(extract_compiled_graph(graph, args))
        return extracted[0](*args)

    return make_boxed_func(run)
