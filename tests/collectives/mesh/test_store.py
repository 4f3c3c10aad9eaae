"""Messages through the coordination service: sealed, matched, and gone once they are read."""

import threading
import time

import pytest
from pretend_store import PretendClient

from torch_xdist.collectives.errors import CollectiveError, RankLostError, StrangerError
from torch_xdist.collectives.mesh import key_value_store, store
from torch_xdist.collectives.mesh.key_value_store import KeyValueStore
from torch_xdist.collectives.mesh.store import StoreCommunicator


@pytest.fixture
def client():
    return PretendClient()


def ranks(client, count, secret=b"secret", **options):
    return [
        StoreCommunicator(rank, count, KeyValueStore(client, secret), **options)
        for rank in range(count)
    ]


def at_once(*calls):
    """What each call returned, each on a thread of its own."""
    found = [None] * len(calls)

    def run(place, call):
        try:
            found[place] = call()
        except Exception as error:
            found[place] = error

    threads = [threading.Thread(target=run, args=pair) for pair in enumerate(calls)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive()
    return found


@pytest.mark.parametrize("secret", [b"", b"secret"])
def test_many_rendezvous_with_tags_of_their_own_leave_nothing_behind(client, secret):
    three = ranks(client, 3, secret)

    def steps(rank):
        return [three[rank].exchange(f"step {n}/a", b"%d" % rank, (0, 1, 2)) for n in range(20)]

    found = at_once(*[lambda rank=rank: steps(rank) for rank in range(3)])
    assert found == [[[b"0", b"1", b"2"]] * 20] * 3
    assert client.values == {}
    for one in three:
        assert not (one._sent or one._read)


def test_the_same_tag_again_belongs_to_the_next_call(client):
    two = ranks(client, 2)

    def turns(rank, pause_s):
        found = []
        for turn in range(30):
            found.append(two[rank].exchange("loss", b"%d %d" % (rank, turn), (0, 1)))
            time.sleep(pause_s)
        return found

    expected = [[b"0 %d" % turn, b"1 %d" % turn] for turn in range(30)]
    assert at_once(lambda: turns(0, 0.0), lambda: turns(1, 0.003)) == [expected] * 2
    assert client.values == {}


def test_messages_of_one_source_are_taken_by_tag_in_the_order_they_were_sent(client):
    first, second = ranks(client, 2)
    for number, tag in enumerate(["a", "b", "a", "b"]):
        first.send(1, tag, b"%d" % number)
    assert second.receive(0, "b") == (0, b"1")
    assert second.receive(0, "a") == (0, b"0")
    assert at_once(lambda: second.receive(0, "b"), lambda: second.receive(0, "a")) == [
        (0, b"3"),
        (0, b"2"),
    ]
    assert client.values == {}


def test_two_threads_may_receive_from_one_rank_before_anything_is_sent(client):
    first, second = ranks(client, 2)
    sent = threading.Timer(0.2, lambda: [first.send(1, tag, tag.encode()) for tag in "yx"])
    sent.start()
    found = at_once(lambda: second.receive(0, "x"), lambda: second.receive(0, "y"))
    assert found == [(0, b"x"), (0, b"y")]


def test_messages_of_a_channel_keep_their_order(client):
    first, second = ranks(client, 2)
    for number in range(3):
        first.send_to_any("channel 1", b"%d" % number)
    assert [second.receive_from_any("channel 1") for _ in range(3)] == [
        (0, b"%d" % number) for number in range(3)
    ]
    assert client.values == {}


def test_what_another_one_has_written_is_refused_before_it_is_read(client):
    first, _ = ranks(client, 2, timeout_s=2)
    client.values["xdist/rendezvous/t/0-1/1"] = b"cos\nsystem\n(S'id'\ntR."
    with pytest.raises(
        StrangerError, match=r"xdist/rendezvous/t/0-1/1: .* without the seal of this"
    ):
        first.exchange("t", b"", (0, 1))


def test_what_was_sealed_for_one_place_is_refused_at_another(client):
    first, second = ranks(client, 2)
    second.send(0, "a", b"payload")
    sealed = client.values.pop("xdist/message/1-0/0")
    client.values["xdist/channel/c/0"] = sealed
    with pytest.raises(StrangerError, match="without the seal of this job"):
        first.receive_from_any("c")


def test_a_value_without_measure_is_refused_before_it_is_read(client, monkeypatch):
    monkeypatch.setattr(key_value_store, "_MOST_BYTES", 100)
    client.values["xdist/channel/c/0"] = bytes(101)
    with pytest.raises(StrangerError, match="xdist/channel/c/0: 101 bytes, which no rank"):
        ranks(client, 2)[0].receive_from_any("c")


def test_ranks_without_a_secret_know_that_nothing_is_authenticated(client):
    assert [one.is_authenticated for one in ranks(client, 2, b"")] == [False, False]
    assert [one.is_authenticated for one in ranks(client, 2)] == [True, True]


def test_a_rank_that_ended_is_named_and_what_it_left_is_read(client):
    first, second = ranks(client, 2, has_ended=lambda rank: rank == 1)
    second.send(0, "a", b"last words")
    assert first.receive(1, "a") == (1, b"last words")
    start_s = time.monotonic()
    with pytest.raises(RankLostError, match="recv on 'a': rank 1 has ended, while rank 0 waited"):
        first.receive(1, "a")
    with pytest.raises(RankLostError, match="rendezvous 'x': rank 1 has ended, while rank 0 waite"):
        first.exchange("x", b"", (0, 1))
    assert time.monotonic() - start_s < 5


def test_a_silent_rank_and_an_unnamed_source_are_errors(client):
    first, _ = ranks(client, 2, timeout_s=0.1)
    with pytest.raises(
        CollectiveError, match="rendezvous 'x': rank 1 did not answer rank 0 within"
    ):
        first.exchange("x", b"", (1, 0))
    with pytest.raises(
        CollectiveError, match="rendezvous 'x': a rank that came here before did no"
    ):
        first.exchange("x", b"", (1, 0))
    with pytest.raises(CollectiveError, match="recv on 's': between hosts the source must be"):
        first.receive(None, "s")
    with pytest.raises(CollectiveError, match="recv on 's': whoever sends there did not answer"):
        first.receive_from_any("s")


def test_two_senders_on_one_channel_are_an_error(client):
    first, second, third = ranks(client, 3)
    first.send_to_any("s", b"")
    second.send_to_any("s", b"")
    with pytest.raises(CollectiveError, match="recv on 's': ranks 0 and 1 have sent there; only o"):
        third.receive_from_any("s")


def test_a_channel_of_its_own_for_each_message_leaves_nothing_behind(client):
    first, second = ranks(client, 2)

    def held():
        return [len(found) for found in vars(second).values() if hasattr(found, "__len__")]

    before = held()
    for number in range(12):
        first.send_to_any(f"channel {number}", b"%d" % number)
    # Also where the name of one channel is the beginning of another's.
    found = [second.receive_from_any(f"channel {number}")[1] for number in range(12)]
    assert found == [b"%d" % number for number in range(12)]
    assert held() == before and client.values == {}


def test_nobody_left_to_send_on_a_channel_is_an_error_after_the_last_message(client):
    first, second = ranks(client, 2, has_ended=lambda rank: True)
    first.send_to_any("s", b"x")
    assert second.receive_from_any("s") == (0, b"x")
    with pytest.raises(RankLostError, match="recv on 's': all other ranks have ended, and rank 1"):
        second.receive_from_any("s")


def test_a_service_that_is_away_for_a_moment_is_asked_again(client):
    first, second = ranks(client, 2)
    client.failures += ["UNAVAILABLE: failed to connect"] * 2
    first.send(1, "a", b"x")
    client.failures += ["UNAVAILABLE: failed to connect"] * 2
    assert second.receive(0, "a") == (0, b"x")


def test_a_value_whose_answer_was_lost_is_not_another_ones(client):
    put = client.key_value_set_bytes

    def lost(key, value, replace):
        put(key, value, replace)
        client.key_value_set_bytes = put
        raise RuntimeError("UNAVAILABLE: Socket closed")

    client.key_value_set_bytes = lost
    ranks(client, 2)[0].send_to_any("s", b"")


def test_a_service_that_stays_away_is_an_error_that_says_who_serves(client, monkeypatch):
    monkeypatch.setattr(key_value_store, "_PATIENCE_S", 0.1)
    client.failures += ["UNAVAILABLE: failed to connect"] * 1000
    with pytest.raises(CollectiveError, match="the coordination service does not answer for 0 s"):
        ranks(client, 2)[0].send(1, "a", b"x")
    with pytest.raises(CollectiveError, match="xdist/n: the coordination service did not answer"):
        KeyValueStore(client).count("xdist/n")


def test_another_failure_of_the_service_is_raised_as_it_is(client):
    client.failures += ["INTERNAL: what?"]
    with pytest.raises(RuntimeError, match="INTERNAL: what"):
        ranks(client, 2)[0].send(1, "a", b"x")
    assert client.values == {}


def test_a_process_without_a_mesh_has_no_store():
    with pytest.raises(CollectiveError, match="send: this process has not joined the mesh tran"):
        store.current()
