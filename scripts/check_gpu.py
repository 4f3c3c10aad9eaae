"""Everything that a GPU can show of this project, in one document of JSON.

    scripts/check_gpu [--minutes 9] [--only PART,...] [--rehearse]

Each part runs in a process of its own within its share of the time; what a part needs less goes to
those after it. Parts that measure neither time nor free memory run beside each other, one for every
four cores. A part that crashes or hangs costs itself alone, and what it had told by then stands in
the document. Progress goes to stderr. `--rehearse` runs the same on a CPU with tiny sizes. The exit
code is 0 where every part ran and held, else 1.
"""

import argparse
import contextlib
import datetime
import functools
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parent.parent


class Part(NamedTuple):
    """A function of a module of gpu_parts.

    Attributes:
        weight: when the time is shared out.
        is_beside: others may run at the same time.
    """

    name: str
    module: str
    weight: float
    is_beside: bool = False

    def run(self, place: Any) -> None:
        module = __import__(f"gpu_parts.{self.module}", fromlist=["it"])
        getattr(module, self.name)(place)


# The first one is the ground of all: without it nothing else is tried.
PARTS = (
    Part("facts", "first", 3),
    Part("quickstart", "first", 5, True),
    Part("attention", "numbers", 4, True),
    Part("tf32", "numbers", 4, True),
    Part("convolutions", "numbers", 4, True),
    Part("amp", "numbers", 3, True),
    Part("dlpack", "memory", 2, True),
    Part("core_tests", "first", 24, True),
    Part("sweep", "first", 24, True),
    Part("transfers", "memory", 6),
    Part("memory", "memory", 3),
    Part("full", "memory", 4),
    Part("grouped", "grouped", 8),
    Part("compiling", "compiling", 12),
    Part("models", "models", 60),
)
# No part needs less, and none begins without it.
LEAST_S = 5.0
# The facts get this long in any case: a machine that imports for the first time is slow.
FACTS_S = 30.0
# A part that keeps to its limit ends itself; one that does not gets this long.
GRACE_S = 5.0
_LAST_LINES = 5


def stages_of(parts: Sequence[Part]) -> list[list[Part]]:
    """What runs one after another: the facts, what may run beside each other, each other part."""
    beside = sorted((part for part in parts if part.is_beside), key=lambda part: -part.weight)
    alone = [[part] for part in parts if not part.is_beside]
    first = [stage for stage in alone if stage[0].name == "facts"]
    return [*first, *([beside] if beside else []), *(s for s in alone if s not in first)]


def weight_of(stage: Sequence[Part], lanes: int) -> float:
    return max(*(part.weight for part in stage), sum(part.weight for part in stage) / lanes)


def share_s(weights: Sequence[float], left_s: float) -> float:
    """The seconds of the first of these, when so many are left for all of them."""
    return max(0.0, left_s - GRACE_S) * weights[0] / sum(weights)


def environment(rehearses: bool) -> dict[str, str]:
    """Of a part: the device, where the modules are, and memory that is taken as it is needed."""
    paths = [str(ROOT / name) for name in ("src", "tests", "scripts")]
    return {
        **os.environ,
        "PJRT_DEVICE": "CPU" if rehearses else "CUDA",
        "PYTHONPATH": os.pathsep.join([*paths, os.environ.get("PYTHONPATH", "")]),
        # torch needs some of the GPU too: JAX would take three quarters of it at its start.
        "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
        # Figures of compiling are those of a first run.
        "XLA_PERSISTENT_CACHE_PATH": "",
        "TF_CPP_MIN_LOG_LEVEL": os.environ.get("TF_CPP_MIN_LOG_LEVEL", "1"),
    }


class Outcome:
    """What became of a part: `take` gets the lines its process writes."""

    def __init__(self) -> None:
        self.found: dict[str, Any] = {}
        self.failed: dict[str, str] = {}
        self.held: list[str] = []
        self.left_out: dict[str, str] = {}
        self.said: deque[str] = deque(maxlen=_LAST_LINES)

    def take(self, line: str) -> None:
        try:
            message = json.loads(line)
            kind = next(iter(message))
        except (ValueError, TypeError, StopIteration):
            return
        if kind == "found":
            self.found[message["found"]] = message["value"]
        elif kind == "check" and message["ok"]:
            self.held.append(message["check"])
        elif kind == "check":
            self.failed[message["check"]] = message["words"]
        elif kind == "left_out":
            self.left_out[message["left_out"]] = message["why"]

    def document(self, why: str, seconds: float, limit_s: float) -> dict[str, Any]:
        status = "ok" if not why and not self.failed else "failed"
        told = {"status": status, "seconds": round(seconds, 1), "limit_s": round(limit_s, 1)}
        named = {"why": why, "failed": self.failed, "held": self.held, "left_out": self.left_out}
        return {
            **told,
            **{name: value for name, value in named.items() if value},
            "found": self.found,
        }


def in_a_process(command: Sequence[str], env: Mapping[str, str], limit_s: float) -> dict[str, Any]:
    """Run one part; it and all it started are gone afterwards."""
    outcome = Outcome()
    started = time.monotonic()
    read, write = os.pipe()
    process = subprocess.Popen(
        [*command, "--tell", str(write)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        env=dict(env),
        pass_fds=(write,),
        start_new_session=True,
    )
    os.close(write)
    readers = [
        threading.Thread(target=_each_line, args=(os.fdopen(read), outcome.take), daemon=True),
        threading.Thread(
            target=_each_line, args=(process.stdout, functools.partial(_show, outcome)), daemon=True
        ),
    ]
    for reader in readers:
        reader.start()
    why = ""
    try:
        code = process.wait(limit_s + GRACE_S)
        if code:
            how = signal.Signals(-code).name if code < 0 else f"exit code {code}"
            why = f"its process ended with {how}: {' | '.join(outcome.said)}"
    except subprocess.TimeoutExpired:
        why = f"it was not done after {limit_s:.0f} s, and was ended"
    finally:
        _end(process)
    for reader in readers:
        reader.join(2)
    return outcome.document(why, time.monotonic() - started, limit_s)


def _end(process: subprocess.Popen[str]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _each_line(stream: Any, take: Callable[[str], None]) -> None:
    with stream:
        for line in stream:
            take(line.rstrip("\n"))


def _show(outcome: Outcome, line: str) -> None:
    if line.strip():
        outcome.said.append(line.strip()[:300])
        print(f"  {line}", file=sys.stderr, flush=True)


Run = Callable[[Part, float], dict[str, Any]]


def run_all(
    parts: Sequence[Part],
    minutes: float,
    command: Sequence[str],
    env: Mapping[str, str],
    lanes: int = 1,
) -> dict[str, Any]:
    """The document: of each part what it found, or why it did not run.

    Args:
        lanes: how many parts run at a time, of those that may.
    """
    deadline = time.monotonic() + 60 * minutes
    told: dict[str, Any] = {}
    blocked = ""

    def run(part: Part, limit_s: float) -> dict[str, Any]:
        if blocked or limit_s < LEAST_S * min(1.0, minutes):
            return {"status": "did not run", "why": blocked or "the time was over"}
        print(f"check_gpu: {part.name}, at most {limit_s:.0f} s", file=sys.stderr, flush=True)
        words = [*command, "--part", part.name, "--limit-s", str(limit_s)]
        found = in_a_process(words, env, limit_s)
        print(f"check_gpu: {part.name}: {found['status']}", file=sys.stderr, flush=True)
        return found

    stages = stages_of(parts)
    weights = [weight_of(stage, lanes) for stage in stages]
    for number, stage in enumerate(stages):
        limit_s = share_s(weights[number:], deadline - time.monotonic())
        limit_s = max(limit_s, FACTS_S) if stage[0].name == "facts" else limit_s
        told.update(run_stage(stage, limit_s, lanes, run))
        if told.get("facts", {"status": "ok"})["status"] != "ok":
            blocked = "facts: the device is not there"
    return {part.name: told[part.name] for part in parts}


def run_stage(stage: Sequence[Part], limit_s: float, lanes: int, run: Run) -> dict[str, Any]:
    """Run these beside each other; each gets its share of what the stage has left."""
    deadline, waiting, told = time.monotonic() + limit_s, deque(stage), {}
    lock = threading.Lock()

    def lane() -> None:
        while True:
            with lock:
                if not waiting:
                    return
                weights = [part.weight for part in waiting]
                part = waiting.popleft()
            left_s = deadline - time.monotonic()
            at_once = min(lanes, len(weights))
            told[part.name] = run(part, min(1, at_once * weights[0] / sum(weights)) * left_s)

    threads = [threading.Thread(target=lane) for _ in range(min(lanes, len(stage)))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return told


def be_part(name: str, tell: int, rehearses: bool, limit_s: float) -> None:
    """Run one part in this process, which tells what it finds on a descriptor."""
    from gpu_parts.place import Place

    lock = threading.Lock()

    def write(message: dict[str, Any]) -> None:
        with lock:
            os.write(tell, json.dumps(message, default=str).encode() + b"\n")

    # What it starts shall not hold the pipe open.
    os.set_inheritable(tell, False)
    part = next(part for part in PARTS if part.name == name)
    part.run(Place(write, rehearses, limit_s))


def chosen_parts(parser: argparse.ArgumentParser, only: str) -> list[Part]:
    wanted = [name for name in only.split(",") if name]
    unknown = {*wanted} - {part.name for part in PARTS}
    if unknown:
        names = ", ".join(part.name for part in PARTS)
        parser.error(f"no such part: {', '.join(sorted(unknown))}; they are {names}")
    return [part for part in PARTS if not wanted or part.name in wanted]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=9.0, help="for all parts (9)")
    parser.add_argument("--only", default="", metavar="PART,...", help="these parts alone")
    parser.add_argument("--rehearse", action="store_true", help="on the CPU, with tiny sizes")
    for hidden, kind in (("--part", str), ("--tell", int), ("--limit-s", float)):
        parser.add_argument(hidden, type=kind, help=argparse.SUPPRESS)
    parser.add_argument("--peer", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    parts = chosen_parts(parser, options.only)
    if options.minutes <= 0:
        parser.error(f"--minutes {options.minutes:g}: a number above 0 is needed")
    if options.part:
        be_part(options.part, options.tell, options.rehearse, options.limit_s or 60.0)
        return 0
    if options.peer:
        from gpu_parts import models

        print(json.dumps(models.figures(*options.peer, options.rehearse)), flush=True)
        return 0
    started = time.monotonic()
    command = [sys.executable, str(Path(__file__).resolve())]
    command += ["--rehearse"] if options.rehearse else []
    lanes = max(1, len(os.sched_getaffinity(0)) // 4)
    told = run_all(parts, options.minutes, command, environment(options.rehearse), lanes)
    document = {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "rehearsed_on_a_cpu": options.rehearse,
        "minutes": round((time.monotonic() - started) / 60, 2),
        "parts": told,
    }
    print(json.dumps(document, indent=1), flush=True)
    return int(any(part["status"] != "ok" for part in told.values()))


if __name__ == "__main__":
    sys.exit(main())
