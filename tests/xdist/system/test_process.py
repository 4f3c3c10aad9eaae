"""A process held by its pidfd: its end is seen, and nothing else is taken for an end."""

import contextlib
import errno
import os
import resource
import signal
import socket
import subprocess
import sys
import time

import pytest

from torch_xdist.system import process, process_tree
from torch_xdist.system.errors import ProcessError
from torch_xdist.system.process import Child, Process

SLEEP = (sys.executable, "-S", "-c", "import time; time.sleep(600)")


@pytest.fixture
def child():
    """A child that sleeps, killed in the end."""
    started = Child.start(SLEEP)
    yield started
    started.kill()
    started.wait()
    started.close()


@pytest.fixture
def without_pidfds(monkeypatch):
    def refuse(pid, flags=0):
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    monkeypatch.setattr(os, "pidfd_open", refuse)


@contextlib.contextmanager
def no_descriptors_left():
    """This process may open no further file."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowest = os.dup(0)
    os.close(lowest)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_living_process_has_not_ended(child):
    with Process(child.pid) as held:
        assert not held.ended() and held.state() in {"S", "R", "D"}
        assert not held.wait(0.01)


def test_a_killed_process_has_ended_before_anybody_reaps_it(child):
    with Process(child.pid) as held:
        held.signal(signal.SIGKILL)
        assert held.wait(5) and held.ended()
        assert process.state(child.pid) == "Z"


def test_a_process_that_was_reaped_has_ended(child):
    child.kill()
    child.wait()
    held = Process(child.pid)
    assert held.ended() and held.wait(0) and held.state() == ""
    assert not held.signal(signal.SIGKILL) and not held.signal_group(signal.SIGKILL)


def test_a_reused_number_is_not_the_process(child):
    gone = Child.start(SLEEP)
    held = Process(gone.pid)
    gone.kill()
    gone.wait()
    held.pid = child.pid  # what the kernel would do with the number, sooner or later
    assert held.ended() and held.state() == ""
    assert not held.signal(signal.SIGKILL)
    assert not child.ended()


def test_a_reused_number_is_not_the_process_without_pidfds(child, without_pidfds):
    held = Process(child.pid)
    assert not held.ended()
    held._born = "1"
    assert held.ended() and not held.signal(signal.SIGKILL)
    assert not child.ended()


def test_the_end_is_seen_without_pidfds(child, without_pidfds):
    held = Process(child.pid)
    assert not held.ended() and not held.wait(0.02)
    with pytest.raises(ProcessError, match="this kernel has no pidfds"):
        held.fileno()
    assert held.signal(signal.SIGKILL)
    assert held.wait(5)


def test_no_free_descriptor_is_an_error_and_no_death(child):
    with no_descriptors_left(), pytest.raises(ProcessError, match="cannot be watched: Too many"):
        Process(child.pid)
    assert not child.ended()


def test_an_unreadable_proc_is_no_death(child, without_pidfds):
    held = Process(child.pid)
    with no_descriptors_left():
        assert not held.ended()
        with pytest.raises(ProcessError, match="stat cannot be read"):
            process.born(child.pid)


def test_what_was_known_outlives_the_descriptor(child):
    held = Process(child.pid)
    held.close()
    assert not held.ended()
    child.kill()
    child.wait()
    gone = Process(child.pid)
    gone.close()
    assert gone.ended()


def test_descriptors_are_given_back(child):
    before = len(os.listdir("/proc/self/fd"))
    with Process(child.pid):
        assert len(os.listdir("/proc/self/fd")) == before + 1
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize("old_kernel", [False, True])
def test_a_group_gets_a_signal_after_its_leader_has_ended(old_kernel, monkeypatch):
    words = ["sh", "-c", "sleep 600 & echo $!; exec sleep 600"]
    leader = Child.start(words, start_new_session=True, stdout=subprocess.PIPE)
    assert leader._popen is not None and leader._popen.stdout is not None
    with Process(int(leader._popen.stdout.readline())) as member:
        leader.kill()
        leader.wait()
        if old_kernel:
            real = signal.pidfd_send_signal

            def send(fd, number, info=None, flags=0):
                if flags:
                    raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
                real(fd, number)

            monkeypatch.setattr(signal, "pidfd_send_signal", send)
        assert not member.ended()
        assert leader.signal_group(signal.SIGKILL)
        assert member.wait(5)
    leader._popen.stdout.close()
    leader.close()


def test_a_process_without_a_group_gets_the_signal_itself(child):
    assert child.signal_group(signal.SIGKILL)
    assert child.wait(5) and child.code == -signal.SIGKILL


@pytest.mark.parametrize(("words", "code"), [("exit 7", 7), ("kill -9 $$", -9), ("exit 0", 0)])
@pytest.mark.parametrize("way", ["started", "forked", "without pidfds"])
def test_the_code_of_a_child(words, code, way, request):
    if way == "without pidfds":
        request.getfixturevalue("without_pidfds")
    if way == "started":
        child = Child.start(["sh", "-c", words])
    else:
        child = Child(os.posix_spawnp("sh", ["sh", "-c", words], os.environ))
    assert child.wait(10) and child.code == code == child.poll()
    child.close()


def test_a_child_that_somebody_else_has_reaped_has_ended_with_an_unknown_code():
    child = Child(os.posix_spawnp("true", ["true"], os.environ))
    os.waitpid(child.pid, 0)
    assert child.wait(5) and child.ended() and child.code is None
    child.close()


def test_a_child_that_cannot_be_watched_is_not_left_behind(monkeypatch):
    def refuse(pid, flags=0):
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    before = process_tree.children(os.getpid())
    monkeypatch.setattr(os, "pidfd_open", refuse)
    with pytest.raises(ProcessError, match="cannot be watched"):
        Child.start(SLEEP)
    assert process_tree.children(os.getpid()) == before


CALLER = """
import socket, sys
caller = socket.socket(socket.AF_UNIX)
caller.connect(sys.argv[1])
caller.recv(1)
"""


@pytest.mark.parametrize("old_kernel", [False, True])
def test_the_process_at_the_other_end_of_a_socket(tmp_path, old_kernel, monkeypatch):
    if old_kernel:
        monkeypatch.setattr(process, "_SO_PEERPIDFD", 9999)
    with socket.socket(socket.AF_UNIX) as door:
        door.bind(str(tmp_path / "door"))
        door.listen()
        caller = Child.start([sys.executable, "-S", "-c", CALLER, str(tmp_path / "door")])
        guest, _ = door.accept()
    with guest, Process.at_other_end(guest) as held:
        assert held.pid == caller.pid and not held.ended()
        assert process.credentials(guest) == (caller.pid, os.getuid(), os.getgid())
        caller.kill()
        assert held.wait(5)
        caller.wait()
        with Process.at_other_end(guest) as late:
            assert late.ended()
    caller.close()


def test_the_other_end_of_no_connection_is_unknown():
    with (
        socket.socket(socket.AF_UNIX) as alone,
        pytest.raises(ProcessError, match="whether it lives is unknown"),
    ):
        Process.at_other_end(alone)


def test_waiting_ends_when_the_process_does(child):
    begun_s = time.monotonic()
    os.kill(child.pid, signal.SIGKILL)
    assert child.wait(60)
    assert time.monotonic() - begun_s < 5


def test_a_handler_for_a_signal_is_known():
    words = (
        "import signal, time; signal.signal(signal.SIGUSR1, lambda *_: 0);"
        "signal.signal(signal.SIGRTMAX - 3, lambda *_: 0);"
        "signal.signal(signal.SIGUSR2, signal.SIG_IGN);"
        "print(flush=True); time.sleep(600)"
    )
    child = Child.start([sys.executable, "-c", words], stdout=subprocess.PIPE)
    assert child._popen is not None and child._popen.stdout is not None
    with child._popen.stdout as told:
        told.readline()
    caught = {n for n in signal.valid_signals() if child.catches(n)}
    assert {signal.SIGUSR1, signal.SIGRTMAX - 3} <= caught
    assert not caught & {signal.SIGUSR2, signal.SIGTERM, signal.SIGRTMAX}
    child.kill()
    child.wait()
    assert not child.catches(signal.SIGUSR1)
    child.close()
