"""Faults in ranks that train on the device, with real collectives: who is blamed, how fast."""

import re
from collections.abc import Callable

import pytest

pytestmark = pytest.mark.long
ALL_DOWN_S = 5.0
NAMED_S = 10.0
WARM = {"XLA_RUN_PREIMPORT": "torch,jax,torch_xla.core.xla_model,torch.distributed.tensor"}
OPTIONS = ("--nprocs", "4", "--beat-every", "0.5")
LONG = pytest.mark.long
LOOP = """
import torch
import torch_xla.core.xla_model as xm

class Rows(torch.utils.data.Dataset):
    def __len__(self): return 10_000
    def __getitem__(self, index): return torch.full((4,), float(index))

def train():
    device = xm.xla_device()
    weight = torch.ones(4, device=device)
    batches = torch.utils.data.DataLoader(Rows(), batch_size=2, num_workers={workers})
    for step, batch in enumerate(batches):
        gradient = (weight * batch.to(device)).sum(0)
        if step == 20 and RANK == {victim}:
            print("step", step)
            {fault}
        xm.all_reduce("sum", [gradient])
        weight = weight + gradient * 1e-9
        xm.mark_step()
        if step == 200:
            break
train()
"""


def loop(fault: str, victim: int = 1, workers: int = 0) -> str:
    return LOOP.format(fault=fault, victim=victim, workers=workers)


@pytest.mark.parametrize(
    ("victim", "workers"), [pytest.param(0, 0, marks=LONG), pytest.param(2, 0, marks=LONG), (2, 2)]
)
def test_a_rank_killed_while_its_peers_wait_in_a_collective_is_blamed(
    run: Callable, victim: int, workers: int
) -> None:
    kill = "time.sleep(1); fault(); os.kill(os.getpid(), signal.SIGKILL)"
    ended = run(loop(kill, victim, workers), *OPTIONS, env=WARM)
    assert ended.code == 137, ended.err
    assert ended.after_fault_s < ALL_DOWN_S
    assert re.search(rf"xla-run: rank {victim} \(host \S+, pid \d+\) was killed by SIG", ended.err)
    assert "  step 20" in ended.err
    assert "Traceback" not in ended.err, "what the peers say of it is folded"


def test_an_exception_while_peers_wait_in_a_collective_is_the_only_traceback(run: Callable) -> None:
    ended = run(loop('fault(); raise ValueError("bad batch")'), *OPTIONS, env=WARM)
    assert ended.code == 1 and ended.after_fault_s < ALL_DOWN_S
    assert re.search(r"xla-run: rank 1 .* raised ValueError after step \d+: bad batch", ended.err)
    assert ended.err.count("Traceback") == 1


@pytest.mark.parametrize(
    ("transport", "options"),
    [
        ("shared memory", OPTIONS),
        pytest.param("gloo", OPTIONS, marks=LONG),
        pytest.param("shared memory", OPTIONS[:2], marks=LONG),
    ],
    ids=["shared memory", "gloo", "beats as usual"],
)
def test_a_rank_that_finishes_while_others_wait_for_it_fails_the_job_in_time(
    run: Callable, transport: str, options: tuple[str, ...]
) -> None:
    env = {**WARM, "XDIST_TRANSPORT": "gloo"} if transport == "gloo" else WARM
    ended = run(loop("fault(); return"), *options, env=env)
    assert ended.code == 1, ended.err
    assert ended.after_fault_s < ALL_DOWN_S
    words = (
        r"xla-run: rank 1 \(host \S+, pid \d+\) finished early, while others still needed it: "
        r"rank 1 left the loop after step 20; ranks? [023].* waits? in all_reduce #2[01] "
    )
    assert re.search(words, ended.err), ended.err


def test_ranks_whose_programs_differ_are_told_before_they_hang(run: Callable) -> None:
    ended = run(loop("fault(); xm.all_gather(gradient)"), *OPTIONS, env=WARM)
    assert ended.code == 1
    assert ended.after_fault_s < NAMED_S
    assert "all_gather" in ended.err and "all_reduce" in ended.err
    assert "rank 1" in ended.err
