"""A process forked from one that used a device says so at the first use; others are unaffected."""

import multiprocessing
import os
import subprocess
import sys
import threading

import pytest
import torch
from torch.utils.data import DataLoader, Dataset

import torch_xla

USES = [
    "w * 2", "w.add_(1)", "w[0] + 1", "torch.zeros(2, device='xla')", "torch.ones(2).to('xla')",
    "w.cpu()", "pending.tolist()", "torch_xla.sync()", "torch_xla.device_count()", "repr(w)",
]  # fmt: skip
SCRIPT = f"""
import gc, multiprocessing, threading, torch, torch_xla
w = torch.ones(3, device="xla")
torch_xla.sync()
pending = w * 2
def try_all():
    for use in {USES!r}:
        try:
            eval(use)
            print("no error:", use, flush=True)
        except Exception as error:
            print(type(error).__name__, error, flush=True)
def child():
    thread = threading.Thread(target=try_all)
    thread.start()
    thread.join()
    try_all()
process = multiprocessing.get_context("fork").Process(target=child)
process.start()
process.join(60)
print(process.exitcode, (pending + w).tolist())
"""
MESSAGE = (
    "DeviceError xla: this process was forked from one that had used an xla device, whose threads"
    " are not here; use the device in the parent alone, or start processes with xmp.spawn or"
    " multiprocessing.get_context('spawn')"
)


def test_a_forked_child_gets_one_clear_error_at_every_use_and_from_any_thread():
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", SCRIPT], capture_output=True, text=True, timeout=120
    )
    wanted = [MESSAGE] * 2 * len(USES) + ["0 [3.0, 3.0, 3.0]"]
    assert done.stdout.splitlines() == wanted, done.stderr


class Numbers(Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, i):
        return torch.full((2,), float(i)), os.getpid()


@pytest.mark.filterwarnings("ignore:.*fork.*")
def test_data_workers_that_never_touch_the_device_are_unaffected():
    w = torch.ones(2, device="xla")
    torch_xla.sync()
    seen, pids = [], set()
    for batch, pid in DataLoader(Numbers(), batch_size=4, num_workers=2):
        seen += (batch.to("xla") * w).sum(1).tolist()
        pids |= set(pid.tolist())
    assert seen == [2.0 * i for i in range(8)]
    assert len(pids) == 2 and os.getpid() not in pids


@pytest.mark.filterwarnings("ignore:.*fork.*")
def test_a_forked_child_seeds_and_ends_without_a_word():
    torch.ones(2, device="xla").tolist()

    def child():
        torch.manual_seed(3)
        assert threading.active_count() == 1

    process = multiprocessing.get_context("fork").Process(target=child)
    process.start()
    process.join(60)
    assert process.exitcode == 0
