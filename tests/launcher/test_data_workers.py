"""DataLoader workers of a rank: forked under a multithreaded runtime, without deadlock or noise."""

from collections.abc import Callable

import pytest

_TRAIN = """
import torch
import torch_xla.core.xla_model as xm

class Rows(torch.utils.data.Dataset):
    def __len__(self): return 16
    def __getitem__(self, index): return torch.full((4,), float(index)).sin() + index

device = xm.xla_device()
total = torch.zeros(4, device=device)
for epoch in range({epochs}):
    for batch in torch.utils.data.DataLoader(Rows(), batch_size=2, num_workers=4):
        total = total + batch.to(device).sum(0)
    # Programs run, and their threads with them, while the next epoch's workers are forked.
    xm.all_reduce("sum", total)
    xm.mark_step()
print("done", len(os.listdir("/proc/self/task")) > 4)
"""


@pytest.mark.long
@pytest.mark.timeout(1500)
def test_200_epochs_of_4_forked_workers_neither_hang_nor_warn(start: Callable) -> None:
    job = start(
        _TRAIN.format(epochs=200),
        *("--nprocs", "2", "--hang-timeout", "120"),
        env={"XLA_RUN_PREIMPORT": "torch,jax"},
    )
    ended = job.end(1400)
    assert ended.code == 0, ended.err
    assert ended.out.count("done True") == 2
    assert "fork()" not in ended.out + ended.err and "deadlock" not in ended.out + ended.err


@pytest.mark.long
def test_one_epoch_of_4_forked_workers(start: Callable) -> None:
    job = start(
        _TRAIN.format(epochs=1),
        *("--nprocs", "1"),
        env={"XLA_RUN_PREIMPORT": "torch,jax"},
    )
    ended = job.end(120)
    assert ended.code == 0, ended.err
    assert "fork()" not in ended.out + ended.err and "deadlock" not in ended.out + ended.err


_STOPPED = """
import torch
import torch_xla.core.xla_model as xm

class Rows(torch.utils.data.Dataset):
    def __len__(self): return 1_000_000
    def __getitem__(self, index): return torch.ones(4)

stop = threading.Event()
signal.signal(signal.SIGTERM, lambda *_: stop.set())
total = torch.zeros(4, device=xm.xla_device())
batches = iter(torch.utils.data.DataLoader(Rows(), batch_size=2, num_workers=2))
while not stop.is_set():
    total = total + next(batches).to(total.device).sum(0)
    xm.mark_step()
    say("ready%d" % RANK)
# The checkpoint takes time and more batches: the workers must live as long.
for _ in range(20):
    total = total + next(batches).to(total.device).sum(0)
    time.sleep(0.05)
xm.save(total, os.path.join(FOLDER, "checkpoint%d" % RANK), master_only=False)
"""


@pytest.mark.long
def test_ranks_with_dataloader_workers_save_a_checkpoint_when_they_are_stopped(
    start: Callable,
) -> None:
    job = start(_STOPPED, "--nprocs", "2", env={"XLA_RUN_PREIMPORT": "torch,jax"})
    job.wait_for("ready0")
    job.wait_for("ready1")
    job.process.terminate()
    ended = job.end(60)
    assert ended.code == 143
    assert "is killed by signal" not in ended.out + ended.err
    assert "Traceback" not in ended.out + ended.err
    for rank in range(2):
        assert (ended.folder / f"checkpoint{rank}").stat().st_size > 0
