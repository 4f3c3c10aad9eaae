"""How the faults of `chaos_plans.py` are made, on hosts of a pod."""

import contextlib
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from chaos_plans import SHORT_CUT_S, Fault
from pod import PodHost
from processes import kill

from torch_xdist.system import process_tree


def befall(run: Any, fault: Fault, undone: contextlib.ExitStack) -> None:
    """Make it happen to a `chaos_hosts.Round`; what is to be undone is when `undone` closes."""
    _HOW[fault.kind.name](run, fault, undone)


def inside(host: PodHost) -> list[str]:
    """What begins a command on a host."""
    (first,) = process_tree.children(host._process.pid)  # type: ignore[union-attr]
    return ["nsenter", "-t", str(first), "-m", "-u", "-i", "-n", "-p", "--"]


def _host(run: Any, fault: Fault) -> PodHost:
    return run.hosts[fault.host]


def _signal_rank(number: int) -> Callable[..., None]:
    def send(run: Any, fault: Fault, undone: object) -> None:
        pid = int((run.folder / f"up-0-{fault.rank}").read_text())
        kill(_outside(run, fault, pid), number)

    return send


def _outside(run: Any, fault: Fault, pid: int) -> int:
    """The number here of a process that has `pid` on its host."""
    root = run.hosts[fault.host]._process.pid
    for one in process_tree.descendants(root) | _of_nodes(run):
        with contextlib.suppress(OSError):
            text = Path(f"/proc/{one}/status").read_text()
            numbers = next(line for line in text.splitlines() if line.startswith("NSpid:")).split()
            env = Path(f"/proc/{one}/environ").read_bytes()
            if numbers[-1] == str(pid) and run.mark.encode() in env and _is_on(one, root):
                return one
    raise AssertionError(f"rank {fault.rank} has no process {pid}")


def _is_on(pid: int, root: int) -> bool:
    (first,) = process_tree.children(root)
    return os.readlink(f"/proc/{pid}/ns/pid") == os.readlink(f"/proc/{first}/ns/pid")


def _of_nodes(run: Any) -> set[int]:
    found: set[int] = set()
    for launcher in run.launchers:
        found |= process_tree.descendants(launcher.pid)
    return found


def _in_script(name: str) -> Callable[..., None]:
    return lambda run, fault, undone: (run.folder / f"{name}-{fault.rank}").write_text("x")


def _kill_agent(run: Any, fault: Fault, undone: object) -> None:
    """Over ssh the agent; of a node its launcher's agent, and node 0 has one as well."""
    root = run.hosts[fault.host]._process.pid
    found = [
        pid
        for pid in process_tree.descendants(root) | _of_nodes(run)
        if _is_agent(pid) and _is_on(pid, root)
    ]
    assert found, "no agent is found"
    kill(max(found))


def _is_agent(pid: int) -> bool:
    with contextlib.suppress(OSError):
        words = Path(f"/proc/{pid}/cmdline").read_bytes()
        name = Path(f"/proc/{pid}/comm").read_text().strip()
        return name.startswith("python") and b"on_host.agent" in words
    return False


def _kill_ssh(run: Any, fault: Fault, undone: object) -> None:
    address = _host(run, fault).name.encode()
    for pid in process_tree.children(run.head.pid):
        with contextlib.suppress(OSError):
            words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            if words[0].endswith(b"ssh") and address in words:
                kill(pid)


def _kill_sshd(run: Any, fault: Fault, undone: object) -> None:
    """Those of its connections, not the one that listens."""
    (first,) = process_tree.children(_host(run, fault)._process.pid)  # type: ignore[union-attr]
    for pid in process_tree.children(first):
        with contextlib.suppress(OSError):
            if Path(f"/proc/{pid}/comm").read_text().startswith("sshd"):
                kill(pid)


def _cut(run: Any, fault: Fault, undone: object) -> None:
    _host(run, fault).cut()


def _kill_host(run: Any, fault: Fault, undone: object) -> None:
    host = _host(run, fault)
    (first,) = process_tree.children(host._process.pid)  # type: ignore[union-attr]
    host.kill()
    # What was brought in from outside dies with the first process, too.
    del first


class Outside:
    """The head's own place, as a host that others may miss."""

    def __init__(self, address: str) -> None:
        self.address = address


def _others(run: Any, fault: Fault) -> list[Any]:
    """Whom a host of the job speaks to beside its ranks' peers: the head."""
    if run.plan.way == "ssh":
        return [Outside(run.pod.address)]
    return [run.hosts[0]] if fault.host else run.hosts[1:]


def _way_back(run: Any, fault: Fault, undone: object) -> None:
    for other in _others(run, fault):
        _host(run, fault).misses(other)


def _way_back_is(run: Any, fault: Fault) -> None:
    for other in _others(run, fault):
        _host(run, fault).finds(other)


def _for_a_while(begin: Callable[..., None], end: Callable[..., None]) -> Callable[..., None]:
    def befall(run: Any, fault: Fault, undone: contextlib.ExitStack) -> None:
        begin(run, fault, undone)
        timer = threading.Timer(SHORT_CUT_S, end, (run, fault))
        timer.start()
        undone.callback(timer.join)

    return befall


def _way_there(run: Any, fault: Fault, undone: object) -> None:
    """What others send to its ranks and to its node arrives nowhere."""
    for other in run.hosts:
        if other is not _host(run, fault):
            other.misses(_host(run, fault))


def _way_there_is(run: Any, fault: Fault) -> None:
    for other in run.hosts:
        if other is not _host(run, fault):
            other.finds(_host(run, fault))


def _slow(run: Any, fault: Fault, undone: contextlib.ExitStack) -> None:
    with _host(run, fault).slow(0.15, 0.01):
        time.sleep(SHORT_CUT_S)


def _fill(run: Any, fault: Fault, undone: contextlib.ExitStack) -> None:
    """Its /tmp, where the logs of its ranks go, takes no byte more."""
    host = _host(run, fault)
    room = "mount -o remount,size=$(($(df -k --output=used /tmp | tail -1) + 256))k /tmp"
    fill = "dd if=/dev/zero of=/tmp/fill bs=4k 2> /dev/null; true"
    subprocess.run([*inside(host), "sh", "-c", f"{room} && {fill}"], check=True, timeout=20)
    undone.callback(give_room, host)


def give_room(host: PodHost) -> None:
    """The end of "disk full"."""
    words = "rm -f /tmp/fill; mount -o remount,size=50% /tmp"
    subprocess.run([*inside(host), "sh", "-c", words], check=True, timeout=20)


def _signal_head(number: int) -> Callable[..., None]:
    return lambda run, fault, undone: kill(run.head_pid(), number)


def _go_on(run: Any, fault: Fault) -> None:
    kill(run.head_pid(), signal.SIGCONT)
    # What leads to its host stops with it.
    kill(run.head.pid, signal.SIGCONT)


_HOW: dict[str, Callable[..., None]] = {
    "rank killed": _signal_rank(signal.SIGKILL),
    "rank stopped": _signal_rank(signal.SIGSTOP),
    "exception": _in_script("raise"),
    "os._exit": _in_script("exit"),
    "agent killed": _kill_agent,
    "ssh killed": _kill_ssh,
    "sshd killed": _kill_sshd,
    "link cut": _cut,
    "link cut for a while": _for_a_while(_cut, lambda run, fault: _host(run, fault).mend()),
    "way back cut": _way_back,
    "way back cut for a while": _for_a_while(_way_back, _way_back_is),
    "way there cut for a while": _for_a_while(_way_there, _way_there_is),
    "host killed": _kill_host,
    "link slow": _slow,
    "disk full": _fill,
    "head killed": _signal_head(signal.SIGKILL),
    "head stopped for a while": _for_a_while(_signal_head(signal.SIGSTOP), _go_on),
    "SIGTERM": _signal_head(signal.SIGTERM),
    "SIGINT": _signal_head(signal.SIGINT),
}
