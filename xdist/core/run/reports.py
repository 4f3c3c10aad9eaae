"""What is written at a cut or at the end of a step when a variable asks for it.

Metrics (XLA_METRICS_FILE), graphs (XLA_SAVE_TENSORS_FILE) and the findings of PT_XLA_DEBUG, whose
blocks about programs are in `analysis`. Where nothing is asked for, each call is one test.
"""

import sys
import threading
from collections.abc import Iterator, Sequence
from typing import Any

from torch_xdist import metrics, settings, world
from torch_xdist.core.run import graph_text
from torch_xdist.core.run.analysis import append, graph_name, tell
from torch_xdist.core.sharding.tiling import MANUAL
from torch_xdist.core.trace import notes
from torch_xdist.core.trace.notes import current_scope
from torch_xdist.core.trace.trace import Tape, types_of
from torch_xdist.core.trace.user_frames import user_frames
from torch_xdist.core.trace.values import Device
from torch_xdist.errors import CutError
from torch_xdist.metric_text import NS_PER_S, time_text

_TOO_OFTEN = 0.5
_WARM_UP_STEPS = 10
_SLOW_S = {"CompileTime": 300, "ExecuteTime": 30}
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
    append(target, text)


def before_run(tape: Tape, device: Device, outs: Sequence[int], *, is_dynamo: bool = False) -> None:
    """Append the graph that is about to run to XLA_SAVE_TENSORS_FILE, if that is set."""
    target = settings.current().graph_file
    if target is not None:
        text = graph_text.block(tape, device, outs, user_frames(), graph_name())
        # As torch_xla writes them.
        text = f"[dynamo]\n{text}\n" if is_dynamo else f"[ScheduleSyncTensorsGraph]\n{text}"
        append(f"{target}.{world.rank() or device.index}", text)


def after_run(tape: Tape, device: Device, outs: Sequence[int], results: Sequence[Any]) -> None:
    """Append how the results lie on the logical device, behind their graph in HLO."""
    now = settings.current()
    if now.graph_file is None or now.graph_format != "hlo" or device.layout is None:
        return
    types = types_of(tape.entries)
    lines = []
    for slot, result in zip(outs, results):
        shape = graph_text.shape_text(types[slot]).partition("{")[0]
        is_whole = device.layout.is_here(result)
        tiling = device.layout.tiling(result.sharding, result.ndim) if is_whole else MANUAL
        lines.append(f"{shape} {tiling.text}\n")
    text = "".join(lines)
    target = f"{now.graph_file}.{world.rank() or device.index}"
    append(target, f"\n#OUTPUT_SHARDING_BEGIN\n\n{text}\n#OUTPUT_SHARDING_END\n\n")


def reset_scopes() -> None:
    """Number the blocks of the next step anew.

    Raises CutError where a step would end inside a profiler's `Trace` block.
    """
    scope = current_scope()
    if scope:
        raise CutError(
            f"sync: Expecting scope to be empty but it is {scope}; end the step after the Trace"
            " block, or use StepTrace"
        )
    notes.reset_scopes()


def at_sync() -> None:
    """At the end of a step: save the metrics, and say what is slow (PT_XLA_DEBUG)."""
    now = settings.current()
    if now.metrics_file is not None:
        save_metrics()
    if now.debug:
        for finding in findings():
            tell(f"pt-xla-profiler: {finding}\n", sys.stdout)


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
        if longest > limit_s * NS_PER_S:
            yield (
                f"{name} too slow: longest instance took {time_text(longest)}. Please open"
                " a GitHub issue with the graph dump for our team to optimize."
            )
    missing = metrics.missing_lowerings()
    if missing:
        names = "".join(f"{name}, " for name in missing)
        yield (
            f"Op(s) not lowered: {names} Please open a GitHub issue with the above op lowering"
            " requests."
        )
