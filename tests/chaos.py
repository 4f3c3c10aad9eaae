"""Random faults in a real 4-rank training job: verdict, exit code, time, and no survivor.

    python tests/chaos.py --rounds 50 --minutes 10 --seed 1

Each round starts a job, under `xla-run` or as a script that spawns, waits until it trains, does one
thing to one rank (or to the launcher) at a random moment, and checks what comes of it. It ends with
1 at the first round that is not as it should be, after printing the seed and the output;
--keep-going goes on.
"""

import argparse
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from processes import kill

from torch_xdist.system import process_tree

RANKS = 4
DOWN_S = 5.0
# The launcher has this long to come up under load before a round counts as stuck.
UP_S = 120.0

_TRAIN = """
import os, sys, time, ctypes, signal, threading
import torch

FAULT, VICTIM, AT = os.environ["FAULT"], int(os.environ["VICTIM"]), float(os.environ["AT"])
INSIDE = ("exception", "exit", "abort", "kill", "segv", "early")

def harm():
    time.sleep(AT)
    if FAULT == "exception":
        raise ValueError("chaos")
    {"exit": lambda: os._exit(9), "abort": os.abort, "kill": lambda: os.kill(os.getpid(), 9),
     "segv": lambda: os.kill(os.getpid(), signal.SIGSEGV),
     "early": lambda: os._exit(0)}[FAULT]()

%s

def main(rank):
    for step in range(100000):
        train(step)
        if step == 3:
            path = os.path.join(os.environ["FOLDER"], "up%%d" %% rank)
            open(path, "w").write(str(os.getpid()))
        if step >= 3 and rank == VICTIM and FAULT in INSIDE:
            harm()

if "RANK" in os.environ:
    main(int(os.environ["RANK"]))
elif __name__ == "__main__":
    from torch_xdist.launcher.ways_in.spawn import spawn
    spawn(main, nprocs=4)
"""

# The device is used as a training loop uses it: a reduction over all ranks in every step.
_ON_DEVICE = """
import torch_xla.core.xla_model as xm
weight = None

def train(step):
    global weight
    if weight is None:
        weight = torch.ones(64, 64, device=xm.xla_device())
    weight = xm.all_reduce("sum", weight @ weight.t() / 64, scale=1 / 4) / 2
    xm.mark_step()
    weight.cpu()
"""
# Without the device a round takes half the time.
_ON_HOST = """
def train(step):
    time.sleep(0.01)
"""


@dataclass(frozen=True)
class Fault:
    """What is done, and what must come of it: an exit code and words of the last report.

    `script` is the same for a script that spawns its ranks, where it differs.
    """

    name: str
    code: int
    words: str
    from_outside: Callable[["Round"], None] | None = None
    script: tuple[int, str] | None = None

    def expected(self, way: str) -> tuple[int, str]:
        """The exit code and the words, under this way to start."""
        return self.script if self.script and way == "script" else (self.code, self.words)


class Round:
    """One job with one fault, started by `xla-run`, or as a script that spawns."""

    def __init__(
        self, fault: Fault, victim: int, at_s: float, body: str, folder: Path, way: str
    ) -> None:
        self.fault, self.victim, self.at_s, self.folder = fault, victim, at_s, folder
        self.code, self.words = fault.expected(way)
        self.mark = f"XLA_RUN_CHAOS={uuid.uuid4().hex}"
        script = folder / "train.py"
        script.write_text(textwrap.dedent(_TRAIN) % body)
        name, value = self.mark.split("=")
        environ = {
            **os.environ,
            "XLA_RUN_STATE_DIR": str(folder),
            "FOLDER": str(folder),
            "FAULT": fault.name,
            "VICTIM": str(victim),
            "AT": str(at_s),
            name: value,
        }
        words = [sys.executable, "-m", "torch_xdist.launcher", "--nprocs", str(RANKS), "--"]
        if way == "script":
            words = []
        with open(folder / "told", "wb") as told:
            self.process = subprocess.Popen(
                [*words, sys.executable, str(script)],
                env=environ,
                stdout=told,
                stderr=told,
                start_new_session=True,
            )

    def told(self) -> str:
        return (self.folder / "told").read_text(errors="replace")

    def pid(self, rank: int) -> int:
        return int((self.folder / f"up{rank}").read_text())

    def alive(self) -> set[int]:
        return process_tree.marked(self.mark)

    def problem(self) -> str:
        """Run it; "" where all is as it should be, else what is not."""
        end_s = time.monotonic() + UP_S
        while not all((self.folder / f"up{rank}").exists() for rank in range(RANKS)):
            if self.process.poll() is not None or time.monotonic() > end_s:
                if self.process.poll() is not None and self.fault.from_outside is None:
                    break
                return f"the job did not come up (code {self.process.poll()})"
            time.sleep(0.01)
        time.sleep(self.at_s)
        began_s = time.monotonic()
        if self.fault.from_outside is not None:
            self.fault.from_outside(self)
        try:
            code = self.process.wait(DOWN_S + self.at_s + 10)
        except subprocess.TimeoutExpired:
            return f"still running {DOWN_S + self.at_s + 10:.0f} s after {self.fault.name}"
        took_s = time.monotonic() - began_s
        while self.alive() and time.monotonic() - began_s < DOWN_S + 10:
            time.sleep(0.02)
        down_s = time.monotonic() - began_s
        if self.alive():
            return f"survivors: {sorted(self.alive())}"
        if down_s > DOWN_S + 1:
            return f"down after {down_s:.1f} s (the launcher ended after {took_s:.1f} s)"
        if code != self.code:
            return f"exit code {code} instead of {self.code}"
        if not re.search(self.words.format(victim=self.victim), self.told()):
            return f"the report does not say {self.words.format(victim=self.victim)!r}"
        return ""

    def clean(self) -> None:
        for pid in self.alive():
            kill(pid, signal.SIGKILL)
        self.process.wait()


def _kill_rank(run: Round) -> None:
    kill(run.pid(run.victim), signal.SIGKILL)


def _agent(run: Round) -> int:
    return next(
        pid
        for pid in process_tree.descendants(run.process.pid)
        if b"on_host.agent" in Path(f"/proc/{pid}/cmdline").read_bytes()
    )


def _signal_launcher(number: int) -> Callable[[Round], None]:
    return lambda run: kill(run.process.pid, number)


FAULTS = (
    Fault(
        "exception",
        1,
        r"rank {victim} \(host .*raised ValueError.*: chaos",
        script=(1, r"\nValueError: chaos"),
    ),
    Fault("exit", 9, r"rank {victim} \(host .*exited with code 9"),
    Fault("abort", 134, r"rank {victim} \(host .*SIGABRT"),
    Fault("segv", 139, r"rank {victim} \(host .*SIGSEGV"),
    Fault("kill", 137, r"rank {victim} \(host .*was killed by SIGKILL"),
    Fault("early", 1, r"rank {victim} \(host .*exited with code 0"),
    Fault("killed from outside", 137, r"rank {victim} \(host .*was killed by SIGKILL", _kill_rank),
    Fault("SIGINT", 130, "stopped by SIGINT", _signal_launcher(signal.SIGINT), (-2, "")),
    Fault("SIGTERM", 143, "stopped by SIGTERM", _signal_launcher(signal.SIGTERM), (-15, "")),
    Fault("launcher killed", -9, "", _signal_launcher(signal.SIGKILL)),
    Fault("agent killed", 73, "has died", lambda run: kill(_agent(run), signal.SIGKILL)),
    Fault(
        "nursery killed",
        70,
        "has died",
        lambda run: kill(process_tree.children(_agent(run))[0], signal.SIGKILL),
    ),
)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--host-only", action="store_true", help="ranks that use no device")
    parser.add_argument("--keep-going", action="store_true")
    options = parser.parse_args()
    seed = options.seed if options.seed is not None else random.randrange(1 << 30)
    dice, end_s, bad, done = random.Random(seed), time.monotonic() + 60 * options.minutes, 0, 0
    while done < options.rounds and time.monotonic() < end_s:
        fault, victim = dice.choice(FAULTS), dice.randrange(RANKS)
        at_s = dice.choice((0.0, dice.random(), 2 * dice.random()))
        way = dice.choice(("xla-run", "script"))
        with tempfile.TemporaryDirectory() as folder:
            body = _ON_HOST if options.host_only else _ON_DEVICE
            run = Round(fault, victim, at_s, textwrap.dedent(body), Path(folder), way)
            began_s = time.monotonic()
            problem = run.problem()
            told = run.told()
            run.clean()
        done += 1
        took_s = time.monotonic() - began_s
        what = f"round {done}: {way}, {fault.name}, rank {victim}, after {at_s:.2f} s"
        print(f"{what} ({took_s:.1f} s): {problem or 'as it should be'}", flush=True)
        if problem:
            bad += 1
            print(f"--- seed {seed}\n{told}\n---", flush=True)
            if not options.keep_going:
                break
    print(f"seed {seed}: {done} rounds, {bad} not as they should be")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
