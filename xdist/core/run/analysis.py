"""What PT_XLA_DEBUG prints about a program: why it is compiled, what it needs, why it runs.

The blocks are torch_xla's to the letter; its tools read them.
"""

import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from torch_xdist import settings, world
from torch_xdist.core.programs.launch import Launch
from torch_xdist.core.programs.program_cache import Program
from torch_xdist.core.trace.trace import rows_of
from torch_xdist.core.trace.user_frames import called_by_user, frames_of_user, user_line
from torch_xdist.errors import CutError

_RULE = "=" * 80
_THIN = "-" * 80
_BYTES_PER_GB = 1024**3
# The reasons of the cuts that end a step, a round of a loop, what was before; who may end a step.
SYNC, LOOP, BEGIN = "sync", "loop", "begin"
USER, LOADER, STEP_TRACE, COMPILE, CLEAR = "user", "loader", "step trace", "compile", "clear"
# Programs of dynamo: what its inputs need first; one that is compiled; one that runs.
DYNAMO_INPUTS, DYNAMO_COMPILE, DYNAMO = "dynamo inputs", "dynamo compile", "dynamo"
# Why something ran, in torch_xla's words.
_CAUSES = {
    USER: "user torch_xla.sync",
    LOADER: "torch_xla.sync in parallel loader at step end",
    STEP_TRACE: "torch_xla.sync when exiting a profiler StepTrace region",
    COMPILE: "torch_xla.compile",
    CLEAR: "torch_xla.compile clear the pending graph prior calling the target function",
    DYNAMO_INPUTS: "torch_xla.sync when dynamo processing input graphs",
    DYNAMO_COMPILE: "dynamo is compiling a FX graph to HLO",
    LOOP: "the next round of a loop without torch_xla.sync",
    BEGIN: "the first batch came after what is no part of a step",
    DYNAMO: "dynamo is executing a compiled program",
}
_READING = "most likely user code trying to access tensor value before torch_xla.sync"
_EAGER = "eager"
_lock = threading.Lock()
_thread = threading.local()


def of_run(launch: Launch, reason: str, cause: str, program: Program, is_new: bool) -> None:
    """Print why a program is compiled and what it needs, and at level 2 why it runs.

    Args:
        reason: of the cut.
        cause: of a sync, by whom it was called.

    Raises CutError where this thread's programs may not run.
    """
    if not allows_execution():
        _refuse(launch, reason, cause, program)
    if not settings.current().debug_level:
        return
    if is_new:
        of_compilation(launch, reason, cause, program)
    of_execution(launch, reason, cause, program)


def _refuse(launch: Launch, reason: str, cause: str, program: Program) -> None:
    if not world.current().local_rank:
        _tell_block("Execution", launch, reason, cause, program, "Unexpected Execution")
    raise CutError(
        f"{user_line()}: Unexpected execution happens inside the compiled function, exiting:"
        f" {reason} needs a value where programs may not run; move it out of the function, or allow"
        " it with _set_allow_execution(True)"
    )


def of_compilation(launch: Launch, reason: str, cause: str, program: Program) -> None:
    """Print, at level 1, why a program is compiled, and how much memory it needs."""
    if _is_wanted(1, reason):
        _tell_block("Compilation", launch, reason, cause, program)
        _tell_memory(program)


def of_execution(launch: Launch, reason: str, cause: str, program: Program) -> None:
    """Print, at level 2, why a program runs."""
    if _is_wanted(2, reason):
        _tell_block("Execution", launch, reason, cause, program)


def _is_wanted(level: int, reason: str) -> bool:
    asked = settings.current().debug_level
    return asked >= level and not world.current().local_rank and reason != _EAGER


def _tell_block(
    kind: str, launch: Launch, reason: str, cause: str, program: Program, title: str = ""
) -> None:
    name = graph_name()
    lines = [
        _RULE,
        f"{kind} Cause",
        f"  {_CAUSES.get(cause if reason == SYNC else reason, _READING)}",
        "Graph Info: ",
        *([f"  Graph Name: {name}"] if name else []),
        f"  Graph Hash: {program.fingerprint}",
        f"  Number of Graph Inputs: {_inputs(launch, program)}",
        f"  Number of Graph Outputs: {len(launch.outs)}",
        "Python Frame Triggered Execution: ",
        *_shown_frames(reason),
        _THIN,
        _RULE,
    ]
    tell("\n" + "".join(f"{title or kind} Analysis: {line}\n" for line in lines), sys.stderr)


def _inputs(launch: Launch, program: Program) -> int:
    """Leaves and runtime scalars; the seed and the counters of random rows count once."""
    random_rows = sum(row[0].is_random for _, row in rows_of(launch.entries))
    return len(launch.leaves) + sum(program.scalars) - 2 * random_rows + bool(random_rows)


def _tell_memory(program: Program) -> None:
    """What XLA says about the memory of a program, as torch_xla prints it after a compilation."""
    try:
        found = program.memory()
    except Exception:
        # Not every plugin of XLA can tell.
        found = None
    sizes = {
        "Graph input size": getattr(found, "argument_size_in_bytes", None),
        "Graph output size": getattr(found, "output_size_in_bytes", None),
        "Aliased Input size": getattr(found, "alias_size_in_bytes", None),
        "Intermediate tensor size": getattr(found, "temp_size_in_bytes", None),
        "Compiled program size": getattr(found, "generated_code_size_in_bytes", None),
    }
    lines = [_RULE, *(f"{name}: {_in_gb(size)} GB" for name, size in sizes.items()), _THIN, _RULE]
    block = "".join(f"Post Compilation Analysis: {line}\n" for line in lines)
    tell(f"\nComputation hash: {program.fingerprint}\n\n{block}", sys.stderr)


def _in_gb(size: int | None) -> str:
    return "Unknown " if size is None else f"{size / _BYTES_PER_GB:.6f}"


def _shown_frames(reason: str) -> Sequence[str]:
    limit = settings.current().debug_frames
    # What ended the step comes first, as torch_xla shows it.
    first = [called_by_user()] if reason == SYNC else []
    found = first + frames_of_user()
    shown = [f"  {frame}" for frame in found[:limit]]
    return shown + ["  .........."] if len(found) > limit else shown


def tell(text: str, stream: object) -> None:
    """Append a text to PT_XLA_DEBUG_FILE, or print it where that is not set."""
    target = settings.current().debug_file
    if target is not None:
        append(target, text)
    else:
        print(text, end="", file=stream, flush=True)  # type: ignore[call-overload]


def append(path: str, text: str) -> None:
    """Append a text to a file that several threads write."""
    with _lock, Path(path).open("a") as file:
        file.write(text)


def allows_execution() -> bool:
    """Whether this thread's programs may run."""
    return getattr(_thread, "is_allowed", True)


def set_allow_execution(allow: bool) -> bool:
    """Whether this thread's programs may run from now on; returns what held before."""
    before = allows_execution()
    _thread.is_allowed = bool(allow)
    return before


def graph_name() -> str:
    """How this thread's programs are called at present; "" for no name."""
    return getattr(_thread, "name", "")


def set_graph_name(name: str) -> None:
    """From now on this thread's programs are called so in the reports."""
    _thread.name = name


@contextmanager
def graph_named(name: str) -> Iterator[None]:
    """Programs that run inside the block are called so in the reports."""
    before = graph_name()
    set_graph_name(name)
    try:
        yield
    finally:
        set_graph_name(before)
