"""A job of which one process that carries a connection is silent for a while, and goes on."""

import os
import signal
import time
from typing import Any

# Each rank says that it runs, then waits for the file that says that the silence is nearly over.
BODY = """
    say("on%d" % RANK)
    while not os.path.exists(os.path.join(FOLDER, "go")): time.sleep(0.05)
    print("went on")
"""
# A silence of 5 s is longer than a connection may say nothing, and shorter than it is waited for.
OPTIONS = ("--beat-every", "0.5", "--lost-after", "2", "--reconnect-within", "30")


def stopped_for_a_while(job: Any, pid: int) -> Any:
    """The end of the job, whose ranks went on meanwhile: as with a link that is cut, nothing is
    lost on the way.
    """
    os.kill(pid, signal.SIGSTOP)
    time.sleep(5)
    (job.folder / "go").touch()
    os.kill(pid, signal.SIGCONT)
    ended = job.end()
    assert ended.code == 0, ended.err
    return ended
