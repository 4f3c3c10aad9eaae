"""The process between `spawn` and the agents: runs the job, so that the caller starts no thread.

It has one socket to the caller as its stdin: the job comes in, events, results and the end go out.
When the socket ends, or the caller's process does (a fork of it may keep the socket), so does the
job.
"""

import os
import signal
import socket
import sys

from torch_xdist.launcher.backends.local import AgentHere, ThisHost
from torch_xdist.system.frames import Link
from torch_xdist.system.process import Child


def main() -> None:
    """`python -m ...ways_in.conductor [JOB_ID warm|cold MARK [AGENT_PID SOCKET]]`.

    Without words the ranks are all on other hosts.
    """
    # Before anything else is imported: what the ranks import takes longest.
    agent = _first_agent(*sys.argv[1:]) if sys.argv[1:] else None
    from torch_xdist.launcher.head.requests import Requests
    from torch_xdist.launcher.head.runner import FirstAgent
    from torch_xdist.launcher.ways_in import caller

    # Slurm and systemd signal every process of a job: the caller, too, which decides what follows.
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    first = FirstAgent(agent, sys.argv[3]) if agent is not None else None
    caller.run_its_job(Link(socket.socket(fileno=os.dup(0))), Requests(), first)


def _first_agent(job_id: str, warmth: str, mark: str, *forked: str) -> AgentHere:
    if forked:
        return AgentHere(Child(int(forked[0])), socket.socket(fileno=int(forked[1])), mark)
    return ThisHost({}).start(0, job_id, warmth, mark)


if __name__ == "__main__":
    main()
