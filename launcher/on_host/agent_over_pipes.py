"""The agent of a host that is not its head's: at the far end of ssh, srun or gcloud.

Its environment was set by what started it (`backends/over_command.py`), so that variables which
count while the interpreter starts do so here too; the head's first message comes over stdin. Where
an engine carries that (`backends/engine_pipes.py`), the other variables come with it, in TLS.
"""

import sys

from torch_xdist.launcher.facts import placement, settings
from torch_xdist.launcher.on_host import agent, nursery
from torch_xdist.launcher.on_host.head_stream import PipesToHead


def main() -> None:
    """`python -m ...on_host.agent_over_pipes JOB_ID warm|cold MARK RANKS [CERTIFICATE]`."""
    job_id, warmth, mark, ranks, *certificate = sys.argv[1:]
    head = PipesToHead.as_told(certificate)
    settings.publish(placement.library_environ(settings.environment(), int(ranks)))
    process, link = nursery.start(job_id, warmth, mark)
    agent.be(mark, process, link, head)


if __name__ == "__main__":
    main()
