"""sympy is imported by who has symbolic shapes, not by who trains.

Functions of torch that know the shapes of results ask torch's symbolic shapes about each size, and
their first call imports these: with sympy, 491 modules, a third of a second of a start
(docs/benchmarks.md). As long as nobody imports sympy no size is symbolic, so they ask `no_symbols`.
From the import of sympy on, which dynamo, torch.export and symbolic shapes need, torch is as ever.
"""

import sys
from collections.abc import Iterator
from types import CodeType, FunctionType, ModuleType

import torch

from torch_xdist.core.unimported import no_symbols
from torch_xdist.releases import late_imports, patches

_SYMPY = "sympy"
_ASKING = "torch._prims_common.*.__code__"
# Where the functions are that know shapes, those that check, and autograd's look at gradients.
_MODULES = (
    "torch",
    "torch.autograd",
    "torch._decomp.decompositions",
    "torch._meta_registrations",
    "torch._prims",
    "torch._prims_common",
    "torch._refs",
    "torch._refs.linalg",
)
_OTHER_MODULE = {no_symbols.REAL: no_symbols.__name__}
# `elementwise_dtypes` looks for sympy.Basic among its numbers; torch.SymInt is one of them anyway.
_OTHER_CLASS = {"sympy": "torch", "Basic": "SymInt"}


def register() -> None:
    """Let torch ask symbolic shapes only where sympy is loaded."""
    if _SYMPY in sys.modules:
        return
    patches.mark(_ASKING, _without())
    late_imports.when_imported(_SYMPY, _ask_again)


def _ask_again(sympy: ModuleType) -> None:
    patches.undo(_ASKING)


def _without() -> Iterator[tuple[FunctionType, CodeType]]:
    """The functions that ask, each with code that does not."""
    dtypes = torch._prims_common.elementwise_dtypes
    for function in _functions():
        names = _OTHER_CLASS if function is dtypes else _OTHER_MODULE
        code = patches.renamed(function.__code__, names)
        if code is not function.__code__:
            yield function, code


def _functions() -> Iterator[FunctionType]:
    """Those of these modules, and what they wrap."""
    modules = [sys.modules[name] for name in _MODULES if name in sys.modules]
    left = [value for module in modules for value in vars(module).values()]
    seen = set()
    while left:
        function = left.pop()
        if isinstance(function, FunctionType) and function not in seen:
            seen.add(function)
            yield function
            left.append(getattr(function, "__wrapped__", None))
