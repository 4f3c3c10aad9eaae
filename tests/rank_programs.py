"""Programs with collectives, as the device launches them; for functions that run on ranks."""

from collections.abc import Callable
from typing import Any

import jax

from torch_xdist.collectives import inside
from torch_xdist.collectives.shared_memory import transport as shared_memory


def launched(step: Callable[[Any], Any]) -> Callable[..., Any]:
    """A function (x, where="") that launches `step(x)`, which calls collectives, and waits."""
    end = shared_memory.endpoint()

    def whole(number: Any, x: Any) -> Any:
        with inside.program("host", end.world_size, number) as traced:
            return step(x), traced.token

    program = jax.jit(whole)

    def run(x: Any, where: str = "") -> Any:
        with end.launch(where) as launch:
            result, launch.result = program(launch.operand(), x)
        try:
            return jax.block_until_ready(result)
        except (RuntimeError, ValueError) as error:
            raise end.error_behind(error) or error from None

    return run


def summing(groups: Any = None) -> Callable[..., Any]:
    """A launched all-reduce of one array."""
    return launched(lambda x: inside.all_reduce([x], "sum", groups)[0])
