"""The server of a rank: what it answers, to whom, and that nothing ends it."""

import contextlib
import os
import resource
import socket
import struct
import threading
import time
import uuid

import pytest

from torch_xdist.collectives.errors import JoinError, NoAnswerError, RankLostError, StrangerError
from torch_xdist.collectives.messages import peers as peers_module
from torch_xdist.collectives.messages import server as server_module
from torch_xdist.collectives.messages.handshake import authenticate
from torch_xdist.collectives.messages.peers import Peers, address_of
from torch_xdist.collectives.messages.server import Server
from torch_xdist.system.frames import Link

SECRET = b"s" * 16


@pytest.fixture
def job():
    return uuid.uuid4().hex


def served(job, handlers, rank=0, **options):
    return Server(address_of(job, rank, SECRET), SECRET, handlers, **options)


def asking(job, secret=SECRET):
    """The peers of a rank 1 for which rank 0 has started."""
    peers = Peers(job, 1, secret)
    peers.has_started = lambda rank: rank == 0
    return peers


def raw(job):
    """A socket connected to the server of rank 0."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    sock.connect(address_of(job, 0, SECRET))
    sock.settimeout(20)
    return sock


def is_closed(sock):
    """Whether the server closes the connection; what it says before is let go."""
    with contextlib.suppress(ConnectionResetError):
        while sock.recv(1000):
            pass
    return True


def echo(request):
    request.answer({"said": request.message["say"]}, request.payload)


def test_a_request_is_answered(job):
    served(job, {"echo": echo})
    answer = asking(job).ask(0, "a test", {"kind": "echo", "say": "hello"}, b"payload")
    assert answer.message == {"said": "hello"} and answer.blob == b"payload"


@pytest.mark.parametrize("size", [10, 5_000_000])
def test_an_answer_may_come_later_from_another_thread(job, size):
    def later(request):
        request.wait()
        threading.Timer(0.3, lambda: request.answer(None, bytes(size))).start()

    served(job, {"later": later})
    assert asking(job).ask(0, "a test", {"kind": "later"}).blob == bytes(size)


def test_a_rank_whose_answer_finds_no_thread_is_not_left_waiting(job, monkeypatch, capfd):
    def refuse(thread):
        raise RuntimeError("can't start new thread")

    def large(request):
        request.wait()
        with monkeypatch.context() as patched:
            patched.setattr(threading.Thread, "start", refuse)
            request.answer(None, bytes(5_000_000))

    served(job, {"large": large, "echo": echo})
    began_s = time.monotonic()
    with pytest.raises(NoAnswerError, match="rank 0 lives and does not answer rank 1"):
        asking(job).ask(0, "a test", {"kind": "large"})
    assert time.monotonic() - began_s < 20
    assert "could not answer a request: RuntimeError" in capfd.readouterr().err
    answer = asking(job).ask(0, "a test", {"kind": "echo", "say": "hello"})
    assert answer.message == {"said": "hello"}


def test_a_descriptor_travels_both_ways_and_is_closed_on_exec(job):
    def back(request):
        request.answer(descriptors=request.descriptors)
        for descriptor in request.descriptors:
            os.close(descriptor)

    served(job, {"back": back})
    mine = os.memfd_create("test")
    os.write(mine, b"inside")
    answer = asking(job).ask(0, "a test", {"kind": "back"}, descriptors=(mine,))
    [theirs] = answer.descriptors
    assert os.pread(theirs, 6, 0) == b"inside" and not os.get_inheritable(theirs)
    os.close(mine)
    os.close(theirs)


def test_the_end_of_a_connection_is_told_also_over_tcp(job):
    listener, ended = socket.create_server(("127.0.0.1", 0)), threading.Event()
    handlers = {"here": lambda request: request.at_end(ended.set)}
    Server("a name", SECRET, handlers, listener=listener)
    with socket.create_connection(listener.getsockname(), 20) as sock:
        authenticate(sock, "a name", SECRET)
        assert Link(sock).send({"kind": "here"})
        assert not ended.wait(0.5)
    assert ended.wait(20)


def test_a_process_with_another_secret_is_refused_on_both_sides(job, monkeypatch):
    asked = []
    Server(address_of(job, 0, SECRET), b"another one", {"echo": asked.append})
    with pytest.raises(
        StrangerError, match="a process of another job, or one with another XLA_RUN_S"
    ):
        asking(job).ask(0, "a test", {"kind": "echo", "say": "x"})
    # One that does not look at the server's proof.
    with raw(job) as sock:
        sock.sendall(bytes(16))
        assert len(sock.recv(100)) == 48
        sock.sendall(bytes(32))
        Link(sock).send({"kind": "echo", "say": "x"})
        assert is_closed(sock)
    assert asked == []


def test_an_address_cannot_be_known_without_the_secret(job):
    assert address_of(job, 0, SECRET) != address_of(job, 0, b"")
    assert len(address_of(job, 123456, SECRET)) < 107


def test_nothing_of_a_stranger_is_read_and_the_server_goes_on(job, capfd):
    asked = []
    served(job, {"echo": echo, "spy": asked.append})
    for data in (b"", b"G", b"GET / HTTP/1.1\r\n\r\n" * 10, bytes(48), os.urandom(5000)):
        with raw(job) as sock:
            sock.sendall(data)
            sock.shutdown(socket.SHUT_WR)
            assert is_closed(sock)
    assert asking(job).ask(0, "a test", {"kind": "echo", "say": "still there"}).message
    assert asked == []
    assert capfd.readouterr().err == ""  # a stranger must not fill the log


def test_one_that_connects_and_says_nothing_is_sent_away(job, monkeypatch):
    monkeypatch.setattr(server_module, "_HANDSHAKE_S", 0.2)
    served(job, {})
    with raw(job) as sock:
        assert is_closed(sock)


@pytest.mark.parametrize(
    "frame",
    [
        struct.pack("!IHH", 2**31, 0, 0),  # 2 GiB of JSON
        struct.pack("!IHHQ", 2, 1, 0, 2**63) + b"{}",  # a byte string of 8 EiB
        struct.pack("!IHH", 2, 0, 0) + b"[]",  # no object
        struct.pack("!IHH", 2, 0, 0) + b"{}",  # no kind
        struct.pack("!IHH", 15, 0, 0) + b'{"kind": "what"}'[:15],  # no JSON
        struct.pack("!IHH", 2, 0, 3) + b"{}",  # descriptors that are not there
    ],
)
def test_a_frame_that_is_none_ends_its_connection_alone(job, frame, capfd):
    served(job, {"echo": echo})
    with raw(job) as sock:
        authenticate(sock, address_of(job, 0, SECRET), SECRET)
        sock.sendall(frame)
        assert is_closed(sock)
    assert "could not answer a request: " in capfd.readouterr().err
    assert asking(job).ask(0, "a test", {"kind": "echo", "say": "x"}).message == {"said": "x"}


def test_an_error_of_a_handler_or_of_the_tick_does_not_end_the_server(job, capfd):
    def fails(request):
        raise MemoryError("no room")

    def tick():
        raise RuntimeError("bad tick")

    served(job, {"echo": echo, "fails": fails}, tick=tick)
    ours = asking(job)
    with pytest.raises(NoAnswerError, match="a test: rank 0 lives and does not answer rank 1"):
        peers_module_ask(ours, {"kind": "fails"})
    time.sleep(0.6)
    assert ours.ask(0, "a test", {"kind": "echo", "say": "x"}).message == {"said": "x"}
    told = capfd.readouterr().err
    assert "could not answer a request: MemoryError('no room')" in told
    assert told.count("bad tick") == 1


def peers_module_ask(ours, question):
    before, peers_module._ANSWER_S = peers_module._ANSWER_S, 1.0
    try:
        return ours.ask(0, "a test", question)
    finally:
        peers_module._ANSWER_S = before


def without_descriptors(rank, size, job, seconds, folder):
    """Rank 0 serves, and has no descriptor left for a while; what rank 1 hears then, and after."""
    from torch_xdist.collectives.messages import peers as peers_module
    from torch_xdist.collectives.messages.peers import Peers, address_of
    from torch_xdist.collectives.messages.server import Server

    if rank == 0:
        Server(address_of(job, 0, b""), b"", {"hello": lambda request: request.answer({"a": 1})})
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        lowest = os.dup(0)
        os.close(lowest)
        resource.setrlimit(resource.RLIMIT_NOFILE, (lowest, hard))
        os.mkdir(folder / "full")  # takes no descriptor
        time.sleep(seconds)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        time.sleep(2.5)
        return None
    peers_module._ANSWER_S = 1.0
    ours, found = Peers(job, 1, b""), []
    while not (folder / "full").exists():
        time.sleep(0.01)
    for _ in range(100):
        try:
            found.append(ours.ask(0, "a test", {"kind": "hello"}).message)
            break
        except NoAnswerError as error:
            found.append(str(error))
    ours.has_started = lambda rank: True
    return found, ours.has_ended(0)


@pytest.mark.parametrize("seconds", [0.5, 4.5])
def test_a_server_without_descriptors_answers_once_it_has_some(seconds, job, tmp_path):
    from rank_pool import RankPool

    with RankPool(2) as fresh:
        _, (found, has_ended) = fresh.run(
            2, without_descriptors, job, seconds, tmp_path, join=False
        )
    assert not has_ended
    assert found[-1] == {"a": 1}
    if seconds > 4:
        assert "a test: rank 0 lives and does not answer rank 1; it is stopped, or" in found[0]


def test_a_rank_is_waited_for_until_it_starts(job, capfd, monkeypatch):
    monkeypatch.setattr(peers_module, "_NOTICE_S", 0.1)
    ours = Peers(job, 1, SECRET)
    timer = threading.Timer(0.5, served, [job, {"echo": echo}])
    timer.start()
    assert ours.ask(0, "a test", {"kind": "echo", "say": "x"}).message == {"said": "x"}
    assert "torch-xdist: waiting for rank 0 to start" in capfd.readouterr().err
    timer.join()


def test_a_rank_that_does_not_start_is_named(job):
    with pytest.raises(JoinError, match=r"rank 0 did not come within 0 s, while rank 1 waited for"):
        Peers(job, 1, SECRET).ask(0, "a test", {"kind": "echo"}, start_s=0.1)


def test_a_rank_that_has_started_and_does_not_listen_has_ended(job):
    ours = asking(job)
    assert ours.has_ended(0)
    with pytest.raises(RankLostError, match="rank 0 has ended, while rank 1 waited for it in a te"):
        ours.ask(0, "a test", {"kind": "echo"})


def test_a_rank_that_has_not_started_has_not_ended(job):
    assert not Peers(job, 1, SECRET).has_ended(0)


def test_no_descriptor_left_is_no_death(job, capfd):
    """Neither where a rank cannot be looked at, nor where it cannot be asked."""
    served(job, {})
    ours = asking(job)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
    try:
        assert not ours.has_ended(0)
        with pytest.raises(Exception, match="a test: rank 1 cannot reach rank 0") as caught:
            ours.ask(0, "a test", {})
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert not isinstance(caught.value, RankLostError)
    assert "rank 1 would not notice the end of rank 0" in capfd.readouterr().err
    assert not ours.has_ended(0)
    ours.close()


def is_watched(rank, size, job):
    """Rank 0 starts a server and is killed; whether rank 1 sees both, and how many descriptors that
    takes."""
    from torch_xdist.collectives.messages.peers import Peers, address_of
    from torch_xdist.collectives.messages.server import Server

    if rank == 0:
        Server(address_of(job, 0, b""), b"", {"pid": lambda request: request.answer({"pid": 1})})
        time.sleep(1.0)
        os.kill(os.getpid(), 9)
    ours = Peers(job, 1, b"")
    assert ours.ask(0, "a test", {"kind": "pid"}).message
    ours.has_started = lambda rank: True
    before = len(os.listdir("/proc/self/fd"))
    seen = [ours.has_ended(0) for _ in range(20)]
    during = len(os.listdir("/proc/self/fd"))
    deadline = time.monotonic() + 10
    while not ours.has_ended(0) and time.monotonic() < deadline:
        time.sleep(0.01)
    return any(seen), ours.has_ended(0), during - before, len(os.listdir("/proc/self/fd")) - before


def test_a_process_is_watched_with_one_descriptor_until_it_ends(job):
    from rank_pool import RankPool

    with RankPool(2) as fresh:
        _, (good, found) = fresh.outcomes(2, is_watched, job, join=False)
    assert good, found
    assert found == (False, True, 1, 0)


def forks(rank, size, job):
    """Rank 0 is killed while a process that it forked lives on."""
    from torch_xdist.collectives.messages.peers import Peers, address_of
    from torch_xdist.collectives.messages.server import Server

    if rank == 0:
        Server(address_of(job, 0, b""), b"", {"pid": lambda request: request.answer({"pid": 1})})
        child = os.fork()
        if child == 0:
            time.sleep(5)
            os._exit(0)
        time.sleep(1.0)
        os.kill(os.getpid(), 9)
    ours = Peers(job, 1, b"")
    assert ours.ask(0, "a test", {"kind": "pid"}).message
    ours.has_started = lambda rank: True
    deadline = time.monotonic() + 4
    while not ours.has_ended(0) and time.monotonic() < deadline:
        time.sleep(0.01)
    first = ours.has_ended(0)
    # Who looks only now finds nobody listening.
    late = Peers(job, 1, b"")
    late.has_started = lambda rank: True
    return first, late.has_ended(0)


@pytest.mark.filterwarnings("ignore:.*fork")
def test_a_forked_child_does_not_keep_a_rank_alive(job):
    from rank_pool import RankPool

    with RankPool(2) as fresh:
        _, (good, found) = fresh.outcomes(2, forks, job, join=False)
    assert good, found
    assert found == (True, True)
