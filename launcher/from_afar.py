"""`python -m ....launcher.from_afar`: a command of `xla-run` for somebody at another machine.

Lines come over stdin: first the command, then beats (empty) and signals (their numbers). Without
any for a while, or at their end, this process ends: who asked is gone, or the way to them is.
"""

import json
import os
import select
import signal
import sys
import threading

from torch_xdist import __version__
from torch_xdist.launcher.viewing.elsewhere import HELLO, SILENT_S
from torch_xdist.launcher.ways_in import cli


def main() -> None:
    """Say hello, be `xla-run WORDS`."""
    words = json.loads(_line(0))["words"]
    sys.stdout.buffer.write(HELLO + json.dumps({"version": __version__}).encode() + b"\n")
    sys.stdout.flush()
    orders = os.dup(0)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    threading.Thread(target=_listen, args=(orders,), daemon=True).start()
    sys.argv = ["xla-run", *words]
    cli.main()


def _listen(orders: int) -> None:
    while select.select([orders], [], [], SILENT_S)[0] and (line := _line(orders)):
        if line.strip().isdigit():
            os.kill(os.getpid(), int(line))
    os._exit(128 + signal.SIGHUP)


def _line(fd: int) -> bytes:
    """One line, and nothing of what follows; b"" at the end."""
    found = b""
    while not found.endswith(b"\n") and (byte := os.read(fd, 1)):
        found += byte
    return found if found.endswith(b"\n") else b""


if __name__ == "__main__":
    main()
