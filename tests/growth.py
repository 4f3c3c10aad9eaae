"""How much work Python does, counted in bytecodes: what is linear stays so, on any machine."""

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any


def bytecodes(work: Callable[[], Any]) -> int:
    """How many bytecodes a call runs, those of everything that it calls in Python with it."""
    count = 0

    def on_opcode(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal count
        frame.f_trace_lines, frame.f_trace_opcodes = False, True
        count += event == "opcode"
        return on_opcode

    before = sys.gettrace()
    sys.settrace(on_opcode)
    try:
        work()
    finally:
        sys.settrace(before)
    return count


def is_linear(work_of: Callable[[int], Callable[[], Any]], size: int = 50) -> bool:
    """Whether four times as much to look at is at most five times the work."""
    return bytecodes(work_of(4 * size)) <= 5 * bytecodes(work_of(size))
