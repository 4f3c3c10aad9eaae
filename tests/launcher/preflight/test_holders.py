"""Who holds devices, from a /proc and an nvidia-smi made for the test."""

import os
import sys
from pathlib import Path

from torch_xdist.launcher.preflight.holders import holders

NO_SMI = ("/no/nvidia-smi",)


def process(proc: Path, pid: int, command: str, *opened: str) -> None:
    folder = proc / str(pid)
    (folder / "fd").mkdir(parents=True)
    (folder / "cmdline").write_text(command.replace(" ", "\0") + "\0")
    for fd, device in enumerate(opened):
        os.symlink(device, folder / "fd" / str(fd))


def test_whoever_has_a_chip_open_holds_it(tmp_path: Path) -> None:
    process(tmp_path, 7, "python train.py", "/dev/null", "/dev/accel0", "/dev/accel1")
    process(tmp_path, 8, "sh", "/dev/vfio/vfio", "/tmp/x")
    process(tmp_path, 9, "python serve.py", "/dev/vfio/3")
    (tmp_path / "self").mkdir()
    told = {"kind": "TPU", "pid": 7, "command": "python train.py"}
    found = sorted(holders(tmp_path, NO_SMI), key=lambda one: (one["pid"], one["device"]))
    assert found == [
        {**told, "device": "/dev/accel0"},
        {**told, "device": "/dev/accel1"},
        {"kind": "TPU", "pid": 9, "command": "python serve.py", "device": "/dev/vfio/3"},
    ]


def test_this_process_itself_holds_nothing(tmp_path: Path) -> None:
    process(tmp_path, os.getpid(), "python", "/dev/accel0")
    assert holders(tmp_path, NO_SMI) == []


def test_who_computes_on_a_gpu_is_asked_of_nvidia_smi(tmp_path: Path) -> None:
    process(tmp_path, 7, "python train.py --db=pg://me:pw@db", "/dev/nvidia0")
    said = "7, 900, 00000000:01:00.0\n8, [N/A], 00000000:02:00.0\nno processes\n"
    smi = (sys.executable, "-c", f"print({said!r})")
    told = {"kind": "CUDA", "device": "GPU 00000000:01:00.0"}
    found = holders(tmp_path, smi)
    assert found[0] == {
        **told,
        "pid": 7,
        "command": "python train.py --db=pg://***@db",
        "used_mib": 900,
    }
    assert (found[1]["command"], found[1]["used_mib"]) == ("not visible from here", None)


def test_a_real_proc_is_read_in_silence() -> None:
    assert isinstance(holders(smi=NO_SMI), list)
