"""Threads that compute on one device: each has its trace, and reads what the others made."""

import gc
import random
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

import torch_xla
import torch_xla.core.xla_model as xm
from torch_xdist.core.devices import steps
from torch_xdist.core.run import cuts
from torch_xdist.core.run.device_trace import trace_of_thread

SHAPE = (3, 4)
# Two thousand calls on the same values may make a rounding error a thousand times as large, which
# in float32 looks like a wrong value; in float64 it never comes near one.
TOLERANCE = {"rtol": 1e-6, "atol": 1e-6}


class Pair:
    """A tensor on the device beside what CPU torch makes of the same calls."""

    def __init__(self, found: torch.Tensor, wanted: torch.Tensor) -> None:
        self.found = found
        self.wanted = wanted

    def check(self) -> None:
        torch.testing.assert_close(self.found.cpu(), self.wanted, **TOLERANCE)


class Worker:
    """One thread of random calls; what it publishes, the others read and never write."""

    def __init__(self, seed: int, published: list[Pair], counts: Counter[str]) -> None:
        self.random = random.Random(seed)
        self.published = published
        self.counts = counts
        drawn = torch.Generator().manual_seed(seed)
        value = torch.rand(SHAPE, generator=drawn, dtype=torch.float64)
        self.mine = [Pair(value.to("xla"), value.clone()) for _ in range(4)]

    def run(self, calls: int) -> None:
        for _ in range(calls):
            getattr(self, self.random.choices(*zip(*CALLS))[0])()
        for pair in self.mine:
            pair.check()

    def one(self) -> Pair:
        """One of its own, or one that another thread made."""
        pool = self.published if self.published and self.random.random() < 0.3 else self.mine
        return self.random.choice(pool)

    def put(self, pair: Pair) -> None:
        self.mine[self.random.randrange(len(self.mine))] = pair

    def compute(self) -> None:
        a, b = self.one(), self.one()
        call = self.random.choice([torch.add, torch.mul, torch.sub, torch.minimum])
        self.put(Pair(call(a.found, b.found).sin(), call(a.wanted, b.wanted).sin()))

    def reduce(self) -> None:
        a = self.one()
        self.put(Pair(a.found - a.found.mean(1, True), a.wanted - a.wanted.mean(1, True)))

    def write(self) -> None:
        a, b = self.own(), self.one()
        a.found.mul_(0.5).add_(b.found)
        a.wanted.mul_(0.5).add_(b.wanted)

    def write_view(self) -> None:
        a, b = self.own(), self.one()
        row = self.random.randrange(SHAPE[0])
        a.found[row].copy_(b.found[0])
        a.wanted[row].copy_(b.wanted[0])

    def own(self) -> Pair:
        """One that no other thread knows, with a memory of its own."""
        place = self.random.randrange(len(self.mine))
        a = self.mine[place]
        self.mine[place] = Pair(a.found.clone(), a.wanted.clone())
        return self.mine[place]

    def publish(self) -> None:
        a = self.one()
        self.published.append(Pair(a.found * 1, a.wanted * 1))
        del self.published[:-8]

    def read(self) -> None:
        self.one().check()

    def sync(self) -> None:
        torch_xla.sync()
        self.counts["sync"] += 1

    def cut_all(self) -> None:
        steps.run_pending("test")

    def collect(self) -> None:
        gc.collect()


# What a thread calls, and how often.
CALLS = [
    ("compute", 60), ("reduce", 10), ("write", 15), ("write_view", 6), ("publish", 6),
    ("read", 0.3), ("sync", 0.5), ("cut_all", 0.1), ("collect", 0.1),
]  # fmt: skip


@pytest.mark.parametrize(
    ("seed", "operations"),
    [(0, 300), *(pytest.param(n, 2000, marks=pytest.mark.long) for n in (0, 1, 2, 3))],
)
def test_four_threads_compute_what_the_cpu_computes(seed, operations):
    published: list[Pair] = []
    counts: Counter[str] = Counter()
    with ThreadPoolExecutor(4) as pool:
        workers = [Worker(4 * seed + i, published, counts) for i in range(4)]
        for done in [pool.submit(worker.run, operations) for worker in workers]:
            done.result()
    assert counts["sync"] > operations / 100


def test_a_thread_that_prepares_batches_does_not_cut_the_step_of_the_one_that_trains():
    made: list[torch.Tensor] = []
    before = len(cuts.LOG)

    def prefetch():
        for i in range(3):
            made.append((torch.full((2, 2), i, dtype=torch.uint8).to("xla").float() / 255).mul_(2))

    x = torch.ones(2, 2, device="xla") * 3
    thread = threading.Thread(target=prefetch)
    thread.start()
    thread.join()
    assert len(cuts.LOG) == before
    total = x + made[2]
    torch.testing.assert_close(total.cpu(), torch.full((2, 2), 3 + 4 / 255))
    torch.testing.assert_close(made[1].cpu(), torch.full((2, 2), 2 / 255))


def test_an_asynchronous_step_closure_reads_a_loss_while_the_next_step_is_recorded():
    read: list[float] = []
    total = torch.zeros((), device="xla")
    for step in range(30):
        total = total * 0.5 + step
        xm.add_step_closure(lambda loss: read.append(loss.item()), (total,), run_async=True)
        torch_xla.sync()
        for _ in range(20):
            total = total + 0.0
    deadline_s = time.monotonic() + 30
    while len(read) < 30 and time.monotonic() < deadline_s:
        time.sleep(0.01)
    wanted, values = 0.0, []
    for step in range(30):
        wanted = wanted * 0.5 + step
        values.append(wanted)
    assert read == pytest.approx(values)


def test_a_value_that_is_pending_in_another_thread_is_computed_without_running_that_threads_step():
    x = torch.ones(3, device="xla")
    torch_xla.sync()
    wanted, other = x * 2, x * 3
    trace = trace_of_thread(wanted.value.trace.device)
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(wanted.tolist).result() == [2, 2, 2]
    assert other.value.buffer is None
    assert other.value.epoch == trace.tape.epoch
    assert other.tolist() == [3, 3, 3]


def test_what_an_ended_thread_left_pending_can_still_be_read():
    made = []
    thread = threading.Thread(target=lambda: made.append(torch.ones(2, device="xla") + 1))
    thread.start()
    thread.join()
    gc.collect()
    assert (made[0] * 2).tolist() == [4, 4]
