#!/usr/bin/env python
"""How much of the time to record a step is ours, and how much is torch's.

    .venv/bin/python scripts/bench_recording.py [--rounds 60]

Runs the forward and the backward pass of a small GPT by turns with the recorder and with one that
looks at nothing: it answers each call with fresh tensors for what the same call had for results a
step before, which is the least that anything can do that sees calls one by one. What is left then
is torch's: modules, autograd, its way into Python and out, and the tensors. Then the same with an
update of AdamW's, operator by operator. Prints a JSON line of each: microseconds of processor time
of a call that arrives here, and the share of the recorder.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import bench_steps
import torch

import torch_xdist.core.torch_side.registration  # noqa: F401
from torch_xdist.core.devices import steps
from torch_xdist.core.devices.tensor import XlaTensor, wrap
from torch_xdist.core.trace.values import Value

LAYERS, WIDTH, HEADS, BATCH, LENGTH = 6, 32, 4, 2, 16
WARM_STEPS = 4
RECORDER = XlaTensor.__torch_dispatch__


class Script:
    """What the calls of a step returned, in order: a value for each tensor that was made."""

    def __init__(self) -> None:
        self.answers: list[Any] = []
        self.depth = 0
        self.left: Iterator[Any] = iter(())

    def note(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Record a call, and what it returned where no other call of ours contains it."""
        self.depth += 1
        try:
            result = RECORDER(func, types, args, kwargs)
        finally:
            self.depth -= 1
        if self.depth == 0:
            self.answers.append(_described(result, args))
        return result

    def answer(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Return what the call had returned."""
        described = next(self.left)
        return wrap(described) if isinstance(described, Value) else _made(described, args)


def _described(result: Any, args: Any) -> Any:
    """A tensor's value; the place of one that is an argument; a tuple of a type and these."""
    if isinstance(result, tuple | list):
        return result.__class__, [_described(part, args) for part in result]
    for place, argument in enumerate(args):
        if result is not None and argument is result:
            return place
    return result.value if isinstance(result, XlaTensor) else None


def _made(described: Any, args: Any) -> Any:
    if isinstance(described, int):
        return args[described]
    if isinstance(described, tuple):
        kind, parts = described
        return kind(_made(part, args) for part in parts)
    return wrap(described) if isinstance(described, Value) else None


def timed(passes: Callable[[], None], dispatch: Any, clear: Callable[[], None]) -> float:
    """Seconds of processor time of this thread."""
    clear()
    steps.wait_device_ops()
    XlaTensor.__torch_dispatch__ = staticmethod(dispatch)  # type: ignore[method-assign]
    try:
        started = time.thread_time()
        passes()
        return time.thread_time() - started
    finally:
        XlaTensor.__torch_dispatch__ = staticmethod(RECORDER)  # type: ignore[method-assign]
        clear()


def compare(name: str, passes: Callable[[], None], clear: Callable[[], None], rounds: int) -> None:
    """Measure one part of a step, and print its line."""
    script = Script()
    for _ in range(WARM_STEPS):
        timed(passes, RECORDER, clear)
    timed(passes, script.note, clear)
    calls = len(script.answers)
    recorded, answered = [], []
    for _ in range(rounds):
        recorded.append(timed(passes, RECORDER, clear))
        script.left = iter(script.answers)
        answered.append(timed(passes, script.answer, clear))
    found = {}
    for kind, took in (("recorded", recorded), ("answered", answered)):
        found[f"{kind}_us"] = round(1e6 * statistics.median(took) / calls, 2)
        found[f"{kind}_best_us"] = round(1e6 * min(took) / calls, 2)
    ours = round(1 - statistics.median(answered) / statistics.median(recorded), 3)
    print(json.dumps({"bench": "recording", "part": name, "calls": calls, **found, "ours": ours}))


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=60)
    rounds = parser.parse_args().rounds
    model = bench_steps.GPT(LAYERS, WIDTH, HEADS, LENGTH).to("xla")
    ids = torch.randint(0, bench_steps.VOCABULARY, (BATCH, LENGTH)).to("xla")
    optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
    gradients = [torch.zeros_like(parameter) for parameter in model.parameters()]

    def passes() -> None:
        logits = model(ids)
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), ids.flatten())
        loss.backward()

    def clear() -> None:
        # What the one that looks at nothing has made is on no tape, and is never run.
        for parameter in model.parameters():
            parameter.grad = None
        steps.sync()

    def cleared_for_update() -> None:
        for parameter, gradient in zip(model.parameters(), gradients, strict=True):
            parameter.grad = gradient
        steps.sync()

    compare("forward and backward", passes, clear, rounds)
    compare("AdamW, foreach=False", optimizer.step, cleared_for_update, rounds)


if __name__ == "__main__":
    main()
