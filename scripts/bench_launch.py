"""Startup: from `python script.py` to the first finished all-reduce of 4 ranks, beside torchrun.

Each way is run `--rounds` times and the median is told, with all figures. The script imports torch
and the device at its top, as users' scripts do, and every rank notes when its sum has arrived.

    python scripts/bench_launch.py --rounds 5
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

# Every rank notes the time in a file of its own: lines on one pipe may run into each other.
_STAMP = """
import os, time
def stamp():
    with open(os.path.join(os.environ["STAMPS"], str(os.getpid())), "w") as file:
        file.write(str(time.time()))
"""

_SPAWN = """
import torch
import torch_xla.core.xla_model as xm
import torch_xla.distributed.xla_multiprocessing as xmp

def work(rank):
    total = xm.all_reduce("sum", torch.ones(4, device=xm.xla_device())).cpu()
    assert total.tolist() == [4.0] * 4
    stamp()

if __name__ == "__main__":
    xmp.spawn(work, nprocs=4)
"""

# The function imports the device itself, so that the parent stays light.
_SPAWN_LIGHT = """
from torch_xdist.launcher.spawn import spawn

def work(rank):
    import torch
    import torch_xla.core.xla_model as xm

    total = xm.all_reduce("sum", torch.ones(4, device=xm.xla_device())).cpu()
    assert total.tolist() == [4.0] * 4
    stamp()

if __name__ == "__main__":
    spawn(work, nprocs=4)
"""

_GLOO = """
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
total = torch.ones(4)
dist.all_reduce(total)
assert total.tolist() == [4.0] * 4
stamp()
# gloo's threads abort a process that ends with its group.
dist.destroy_process_group()
"""


def ways(folder: Path) -> dict[str, list[str]]:
    """The commands to compare, by name; their scripts are written to `folder`."""
    for name, text in (("spawn", _SPAWN), ("light", _SPAWN_LIGHT), ("gloo", _GLOO)):
        (folder / f"{name}.py").write_text(_STAMP + text)
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "4"]
    xla_run = ["-m", "torch_xdist.launcher", "--nprocs", "4", "--", sys.executable]
    return {
        "xmp.spawn, script imports torch and torch_xla": [str(folder / "spawn.py")],
        "spawn, only the ranks import them": [str(folder / "light.py")],
        "xla-run, the same script": [*xla_run, str(folder / "spawn.py")],
        "torchrun, the same script": [*torchrun, str(folder / "spawn.py")],
        "torchrun, torch and gloo alone": [*torchrun, str(folder / "gloo.py")],
    }


def seconds_to_first_sum(command: list[str]) -> float:
    """From the start of the command to the moment the last of 4 ranks had its first sum."""
    with tempfile.TemporaryDirectory() as stamps:
        began = time.time()
        environ = {**os.environ, "STAMPS": stamps}
        done = subprocess.run(
            [sys.executable, *command], capture_output=True, text=True, timeout=300, env=environ
        )
        times = [float(path.read_text()) for path in Path(stamps).iterdir()]
    if done.returncode != 0 or len(times) != 4:
        raise SystemExit(f"{' '.join(command)} failed ({done.returncode}):\n{done.stderr}")
    return max(times) - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", default="", help="ways whose name contains this")
    options = parser.parse_args()
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}")
    with tempfile.TemporaryDirectory() as folder:
        for name, command in ways(Path(folder)).items():
            if options.only in name:
                took_s = [seconds_to_first_sum(command) for _ in range(options.rounds)]
                told = ", ".join(f"{second:.2f}" for second in took_s)
                print(f"{statistics.median(took_s):6.2f} s  {name}  ({told})", flush=True)


if __name__ == "__main__":
    main()
