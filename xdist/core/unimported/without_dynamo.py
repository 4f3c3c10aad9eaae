"""torch's dynamo is imported by who compiles with it, not by who makes an optimizer.

torch keeps dynamo out of some of its functions (those of optimizers, and meta kernels in Python):
their first call imports dynamo and asks it to leave the function alone, which takes half a second
of a start (docs/benchmarks.md). As long as nobody imports dynamo there is nothing to keep out, so
they run as they are. From the import of dynamo on torch asks it as ever.
"""

import sys
from collections.abc import Iterator
from types import FunctionType, ModuleType
from typing import Any

import torch
from torch._decomp import global_decomposition_table

from torch_xdist.releases import late_imports, patches

# Where dynamo's `disable` and `graph_break` are.
_DYNAMO = "torch._dynamo.eval_frame"
_KEPT_OUT = "torch._compile._disable_dynamo.*.__dynamo_disable"
_STEPS = "torch.optim.*._use_grad.__code__"
# In a step, `import torch._dynamo` and `torch._dynamo.graph_break()`: other calls in their places.
_OTHER_NAMES = {
    "torch._dynamo": "torch.compiler",
    "_dynamo": "compiler",
    "graph_break": "is_compiling",
}


def register() -> None:
    """Let torch ask dynamo only where it is loaded."""
    if _DYNAMO in sys.modules:
        return
    kept_out, steps = _found()
    # What torch's wrapper calls, once it has the answer of dynamo.
    patches.mark(_KEPT_OUT, [(function, function) for function in kept_out])
    # An optimizer's step tells dynamo where its graph breaks; these do not.
    patches.mark(_STEPS, [(step, patches.renamed(step.__code__, _OTHER_NAMES)) for step in steps])
    late_imports.when_imported(_DYNAMO, _ask_again)


def _ask_again(dynamo: ModuleType) -> None:
    patches.undo(_KEPT_OUT)
    patches.undo(_STEPS)


def _found() -> tuple[list[FunctionType], list[FunctionType]]:
    """Functions that dynamo is kept out of, and what tells it where a step breaks its graph."""
    asks = torch._compile._disable_dynamo(len).__code__
    kept_out, steps = [], []
    for function in _inside([*_of_tables(), *_of_optimizers()]):
        if function.__code__ is asks:
            kept_out += [f for f in _called(function) if f is not None]
        elif _OTHER_NAMES.keys() <= {*function.__code__.co_names}:
            steps.append(function)
    return kept_out, steps


def _of_tables() -> list[Any]:
    return [f for table in global_decomposition_table.values() for f in table.values()]


def _of_optimizers() -> list[Any]:
    classes = [c for c in vars(torch.optim).values() if isinstance(c, type)]
    return [f for c in classes if issubclass(c, torch.optim.Optimizer) for f in vars(c).values()]


def _inside(functions: list[Any]) -> Iterator[FunctionType]:
    """Those of these that are functions, and what they wrap."""
    seen, left = set(), functions
    while left:
        function = left.pop()
        if isinstance(function, FunctionType) and function not in seen:
            seen.add(function)
            yield function
            left += [*_called(function), getattr(function, "__wrapped__", None)]


def _called(function: FunctionType) -> list[Any]:
    """What a decorator of torch's calls; nothing for other functions."""
    cells = zip(function.__code__.co_freevars, function.__closure__ or ())
    return [cell.cell_contents for name, cell in cells if name == "fn"]
