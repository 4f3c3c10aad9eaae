"""The dynamic-shape detector: how many different graphs a function was traced into.

The sequences of operators seen are kept as a trie. One that leaves the known ones is a new graph;
beyond the allowed number it is an error that names the first operator that differs, in torch_xla's
words. `torch_xla.compile(max_different_graphs=)` has one trie for each function; the private calls
have sessions by name.
"""

import threading
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch_xdist.core.devices import device
from torch_xdist.core.run.device_trace import trace_of_thread
from torch_xdist.core.run.graph_text import row_title
from torch_xdist.core.trace.trace import Tape, rows_of
from torch_xdist.errors import CutError

# The graphs of functions, however often they are wrapped.
_of_functions: "weakref.WeakKeyDictionary[Callable[..., Any], Graphs]" = weakref.WeakKeyDictionary()
# What an operator is compared by, and how it is shown.
Step = tuple[Any, str]


@dataclass(slots=True)
class _Node:
    """One operator of the trie; `is_end` where a graph ended with it."""

    shown: str = ""
    is_end: bool = False
    children: dict[Any, "_Node"] = field(default_factory=dict)


class Graphs:
    """The different graphs a function was traced into."""

    def __init__(self) -> None:
        self.count = 0
        self._root = _Node()
        self._lock = threading.Lock()

    def enter(self, steps: Sequence[Step], limit: int) -> None:
        """Enter a graph. Raises CutError where it is a new one and there are `limit` already."""
        if not steps:
            return
        with self._lock:
            may_grow = self.count < limit
            node = self._root
            for key, shown in steps:
                child = node.children.get(key)
                if child is None:
                    if not may_grow:
                        raise _refused(limit, f"Got: {shown}", node)
                    child = node.children[key] = _Node(shown)
                node = child
            if node.is_end:
                return
            if not may_grow:
                raise _refused(limit, f"Reached the end of the function at: {node.shown}", node)
            node.is_end = True
            self.count += 1


def graphs_of(function: Callable[..., Any] | None) -> Graphs:
    """The graphs of a function, whoever compiles it; of a block, new ones."""
    try:
        return _of_functions.setdefault(function, Graphs())  # type: ignore[arg-type]
    except TypeError:
        # None, or an object without weak references or without a hash.
        return Graphs()


def _refused(limit: int, what: str, node: _Node) -> CutError:
    expected = [child.shown for child in node.children.values()]
    lines = [f"Maximum number of different graphs allowed per function exceeded: {limit}", what]
    if not expected:
        lines.append("Expected: the end of the function")
    elif len(expected) == 1 and not node.is_end:
        lines.append(f"Expected: {expected[0]}")
    else:
        lines += ["Expected either of:", *(f"  - {shown}" for shown in expected)]
    return CutError("\n".join(lines) + "\n")


def steps_of(tape: Tape, start: int = 0) -> list[Step]:
    """The operators on a tape from a slot on, in the order they were recorded."""
    # Operands by the order of their first use, whatever else is on the tape.
    places: dict[int, int] = {}
    steps: list[Step] = []
    for slot, (plan, *operands) in rows_of(tape.entries):
        if slot >= start:
            used = tuple(places.setdefault(operand, len(places)) for operand in operands)
            steps.append(((plan, used), row_title(plan)))
    return steps


class _Open(threading.local):
    """The session a thread is in, the tape it began on, and how long that was."""

    found: tuple[str, Tape, int] | None = None


_open = _Open()
_sessions: dict[str, Graphs] = {}
_max_different_graphs = 1


def _dynamic_shape_detector_set_max_different_graphs(max_different_graphs: int) -> None:
    """How many different graphs a session may have."""
    global _max_different_graphs
    _max_different_graphs = max_different_graphs


def _dynamic_shape_detector_get_max_different_graphs() -> int:
    """How many different graphs a session may have."""
    return _max_different_graphs


def _dynamic_shape_detector_start_session(session: str) -> None:
    """What this thread records from now on is a graph of the session."""
    tape = trace_of_thread(device.device_at(device.index_of(None))).tape
    _open.found = session, tape, len(tape.entries)


def _dynamic_shape_detector_end_session() -> None:
    """The graph of the session ends here. Raises CutError where it is one too many."""
    found, _open.found = _open.found, None
    if found is not None:
        session, tape, start = found
        graphs = _sessions.setdefault(session, Graphs())
        graphs.enter(steps_of(tape, start), _max_different_graphs)


def _dynamic_shape_detector_remove_session(session: str) -> None:
    """Forget the graphs of a session."""
    _sessions.pop(session, None)
