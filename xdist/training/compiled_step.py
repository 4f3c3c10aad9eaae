"""Training steps as blocks and as decorated functions."""

import functools
import itertools
import threading
import types
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from torch_xdist.core.devices import device, steps
from torch_xdist.core.run import analysis, loop_cuts
from torch_xdist.core.run.device_trace import DeviceTrace, buffers_of, trace_of_thread
from torch_xdist.errors import CutError
from torch_xdist.replay.pure import Pure
from torch_xdist.training import eager, shape_detector

_names = itertools.count()


def step(*, pure: bool = False) -> Any:
    """A block that is one step: what is pending runs before it, and its own rows at its end.

    The step ends also when the block raises. As a decorator, `@step()` makes each call of a
    function such a block, and `@step(pure=True)` one that is replayed (see `compile`).
    """
    return compile(pure=True) if pure else _block()


@contextmanager
def _block() -> Iterator[None]:
    steps.end_step(analysis.COMPILE)
    try:
        with loop_cuts.held():
            yield
    finally:
        steps.end_step(analysis.COMPILE)


def unlazy(tensors: Sequence[torch.Tensor]) -> None:
    """Compute these device tensors now, and wait for them."""
    values = [t.value for t in tensors if t.device.type == "xla"]  # type: ignore[attr-defined]
    for buffer in buffers_of(values, reason="unlazy"):
        buffer.block_until_ready()


class CompiledStep:
    """A function, or a block, whose rows run as one program.

    Called, or entered, it first runs what is pending, and runs its own rows at its end.

    Args:
        function: what to call; None for a block.
        full_graph: a cut inside (reading a value, a fallback) raises CutError.
        name: how the programs are called in reports.
        max_different_graphs: more different programs than this raise CutError.
        pure: calls that are like an earlier one run its program again, without the function.
    """

    def __init__(
        self,
        function: Callable[..., Any] | None,
        full_graph: bool,
        name: str | None,
        max_different_graphs: int | None,
        pure: bool = False,
    ) -> None:
        self._function = function
        self._full_graph = full_graph
        self._limit = max_different_graphs
        self._graphs = shape_detector.graphs_of(function)
        # A function may be called by several threads, and by itself.
        self._here = _Entered()
        self.name = name or getattr(function, "__name__", "") or f"graph_{next(_names)}"
        self._pure = Pure(function, self) if pure and function is not None else None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self._function is None:
            raise TypeError(
                f"torch_xla.compile: {self.name} holds no function; use it as a `with` block, or"
                " as a decorator"
            )
        if self._pure is not None:
            return self._pure(args, kwargs)
        with self:
            return self._function(*args, **kwargs)

    def __get__(self, owner: Any, kind: type | None = None) -> Any:
        """As a function is: a method where it stands in a class."""
        return self if owner is None else types.MethodType(self, owner)

    def __enter__(self) -> "CompiledStep":
        self.begin()
        return self

    def begin(self) -> DeviceTrace:
        """Run what is pending; what is recorded from now on, on this trace, is the step."""
        with analysis.graph_named(f"{self.name}_clear_pending"):
            steps.end_step(analysis.CLEAR)
        trace = _trace_of_step()
        self._here.stack.append((trace, trace.cut_count))
        eager.defer()
        loop_cuts.hold()
        return trace

    def replayed(self, replay: Callable[[DeviceTrace], None]) -> None:
        """The end of a step that was begun and not recorded: `replay` does what it is."""
        self._here.stack.pop()
        try:
            with analysis.graph_named(self.name):
                steps.end_step(analysis.COMPILE, replay=replay)
        finally:
            eager.undefer()
            loop_cuts.release()

    def __exit__(self, kind: Any, error: Any, traceback: Any) -> None:
        trace, cuts_before = self._here.stack.pop()
        recorded = shape_detector.steps_of(trace.tape) if self._limit is not None else []
        # Another thread's cuts are none of this step's.
        last = trace.last_cut if trace.cut_count > cuts_before else None
        try:
            with analysis.graph_named(self.name):
                steps.end_step(analysis.COMPILE)
        finally:
            eager.undefer()
            loop_cuts.release()
        if error is not None:
            return
        if self._full_graph and last is not None:
            raise CutError(
                f"torch_xla.compile({self.name}): Unexpected execution happens inside the compiled"
                f" function, exiting: {last.reason} at {last.where}; move it out of the function,"
                " or drop full_graph"
            )
        if self._limit is not None:
            self._graphs.enter(recorded, self._limit)


class _Entered(threading.local):
    """Where a thread is in a step: its trace, and how often that was cut before."""

    def __init__(self) -> None:
        self.stack: list[tuple[DeviceTrace, int]] = []


def _trace_of_step() -> DeviceTrace:
    return trace_of_thread(device.device_at(device.index_of(None)))


def compile(
    f: Callable[..., Any] | None = None,
    full_graph: bool = False,
    name: str | None = None,
    max_different_graphs: int | None = None,
    custom_compile_options: dict[str, Any] | None = None,
    *,
    pure: bool = False,
) -> Any:
    """Run a function, or a `with` block, as one program.

    `compile(f)`, `@compile`, `@compile(full_graph=True)` and `with compile():` all work.

    Args:
        f: the function.
        full_graph: raise CutError where something inside makes the program run in two parts.
        name: how the program is called in reports; default the function's name.
        max_different_graphs: raise CutError beyond that many different programs.
        custom_compile_options: refused unless empty; XLA's options are set by XLA_FLAGS.
        pure: the function does nothing but compute with tensors: of its arguments, and of modules,
            optimizers and variables that it names. After a few calls it is not run any more: one
            call does a step (docs/compile.md, "A step that is not recorded"). Not for a block.
    """
    if custom_compile_options:
        raise ValueError(
            f"torch_xla.compile: custom_compile_options {custom_compile_options} cannot be set per"
            " function; set them in XLA_FLAGS"
        )

    def compiled(function: Callable[..., Any] | None) -> CompiledStep:
        return CompiledStep(function, full_graph, name, max_different_graphs, pure)

    return (
        _DecoratorOrBlock(compiled, pure) if f is None else functools.update_wrapper(compiled(f), f)
    )


class _DecoratorOrBlock:
    """What `compile()` without a function returns: decorate a function with it, or enter it."""

    def __init__(
        self, compiled: Callable[[Callable[..., Any] | None], CompiledStep], pure: bool
    ) -> None:
        self._compiled = compiled
        self._block = compiled(None)
        self._is_pure = pure

    def __call__(self, f: Callable[..., Any]) -> Any:
        return functools.update_wrapper(self._compiled(f), f)

    def __enter__(self) -> CompiledStep:
        if self._is_pure:
            raise TypeError(
                "torch_xla.compile(pure=True): a `with` block runs in any case, so it cannot be"
                " replayed; decorate a function with it"
            )
        return self._block.__enter__()

    def __exit__(self, *failure: Any) -> None:
        self._block.__exit__(*failure)
