"""A job that `xla-run` restarts goes on where its checkpoint stands, bit by bit."""

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

SCRIPT = """
    import os, signal, sys
    import torch
    from torch.utils.data import DataLoader, DistributedSampler, TensorDataset
    import torch_xla.core.xla_model as xm
    import torch_xla.distributed.parallel_loader as pl
    from torch_xdist.checkpoint import CheckpointManager

    directory, crash = sys.argv[1:]
    rank, ranks = xm.get_ordinal(), xm.xrt_world_size()
    torch.manual_seed(3)
    rows = TensorDataset(torch.linspace(-1, 1, 64 * 8).reshape(64, 8))
    sampler = DistributedSampler(rows, num_replicas=ranks, rank=rank)
    loader = pl.MpDeviceLoader(DataLoader(rows, batch_size=8, sampler=sampler), "xla")
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Dropout(0.2)).to("xla")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    job = {"model": model, "optimizer": optimizer, "loader": loader}
    manager = CheckpointManager(directory, replicated=("model", "optimizer"))
    resumed = manager.restore(**job)
    step, first, losses = (0, 0, [])
    if resumed:
        step, first, losses = resumed.step, resumed.values["epoch"], resumed.values["losses"]
    for epoch in range(first, 3):
        sampler.set_epoch(epoch)
        for (x,) in loader:
            optimizer.zero_grad()
            loss = model(x).square().mean()
            loss.backward()
            xm.optimizer_step(optimizer)
            step += 1
            losses.append(loss.item().hex())
            if step % 3 == 0:
                manager.save(step, **job, epoch=epoch, losses=losses)
            if crash == "crash" and step == 8 and not resumed and rank == 1:
                manager.wait()
                os.kill(os.getpid(), signal.SIGKILL)
    manager.wait()
    with open(f"{directory}/losses-{rank}", "w") as file:
        file.write(f"{resumed.step if resumed else 0} {' '.join(losses)}")
"""


def losses_of(folder, crash):
    """(step resumed at, losses) of each rank of a job of two."""
    folder.mkdir()
    script = folder / "train.py"
    script.write_text(textwrap.dedent(SCRIPT))
    done = subprocess.run(
        [
            *(Path(sys.executable).with_name("xla-run"), "--nprocs", "2", "--max-restarts", "1"),
            *("--", sys.executable, script, folder / "checkpoints", crash),
        ],
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    written = [(folder / "checkpoints" / f"losses-{rank}").read_text() for rank in range(2)]
    return [(int(text.split()[0]), text.split()[1:]) for text in written]


@pytest.mark.long
def test_the_losses_of_a_killed_job_equal_those_of_an_uninterrupted_one(tmp_path):
    whole = losses_of(tmp_path / "whole", "go on")
    killed = losses_of(tmp_path / "killed", "crash")
    assert [step for step, _ in whole] == [0, 0]
    # The last step that both ranks had saved: 6, or 3 where rank 0 was killed in the save.
    assert {step for step, _ in killed} <= {3, 6}
    assert [losses for _, losses in killed] == [losses for _, losses in whole]
    assert len(whole[0][1]) == 12
