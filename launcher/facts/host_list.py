"""The hosts that a user names: "a,b", "tpu[001-003,7]", "me@a:2222", or a file of them. Pure."""

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from torch_xdist.launcher.facts.errors import UsageError
from torch_xdist.system import addresses

_MOST_HOSTS = 100_000
_USER = re.compile(r"[A-Za-z0-9_][\w.+-]*\Z", re.ASCII)
# A name that began with a dash would be an option of ssh.
# IPv6: hexadecimal digits and colons, and the link that an address of one belongs to.
_IPV6 = r"[0-9A-Fa-f:.]*:[0-9A-Fa-f:.]*(?:%[\w.-]+)?"
_NAME = re.compile(rf"[A-Za-z0-9_][\w.-]*\Z|{_IPV6}\Z", re.ASCII)
_BRACKETED = re.compile(rf"((?:[^\[\]@]*@)?)\[({_IPV6})\](?::([^\[\]]*))?\Z", re.ASCII)
_RANGE = re.compile(r"(\d+)(?:-(\d+))?\Z", re.ASCII)


@dataclass(frozen=True, slots=True)
class Host:
    """One host as it is named: for ssh, and on the screen.

    `slots` is how many ranks it gets, 0 where that is not said; `address` where ranks of other
    hosts reach it, "" where it shall say so itself; `worker` its number among those of its TPU, -1
    where that is not known.
    """

    name: str
    user: str = ""
    port: int = 0
    slots: int = 0
    address: str = ""
    worker: int = -1

    @property
    def destination(self) -> str:
        """As ssh takes it: "me@a"."""
        return f"{self.user}@{self.name}" if self.user else self.name


def of_option(text: str, where: str = "--hosts") -> list[Host]:
    """The hosts of `--hosts`, in order.

    Raises:
        UsageError: there is none, one stands there twice, or one cannot be a host.
    """
    return _checked([_host(word, where) for word in _words(text, where)], where)


def of_file(text: str, path: str) -> list[Host]:
    """The hosts of a host file: a line "HOST [slots=N] [address=A]" each; # begins a comment.

    Raises:
        UsageError: as `of_option`, or a line cannot be read.
    """
    hosts: list[Host] = []
    for number, line in enumerate(text.splitlines(), 1):
        where = f"--hostfile {path}, line {number}"
        words = line.partition("#")[0].split()
        if words:
            slots, address = _options(words[1:], where)
            for word in _words(words[0], where):
                hosts.append(replace(_host(word, where), slots=slots, address=address))
    return _checked(hosts, f"--hostfile {path}")


def with_slots(hosts: Sequence[Host], nprocs: int | None) -> list[Host]:
    """The hosts, each with as many ranks as its file says, else `nprocs` (0: `-n auto`).

    Raises:
        UsageError: nothing says it of one.
    """
    for host in hosts:
        if not host.slots and not nprocs:
            what = f"host {host.name}: how many ranks it gets is not said"
            if nprocs == 0:
                what += " by -n auto, which counts the devices of one host"
            raise UsageError(f"{what}; give -n N for every host, or slots=N in a --hostfile")
    return [host if host.slots else replace(host, slots=nprocs or 0) for host in hosts]


def _options(words: Iterable[str], where: str) -> tuple[int, str]:
    """The slots and the address that a line gives, 0 and "" where it does not."""
    slots, address = 0, ""
    for word in words:
        name, _, value = word.partition("=")
        if name == "slots" and value.isdecimal() and int(value) > 0:
            slots = int(value)
        elif name == "address" and _NAME.match(addresses.bare(value)):
            address = addresses.bare(value)
        else:
            raise UsageError(
                f"{where}: {word!r} cannot be read; after the host only slots=N (from 1 up) and "
                "address=ADDRESS may stand"
            )
    return slots, address


def _words(text: str, where: str) -> list[str]:
    """Cut at the commas outside brackets, ranges expanded."""
    words = [word.strip() for word in re.split(r",(?![^\[]*\])", text)]
    if not any(words):
        raise UsageError(
            f"{where}: no host in {text!r}; a list such as a,b or tpu[001-003] is needed"
        )
    return [name for word in words if word for name in _expanded(word, where)]


def _expanded(word: str, where: str) -> list[str]:
    if _BRACKETED.match(word):
        return [word]
    match = re.fullmatch(r"([^\[\]]*)\[([^\[\]]*)\](.*)", word)
    if match is None:
        return [word]
    numbers: list[str] = []
    for part in match[2].split(","):
        ends = _RANGE.match(part.strip())
        first, last = (int(ends[1]), int(ends[2] or ends[1])) if ends else (1, 0)
        if ends is None or last < first or last - first >= _MOST_HOSTS:
            raise UsageError(
                f"{where}: {part!r} in {word!r} is no range; numbers such as [001-003,7] are "
                "needed, the smaller one first"
            )
        numbers += [f"{number:0{len(ends[1])}d}" for number in range(first, last + 1)]
    return [
        name for number in numbers for name in _expanded(f"{match[1]}{number}{match[3]}", where)
    ]


def _host(word: str, where: str) -> Host:
    user, at, rest = word.rpartition("@")
    # More than one colon is an IPv6 address, which has a port behind brackets alone.
    name, colon, port = rest.partition(":") if rest.count(":") == 1 else (rest, "", "")
    if found := _BRACKETED.match(word):
        name, port = found[2], found[3] or ""
        colon = ":" * (found[3] is not None)
    is_port = port.isdecimal() and 0 < int(port) < 65536
    if not _NAME.match(name) or (at and not _USER.match(user)) or (colon and not is_port):
        raise UsageError(
            f"{where}: {word!r} is no host; a name or an address is needed, as in a, me@a or "
            "me@a:2222"
        )
    return Host(name, user, int(port) if port else 0)


def _checked(hosts: list[Host], where: str) -> list[Host]:
    if not hosts:
        raise UsageError(f"{where}: no host in it; a line such as `a slots=2` is needed for each")
    for (name, _), count in Counter((host.name, host.port) for host in hosts).items():
        if count > 1:
            raise UsageError(
                f"{where}: host {name} stands there {count} times; name it once, with slots=N in "
                "a --hostfile if it shall have more ranks than others"
            )
    return hosts
