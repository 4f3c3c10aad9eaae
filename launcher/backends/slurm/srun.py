"""The way to the nodes of a Slurm job: one step of it on each, started by srun.

A step's stdin and stdout carry bytes as they are. Without `--unbuffered` what ends in no newline
would stay on the node.
"""

import re
from collections.abc import Mapping, Sequence

from torch_xdist.launcher.facts.host_list import Host

# Every step may use all that the job has on its node, beside the steps of others.
_OPTIONS = (
    *("--overlap", "--nodes=1", "--ntasks=1", "--ntasks-per-node=1"),
    *("--input=all", "--output=all", "--error=all", "--unbuffered"),
    # The agent itself shares out the cores; an MPI's variables would make each agent a rank of it.
    *("--cpu-bind=none", "--mpi=none", "--export=ALL", "--job-name=xla-run"),
)
_OWN = ("srun: ", "slurmstepd")
# That a task failed is no reason why it did.
_OF_THE_TASK = re.compile(r"srun: error: \S+: task \d+: ")
_NO_PROGRAM = "execve(): "


class Srun:
    """A `Way` by srun.

    Args:
        program: srun and the job, such as ["srun", "--jobid=12"].
        environ: for srun, and so for all on the nodes.
    """

    advice = "run xla-run where Slurm's own programs are, on a node of the job"
    # What srun has started beside itself ends the step after it.
    kills_all = False
    tries_s: Sequence[float] = ()
    engine = "srun"

    def __init__(self, program: Sequence[str], environ: Mapping[str, str]) -> None:
        self._program, self._environ = list(program), environ

    def prepare(self, hosts: Sequence[Host]) -> None:
        pass

    def command(self, host: Host, words: Sequence[str]) -> list[str]:
        return [*self._program, *_OPTIONS, f"--nodelist={host.name}", *words]

    def environ(self) -> Mapping[str, str] | None:
        return self._environ

    def is_own(self, line: str) -> bool:
        return line.startswith(_OWN)

    def is_news(self, line: str) -> bool:
        return "retrying" in line  # the step waits for others

    def why_no_python(self, code: int | None, said: Sequence[str]) -> str:
        return next((line for line in said if self.is_own(line) and _NO_PROGRAM in line), "")

    def why_unreached(self, host: Host, code: int | None, said: Sequence[str]) -> str:
        told = self._why(said)
        if not told:
            return ""
        return f"Slurm runs no step there: {told}; see whether its job still runs, with squeue"

    def why_lost(self, code: int | None, said: Sequence[str]) -> str:
        # The words of a step that is cancelled sometimes do not come through any more.
        ends = [line for line in said if _OF_THE_TASK.match(line)]
        ended = f"srun ended with code {code}" if code else ""
        return self._why(said) or next(iter(ends), ended)

    def _why(self, said: Sequence[str]) -> str:
        """The first of its errors, which is the cause of the others."""
        errors = [line for line in said if self.is_own(line) and " error: " in line]
        return next((line for line in errors if not _OF_THE_TASK.match(line)), "")


# Those of Slurm's variables that tell where it is. The others are options to srun: the number of
# tasks or GPUs of the whole job would be asked for on each node.
_KEPT_FOR_SRUN = ("SLURM_CONF", "SLURM_CONF_SERVER", "SLURM_CLUSTERS", "SLURM_JWT")


def srun_environ(environ: Mapping[str, str]) -> dict[str, str]:
    """The variables of srun, and so of all that it starts, for a step that its options describe.

    The machine to which the user came by ssh is not the node.
    """
    return {
        name: value
        for name, value in environ.items()
        if name in _KEPT_FOR_SRUN
        or not name.startswith(("SLURM_", "SLURMD_", "SBATCH_", "SALLOC_", "SSH_"))
    }
