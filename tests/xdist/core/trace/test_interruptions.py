"""Whatever comes at any line of a recording leaves the trace whole: Ctrl-C, a finalizer, a cut.

A tracer stands at each line of the recording code in turn, where CPython may leave that code: it
looks for signals where a function starts, calls or jumps back, and collects garbage where it makes
a container; not between stores of plain attributes. The tracer raises KeyboardInterrupt there, as a
signal handler would, or records, or runs the trace, as a finalizer or another thread would. After
it, every tensor holds what it held before the call or what the call makes of it, and what is
computed next is right.
"""

import contextlib
import dis
import functools
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch

import torch_xdist.core.torch_side.registration as registration
from torch_xdist.core.devices import steps
from torch_xdist.core.programs import program
from torch_xdist.core.run import device_trace
from torch_xdist.core.trace.plans import jax_plan

CORE = Path(registration.__file__).parents[1]
RECORDING = tuple(
    str(CORE / folder) for folder in ("trace", "record", "alias", "composites", "devices/tensor")
)
VALUES = {
    "x": torch.tensor([[3.0, -1.0, 2.0], [0.5, 4.0, -2.0]]),
    "acc": torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]),
    "other": torch.tensor([[-1.0, 1.0, 0.25], [2.0, 0.0, 8.0]]),
}
Tensors = dict[str, torch.Tensor]


def add_to_view(t: Tensors) -> None:
    t["acc"][1].add_(t["x"][0])


def copy_to_view_of_view(t: Tensors) -> None:
    t["acc"].t()[1:].copy_(t["x"].t()[:2] * 0.5)


def put(t: Tensors) -> None:
    t["acc"][t["other"] > 0.5] = 7.0


def write_out(t: Tensors) -> None:
    torch.add(t["x"], t["other"], alpha=3, out=t["acc"])


def write_two_at_once(t: Tensors) -> None:
    x, acc, other = t["x"], t["acc"], t["other"]
    if x.is_cpu:
        acc.copy_(x * other)
        other.add_(x)
        return
    values = [x.value, other.value]
    types = [value.type for value in values]
    pair = jax_plan("test.pair", lambda a, b: [a * b, b + a], types, types)
    device_trace.trace_here(x.value.trace.device).record_into(
        pair, values, (), [acc.value, other.value]
    )


# What leaves a result, and what writes. The last two come in several rows.
CASES: dict[str, Callable[[Tensors], object]] = {
    "pointwise": lambda t: t["x"] * t["other"],
    "scalars": lambda t: t["x"].add(t["other"], alpha=0.3).clamp(-0.7, 1.9),
    "a view": lambda t: t["x"][1:].t() + 1,
    "several results": lambda t: t["x"].max(1).values,
    "a list": lambda t: torch.cat([t["x"], t["other"], t["acc"]]),
    "a factory": lambda t: torch.full((2, 3), 0.3, device=t["x"].device) + t["x"],
    "in place": lambda t: t["acc"].mul_(t["x"]),
    "in place with a number": lambda t: t["acc"].mul_(0.3),
    "in place on a view": add_to_view,
    "a copy to a view": copy_to_view_of_view,
    "an index": put,
    "out=": write_out,
    "two at once": write_two_at_once,
    "copy_ from the host": lambda t: t["acc"].copy_(VALUES["other"]),
    "foreach": lambda t: torch._foreach_mul_([t["acc"], t["other"]], [0.3, 0.7]),
}


@functools.cache
def leaving_lines(code) -> set[int]:
    """The lines of a function that may run something else."""
    lines, line = set(), code.co_firstlineno
    for instruction in dis.get_instructions(code):
        line = (
            instruction.starts_line or line
            if sys.version_info < (3, 13)
            else (instruction.line_number or line)
        )
        if instruction.opname.startswith(("CALL", "JUMP_BACKWARD", "FOR_ITER", "BUILD", "RESUME")):
            lines.add(line)
    return lines


class At:
    """Does something before the nth line of the recording code that runs."""

    def __init__(self, line: int, what: Callable[[], None]) -> None:
        self.left = line
        self.what = what
        self.previous: dict[object, int] = {}

    def __enter__(self) -> "At":
        sys.settrace(self.enter)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(None)

    def enter(self, frame, event, arg):
        return self.line if frame.f_code.co_filename.startswith(RECORDING) else None

    def line(self, frame, event, arg):
        previous = self.previous.get(frame)
        self.previous[frame] = frame.f_lineno
        if event == "line" and (previous is None or previous in leaving_lines(frame.f_code)):
            self.left -= 1
            if self.left == 0:
                sys.settrace(None)
                self.what()
        return self.line


def on_device() -> Tensors:
    """The tensors, one of which is pending."""
    tensors = {name: value.to("xla") for name, value in VALUES.items()}
    steps.sync()
    tensors["other"] = tensors["other"] * 1
    return tensors


def results_on_cpu(case: str) -> tuple[Tensors, object]:
    tensors = {name: value.clone() for name, value in VALUES.items()}
    return tensors, CASES[case](tensors)


def check_whole(case: str, tensors: Tensors, is_done: bool, line: int) -> None:
    """Every tensor is as before the call or as after it, and goes on from there."""
    after, _ = results_on_cpu(case)
    # Recorded before any value is looked at: a cut might repair what it reads.
    nexts = {name: value * 2 + tensors["x"] for name, value in tensors.items()}
    for name, value in tensors.items():
        found = value.cpu()
        wanted = [after[name]] if is_done else [after[name], VALUES[name]]
        assert any(torch.allclose(found, one) for one in wanted), f"line {line}: {name} is {found}"
        torch.testing.assert_close(nexts[name].cpu(), found * 2 + VALUES["x"])


def each_line(case: str, what: Callable[[], None]) -> int:
    """Calls the case until it has no further line; returns how many it has."""
    line = 0
    while True:
        line += 1
        tensors, result = on_device(), None
        present.update(tensors)
        at = At(line, what)
        try:
            with at:
                result = CASES[case](tensors)
            is_done = True
        except KeyboardInterrupt:
            is_done = False
        if at.left > 0:
            return line - 1
        if isinstance(result, torch.Tensor) and is_done:
            _, wanted = results_on_cpu(case)
            assert torch.equal(result.cpu(), wanted), f"line {line}"
        check_whole(case, tensors, is_done, line)


def interrupt() -> None:
    raise KeyboardInterrupt


def record_something() -> None:
    junk = torch.ones(2, 3, device="xla")
    kept.append(junk.add_(1)[0] * 2)
    del kept[:-1]


def run_the_trace() -> None:
    steps.sync()


def fail_to_run_the_trace() -> None:
    no_room = mock.patch.object(program, "find", side_effect=MemoryError("no room to compile"))
    with no_room, contextlib.suppress(MemoryError):
        steps.sync()


def read_in_another_thread() -> None:
    reader = threading.Thread(target=present["other"].cpu)
    reader.start()
    reader.join()


kept: list[torch.Tensor] = []
# What the case that runs is working on.
present: Tensors = {}


def often_or_long(case: str, what: Callable[[], None]) -> Any:
    """Ctrl-C is tried in all cases, and in two of them the rest; what is left takes minutes."""
    is_often = what is interrupt or case in list(CASES)[:2]
    return pytest.param(case, what, marks=[] if is_often else [pytest.mark.long])


@pytest.mark.parametrize(
    ("case", "what"),
    [
        often_or_long(case, what)
        for case in CASES
        for what in (
            interrupt,
            record_something,
            run_the_trace,
            fail_to_run_the_trace,
            read_in_another_thread,
        )
    ],
)
def test_whatever_comes_at_any_line_of_a_recording_leaves_every_tensor_whole(case, what):
    CASES[case](on_device())
    assert each_line(case, what) >= 8
