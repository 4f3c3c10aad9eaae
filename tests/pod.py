"""Hosts for tests: network namespaces on a bridge, each with its own address, host name, /tmp,
/dev/shm and processes, and a real OpenSSH server.

The head of a job runs outside, at the bridge's own address, and reaches them by names that only its
ssh configuration knows. A host is killed by killing its first process, a link is cut by taking its
end at the bridge down. All is gone when the pod is closed.
"""

import contextlib
import itertools
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType

import pytest
from slow_link import SlowLink

ROOT = Path(__file__).resolve().parents[1]
PATH = os.environ["PATH"] + ":/usr/sbin:/sbin"
NEEDED = ("ip", "unshare", "setpriv", "sshd", "ssh", "ssh-keygen")

# A link address that nobody has.
_NOWHERE = ("lladdr", "02:00:00:00:fe:ff", "nud", "permanent", "dev", "eth0")
# Home is the host's own /tmp: what the user's shell does at a login (such as taking a lock that a
# killed host would leave behind) is none of a test's business.
_SSHD = """
ListenAddress {address}
HostKey {folder}/host_key
AuthorizedKeysFile {folder}/key.pub
StrictModes no
UsePAM no
PasswordAuthentication no
PermitRootLogin prohibit-password
PidFile none
MaxStartups 100
SetEnv HOME=/tmp
"""
_SSH = """
Host {name}
  HostName {address}
  IdentityFile {folder}/key
  IdentitiesOnly yes
  UserKnownHostsFile {folder}/known_hosts
  ControlPath none
"""
# The folders that stay visible are bound away and back around a fresh /tmp.
_BOOT = """
set -e
hostname {name}
mount --make-rprivate /
i=0; for kept in {kept}; do i=$((i+1)); mkdir -p /run/kept/$i; done
mount -t tmpfs tmpfs /run
i=0; for kept in {kept}; do i=$((i+1)); mkdir -p /run/kept/$i; mount --bind $kept /run/kept/$i; done
mount -t tmpfs tmpfs /tmp; chmod 1777 /tmp
mount -t tmpfs tmpfs /dev/shm
i=0; for kept in {kept}; do i=$((i+1)); mkdir -p $kept; mount --bind /run/kept/$i $kept; done
mkdir -p /run/sshd
exec {sshd} -D -e -f {folder}/sshd_{name}
"""


def missing() -> str:
    """Why no pod can be made here; "" where one can."""
    absent = [name for name in NEEDED if not shutil.which(name, path=PATH)]
    if absent:
        return f"not installed: {', '.join(absent)}"
    probe = f"xp{os.getpid()}"
    for words in (
        ["ip", "netns", "add", probe],
        ["ip", "link", "add", probe, "type", "bridge"],
        ["unshare", "--mount", "--uts", "--pid", "--fork", "mount", "-t", "tmpfs", "x", "/tmp"],
    ):
        done = _run(words)
        if done.returncode != 0:
            _run(["ip", "netns", "del", probe])
            return f"namespaces cannot be made here: {done.stderr.strip()}"
    _run(["ip", "link", "del", probe])
    _run(["ip", "netns", "del", probe])
    return ""


_numbers = itertools.count()


class PodHost:
    """One host."""

    def __init__(self, name: str, address: str, space: str, folder: Path, shared: Path) -> None:
        self.name, self.address, self._space = name, address, space
        self._folder, self._shared = folder, shared
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Boot it; it answers then."""
        kept = [str(self._shared), *([str(ROOT)] if ROOT.is_relative_to("/tmp") else [])]
        script = _BOOT.format(
            name=self.name,
            folder=self._folder,
            kept=" ".join(kept),
            sshd=shutil.which("sshd", path=PATH),
        )
        # It ends with the tests also where these are killed.
        words = ["ip", "netns", "exec", self._space, "setpriv", "--pdeathsig", "KILL"]
        words += ["unshare", "--mount", "--uts", "--pid"]
        words += ["--ipc", "--fork", "--kill-child", "--mount-proc", "sh", "-c", script]
        with open(self._folder / f"sshd_{self.name}.log", "ab") as log:
            self._process = subprocess.Popen(
                words,
                env={"PATH": PATH},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self._await_sshd()

    def _await_sshd(self, limit_s: float = 20.0) -> None:
        end_s = time.monotonic() + limit_s
        while True:
            with contextlib.suppress(OSError):
                socket.create_connection((self.address, 22), 0.5).close()
                return
            log = (self._folder / f"sshd_{self.name}.log").read_text()
            assert time.monotonic() < end_s, f"sshd of {self.name} does not answer: {log}"
            time.sleep(0.05)

    def kill(self) -> None:
        """End all its processes at once; its kernel lives on, and closes their connections."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def cut(self) -> None:
        """From now on no packet comes or goes, and nobody is told."""
        _check(["ip", "link", "set", f"{self._space}v", "down"])

    def mend(self) -> None:
        """The link is whole again."""
        _check(["ip", "link", "set", f"{self._space}v", "up"])

    def also_has(self, address: str) -> None:
        """Give it an address that no other host has a way to."""
        _check(["ip", "-n", self._space, "addr", "add", f"{address}/32", "dev", "lo"])

    def loses_answers_from(self, first: int, last: int) -> None:
        """What its TCP ports from `first` to `last` answer gets lost, as behind a firewall.

        Its kernel takes no range that ends at 65535.
        """
        self._lose("add", first, last)

    def answers_again(self, first: int, last: int) -> None:
        """The end of `loses_answers_from`."""
        self._lose("del", first, last)

    def _lose(self, action: str, first: int, last: int) -> None:
        words = f"rule {action} ipproto tcp sport {first}-{last} blackhole"
        _check(["ip", "-n", self._space, *words.split()])

    def misses(self, other: "PodHost") -> None:
        """What it sends to another host arrives nowhere, and what that sends arrives."""
        _check(["ip", "-n", self._space, *f"neigh replace {other.address}".split(), *_NOWHERE])

    def finds(self, other: "PodHost") -> None:
        """The end of `misses`."""
        _run(["ip", "-n", self._space, *f"neigh del {other.address} dev eth0".split()])

    @contextlib.contextmanager
    def slow(self, delay_s: float, loss: float) -> Iterator[SlowLink]:
        """Its link delays each frame, in either direction, and loses a share of them."""
        end, tap = f"{self._space}v", f"{self._space}t"
        bridge = _check(["ip", "-o", "link", "show", end]).stdout.split("master ")[1].split()[0]
        _check(["ip", "link", "set", end, "nomaster"])
        link = SlowLink(end, tap, delay_s, loss)
        try:
            _check(["ip", "link", "set", tap, "master", bridge, "up"])
            yield link
        finally:
            link.close()
            _check(["ip", "link", "set", end, "master", bridge])

    def has_link(self) -> bool:
        done = _check(["ip", "-br", "link", "show", f"{self._space}v"])
        return "DOWN" not in done.stdout


class Pod:
    """Some hosts, by name.

    Args:
        folder: where keys and configurations go.
        shared: a folder above it that the hosts see at the same path, as they see the repository.
        is_ipv6: whether there is no IPv4 between the hosts.
    """

    def __init__(
        self,
        folder: Path,
        shared: Path,
        names: Sequence[str] = ("a", "b"),
        *,
        is_ipv6: bool = False,
    ) -> None:
        self.folder = folder
        # There may be several at a time, of this process and of others.
        number = next(_numbers)
        self._prefix = f"x{os.getpid() % 100_000}n{number}h"
        self._net = f"10.{77 + os.getpid() % 100}.{(os.getpid() // 100 + 50 * number) % 250}"
        before, self._length = f"{self._net}.", "24"
        if is_ipv6:
            # No part is zero: there is one way to write it.
            before, self._length = f"fd77:{os.getpid() % 65535 + 1:x}:{number + 1:x}::", "64"
        self.address = f"{before}254"
        space = self._prefix
        self.hosts = {
            name: PodHost(name, f"{before}{number}", f"{space}{number}", folder, shared)
            for number, name in enumerate(names, 1)
        }

    def __enter__(self) -> "Pod":
        if why := missing():
            pytest.skip(why)
        try:
            self._make_keys()
            self._make_net()
            for host in self.hosts.values():
                host.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        for host in self.hosts.values():
            host.kill()
            _run(["ip", "link", "del", f"{host._space}v"])
            _run(["ip", "netns", "del", host._space])
        _run(["ip", "link", "del", f"{self._prefix}b"])

    @property
    def _at_once(self) -> list[str]:
        """Else an IPv6 address is of no use for a second: somebody could have it already."""
        return ["nodad"] if self._length == "64" else []

    @property
    def ssh(self) -> str:
        """What to give as --ssh-command."""
        return f"ssh -F {self.folder}/ssh_config"

    def make_whole(self) -> None:
        """Mend and boot what the last test has broken."""
        for host in self.hosts.values():
            if not host.has_link():
                host.mend()
            for other in self.hosts.values():
                host.finds(other)
            if host._process is None:
                host.start()
            host._await_sshd()

    def _make_keys(self) -> None:
        for name in ("key", "host_key"):
            words = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(self.folder / name)]
            _check(words)
        public = (self.folder / "host_key.pub").read_text().rsplit(" ", 1)[0]
        lines, config = [], ""
        for host in self.hosts.values():
            facts = {"name": host.name, "address": host.address, "folder": self.folder}
            (self.folder / f"sshd_{host.name}").write_text(_SSHD.format(**facts))
            lines.append(f"{host.address} {public}\n")
            config += _SSH.format(**facts)
        (self.folder / "known_hosts").write_text("".join(lines))
        (self.folder / "ssh_config").write_text(config)

    def _make_net(self) -> None:
        bridge = f"{self._prefix}b"
        _check(["ip", "link", "add", bridge, "type", "bridge"])
        _check(
            ["ip", "addr", "add", f"{self.address}/{self._length}", "dev", bridge, *self._at_once]
        )
        _check(["ip", "link", "set", bridge, "up"])
        for host in self.hosts.values():
            space = host._space
            _check(["ip", "netns", "add", space])
            peer = ["peer", "name", "eth0", "netns", space]
            _check(["ip", "link", "add", f"{space}v", "type", "veth", *peer])
            _check(["ip", "link", "set", f"{space}v", "master", bridge, "up"])
            where = [f"{host.address}/{self._length}", "dev", "eth0", *self._at_once]
            _check(["ip", "-n", space, "addr", "add", *where])
            for device in ("lo", "eth0"):
                _check(["ip", "-n", space, "link", "set", device, "up"])


def _run(words: Sequence[str]) -> subprocess.CompletedProcess[str]:
    environ = {**os.environ, "PATH": PATH}
    return subprocess.run(words, env=environ, capture_output=True, text=True, timeout=60)


def _check(words: Sequence[str]) -> subprocess.CompletedProcess[str]:
    done = _run(words)
    assert done.returncode == 0, f"{' '.join(words)}: {done.stderr}"
    return done
