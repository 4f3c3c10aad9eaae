"""What is written at a cut or at the end of a step when a variable asks for it.

Metrics (XLA_METRICS_FILE), graphs (XLA_SAVE_TENSORS_FILE) and the analysis of PT_XLA_DEBUG. The
cuts call `before_run`, `at_run` and `at_sync`; where nothing is asked for, each is one test.
"""

import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from torch_xdist import metrics, settings, world
from torch_xdist.core.run import graph_text
from torch_xdist.core.run.program import Launch, Program
from torch_xdist.core.run.user_frames import called_by_user, user_frames
from torch_xdist.core.trace.trace import Tape, rows_of
from torch_xdist.core.trace.values import Device
from torch_xdist.errors import CutError

_RULE = "=" * 80
_THIN = "-" * 80
_TOO_OFTEN = 0.5
_WARM_UP_STEPS = 10
_SLOW_S = {"CompileTime": 300, "ExecuteTime": 30}
# The reason of the cut that ends a step, and who may end one.
SYNC = "sync"
USER, LOADER, STEP_TRACE, COMPILE, CLEAR = "user", "loader", "step trace", "compile", "clear"
# Why something ran, in torch_xla's words.
_CAUSES = {
    USER: "user torch_xla.sync",
    LOADER: "torch_xla.sync in parallel loader at step end",
    STEP_TRACE: "torch_xla.sync when exiting a profiler StepTrace region",
    COMPILE: "torch_xla.compile",
    CLEAR: "torch_xla.compile clear the pending graph prior calling the target function",
    "dynamo": "dynamo is executing a compiled program",
}
_READING = "most likely user code trying to access tensor value before torch_xla.sync"
_lock = threading.Lock()
_thread = threading.local()


def save_metrics(metrics_file: str | None = None) -> None:
    """Append the report to `metrics_file`, or to XLA_METRICS_FILE; nothing where neither is set.

    STDOUT and STDERR print it. With several ranks the file of each has its local rank as suffix.
    The header counts this thread's calls.
    """
    target = metrics_file or settings.current().metrics_file
    if target is None:
        return
    step = getattr(_thread, "step", 0)
    _thread.step = step + 1
    text = f"[MetricsData; step={step}]\n{metrics.report()}\n"
    if target in ("STDOUT", "STDERR"):
        print(text, end="", file=sys.stdout if target == "STDOUT" else sys.stderr, flush=True)
        return
    if world.world_size() > 1:
        target = f"{target}.{world.current().local_rank}"
    _append(target, text)


def _append(path: str, text: str) -> None:
    with _lock, Path(path).open("a") as file:
        file.write(text)


def before_run(tape: Tape, device: Device, outs: Sequence[int]) -> None:
    """Append the graph that is about to run to XLA_SAVE_TENSORS_FILE, if that is set."""
    target = settings.current().graph_file
    if target is not None:
        text = graph_text.block(tape, device, outs, user_frames(), getattr(_thread, "name", ""))
        _append(f"{target}.{world.rank() or device.index}", text)


def at_run(launch: Launch, reason: str, cause: str, compiled: Program, is_new: bool) -> None:
    """Print why a program is compiled, and at level 2 why it runs (PT_XLA_DEBUG_LEVEL).

    Args:
        reason: of the cut.
        cause: of a sync, by whom it was called.
    """
    level = settings.current().debug_level
    if level <= 0 or world.current().local_rank or reason == "eager":
        return
    kinds = (["Compilation"] if is_new else []) + (["Execution"] if level > 1 else [])
    for kind in kinds:
        named = [f"  Graph Name: {_thread.name}"] if getattr(_thread, "name", "") else []
        lines = [
            _RULE,
            f"{kind} Cause",
            f"  {_CAUSES.get(cause if reason == SYNC else reason, _READING)}",
            "Graph Info: ",
            *named,
            f"  Graph Hash: {compiled.fingerprint}",
            f"  Number of Graph Inputs: {_inputs(launch, compiled)}",
            f"  Number of Graph Outputs: {len(launch.outs)}",
            "Python Frame Triggered Execution: ",
            *_shown_frames(reason),
            _THIN,
            _RULE,
        ]
        _tell("\n" + "".join(f"{kind} Analysis: {line}\n" for line in lines), sys.stderr)


def _inputs(launch: Launch, compiled: Program) -> int:
    """Leaves and runtime scalars; the seed and the counters of random rows count once."""
    random_rows = sum(row[0].is_random for _, row in rows_of(launch.entries))
    return len(launch.leaves) + sum(compiled.scalars) - 2 * random_rows + bool(random_rows)


@contextmanager
def graph_named(name: str) -> Iterator[None]:
    """Programs that run inside the block are called so in the reports."""
    _thread.name = name
    try:
        yield
    finally:
        _thread.name = ""


def open_scopes() -> list[str]:
    """The names of the profiler's `Trace` blocks this thread is in, outermost first."""
    if not hasattr(_thread, "scopes"):
        _thread.scopes = []
    return _thread.scopes


def check_no_open_scope() -> None:
    """Raise CutError where a step would end inside a profiler's `Trace` block."""
    if open_scopes():
        raise CutError(
            f"sync: Expecting scope to be empty but it is {'.'.join(open_scopes())}; end the step"
            " after the Trace block, or use StepTrace"
        )


def _shown_frames(reason: str) -> list[str]:
    limit = settings.current().debug_frames
    # What ended the step comes first, as torch_xla shows it.
    first = [called_by_user()] if reason == SYNC else []
    found = first + user_frames()
    return [f"  {frame}" for frame in found[:limit]] + ["  .........."]


def _tell(text: str, stream: object) -> None:
    target = settings.current().debug_file
    if target is not None:
        _append(target, text)
    else:
        print(text, end="", file=stream, flush=True)  # type: ignore[call-overload]


def at_sync() -> None:
    """At the end of a step: save the metrics, and say what is slow (PT_XLA_DEBUG)."""
    now = settings.current()
    if now.metrics_file is not None:
        save_metrics()
    if now.debug:
        for finding in findings():
            _tell(f"pt-xla-profiler: {finding}\n", sys.stdout)


def findings() -> Iterator[str]:
    """What the metrics say against the program, one sentence each."""
    steps = metrics.counter_value("MarkStep") or 0
    for name, after in (("CompileTime", _WARM_UP_STEPS), ("TransferFromDeviceTime", 0)):
        data = metrics.metric_data(name)
        if data and steps > after and data[0] / steps > _TOO_OFTEN:
            yield f"{name} too frequent: {data[0]} counts during {steps} steps"
    for name, limit_s in _SLOW_S.items():
        data = metrics.metric_data(name)
        longest = max((value for _, value in data[2]), default=0) if data else 0
        if longest > limit_s * metrics.NS_PER_S:
            yield (
                f"{name} too slow: longest instance took {metrics.time_text(longest)}. Please open"
                " a GitHub issue with the graph dump for our team to optimize."
            )
    missing = metrics.executed_fallback_ops()
    if missing:
        names = "".join(f"{name}, " for name in missing)
        yield (
            f"Op(s) not lowered: {names} Please open a GitHub issue with the above op lowering"
            " requests."
        )
