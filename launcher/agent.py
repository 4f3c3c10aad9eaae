"""One agent per host: starts the ranks of this host, watches them, and leaves nothing behind.

It owns the nursery (which forks the ranks), the log pipes and the links of the ranks. It decides
nothing: what it sees goes to the controller over one gRPC stream, and what the controller says is
done. It ends its ranks by itself in one case only: when the controller is gone (its stdin ends, or
the stream does).
"""

import os
import subprocess
import sys


def start_nursery(job_id: str, warmth: str) -> "tuple[subprocess.Popen[bytes], object]":
    """Start the import of torch and jax before anything else: it takes longest."""
    import socket

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
    """`python -m torch_xdist.launcher.agent JOB_ID warm|cold`; its orders come by stdin."""
    job_id, warmth = sys.argv[1:3]
    started = start_nursery(job_id, warmth)
    from torch_xdist.launcher.host import Host

    Host(job_id, *started).run()


if __name__ == "__main__":
    main()
