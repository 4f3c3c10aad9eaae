"""torch's operators that take functions, on device tensors: what the functions do is recorded.

`torch.cond`, `while_loop` and `scan` are rows with the bodies inside (`control_flow`). Of others,
such as the regions of `torch.compiler.nested_compile_region`, the functions run. Graphs that
torch.compile captured call all of them as operators.
"""

import functools
import inspect
from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch
from torch._C import DispatchKey
from torch._ops import HigherOrderOperator
from torch.utils._python_dispatch import _get_current_dispatch_mode

from torch_xdist.core.devices.tensor import XlaTensor
from torch_xdist.core.jax_side import control_flow
from torch_xdist.releases import late_imports, patches

Function = Callable[..., Any]
_HIGHER = "torch._higher_order_ops"
_WRAPPERS_OF_AOT = "torch._functorch._aot_autograd.runtime_wrappers"
_FUNCTIONS: tuple[tuple[Function, tuple[str, ...]], ...] = (
    (control_flow.cond, ("torch.cond", f"{_HIGHER}.cond", f"{_HIGHER}.cond.cond")),
    (control_flow.while_loop, (f"{_HIGHER}.while_loop.while_loop", f"{_HIGHER}.while_loop")),
    (control_flow.scan, (f"{_HIGHER}.scan.scan", f"{_HIGHER}.scan")),
)


def register() -> None:
    """Serve torch's higher-order operators; called once."""
    for ours, targets in _FUNCTIONS:
        for target in targets:
            patches.wrap(target, functools.partial(_either, ours))
    patches.wrap(f"{_HIGHER}.*.create_bw_fn", _backward_on_this_thread)
    for operator in torch._ops._higher_order_ops.values():
        _serve(operator)
    late_imports.when_imported(_WRAPPERS_OF_AOT, _serve_under_analysis)


def _either(ours: Function, theirs: Function) -> Function:
    def call(*args: Any, **kwargs: Any) -> Any:
        # What dynamo captures is torch's operator, which is served below.
        if torch.compiler.is_dynamo_compiling() or not control_flow.has_ours(args, kwargs):
            return theirs(*args, **kwargs)
        return ours(*args, **kwargs)

    # dynamo looks into functions of torch's files, not into those of ours.
    file = inspect.unwrap(theirs).__code__.co_filename
    call.__code__ = call.__code__.replace(co_filename=file)
    return functools.wraps(theirs)(call)


def _backward_on_this_thread(create: Function) -> Function:
    """Gradients of functions as they are captured: autograd has no threads for fake xla tensors."""

    @functools.wraps(create)
    def create_bw_fn(*args: Any, **kwargs: Any) -> Function:
        backward = create(*args, **kwargs)

        @functools.wraps(backward)
        def on_this_thread(*given: Any) -> Any:
            with torch.autograd.set_multithreading_enabled(False):
                return backward(*given)

        return on_this_thread

    return create_bw_fn


def _serve(operator: HigherOrderOperator) -> None:
    """Enter what an operator does on device tensors, where torch has a form for all devices."""
    of_all = operator.py_kernels.get(DispatchKey.CompositeExplicitAutograd)
    if of_all is not None:
        form = _AS_ROWS.get(operator.name(), lambda of_all: of_all)(of_all)
        operator.py_impl(XlaTensor)(form)
        # What autograd captures holds fake tensors, whose key is another.
        usual = operator.py_kernels.get(DispatchKey.Autograd) or form
        operator.py_impl(DispatchKey.AutogradLazy)(_unless_looked_at(form, usual))


def _unless_looked_at(form: Function, usual: Function) -> Function:
    """The form, whose operators autograd sees; torch's where a mode looks for the operator."""

    def call(*args: Any, **kwargs: Any) -> Any:
        return (form if _get_current_dispatch_mode() is None else usual)(*args, **kwargs)

    return call


def _serve_under_analysis(module: ModuleType) -> None:
    """Call operators in AOT autograd's first run, which is looked at for aliases.

    For tensors of classes unknown to it its mode hands the call on, to which torch does not listen.
    """
    mode = getattr(module, "_AnalyzeCustomOpInputOutputMode", None)
    if mode is None:
        return
    for operator in torch._ops._higher_order_ops.values():
        if XlaTensor in operator.python_key_table:
            operator.py_impl(mode)(functools.partial(_without_mode, operator))


def _without_mode(operator: HigherOrderOperator, mode: Any, *args: Any, **kwargs: Any) -> Any:
    return operator(*args, **kwargs)


def _are_ours(tensors: Any) -> bool:
    return all(tensor.__class__ is XlaTensor for tensor in tensors)


def _cond(of_all: Function) -> Function:
    def cond(pred: Any, true_fn: Function, false_fn: Function, operands: Any) -> Any:
        form = control_flow.cond if _are_ours([pred, *operands]) else of_all
        return form(pred, true_fn, false_fn, operands)

    return cond


def _while_loop(of_all: Function) -> Function:
    def while_loop(cond_fn: Function, body_fn: Function, carried: Any, others: Any) -> Any:
        if not _are_ours([*carried, *others]):
            return of_all(cond_fn, body_fn, carried, others)
        # What every turn reads is carried as it is.
        count = len(carried)
        results = control_flow.while_loop(
            cond_fn,
            lambda *state: (*body_fn(*state), *state[count:]),
            (*carried, *others),
        )
        return tuple(results[:count])

    return while_loop


def _scan(of_all: Function) -> Function:
    def scan(combine_fn: Function, init: Any, xs: Any, others: Any) -> Any:
        if not _are_ours([*init, *xs, *others]):
            return of_all(combine_fn, init, xs, others)
        count = len(init)

        def turn(state: Any, x: Any) -> Any:
            found = combine_fn(*state[:count], *x, *state[count:])
            return (*found[:count], *state[count:]), tuple(found[count:])

        state, ys = control_flow.scan(turn, (*init, *others), tuple(xs))
        return (*state[:count], *ys)

    return scan


_AS_ROWS: dict[str, Callable[[Function], Function]] = {
    "cond": _cond,
    "while_loop": _while_loop,
    "scan": _scan,
}
