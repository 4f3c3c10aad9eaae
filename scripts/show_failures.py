"""Make every kind of failure happen and write docs/failures.md from what was really shown.

    python scripts/show_failures.py [WORD ...]     (only the faults whose title holds a word: print)

Process ids, host names, paths and times are replaced, so that two runs give the same text.
"""

import argparse
import os
import re
import signal
import socket
import subprocess
import sys
import sysconfig
import tempfile
import textwrap
import time
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
XLA_RUN = [sys.executable, "-m", "torch_xdist.launcher"]
MEET = """
import os, signal, sys, time
RANK = int(os.environ.get("RANK", 0))
def meet(folder=os.environ["FOLDER"]):
    open(os.path.join(folder, f"here-{RANK}"), "w").close()
    while sum(n.startswith("here-") for n in os.listdir(folder)) < int(os.environ["WORLD_SIZE"]):
        time.sleep(0.01)
"""
LOOP = """
import os, signal, sys, time
import torch
import torch_xla.core.xla_model as xm
import torch_xla.distributed.xla_multiprocessing as xmp

def train(rank):
    device = xm.xla_device()
    model = torch.nn.Linear(8, 1).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(1000):
        model(torch.ones(4, 8, device=device)).square().mean().backward()
        {fault}
        xm.optimizer_step(optimizer)
        xm.mark_step()
        time.sleep(0.05)

if __name__ == "__main__":
    xmp.spawn(train, nprocs=4)
"""
UNPICKLABLE = """
import threading
import torch_xla.distributed.xla_multiprocessing as xmp

class Model:
    def __init__(self):
        self._lock = threading.Lock()

def main():
    model = Model()
    xmp.spawn(lambda rank: model, nprocs=2)

if __name__ == "__main__":
    main()
"""


@dataclass(frozen=True)
class Fault:
    """A fault: what the reader is told, the script, how it is run, and the exit code it must give.

    In `command`, SCRIPT is the script and RUN is `xla-run`.
    """

    title: str
    told: str
    script: str
    code: int
    command: str = "RUN --nprocs 4 -- python SCRIPT"
    env: dict[str, str] = field(default_factory=dict)
    interrupt_after_s: float | None = None


def loop(fault: str, of: int) -> str:
    """A training script in which one rank meets its fault in step 30."""
    return LOOP.replace("{fault}", f"if step == 30 and rank == {of}:\n            {fault}")


def ranks(fault: str, of: int) -> str:
    """A script without a device in which one rank meets its fault."""
    return MEET + f"meet()\nif RANK == {of}:\n    {fault}\ntime.sleep(60)\n"


SPAWN = "python SCRIPT"
QUIET = {"XLA_RUN_PREIMPORT": ""}
FAULTS = (
    Fault(
        "A rank raises an exception",
        "The rank's own traceback is shown, once. What the others raise because they lost it is "
        "folded behind it.",
        ranks('raise ValueError("no such batch: 17")', of=2),
        1,
        env=QUIET,
    ),
    Fault(
        "Every rank raises the same exception",
        "A failed import, a typing error: shown once, with the ranks it happened on.",
        MEET + "meet()\nimport a_module_that_is_not_here\n",
        1,
        env=QUIET,
    ),
    Fault(
        "A rank leaves with a code of its own",
        "`sys.exit(7)`: the job's code is 7. `os._exit` and C's `exit` are the same.",
        ranks('print("the license server is gone"); sys.exit(7)', of=1),
        7,
        env=QUIET,
    ),
    Fault(
        "A rank is killed",
        "By somebody, or by the machine. The job's code is 128 + the signal's number; the last "
        "lines of the rank are shown. Where the kernel killed it for memory, the message says "
        "`out of memory`.",
        ranks('print("epoch 3"); os.kill(os.getpid(), signal.SIGKILL)', of=0),
        137,
        env=QUIET,
    ),
    Fault(
        "A rank crashes",
        "SIGSEGV, SIGBUS, SIGABRT: the Python stack of the crash is among its last lines.",
        ranks("import ctypes; ctypes.string_at(0)", of=3),
        139,
        env=QUIET,
    ),
    Fault(
        "A rank dies in the middle of training",
        "The dead rank is blamed, whoever noticed first; the others say where they waited for it.",
        loop("os.kill(os.getpid(), signal.SIGKILL)", of=1),
        1,
        SPAWN,
    ),
    Fault(
        "A rank has fewer batches than the others",
        "It is named within seconds; the job fails at the exit barrier (60 s; here 5 s).",
        loop("return", of=2),
        1,
        SPAWN,
        env={"XLA_RUN_EXIT_BARRIER": "5"},
    ),
    Fault(
        "A rank hangs",
        "After 60 s without progress of any rank you are warned, after 300 s the stacks of all "
        "ranks go into their logs; with `--hang-timeout` (`XLA_RUN_HANG_TIMEOUT`) the job is "
        "killed with code 76. Here: warned after 3 s, killed after 6 s.",
        loop("time.sleep(3600)", of=2),
        1,
        SPAWN,
        env={"XLA_RUN_HANG_WARN": "3", "XLA_RUN_HANG_TIMEOUT": "6", "XLA_RUN_BEAT_EVERY": "0.5"},
    ),
    Fault(
        "Something cannot be sent to the ranks",
        "It is named by its path before anything starts.",
        UNPICKLABLE,
        1,
        SPAWN,
    ),
    Fault(
        "Some ranks do not arrive",
        "The absent are named after 10 s (here 1 s); the job ends with code 72 after 300 s "
        "(here 3 s).",
        MEET,
        72,
        "RUN --nprocs 2 --notice-after 1 --rendezvous-timeout 3 -- python SCRIPT",
        env={"XLA_RUN_PREIMPORT": "slow_import"},
    ),
    Fault(
        "The job fails again and again",
        "With `--max-restarts` the whole job is started again, from its last checkpoint, after "
        "1, 2, 4 .. 60 s.",
        ranks('raise OSError("the disk is gone")', of=1),
        77,
        "RUN --nprocs 2 --max-restarts 1 -- python SCRIPT",
        env=QUIET,
    ),
    Fault(
        "More ranks than devices, or no such device",
        "One sentence, before anything starts.",
        MEET,
        71,
        "RUN --nprocs 2 -- python SCRIPT",
        env={"PJRT_DEVICE": "TPU"},
    ),
    Fault(
        "The log directory cannot be written",
        "One warning; the job goes on, and ends with its own code.",
        MEET + 'meet()\nprint("still here")\n',
        0,
        "RUN --nprocs 2 --log-dir /proc/none -- python SCRIPT",
        env=QUIET,
    ),
    Fault(
        "You stop it",
        "Ctrl-C gives the ranks 30 s for a last checkpoint (SIGTERM to the launcher: the same, "
        "with code 143); a second Ctrl-C ends them at once.",
        MEET + "meet()\ntime.sleep(60)\n",
        130,
        env=QUIET,
        interrupt_after_s=6.0,
    ),
)


def happen(fault: Fault) -> str:
    """Run a fault and return what was shown, made the same for every run."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "train.py").write_text(fault.script)
        (folder / "slow_import.py").write_text("import time\ntime.sleep(30)\n")
        command = []
        for word in fault.command.replace("SCRIPT", "train.py").split():
            command += {"RUN": XLA_RUN, "python": [sys.executable]}.get(word, [word])
        environ = {
            **{k: v for k, v in os.environ.items() if not k.startswith(("XLA_RUN", "PJRT"))},
            "FOLDER": name,
            "PYTHONPATH": name,
            "XLA_RUN_STATE_DIR": f"{name}/state",
            "XLA_RUN_NOTICE_AFTER": "120",
            **fault.env,
        }
        process = subprocess.Popen(
            command,
            cwd=folder,
            env=environ,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        if fault.interrupt_after_s is not None:
            time.sleep(fault.interrupt_after_s)
            process.send_signal(signal.SIGINT)
        shown, _ = process.communicate(timeout=300)
    if process.returncode != fault.code:
        raise SystemExit(f"{fault.title}: code {process.returncode}, not {fault.code}:\n{shown}")
    return steady(shown, name)


def steady(shown: str, folder: str) -> str:
    """Without what differs from run to run."""
    text = shown.replace(f"{folder}/state/logs", "/tmp/xla-run-1000/logs").replace(f"{folder}/", "")
    text = text.replace(sysconfig.get_path("stdlib"), "/usr/lib/python3.11")
    text = text.replace(str(ROOT) + "/", "").replace(f"host {socket.gethostname()}", "host a17")
    text = re.sub(r"host (vm|localhost)\b", "host a17", text)
    text = re.sub(r"pid \d+", "pid 4242", text)
    text = re.sub(r"\d{4}-\d{6}-[0-9a-f]{6}", "1121-101500-7c9e21", text)
    text = re.sub(r"0x[0-9a-f]{8,}", "0x00007f00", text)
    text = re.sub(r"waited \d+\.\d s", "waited 0.3 s", text)
    return text.rstrip()


def section(fault: Fault) -> str:
    command = fault.command.replace("RUN", "xla-run").replace("SCRIPT", "train.py")
    shown = happen(fault)
    told = textwrap.fill(fault.told, 120)
    session = f"$ {command}\n{shown}\n$ echo $?\n{fault.code}"
    return f"## {fault.title}\n\n{told}\n\n```\n{session}\n```\n"


HEAD = """# What you see when something goes wrong

Real output, made by `scripts/show_failures.py` (process ids, host names and directories are
replaced). In every case nothing of the job is alive afterwards. The exit codes are listed in
[launching.md](launching.md#exit-codes); a script that called `xmp.spawn` ends with Python's own
code 1, unless it catches the exception (`RankFailedError.exit_code` is the job's).
"""


def main() -> None:
    """Show some faults, or write the document about all of them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("words", nargs="*", help="only faults whose title holds one of these")
    words = parser.parse_args().words
    chosen = [f for f in FAULTS if not words or any(w.lower() in f.title.lower() for w in words)]
    sections = []
    for fault in chosen:
        print(f"show_failures: {fault.title}", file=sys.stderr)
        sections.append(section(fault))
    if words:
        print("\n".join(sections))
    else:
        (ROOT / "docs/failures.md").write_text("\n".join([HEAD, *sections]))


if __name__ == "__main__":
    main()
