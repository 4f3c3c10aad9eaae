"""`python -m ....launcher.from_afar`: a command of `xla-run` for somebody at another machine.

Lines come over stdin: first the command, then beats (empty) and signals (their numbers). Without
any for a while, or at their end, this process ends: who asked is gone, or the way to them is.
"""

import io
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
    # Without a buffer, so that of what follows nothing is read yet.
    orders = open(os.dup(0), "rb", buffering=0)  # noqa: SIM115  open until this process ends
    words = json.loads(orders.readline())["words"]
    sys.stdout.buffer.write(HELLO + json.dumps({"version": __version__}).encode() + b"\n")
    sys.stdout.flush()
    sys.stderr.buffer.write(HELLO + b"\n")
    sys.stderr.flush()
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    threading.Thread(target=_listen, args=(orders,), daemon=True).start()
    sys.argv = ["xla-run", *words]
    cli.main()


def _listen(orders: io.FileIO) -> None:
    while select.select([orders], [], [], SILENT_S)[0]:
        # Half a line is none: the end came inside it.
        if not (line := orders.readline()).endswith(b"\n"):
            break
        if line.strip().isdigit():
            os.kill(os.getpid(), int(line))
    os._exit(128 + signal.SIGHUP)


if __name__ == "__main__":
    main()
