"""How far a call is from its row, and a cut from its lowering."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

import torch_xdist.core.torch_side.registration as registration
from torch_xdist.ops.table import LOWERINGS

PROJECT = str(Path(registration.__file__).parents[2])


def our_frames(frame) -> list[str]:
    """The functions of this project that are on the stack, innermost first."""
    names = []
    while frame is not None:
        if frame.f_code.co_filename.startswith(PROJECT):
            names.append(frame.f_code.co_name)
        frame = frame.f_back
    return names


@pytest.mark.parametrize(
    "call",
    [
        lambda x, y: x * y,
        lambda x, y: x + 0.5,
        lambda x, y: x.max(1),
        lambda x, y: x.mul_(y),
        lambda x, y: torch.cat([x, y]),
        lambda x, y: x.t() * y.t(),
        lambda x, y: torch._foreach_add([x, y], 0.5),
    ],
)
def test_a_call_reaches_its_row_in_three_frames(call):
    x, y = torch.ones(2, 3, device="xla"), torch.ones(2, 3, device="xla")
    call(x, y)
    tape = x.value.trace.tape
    deepest: list[list[str]] = []

    def look(frame, event, arg):
        frame.f_trace_lines = True
        rows = len(tape.entries)

        def line(frame, event, arg):
            nonlocal rows
            if len(tape.entries) > rows:
                rows = len(tape.entries)
                deepest.append(our_frames(frame))
            return line

        return line if frame.f_code.co_filename.startswith(PROJECT) else None

    sys.settrace(look)
    try:
        call(x, y)
    finally:
        sys.settrace(None)
    # The writer of the trace is the third; what its tape does inside is its own.
    writer = next(names for names in deepest if names[0] in ("dispatch", "record"))
    assert len(writer) <= 3


ON_THE_WAY = """
import sys
import torch, torch_xla

x = torch.ones(2, 3, device="xla")
x.mul_(0.5)
called = []


def look(frame, event, arg):
    if event == "call":
        called.append(frame.f_code)


sys.setprofile(look)
x.mul_(0.5)
sys.setprofile(None)
print(*[f"{code.co_filename}:{code.co_name}" for code in called], sep="\\n")
"""


def test_torch_runs_no_python_of_its_own_on_the_way_to_dispatch():
    # In a process of its own: what torch looks up once must not be from before our import.
    found = subprocess.run(
        [sys.executable, "-c", ON_THE_WAY], capture_output=True, text=True, timeout=120, check=True
    )
    called = found.stdout.split()
    assert any(function.endswith(":dispatch") for function in called)
    assert [function for function in called if not function.startswith(PROJECT)] == []


def test_a_cut_reaches_jaxs_compiler_in_five_frames(monkeypatch):
    found: list[list[str]] = []
    lowering = LOWERINGS["aten.digamma.default"]

    def looked_at(x):
        found.append(our_frames(sys._getframe(1)))
        return lowering(x)

    monkeypatch.setitem(LOWERINGS, "aten.digamma.default", looked_at)
    x = torch.ones(2, 5, 7, device="xla").digamma()
    found.clear()
    x.cpu()
    frames = found[0][: found[0].index("cut") + 1]
    # A row, the rows, the function that JAX traces.
    assert frames[:3] == ["__call__", "interpret", "step"]
    assert frames[3:] == ["_traced", "compile", "find", "results", "_run_all", "cut"]
