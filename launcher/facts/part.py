"""Whether the ranks that a script starts on this host are part of a job of several hosts.

Nobody leads such a job: the script was started once on every host, as by `gcloud ... ssh
--worker=all`, and each host knows from variables, or from the metadata of its TPU slice, which one
it is.
"""

from torch_xdist.launcher.facts import cluster, tpu
from torch_xdist.launcher.facts.cluster import Found, HostOfMany
from torch_xdist.launcher.facts.devices import Choice
from torch_xdist.launcher.facts.errors import UsageError
from torch_xdist.launcher.facts.settings import Environ, integer


def of_host(found: Found | None, ranks: int, choice: Choice, environ: Environ) -> HostOfMany | None:
    """Which part the ranks of this host are; None where they are a job of their own.

    Fewer ranks than a host of a TPU slice has chips are one: libtpu joins whole hosts only.

    Args:
        found: what `cluster.detect` says.

    Raises:
        UsageError: the hosts are several slices, or no slice that is known.
        DevicesError: nothing says which slice this is.
    """
    if choice.kind != "TPU":
        return found if isinstance(found, HostOfMany) else None
    whole = tpu.read_slice(environ)
    hosts = len(whole.addresses)
    if hosts > 1 and ranks != whole.chips_per_host:
        return None
    if (slices := integer(environ, "MEGASCALE_NUM_SLICES") or 1) > 1:
        raise UsageError(
            f"spawn: this is a host of {slices} TPU slices (MEGASCALE_NUM_SLICES), and only the "
            "hosts of one slice are joined without a launcher; start the script with `xla-run "
            "--tpu a,b`, or unset the variable to use this slice alone"
        )
    if hosts > 1:
        return cluster.host_of_slice(whole.worker_id, whole.addresses, environ)
    if isinstance(found, HostOfMany):
        raise UsageError(
            f"spawn: this is host {found.host_index} of {found.hosts} of {found.launcher}, but the "
            f"TPU slice {whole.accelerator_type} has one host; chips of several slices are joined "
            "by `xla-run --tpu a,b` only; or unset the variables that name the other hosts"
        )
    return None
