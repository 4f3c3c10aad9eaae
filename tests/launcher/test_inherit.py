"""A nursery that is a fork of the caller: taken only where it can pass for a fresh process."""

import os
import signal
import subprocess
import sys
import types
from collections.abc import Callable
from pathlib import Path

import pytest

from torch_xdist.launcher.on_host import inherit

# What a script may have done before it spawns. Nothing of it may reach a rank.
DONE_BEFORE = """
import atexit, logging, random, tempfile, weakref
import numpy, torch
from torch_xdist.launcher.ways_in.spawn import spawn

class Thing:
    pass

held = open(os.path.join(FOLDER, "held"), "w")
held.write("mine")
scratch = tempfile.TemporaryDirectory()
thing = Thing()
weakref.finalize(thing, print, "the caller's finalizer")
atexit.register(print, "the caller's exit handler")
signal.signal(signal.SIGTERM, lambda *_: print("the caller's signal handler"))
logging.basicConfig(filename=os.path.join(FOLDER, "caller.log"), level=logging.DEBUG)
torch.set_default_dtype(torch.float64)
torch.manual_seed(7)
random.seed(7)
torch.ones(2, requires_grad=True).sum().backward()
numpy.ones((300, 300)) @ numpy.ones((300, 300))
sys.settrace(lambda *_: None)
sys.stdout.write("not yet flushed ")

def work(rank):
    files = {os.readlink(f"/proc/self/fd/{n}") for n in os.listdir("/proc/self/fd")
             if os.path.exists(f"/proc/self/fd/{n}")}
    x = torch.ones(3, requires_grad=True)
    (x * x).sum().backward()
    return {
        "forked": "train.py" in open(f"/proc/{os.getppid()}/cmdline").read(),
        "main": sorted(name for name in vars(sys.modules["__main__"]) if name[0] != "_"),
        "held": any(name.endswith("/held") for name in files),
        "handlers": len(logging.root.handlers),
        "sigterm": signal.getsignal(signal.SIGTERM) == signal.SIG_DFL,
        "type": str(torch.get_default_dtype()),
        "grad": x.grad.tolist(),
        "seed": torch.initial_seed(),
        "draw": random.random(),
        "traced": sys.gettrace() is not None,
        "variable": os.environ["RANK"] + os.environ["WORLD_SIZE"],
        "thing": type(thing).__name__,
    }

if __name__ == "__main__":
    first, second = spawn(work, nprocs=2)
    assert first.pop("variable") == "02" and second.pop("variable") == "12"
    assert len({7, first.pop("seed"), second.pop("seed")}) == 3
    assert first.pop("draw") != second.pop("draw")
    assert first == second, (first, second)
    print(first)
    assert os.path.isdir(scratch.name), "a rank has removed the caller's directory"
    held.close()
    assert open(held.name).read() == "mine"
    parents = spawn(lambda rank: open(f"/proc/{os.getppid()}/cmdline").read(), nprocs=2)
    assert all("train.py" in parent for parent in parents), parents
"""


def test_a_rank_of_an_inherited_nursery_has_nothing_of_the_caller_but_its_imports(
    run: Callable,
) -> None:
    ended = run(DONE_BEFORE)
    assert ended.code == 0, ended.err
    told = "not yet flushed " + str(
        {
            "forked": True,
            "main": [],
            "held": False,
            "handlers": 0,
            "sigterm": True,
            "type": "torch.float32",
            "grad": [2.0, 2.0, 2.0],
            "traced": False,
            "thing": "Thing",
        }
    )
    assert ended.out.splitlines() == [told, "the caller's exit handler", "the caller's finalizer"]


KILLED = """
import torch
from torch_xdist.launcher.ways_in.spawn import spawn

def work(rank):
    subprocess.Popen(["sleep", "600"], start_new_session=True)
    nursery = os.getppid()
    if os.fork():
        say(f"up{rank}", nursery)
    time.sleep(600)

if __name__ == "__main__":
    spawn(work, nprocs=2)
"""


@pytest.mark.parametrize(
    "victim",
    [
        "caller",
        "nursery",
        *(pytest.param(v, marks=pytest.mark.long) for v in ("agent", "conductor")),
    ],
)
def test_nothing_is_left_whoever_of_an_inherited_family_is_killed(
    start: Callable, victim: str
) -> None:
    job = start(KILLED)
    caller = job.process.pid
    nursery = int(job.wait_for("up0"))
    job.wait_for("up1")
    agent = _parent(nursery)
    conductor = _parent(agent)
    assert _parent(conductor) == caller
    pids = {"caller": caller, "nursery": nursery, "agent": agent, "conductor": conductor}
    os.kill(pids[victim], signal.SIGKILL)
    job.process.wait(20)
    assert job.gone(5.0), job.alive()


@pytest.mark.long
def test_ctrl_c_reaches_the_ranks_of_an_inherited_nursery(start: Callable) -> None:
    job = start(KILLED)
    job.wait_for("up0"), job.wait_for("up1")
    os.kill(job.process.pid, signal.SIGINT)
    assert job.process.wait(20) == -signal.SIGINT
    assert job.gone(5.0), job.alive()


WHETHER = """
import numpy, torch
from torch_xdist.launcher.on_host import inherit

def large_product():
    numpy.ones((400, 400)) @ numpy.ones((400, 400))

CASES = {
    "nothing": "",
    "numpy's threads": "large_product()",
    "numpy's threads, ended by a fork": "large_product(); os.fork() or os._exit(0)",
    "a thread": "threading.Thread(target=time.sleep, args=(9,), daemon=True).start()",
    "torch's threads": "torch.ones(1 << 22).sum()",
    "a module of its own": "import own",
    "a default device": "torch.set_default_device('cpu')",
    "inference mode": "mode = torch.inference_mode(); mode.__enter__()",
    "a device": "import jax; jax.devices()",
    "a large heap": "inherit._MOST_RESIDENT_BYTES = 200 << 20; heap = bytearray(200 << 20)",
}
for name, before in CASES.items():
    pid = os.fork()
    if pid == 0:
        exec(before)
        print(name, inherit.can(), sep=": ", flush=True)
        os._exit(0)
    os.waitpid(pid, 0)
"""


def test_a_caller_with_threads_devices_modes_or_modules_gets_a_fresh_nursery(
    start: Callable, tmp_path: Path
) -> None:
    (tmp_path / "own.py").write_text("STATE = []")
    ended = start(WHETHER, env={"PYTHONPATH": str(tmp_path)}).end()
    told = dict(line.split(": ") for line in ended.out.splitlines())
    # torch starts threads for large work only where it has more than one core.
    one_core = len(os.sched_getaffinity(0)) == 1
    assert told.pop("torch's threads") == str(one_core)
    assert [name for name, can in told.items() if can == "True"] == [
        *("nothing", "numpy's threads", "numpy's threads, ended by a fork")
    ]
    assert len(told) == 9, ended.err


def test_a_process_without_torch_has_nothing_to_inherit(run: Callable) -> None:
    load = "from torch_xdist.launcher.on_host import inherit;"
    assert run(f"{load} print(inherit.can(), 'torch' in sys.modules)").out.split() == [
        "False",
        "False",
    ]


def test_the_own_modules_are_those_of_no_installed_library(monkeypatch, tmp_path: Path) -> None:
    own = types.ModuleType("somebodys")
    own.__file__ = str(tmp_path / "somebodys.py")
    monkeypatch.setitem(sys.modules, "somebodys", own)
    found = inherit.own_modules()
    assert "somebodys" in found
    assert not {"os", "pytest", "click", "torch_xdist", "torch_xdist.launcher.ways_in.spawn"} & set(
        found
    )


def in_a_process_of_its_own(code: str) -> None:
    """Run code where no thread of an earlier test, such as gRPC's, loses its descriptors."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


def test_files_that_were_given_up_keep_their_numbers() -> None:
    in_a_process_of_its_own("""if True:
        import os, tempfile
        from torch_xdist.launcher.on_host import inherit
        file = tempfile.TemporaryFile()
        ours, theirs = os.pipe()
        reserved = inherit.give_up_files({ours})
        null = os.stat(os.devnull).st_rdev
        assert all(os.fstat(fd).st_rdev == null for fd in (0, file.fileno(), theirs))
        assert {file.fileno(), theirs} <= reserved and ours not in reserved
    """)


def test_close_all_but_leaves_what_it_is_told_to_leave() -> None:
    in_a_process_of_its_own("""if True:
        import os
        from torch_xdist.system import process_tree
        kept, gone = os.pipe()
        process_tree.close_all_but({2, kept})
        left = {fd for fd in (2, kept, gone) if os.path.exists(f"/proc/self/fd/{fd}")}
        assert left == {2, kept}, left
    """)


def _parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1])
