"""The facts of the host that this process runs on, for the hello of its agent."""

import ipaddress
import os
import socket
from collections.abc import Mapping

from torch_xdist.launcher.facts import devices, settings, tpu
from torch_xdist.launcher.facts.devices import Found
from torch_xdist.launcher.facts.errors import DevicesError
from torch_xdist.launcher.facts.host import HostFacts, excerpt
from torch_xdist.launcher.facts.settings import LOOPBACK
from torch_xdist.launcher.on_host import own_logs
from torch_xdist.launcher.on_host.coordinator import free_port
from torch_xdist.system import addresses

# Reserved for documentation: nothing is sent there, the kernel only chooses the way.
_ELSEWHERE = (("192.0.2.1", 9), ("2001:db8::1", 9))


def measure(
    device: str = "", *, alone: bool = True, address: str = "", keeps_logs: bool = False
) -> HostFacts:
    """Look at this machine.

    Args:
        device: the kind of the job's devices; "": whatever is found.
        alone: whether no other host takes part, so that the ranks meet on loopback.
        address: where other hosts reach this one, if the user has said it.
        keeps_logs: whether a place for logs is to be made here.
    """
    environ = settings.environment()
    found = Found({}, {}) if device == "CPU" else devices.probe()
    whole, trouble = None, ""
    if device == "TPU" or (not device and found.usable("TPU")):
        try:
            whole = tpu.read_slice(environ)
        except DevicesError as error:
            trouble = str(error)
    root = settings.log_root({**environ, "XLA_RUN_LOG_DIR": ""})[0]
    why_no_logs = own_logs.why_not(root) if keeps_logs else "the head keeps them"
    where = LOOPBACK if alone else address or own_address(environ)
    return HostFacts(
        name=socket.gethostname(),
        address=where,
        port=free_port(where) if _is_own(where) else 0,
        cores=tuple(devices.own_cores()),
        memory_bytes=os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
        found=found,
        environ=excerpt(environ),
        whole=whole,
        trouble=trouble,
        log_root="" if why_no_logs else str(root),
        why_no_logs=why_no_logs,
    )


def _is_own(address: str) -> bool:
    with socket.socket(addresses.family(address), socket.SOCK_STREAM) as probe:
        try:
            probe.bind((address, 0))
        except OSError:
            return False
        return True


def own_address(environ: Mapping[str, str]) -> str:
    """Where other hosts reach this one: at the address that the head's ssh came to.

    It is a real one of this machine, whatever its name resolves to. Where the head is on this very
    machine (loopback), or came over IPv6, which is used where there is no IPv4 alone: that of the
    way out. A node of Slurm, which may have no way out, is where the name leads that Slurm calls it
    by. An address of one link (fe80::1%eth0) is none for others.
    """
    told = settings.ssh_address(environ) or _named(settings.node_name(environ))
    if told and not told.startswith("127.") and ":" not in told:
        return told
    way_out = _way_out(_ELSEWHERE[0])
    if way_out or (told and ":" not in told):
        return way_out or told
    if told and not ipaddress.ip_address(told.partition("%")[0]).is_link_local and told != "::1":
        return told
    return _way_out(_ELSEWHERE[1]) or LOOPBACK


def _way_out(elsewhere: tuple[str, int]) -> str:
    """The address of this machine on its way there; "" where there is none."""
    with socket.socket(addresses.family(elsewhere[0]), socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(elsewhere)
        except OSError:
            return ""
        return str(probe.getsockname()[0])


def _named(name: str) -> str:
    """The address of this machine that a name of it leads to; "" where it leads elsewhere."""
    own = [address for address in addresses.of_name(name) if _is_own(address)] if name else []
    return own[0] if own else ""
