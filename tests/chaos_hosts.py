"""Random faults in training jobs over several hosts: verdict, code, time, and nothing left.

    python tests/chaos_hosts.py --rounds 100 --minutes 60 --seed 1
    python tests/chaos_hosts.py --rounds 1 --seed 17        the round of 17 again

Hosts are network namespaces with real sshd (`pod.py`). The round of a seed is drawn whole from that
number (`chaos_plans.py`); rounds take the numbers from --seed on. It is judged from outside:

- it ends in time, with a code that its fault allows; 0 only where all ranks have finished;
- nobody is blamed but the ranks and hosts that a fault befell;
- afterwards no process, port, shared memory or temporary file of it is on any host.

It ends with 1 where a round was not as it should be; --keep-going goes on after such a one.
"""

import argparse
import contextlib
import os
import re
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import chaos_faults
import chaos_plans
from chaos_plans import NAMES, Plan
from pod import Pod, PodHost
from processes import kill_marked

from torch_xdist.system import process_tree

ROOT = Path(__file__).resolve().parents[1]
PORT = "29417"
# All of it under load: a start takes seconds, so does a second attempt.
UP_S, END_S, GONE_S = 90.0, 75.0, 12.0

_TRAIN = """
import os, sys, time, torch
import torch_xla, torch_xla.core.xla_model as xm

rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
attempt, folder = os.environ["XLA_RUN_ATTEMPT"], os.environ["FOLDER"]

def say(name, text="x"):
    path = os.path.join(folder, "%s-%s-%d" % (name, attempt, rank))
    with open(path + ".tmp", "w") as file:
        file.write(str(text))
    os.replace(path + ".tmp", path)

def told(name):
    return attempt == "0" and os.path.exists(os.path.join(folder, "%s-%d" % (name, rank)))

weight = torch.ones(64, 64, device=xm.xla_device())
for step in range(STEPS):
    weight = xm.all_reduce("sum", weight @ weight.t() / 64, scale=1 / world) / 2
    torch_xla.sync()
    weight.cpu()
    print("step", step, flush=True)
    if step == 3:
        say("up", os.getpid())
    if told("raise"):
        raise ValueError("chaos")
    if told("exit"):
        os._exit(9)
    time.sleep(0.05)
say("finished", world)
"""


class Round:
    """One job, with what was planned for it.

    Args:
        folder: an empty one that all hosts see.
    """

    def __init__(self, plan: Plan, pod: Pod, folder: Path) -> None:
        self.plan, self.pod, self.folder = plan, pod, folder
        self.hosts = [pod.hosts[name] for name in NAMES[: plan.hosts]]
        self.mark = f"XLA_RUN_CHAOS={uuid.uuid4().hex}"
        (folder / "train.py").write_text(textwrap.dedent(_TRAIN).replace("STEPS", "100"))
        self.launchers: list[subprocess.Popen[bytes]] = []

    @property
    def head(self) -> subprocess.Popen[bytes]:
        return self.launchers[0]

    def head_pid(self) -> int:
        """The process of the head, below what leads to its host."""
        if self.plan.way == "ssh":
            return self.head.pid
        return process_tree.children(self.head.pid)[0]

    def begin(self) -> None:
        words = [sys.executable, "-m", "torch_xdist.launcher", *self.plan.options()]
        command = ["--", sys.executable, str(self.folder / "train.py")]
        if self.plan.way == "ssh":
            own = ["--ssh-command", self.pod.ssh, "--env", "FOLDER", "--env", "XLA_RUN_CHAOS"]
            own += ["--env", "XLA_RUN_STATE_DIR=/tmp/xla-run-0"]
            self._start([*words, *own, *command], {"XLA_RUN_STATE_DIR": str(self.folder)})
            return
        for number, host in enumerate(self.hosts):
            inside = ["nsenter", "-t", str(first_of(host)), *"-m -u -i -n -p --".split()]
            inside += ["env", "-C", str(self.folder)]
            where = ["--master-addr", self.hosts[0].address, "--master-port", PORT]
            node = ["--node-rank", str(number), *where]
            self._start([*inside, *words, *node, *command], {"XLA_RUN_SECRET": "5e" * 32})

    def _start(self, words: list[str], more: dict[str, str]) -> None:
        name, value = self.mark.split("=")
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("XLA_RUN", "PJRT"))}
        environ = {**kept, "PJRT_DEVICE": "CPU", "FOLDER": str(self.folder), name: value, **more}
        # As in all tests: what a user's cache keeps is left on purpose.
        environ["XLA_PERSISTENT_CACHE_PATH"] = ""
        with open(self.folder / f"told{len(self.launchers)}", "wb") as told:
            process = subprocess.Popen(
                words, cwd=self.folder, env=environ, stdin=subprocess.DEVNULL, stdout=told,
                stderr=told, start_new_session=True,
            )  # fmt: skip
        self.launchers.append(process)

    def told(self, number: int = 0) -> str:
        return (self.folder / f"told{number}").read_text(errors="replace")

    def wait_until(self, name: str, limit_s: float) -> bool:
        """Whether all ranks of attempt 0 have said `name` in time, and the job still runs."""
        end_s = time.monotonic() + limit_s
        paths = [self.folder / f"{name}-0-{rank}" for rank in range(self.plan.world)]
        while not all(path.exists() for path in paths):
            if time.monotonic() > end_s or self.head.poll() is not None:
                return False
            time.sleep(0.02)
        return True

    def survivors(self) -> list[str]:
        """What is left of the job: processes, ports, shared memory, files of /tmp."""
        left = [shown(pid) for pid in process_tree.marked(self.mark)]
        for host in self.hosts:
            if host._process is None:
                continue
            with contextlib.suppress(OSError, IndexError):
                left += [f"{what} on host {host.name}" for what in left_on(host, self.pod)]
        return left

    def problems(self) -> Iterator[str]:
        """Run it; what is not as it should be."""
        self.begin()
        if not self.wait_until("up", UP_S):
            yield f"the job did not come up (code {self.head.poll()})"
            return
        with contextlib.ExitStack() as undone:
            began_s = time.monotonic()
            for fault in sorted(self.plan.faults, key=lambda fault: fault.at_s):
                time.sleep(max(0.0, began_s + fault.at_s - time.monotonic()))
                chaos_faults.befall(self, fault, undone)
            faulted_s = time.monotonic()
            try:
                code = self.head.wait(END_S)
            except subprocess.TimeoutExpired:
                names = sorted(path.name for path in self.folder.iterdir())
                yield f"still running {END_S:g} s after the fault, with {' '.join(names)}"
                return
            took_s = time.monotonic() - faulted_s
            yield from self._judge(code)
        yield from self._left(took_s)

    def _left(self, took_s: float) -> Iterator[str]:
        """Behind a cut it takes as long as there may be another connection."""
        end_s = time.monotonic() + GONE_S + chaos_plans.GRACE_S + chaos_plans.LOST_S
        while (left := self.survivors()) and time.monotonic() < end_s:
            for launcher in self.launchers:
                launcher.poll()
            time.sleep(0.1)
        if left:
            yield f"left behind ({took_s:.1f} s until the end): {'; '.join(left)}"

    def _judge(self, code: int) -> Iterator[str]:
        if code not in self.plan.codes():
            yield f"exit code {code} instead of one of {sorted(self.plan.codes())}"
        # Of a host that cannot speak to the head nobody knows that its ranks have finished.
        unheard = any(fault.kind.name in ("link cut", "way back cut") for fault in self.plan.faults)
        if self.has_finished() != (code == 0) and (code == 0 or not unheard):
            yield f"exit code {code}, and all ranks have{' not' * (code == 0)} finished"
        yield from self._lies()
        lines = self.told().splitlines()
        starts = [at for at, line in enumerate(lines) if line.startswith("Traceback ")]
        if any(str(self.folder) not in "".join(lines[at + 1 : at + 2]) for at in starts):
            yield "a traceback that is not the script's"

    def has_finished(self) -> bool:
        """Whether all ranks of an attempt have."""
        for path in self.folder.glob("finished-*-0"):
            world, attempt = int(path.read_text()), path.name.split("-")[1]
            if all((self.folder / f"finished-{attempt}-{r}").exists() for r in range(world)):
                return True
        return False

    def _lies(self) -> Iterator[str]:
        """Blame that falls on others than those whom a fault befell."""
        ranks = {f.rank for f in self.plan.faults if f.kind.owner == "rank"}
        if self.head.returncode == 70:  # the head's own agent: its first rank is named with it
            ranks |= {f.rank - f.rank % self.plan.ranks_per_host for f in self.plan.faults}
        hosts = {self._name(f.host) for f in self.plan.faults if f.kind.owner == "host"}
        if self.plan.way == "nodes" and "node0" in hosts:
            # It cannot know on which side of it the cut is.
            hosts |= {f"node{number}" for number in range(self.plan.hosts)}
        for line in self.told().splitlines():
            if said := re.match(r"(?:xla-run: )?rank (\d+) \(host (?!.*\(it lost)", line):
                if int(said[1]) not in ranks:
                    yield f"rank {said[1]} is blamed: {line}"
            elif (said := re.match(r"(?:xla-run: )?host (\S+).* was lost", line)) and (
                said[1] not in hosts
            ):
                yield f"host {said[1]} is blamed: {line}"

    def _name(self, host: int) -> str:
        return f"node{host}" if self.plan.way == "nodes" else NAMES[host]

    def clean(self) -> None:
        kill_marked(self.mark)
        for launcher in self.launchers:
            launcher.kill()
            launcher.wait()
        for host in self.hosts:
            host.mend()
            host.finds(chaos_faults.Outside(self.pod.address))  # type: ignore[arg-type]
            if host._process is not None:
                chaos_faults.give_room(host)
        self.pod.make_whole()
        for host in self.hosts:
            subprocess.run(
                [*chaos_faults.inside(host), "sh", "-c", "rm -rf /tmp/xla-run-* /dev/shm/*"]
            )


def first_of(host: PodHost) -> int:
    """The first process of a host."""
    assert host._process is not None
    return process_tree.children(host._process.pid)[0]


def shown(pid: int) -> str:
    with contextlib.suppress(OSError):
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        return f"process {pid} ({b' '.join(words)[:90].decode(errors='replace')})"
    return f"process {pid}"


def left_on(host: PodHost, pod: Pod) -> Iterator[str]:
    """What a host without a job does not have."""
    first = first_of(host)
    for pid in process_tree.descendants(first):
        name = Path(f"/proc/{pid}/comm").read_text().strip()
        if not name.startswith("sshd"):
            yield shown(pid)
    for path in sorted(Path("/proc", str(first), "root", "dev/shm").iterdir()):
        yield f"/dev/shm/{path.name}"
    for path in sorted(Path("/proc", str(first), "root", "tmp").iterdir()):
        # Logs stay, and torch keeps its cache; what is mounted there is of the pod, or this tree.
        mounted = [*pod.folder.parents, ROOT, *ROOT.parents]
        kept = (
            path.name.startswith(("xla-run-", "torchinductor_"))
            or Path("/tmp", path.name) in mounted
        )
        if not kept:
            yield f"/tmp/{path.name}"
    for line in Path(f"/proc/{first}/net/tcp").read_text().splitlines()[1:]:
        _, address, _, state = line.split()[:4]
        port = int(address.split(":")[1], 16)
        if state == "0A" and port != 22:
            yield f"port {port}"
    if "@" in (names := Path(f"/proc/{first}/net/unix").read_text()) and "xla-run" in names:
        yield "an abstract socket"


def run(plan: Plan, pod: Pod) -> list[str]:
    """What was not as it should be in one round; told if anything was."""
    with tempfile.TemporaryDirectory(dir=pod.folder, ignore_cleanup_errors=True) as folder:
        one, began_s = Round(plan, pod, Path(folder)), time.monotonic()
        try:
            problems = list(one.problems())
        finally:
            one.clean()
        took_s = time.monotonic() - began_s
        print(f"seed {plan.seed}: {plan} ({took_s:.1f} s): ", end="")
        print("; ".join(problems) or "as it should be", flush=True)
        if problems:
            for number in range(len(one.launchers)):
                lines = one.told(number).splitlines()
                steps = [line for line in lines if "] step " in line][-plan.world :]
                lines = [line for line in lines if "] step " not in line]
                print(f"--- launcher {number}", *lines, *steps, sep="\n")
            print(f"--- again: python tests/chaos_hosts.py --rounds 1 --seed {plan.seed}")
    return problems


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--fault", default="", help="this kind of fault alone")
    parser.add_argument("--keep-going", action="store_true")
    options = parser.parse_args()
    # A shell that runs this in the background has it ignored, and so would the launchers.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    end_s, bad, done = time.monotonic() + 60 * options.minutes, 0, 0
    with tempfile.TemporaryDirectory() as shared:
        (folder := Path(shared) / "pod").mkdir()
        with Pod(folder, Path(shared), tuple(NAMES)) as pod:
            while done < options.rounds and time.monotonic() < end_s:
                bad += bool(run(chaos_plans.draw(options.seed + done, options.fault), pod))
                done += 1
                if bad and not options.keep_going:
                    break
    last = options.seed + done - 1
    print(f"seeds {options.seed} to {last}: {done} rounds, {bad} not as they should be")
    return 1 if bad else 0


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    sys.exit(main())
