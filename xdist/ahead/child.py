"""The process that compiles: a mistake of the compiler ends it, and not the one that asked.

    python -m torch_xdist.ahead.child        frames on stdin and stdout

Each frame names a topology and holds a module; each answer says what became of it. It ends with
its stdin, and with its parent.
"""

import os
import time
from typing import Any

from torch_xdist.ahead.module_compiler import compile_module
from torch_xdist.ahead.topology import Topology, devices
from torch_xdist.ahead.verdict import facts_of
from torch_xdist.system.frames import MOST_BLOB_BYTES, Decoder, encode
from torch_xdist.system.process_tree import die_with_parent


def _answer(message: dict[str, Any], module: bytes) -> tuple[dict[str, Any], bytes]:
    started = time.perf_counter()
    try:
        topology = Topology(message["name"], message["slices"])
        all_options = bytes.fromhex(message["all_options"])
        given = devices(topology), message["places"], message["options"], all_options
        found = compile_module(module, *given)
        facts = facts_of(found)
        executable = found.serialize() if all_options else b""
    except Exception as error:
        return {"kind": "refused", "words": f"{type(error).__name__}: {error}"[:4000]}, b""
    return {"kind": "ok", "seconds": time.perf_counter() - started, **facts}, executable


def main() -> None:
    """Answer until stdin ends."""
    die_with_parent()
    answers = os.fdopen(os.dup(1), "wb")
    # What libtpu prints is none of the answers.
    os.dup2(2, 1)
    decoder = Decoder(most_blobs=MOST_BLOB_BYTES)
    while data := os.read(0, 1 << 20):
        for frame in decoder.feed(data):
            answers.write(encode(*_answer(dict(frame.message), frame.blob)))
            answers.flush()


if __name__ == "__main__":
    main()
