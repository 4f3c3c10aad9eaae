"""Small messages between ranks: rendezvous, message queues, agreement."""

import subprocess
import sys
import threading
import uuid

import pytest

from torch_xdist.collectives.errors import RankLostError
from torch_xdist.collectives.messages import communicator
from torch_xdist.collectives.messages.message_queue import MessageQueue


def talk(rank, size):
    from torch_xdist.collectives.errors import MismatchError
    from torch_xdist.collectives.messages import communicator

    found = [communicator.exchange("a", b"x" * rank), communicator.all_gather("n", rank * 10)]
    found.append(communicator.exchange("some", str(rank).encode(), (2, 0)) if rank != 1 else None)
    communicator.agree("version", "1")
    try:
        communicator.agree("version", str(min(rank, 1)))
    except MismatchError as error:
        found.append(str(error))
    communicator.current().send((rank + 1) % size, "ring", bytes([rank]))
    found.append(communicator.current().receive((rank - 1) % size, "ring"))
    return found


def test_processes_exchange_agree_and_send(pool):
    told = "version: the ranks differ: rank 0: 0; ranks 1 and 2: 1; make them equal"
    for rank, found in enumerate(pool.run(3, talk)):
        before = (rank - 1) % 3
        assert found == [
            [b"", b"x", b"xx"],
            [0, 10, 20],
            None if rank == 1 else [b"2", b"0"],
            told,
            (before, bytes([before])),
        ]


def two_threads(rank, size):

    from torch_xdist.collectives.messages import communicator

    found = {}

    def work(tag):
        found[tag] = [communicator.all_gather(tag, rank + turn) for turn in range(5)]

    # Each rank starts its threads in another order.
    tags = ["x", "y"] if rank else ["y", "x"]
    threads = [threading.Thread(target=work, args=(tag,)) for tag in tags]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


def test_tags_keep_the_threads_of_a_rank_apart(pool):
    expected = [[turn, 1 + turn] for turn in range(5)]
    assert pool.run(2, two_threads) == [{"x": expected, "y": expected}] * 2


def test_a_world_of_one_talks_to_itself():
    communicator.use(None)
    assert communicator.exchange("tag", b"alone") == [b"alone"]
    assert communicator.all_gather("tag", 7) == [7]
    communicator.agree("tag", "value")
    communicator.current().send(0, "self", b"note")
    assert communicator.current().receive(0, "self") == (0, b"note")


def test_messages_are_taken_by_source_in_order():
    box = MessageQueue()
    for source, text in [(1, b"a"), (2, b"b"), (1, b"c")]:
        box.put(source, "s", text)
    assert box.take(2, "s", lambda rank: False) == (2, b"b")
    assert box.take(None, "s", lambda rank: False) == (1, b"a")
    assert box.take(1, "s", lambda rank: False) == (1, b"c")


def writes_to_the_dead(rank, size):
    import os
    import time

    from torch_xdist.collectives.errors import RankLostError
    from torch_xdist.collectives.messages import communicator
    from torch_xdist.collectives.shared_memory import transport as shared_memory

    communicator.exchange("here")
    if rank == 1:
        os._exit(0)
    while not shared_memory.endpoint().has_ended(1):
        time.sleep(0.01)
    try:
        communicator.current().send(1, "note", b"too late")
    except RankLostError as error:
        return str(error)
    return None


def test_a_message_to_a_rank_that_ended_is_an_error(pool):
    first, _ = pool.outcomes(2, writes_to_the_dead)
    assert "rank 1 has ended, while rank 0 waited for it in send on 'note'" in first[1]


def test_a_message_from_a_rank_that_ended_is_not_waited_for():
    with pytest.raises(RankLostError, match="recv: rank 1 has ended and sent nothing more on 's'"):
        MessageQueue().take(1, "s", lambda rank: True)


ENDS_AT_ONCE = """
import sys
from torch_xdist.collectives.messages import communicator
from torch_xdist.collectives.shared_memory import transport

rank, job = int(sys.argv[1]), sys.argv[2]
transport.join(rank, 3, job, secret=b"secret")
for turn in range(20):
    communicator.exchange(f"step {turn}")
found = communicator.exchange("results", bytes([rank]) * 3_000_000)
print([(one[0], len(one)) for one in found])
"""


def test_the_keeper_of_a_rendezvous_may_end_at_once_and_all_get_what_was_brought():
    job = uuid.uuid4().hex
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", ENDS_AT_ONCE, str(rank), job],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(3)
    ]
    expected = "[(0, 3000000), (1, 3000000), (2, 3000000)]\n"
    for rank in ranks:
        assert rank.communicate(timeout=60) == (expected, "")
        assert rank.returncode == 0
