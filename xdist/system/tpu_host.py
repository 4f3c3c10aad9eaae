"""What keeps a process from this host's TPU: who has its chips, libtpu's lock, unfit releases.

All of it is read from files; nothing is loaded or locked. Called before the first step where a TPU
is asked for, by `xla-run check`, and where a TPU could not be started.
"""

import contextlib
import importlib.metadata
import os
import pwd
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from torch_xdist.system.masking import masked_text

# libtpu makes it, and locks it for as long as it has the chips.
LOCK_FILE = Path("/tmp/libtpu_lockfile")
_CHIP = re.compile(r"/dev/(?:accel\d+|vfio/\d+)\Z")
_GOOGLE_PCI_VENDOR = "0x1ae0"
_TPU_PCI_DEVICES = ("0x0027", "0x005e", "0x0062", "0x0063", "0x006f", "0x0056")
_NEEDED = re.compile(r"(jaxlib|libtpu)\s*([<>=!~][^;]*)(?:;\s*extra == \"tpu\")?\s*\Z")
_MOST_CHARACTERS = 120


class Holder(NamedTuple):
    """A process that has a device open, or libtpu's file locked."""

    device: str
    pid: int
    command: str


class Lock(NamedTuple):
    """libtpu's file: whose it is, who has it locked (None: nobody), whether we may open it."""

    owner: str
    holder: Holder | None
    is_open_to_us: bool


def is_chip(device: Path) -> bool:
    """Whether a device of the PCI bus, by its folder in /sys, is a TPU's."""
    words = []
    for name in ("vendor", "device"):
        try:
            words.append((device / name).read_text().strip())
        except OSError:
            return False
    return words[0] == _GOOGLE_PCI_VENDOR and words[1] in _TPU_PCI_DEVICES


def may_have_chips(dev: Path = Path("/dev"), pci: Path = Path("/sys/bus/pci/devices")) -> bool:
    """Whether anything on this host looks like a chip; a container may see only one of the two."""
    names = (f"/dev/{path.relative_to(dev)}" for path in (*dev.glob("*"), *dev.glob("vfio/*")))
    return any(map(_CHIP.match, names)) or any(map(is_chip, pci.glob("*")))


def holders(proc: Path = Path("/proc")) -> Iterator[Holder]:
    """Who has a TPU chip open, which has one owner; of other users' processes only root sees it."""
    for folder in proc.iterdir():
        if not folder.name.isdecimal() or int(folder.name) == os.getpid():
            continue
        opened = set()
        with contextlib.suppress(OSError):
            for fd in (folder / "fd").iterdir():
                with contextlib.suppress(OSError):
                    opened.add(os.readlink(fd))
        for device in sorted(filter(_CHIP.match, opened)):
            yield Holder(device, int(folder.name), command_of(proc, int(folder.name)))


def command_of(proc: Path, pid: int) -> str:
    """As it was typed, shortened; that of another container cannot be read."""
    try:
        words = (proc / str(pid) / "cmdline").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return "not visible from here"
    return masked_text(" ".join(words).strip())[:_MOST_CHARACTERS]


def lock(path: Path = LOCK_FILE, proc: Path = Path("/proc")) -> Lock | None:
    """libtpu's file, where there is one."""
    try:
        found = path.stat()
    except OSError:
        return None
    try:
        owner = pwd.getpwuid(found.st_uid).pw_name
    except KeyError:
        owner = f"uid {found.st_uid}"
    pid = _locked_by(proc, found.st_ino)
    holder = None if pid is None else Holder(str(path), pid, command_of(proc, pid))
    return Lock(owner, holder, os.access(path, os.R_OK | os.W_OK))


def _locked_by(proc: Path, inode: int) -> int | None:
    """The process that has a file locked: the kernel lists "1: FLOCK ... PID MAJOR:MINOR:INODE"."""
    try:
        lines = (proc / "locks").read_text().splitlines()
    except OSError:
        return None
    for line in lines:
        words = line.split()
        if len(words) > 5 and "->" not in words and words[5].endswith(f":{inode}"):
            return int(words[4])
    return None


def why_left(found: Lock | None, path: Path = LOCK_FILE) -> str:
    """What is wrong with a file that nobody has locked and libtpu cannot take; "" for nothing."""
    if found is None or found.holder is not None or found.is_open_to_us:
        return ""
    return (
        f"{path} belongs to {found.owner} and nobody has it locked: it is left over, and libtpu"
        f" cannot take it; sudo rm {path}"
    )


def why_busy(proc: Path = Path("/proc"), path: Path = LOCK_FILE) -> str:
    """Who keeps this process from the chips, in words; "" where nobody is seen to."""
    found = lock(path, proc)
    there = [*holders(proc)]
    if found is not None and found.holder is not None and found.holder.pid != os.getpid():
        there.append(found.holder)
    told = dict.fromkeys(f"process {one.pid} ({one.command}) has {one.device}" for one in there)
    return "; ".join([*told, *filter(None, [why_left(found, path)])])


def why_unfit(distribution: str = "jax") -> str:
    """Why the installed jaxlib and libtpu are not those that this JAX was made for; "" if they are.

    JAX says itself which it needs; a pair that it does not know may crash, or compute nonsense.
    """
    wrong = []
    for requirement in importlib.metadata.requires(distribution) or ():
        match = _NEEDED.fullmatch(requirement)
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            if match and not _is_within(importlib.metadata.version(match[1]), match[2]):
                there = importlib.metadata.version(match[1])
                wrong.append(f"{match[1]} {there} is installed, and {match[2].strip()} is needed")
    if not wrong:
        return ""
    release = importlib.metadata.version(distribution)
    return f"jax {release}: {'; '.join(wrong)}: pip install 'jax[tpu]=={release}'"


def _is_within(version: str, bounds: str) -> bool:
    """Whether a version fits bounds such as "<=0.10.2,>=0.10.1" or "==0.0.42.*"."""
    return all(_fits(_numbers(version), bound.strip()) for bound in bounds.split(","))


def _fits(version: tuple[int, ...], bound: str) -> bool:
    match = re.fullmatch(r"(==|<=|>=|<|>|!=|~=)\s*([\d.]+?)(\.\*)?", bound)
    if match is None:
        return True
    wanted = _numbers(match[2])
    if match[3] or match[1] == "~=":
        is_same = version[: len(wanted)] == wanted
        return not is_same if match[1] == "!=" else is_same or match[1] == "~="
    width = max(len(version), len(wanted))
    one, other = (numbers + (0,) * (width - len(numbers)) for numbers in (version, wanted))
    return {
        "==": one == other, "!=": one != other, "<=": one <= other, ">=": one >= other,
        "<": one < other, ">": one > other,
    }[match[1]]  # fmt: skip


def _numbers(version: str) -> tuple[int, ...]:
    found = re.match(r"\d+(?:\.\d+)*", version)
    return tuple(map(int, found[0].split("."))) if found else ()
