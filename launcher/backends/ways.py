"""The ways to other machines by their names: how the agents of a job, or a check, come there."""

from collections.abc import Sequence

from torch_xdist.launcher.backends.gcloud import Gcloud
from torch_xdist.launcher.backends.over_command import Way
from torch_xdist.launcher.backends.slurm.srun import Srun, srun_environ
from torch_xdist.launcher.backends.ssh import Ssh
from torch_xdist.launcher.facts import settings


def way_of(name: str, command: Sequence[str]) -> Way:
    """The way that `Job.way` and `Job.way_command` name."""
    if name == "slurm":
        return Srun(command, srun_environ(settings.environment()))
    return Gcloud(command) if name == "gcloud" else Ssh(command)
