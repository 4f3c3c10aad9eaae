"""The head's end: the folder is read once, and every host is sent what it has not, by itself.

A host has a thread that reads files and never has more than `WINDOW_BYTES` on the way that the
host has not written yet: so neither side keeps the folder in memory, and a slow host holds up no
other. All but those threads is called on the head's.
"""

import hashlib
import secrets
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch_xdist.launcher.facts import settings
from torch_xdist.launcher.facts.errors import PreflightError, ProtocolError
from torch_xdist.launcher.facts.host import names_text
from torch_xdist.launcher.facts.job import Job
from torch_xdist.launcher.shipping import paths, tree
from torch_xdist.launcher.shipping.manifest import Entry, Manifest, count_text, shown, size_text
from torch_xdist.system.frames import Message

OPS = ("wanted", "taken", "shipped", "unshippable", "unsent", "unshipped")
WINDOW_BYTES = 4 << 20
# It is told of what takes longer, and then every so often.
_NOTICE_S = 1.0
_EVERY_S = 5.0
_MOST_NAMES = 8

Send = Callable[[Mapping[str, Any], bytes], None]
Tell = Callable[[int, Message, bytes], None]


@dataclass(frozen=True, slots=True)
class Shipment:
    """The folder of a job as it was when the job began; every attempt ships the same.

    `name` is of this job alone, and on a host names its copy; so many `hosts` get one.
    """

    manifest: Manifest
    listed: bytes
    root: Path
    name: str
    hosts: int

    @classmethod
    def of(cls, job: Job) -> "Shipment | None":
        """Read the folder that a job ships; None where it ships none.

        Raises:
            UsageError: its ranks could not start in it, it is too large, or leads out of itself.
            PreflightError: something in it cannot be read.
        """
        if not job.ship:
            return None
        manifest = tree.read(Path(job.ship), job.ship_limit_bytes)
        paths.check(job, manifest)
        name = f"{job.job_id}-{secrets.token_hex(4)}"
        return cls(manifest, manifest.to_bytes(), Path(job.ship), name, len(job.hosts))

    @property
    def text(self) -> str:
        """ "12 files (1.5 MB)"."""
        files = sum(1 for _ in self.manifest.files())
        return f"{count_text(files)} ({size_text(self.manifest.total_bytes)})"


class Sending:
    """The way of a shipment to the hosts of one attempt.

    Args:
        shipment: None: there is none, and every host has all.
        tell: puts a message into the head's inbox, from any thread.
        note: shows a line.
        emit: files an event.
    """

    def __init__(
        self,
        shipment: Shipment | None,
        tell: Tell,
        note: Callable[[str], None],
        emit: Callable[..., None],
    ) -> None:
        self._shipment, self._tell, self._note, self._emit = shipment, tell, note, emit
        self._hosts: dict[int, _Host] = {}
        self._there: set[int] = set()
        self._began_s = self._told_s = 0.0

    def begin(self, index: int, name: str, send: Send) -> None:
        """A host is there: it is told what there is."""
        if self._shipment is not None:
            self._began_s = self._began_s or time.monotonic()
            self._hosts[index] = _Host(index, name, send)
            # Hosts may be one machine, or share a disk.
            order = {"op": "ship", "name": f"{self._shipment.name}-{index}"}
            send(order, self._shipment.listed)

    def take(self, index: int, message: Message) -> None:
        """What a host says, or the thread that feeds it.

        Raises:
            PreflightError: it cannot have a copy, or a file has changed.
            ProtocolError: it asks for what there is not.
        """
        if (host := self._hosts.get(index)) is None:
            raise ProtocolError(f"host {index}: it says {message['op']!r}, and was sent no code")
        match message["op"]:
            case "wanted":
                self._feed(host, message["numbers"])
            case "taken":
                host.took(int(message["bytes"]))
                self._show()
            case "shipped":
                host.folder = str(message["folder"])
                self._there.add(index)
                facts = {key: message[key] for key in ("folder", "sent_bytes", "seconds")}
                self._emit("shipped", host=host.name, **facts)
                if self.are_all_there:
                    self._note(self._summary())
            case "unshippable":
                raise PreflightError(f"host {host.name}: {message['why']}")
            case "unsent":
                raise PreflightError(message["why"])
            case "unshipped":
                self._part_from(host, message)

    @property
    def are_all_there(self) -> bool:
        """Whether every host has its copy."""
        return len(self._there) == (self._shipment.hosts if self._shipment is not None else 0)

    @property
    def unfinished(self) -> str:
        """How far it is; "" where every host has its copy."""
        if self._shipment is None or self.are_all_there:
            return ""
        hosts = self._hosts.values()
        taken, wanted = sum(one.taken for one in hosts), sum(one.wanted for one in hosts)
        return (
            f"shipping {self._shipment.root} to {self._names()}: {size_text(taken)} of "
            f"{size_text(wanted)}"
        )

    def moved(self, index: int, job: Job, order: dict[str, Any]) -> dict[str, Any]:
        """The order for the ranks of a host, who start in the copy there."""
        if self._shipment is None:
            return order
        return paths.moved(job, order, self._hosts[index].folder, settings.environment())

    def leave(self, *, keep: bool) -> None:
        """The attempt is over; with `keep` another one may follow, on the same copies."""
        self.close()
        for host in self._hosts.values():
            host.send({"op": "unship", "keep": keep}, b"")

    def have_left(self, gone: Collection[int]) -> bool:
        """Whether every host has said what became of its copy, but for those."""
        return all(host.has_left or index in gone for index, host in self._hosts.items())

    def close(self) -> None:
        """Nothing more is sent."""
        for host in self._hosts.values():
            host.stop()

    def _feed(self, host: "_Host", numbers: Sequence[Any]) -> None:
        assert self._shipment is not None
        files = {number for number, _ in self._shipment.manifest.files()}
        if host.is_fed or not files.issuperset(numbers):
            raise ProtocolError(
                f"host {host.name}: it asks for {len(numbers)} files, and not all are there; "
                "install the same release of torch-xdist there"
            )
        host.feed(self._shipment, numbers, self._tell)

    def _summary(self) -> str:
        """What all hosts have now, and what each had to be sent of it."""
        assert self._shipment is not None
        least, most = (of(host.sent for host in self._hosts.values()) for of in (min, max))
        sent = size_text(most) if least == most else f"{size_text(least)} to {size_text(most)}"
        seconds = time.monotonic() - self._began_s
        took = f" in {seconds:.0f} s" if self._told_s else ""
        each = " to each" * (len(self._hosts) > 1)
        return f"shipped {self._shipment.text} to {self._names()}{took}: {sent} sent{each}"

    def _part_from(self, host: "_Host", message: Message) -> None:
        host.has_left = True
        if kept := int(message["kept"]):
            files = count_text(kept)
            self._note(f"host {host.name}: {files} of the ranks' own left in {message['folder']}")

    def _show(self) -> None:
        now_s = time.monotonic()
        last_s = self._told_s + _EVERY_S if self._told_s else self._began_s + _NOTICE_S
        if now_s < last_s:
            return
        self._told_s = now_s
        self._note(self.unfinished)

    def _names(self) -> str:
        names = [host.name for _, host in sorted(self._hosts.items())]
        return names_text(names) if len(names) <= _MOST_NAMES else f"{len(names)} hosts"


class _Host:
    """One host: how much it wants and has, and the thread that feeds it."""

    def __init__(self, index: int, name: str, send: Send) -> None:
        self.index, self.name, self.send = index, name, send
        self.folder = ""
        self.has_left = self.is_fed = False
        self.wanted = self.taken = 0
        self.sent = 0
        """Bytes of files, so far."""
        self._stopped = False
        self._changed = threading.Condition()

    def feed(self, shipment: Shipment, numbers: Sequence[int], tell: Tell) -> None:
        """Begin to send these files."""
        self.is_fed = True
        entries = [(number, shipment.manifest.entries[number]) for number in numbers]
        self.wanted = sum(entry.size for _, entry in entries)
        arguments = (shipment.root, entries, tell)
        threading.Thread(
            target=self._feed, args=arguments, daemon=True, name=f"ship-{self.index}"
        ).start()

    def took(self, size: int) -> None:
        """So many bytes more are written there."""
        with self._changed:
            self.taken += size
            self._changed.notify_all()

    def stop(self) -> None:
        """Nothing more is sent."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()

    def _feed(self, root: Path, entries: Sequence[tuple[int, Entry]], tell: Tell) -> None:
        for number, entry in entries:
            try:
                changed = not self._send_file(number, root / entry.path, entry)
            except OSError as error:
                why = f"--ship {root}: {shown(entry.path)} cannot be read: {error.strerror}"
                tell(self.index, {"op": "unsent", "why": why}, b"")
                return
            if self._stopped:
                return
            if changed:
                why = (
                    f"--ship {root}: {shown(entry.path)} was changed while it was shipped; start "
                    "again when nobody writes to it, or leave it out by a line in .gitignore"
                )
                tell(self.index, {"op": "unsent", "why": why}, b"")
                return

    def _send_file(self, number: int, path: Path, entry: Entry) -> bool:
        """Whether it still is what was read when the job began."""
        made, size = hashlib.sha256(), 0
        for data in tree.chunks(path, entry.size):
            if not self._has_room():
                return True
            made.update(data)
            size += len(data)
            self.sent += len(data)
            self.send({"op": "contents", "number": number}, data)
        return size == entry.size and made.hexdigest() == entry.content

    def _has_room(self) -> bool:
        """Wait until there is; whether anything is to be sent still."""
        with self._changed:
            self._changed.wait_for(lambda: self._stopped or self.sent - self.taken < WINDOW_BYTES)
            return not self._stopped
