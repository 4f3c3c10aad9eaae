"""A link for tests that delays every frame and loses some: what `tc netem` does, for kernels
without it, by a thread of this process between a TAP device and one end of a veth pair.

Frames go with the header in which Linux says what is still to be done to them (checksums,
segments), so that nothing of the devices is to be switched off.
"""

import contextlib
import fcntl
import heapq
import os
import random
import select
import socket
import struct
import threading
import time

_TUNSETIFF = 0x400454CA
_IFF_TAP, _IFF_NO_PI, _IFF_VNET_HDR = 0x0002, 0x1000, 0x4000
_SOL_PACKET, _PACKET_VNET_HDR, _PACKET_IGNORE_OUTGOING = 263, 15, 23
_ALL = 0x0003
_MOST_BYTES = 1 << 17


def missing() -> str:
    """Why there can be none here, "" where there can."""
    try:
        os.close(os.open("/dev/net/tun", os.O_RDWR))
    except OSError as error:
        return f"/dev/net/tun: {error.strerror}"
    return ""


class SlowLink:
    """Passes frames on between a network device and a TAP device that it makes.

    Args:
        device: what the frames of one side come to.
        tap: the name of what it makes, for the other side.
        delay_s: of each frame, in either direction.
        loss: the share of frames that get lost.
    """

    def __init__(self, device: str, tap: str, delay_s: float, loss: float) -> None:
        self._delay_s, self._loss = delay_s, loss
        self._chance = random.Random(0)
        self.lost = 0
        """How many frames were."""
        self._tap = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
        kind = _IFF_TAP | _IFF_NO_PI | _IFF_VNET_HDR
        fcntl.ioctl(self._tap, _TUNSETIFF, struct.pack("16sH22x", tap.encode(), kind))
        self._packets = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(_ALL))
        self._packets.setsockopt(_SOL_PACKET, _PACKET_VNET_HDR, 1)
        self._packets.setsockopt(_SOL_PACKET, _PACKET_IGNORE_OUTGOING, 1)
        self._packets.bind((device, _ALL))
        self._packets.setblocking(False)
        self._is_over = False
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """The TAP device goes with it."""
        self._is_over = True
        self._thread.join()
        self._packets.close()
        os.close(self._tap)

    def _run(self) -> None:
        ways = {self._tap: self._packets.fileno(), self._packets.fileno(): self._tap}
        due: list[tuple[float, int, int, bytes]] = []
        number = 0
        while not self._is_over:
            wait_s = min(0.1, due[0][0] - time.monotonic()) if due else 0.1
            ready, _, _ = select.select(list(ways), [], [], max(0.0, wait_s))
            for source in ready:
                with contextlib.suppress(OSError):
                    frame = os.read(source, _MOST_BYTES)
                    if self._chance.random() < self._loss:
                        self.lost += 1
                        continue
                    number += 1
                    at_s = time.monotonic() + self._delay_s
                    heapq.heappush(due, (at_s, number, ways[source], frame))
            while due and due[0][0] <= time.monotonic():
                _, _, sink, frame = heapq.heappop(due)
                with contextlib.suppress(OSError):
                    os.write(sink, frame)
