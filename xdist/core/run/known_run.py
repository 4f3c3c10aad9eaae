"""A program that runs again on buffers that somebody gathered: nothing was recorded for it.

To the metrics, the launcher and the other ranks it is the cut that ended the step when its rows
were recorded.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from torch_xdist import metrics
from torch_xdist.collectives.errors import CollectiveError
from torch_xdist.core.programs import program
from torch_xdist.core.programs.program_cache import Program
from torch_xdist.core.run import cuts
from torch_xdist.core.run.device_trace import DeviceTrace
from torch_xdist.errors import ValueLostError


class Known(NamedTuple):
    """A program, and what is said of the collectives in it: how many, and the name of the last."""

    program: Program
    collectives: int
    name: str


def run_known(
    trace: DeviceTrace,
    known: Known,
    arguments: tuple[Sequence[Any], Sequence[Any], np.ndarray, np.ndarray],
    hand_over: Callable[[list[jax.Array]], None],
) -> None:
    """Run a known program in the place of a cut; `hand_over` is given its results.

    Args:
        arguments: what `Program.run` takes: the donated buffers, the kept ones, floats and ints.

    Raises ValueLostError where it failed after it had taken over its operands.
    """
    compiled = known.program
    results: list[list[jax.Array]] = []
    with trace.lock:
        program.PROGRAMS.use(compiled)
        metrics.count("CachedCompile")
        trace.last_cut = cuts.note(cuts.SYNC, compiled.rows, False, compiled.fingerprint)
        trace.cut_count += 1
        if known.collectives:
            cuts.note_launch(known.collectives, compiled.collectives, known.name)
        try:
            program.run(compiled, arguments, results, "ExecuteTime")
        except BaseException as error:
            if results or not any(buffer.is_deleted() for buffer in arguments[0]):
                raise
            raise _loss(trace, error) from error
        finally:
            # Also where Ctrl-C came in between: the operands are gone.
            if results:
                hand_over(results[0])


def _loss(trace: DeviceTrace, error: BaseException) -> BaseException:
    where = trace.last_cut.where if trace.last_cut is not None else ""
    text = (
        f"the program of {where} failed while it ran ({type(error).__name__}: {error}), when its"
        " operands were used up: parameters and states that the step writes have lost their"
        " values; load them anew, from a checkpoint for example"
    )
    if not isinstance(error, Exception) or isinstance(error, CollectiveError):
        error.add_note(text)
        return error
    return ValueLostError(f"{trace.device}: {text}")
