"""One agent per host: starts the ranks of this host, watches them, and leaves nothing behind.

It owns the nursery (which forks the ranks), the log pipes and the links of the ranks. It decides
nothing: what it sees goes to the controller over one gRPC stream, and what the controller says is
done. It ends its ranks by itself in one case only: when the controller is gone (its stdin ends, or
the stream does).
"""

import os
import socket
import subprocess
import sys

from torch_xdist.launcher.child import Child


def start_nursery(job_id: str, warmth: str) -> "tuple[subprocess.Popen[bytes], socket.socket]":
    """Start the import of torch and jax before anything else: it takes longest."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    nursery = subprocess.Popen(
        [
            *(sys.executable, "-P", "-m", "torch_xdist.launcher.nursery"),
            *(str(theirs.fileno()), job_id, warmth, str(os.getpid())),
        ],
        pass_fds=[theirs.fileno()],
        stdin=subprocess.DEVNULL,
        env={**os.environ, "XLA_RUN_JOB_ID": job_id},
    )
    theirs.close()
    return nursery, ours


def main() -> None:
    """`python -m torch_xdist.launcher.agent JOB_ID warm|cold [NURSERY_PID ITS_SOCKET]`.

    Its orders come by stdin.
    """
    job_id, warmth, *forked = sys.argv[1:]
    nursery: subprocess.Popen[bytes] | Child
    if forked:
        nursery, sock = Child(int(forked[0])), socket.socket(fileno=int(forked[1]))
        sock.set_inheritable(False)
    else:
        nursery, sock = start_nursery(job_id, warmth)
    from torch_xdist.launcher.host import Host

    Host(job_id, nursery, sock).run()


if __name__ == "__main__":
    main()
