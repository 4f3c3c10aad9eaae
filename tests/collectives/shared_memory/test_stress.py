"""Real processes under load: random collectives, sudden deaths, and what is left of them."""

import os
import random
import time
import uuid

import numpy as np
import pytest
from rank_pool import RankPool

from torch_xdist.collectives.messages.peers import address_of

OPS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "permute")


def random_calls(rank, size, seed, count):
    """Run `count` calls that all ranks draw alike; how many results differed from numpy's."""
    from torch_xdist.collectives.shared_memory import transport
    from torch_xdist.collectives.shared_memory.endpoint import Spec

    end, draw, own = transport.endpoint(), random.Random(seed), random.Random(f"{seed} {rank}")
    wrong = 0
    for call in range(count):
        op, kind = draw.choice(OPS), draw.choice((np.float32, np.int64, np.uint8))
        length = draw.choice((1, 5, 1000, 70_000, 400_000 if call % 10 == 0 else 20))
        groups = drawn_groups(draw, size)
        group = next((g for g in groups or [tuple(range(size))] if rank in g), None)
        sources = [draw.randrange(-1, size) for _ in range(size)]
        if op == "permute":
            groups, group = None, tuple(range(size))
        if group is None:
            continue
        xs = {r: values(seed, call, r, length * len(group), kind) for r in group}
        x, member = xs[rank].copy(), group.index(rank)
        rows = {r: xs[r].reshape(len(group), length) for r in group}
        total = sum(xs[r] for r in group[1:]) + xs[group[0]] if len(group) > 1 else xs[group[0]]
        if op == "all_reduce":
            out, expected = x, total
        elif op == "all_gather":
            out = np.empty((len(group), x.size), kind)
            expected = np.stack([xs[r] for r in group])
        elif op == "reduce_scatter":
            x, out = x.reshape(len(group), length), np.empty(length, kind)
            expected = total.reshape(len(group), length)[member]
        elif op == "all_to_all":
            x, out = x.reshape(len(group), length), np.empty((len(group), length), kind)
            expected = np.stack([rows[r][member] for r in group])
        else:
            out, source = np.empty_like(x), sources[rank]
            expected = np.zeros_like(x) if source < 0 else xs[source]
        if own.random() < 0.05:
            time.sleep(own.random() * 0.004)
        spec = Spec(op, op, "sum", groups, tuple(sources) if op == "permute" else ())
        end.run(spec, 0, [x], [out])
        wrong += not np.array_equal(out, expected)
    return wrong


def drawn_groups(draw, size):
    """None, or random groups; some ranks may be in none."""
    if draw.random() < 0.5:
        return None
    ranks = list(range(size))
    draw.shuffle(ranks)
    cut = draw.randrange(1, size)
    return tuple(
        tuple(part) for part in (ranks[:cut], ranks[cut : draw.randrange(cut, size + 1)]) if part
    )


def values(seed, call, rank, length, kind):
    # Small whole numbers, so that float sums are exact in any order.
    return np.random.default_rng((seed, call, rank)).integers(0, 50, length).astype(kind)


@pytest.mark.parametrize(
    ("size", "count"),
    [
        (2, 400),
        (4, 250),
        pytest.param(3, 4000, marks=pytest.mark.long),
        pytest.param(8, 2000, marks=pytest.mark.long),
    ],
)
def test_random_collectives_between_processes_are_numpys(pool, size, count):
    assert pool.run(size, random_calls, 7, count, timeout_s=280) == [0] * size


def dies_at_random(rank, size, seed, folder):
    """All ranks add in a loop; the one that is drawn is killed at a random moment."""
    import threading

    from rank_programs import summing

    from torch_xdist.collectives.errors import RankLostError

    draw = random.Random(seed)
    victim, after_s, length = draw.randrange(size), draw.random(), draw.choice((3, 300_000))
    reduce, x = summing(), np.ones(length, np.float32)
    reduce(x)
    if rank == victim:
        threading.Timer(after_s, os.kill, [os.getpid(), 9]).start()
    try:
        while True:
            total = reduce(x)
            assert (np.asarray(total) == size).all()
            last_s = time.monotonic()
    except RankLostError as error:
        return victim, str(error), time.monotonic() - last_s


@pytest.mark.parametrize(
    "seed", [1, 2, *[pytest.param(n, marks=pytest.mark.long) for n in range(3, 13)]]
)
def test_whenever_a_rank_dies_all_others_name_it_within_seconds(pool, seed, tmp_path):
    outcomes = pool.outcomes(4, dies_at_random, seed, tmp_path)
    ended = [place for place, outcome in enumerate(outcomes) if not outcome[0]]
    for place, (_, found) in enumerate(outcomes):
        if place in ended:
            assert found == "died with exit code -9"
            continue
        victim, told, waited_s = found
        assert [victim] == ended
        assert f"rank {victim} (pid" in told and "has ended" in told
        assert waited_s < 5


def counts_what_it_holds(rank, size, rounds):
    """(descriptors, maps, threads) after some rounds of everything, and after many more."""
    import threading

    from rank_programs import launched, summing

    from torch_xdist.collectives import inside
    from torch_xdist.collectives.messages import communicator

    sums = [summing(), summing(((0, 1), (2,))), summing(((0, 2), (1,)))]
    ring = launched(lambda x: inside.receive(inside.send(x, (rank + 1) % size), rank))

    def everything(number):
        for reduce in sums:
            reduce(np.ones(5, np.float32))
        reduce(np.ones(300_000, np.float32))
        ring(np.ones(5, np.float32))
        communicator.exchange(f"step {number}", b"x")
        communicator.current().send((rank + 1) % size, f"tag {number}", b"x" * 100_000)
        communicator.current().receive((rank - 1) % size, f"tag {number}")

    def held():
        # What the other ranks have just sent is open until this rank's threads have read it.
        communicator.exchange("counted", b"")
        return tuple(min(counts) for counts in zip(*(look() for _ in range(20)), strict=True))

    def look():
        time.sleep(0.01)
        with open("/proc/self/maps") as maps:
            return len(os.listdir("/proc/self/fd")), len(list(maps)), threading.active_count()

    # The runtime's own threads open what they need in the course of some rounds.
    for number in range(30):
        everything(number)
    before = held()
    for number in range(30, rounds):
        everything(number)
    after, here = held(), communicator.current()
    return before, after, (len(here._messages._messages), len(here._rendezvous._rounds))


def test_nothing_that_ranks_do_again_and_again_is_kept():
    with RankPool(3) as fresh:
        for before, after, kept in fresh.run(3, counts_what_it_holds, 90):
            assert kept == (0, 0)
            # A rank opens a pidfd for each of its two peers once it has waited long for it, and the
            # runtime may map a little more for itself. A leak would be some per round.
            assert after[0] - before[0] <= 2
            assert after[1] - before[1] <= 20
            assert after[2] - before[2] <= 2


def stays(rank, size, job, end):
    from torch_xdist.collectives.messages import communicator
    from torch_xdist.collectives.shared_memory import transport

    transport.join(rank, size, job, secret=b"secret")
    communicator.exchange("here")
    if end == "kill":
        os.kill(os.getpid(), 9)
    os._exit(0)


@pytest.mark.parametrize("end", ["kill", "exit"])
def test_no_socket_and_no_memory_is_left_of_ranks_that_ended(end):
    job = uuid.uuid4().hex
    names = {address_of(job, rank, b"secret")[1:] for rank in range(2)}
    with RankPool(2) as fresh:
        outcomes = fresh.outcomes(2, stays, job, end, join=False)
    assert [good for good, _ in outcomes] == [False, False]
    with open("/proc/net/unix") as sockets:
        left = [line for line in sockets if any(name in line for name in names)]
    assert left == []
    assert not [name for name in os.listdir("/dev/shm") if "xdist" in name]
