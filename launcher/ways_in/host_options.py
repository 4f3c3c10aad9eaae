"""The options of `xla-run` that name other hosts, and what they mean."""

from collections.abc import Callable, Sequence
from pathlib import Path

import click

from torch_xdist.launcher.facts import devices, host_list, settings
from torch_xdist.launcher.facts.devices import Choice, Found
from torch_xdist.launcher.facts.errors import UsageError
from torch_xdist.launcher.facts.host_list import Host
from torch_xdist.launcher.facts.settings import Environ


def options(command: Callable[..., None]) -> Callable[..., None]:
    """`--hosts`, `--hostfile`, `--ssh-command`, `--python`."""
    for option in reversed(
        (
            click.option(
                "--hosts", default="", help="run there: a,b or tpu[001-003,7] or me@c:2222"
            ),
            click.option(
                "--hostfile", default="", help="a file of lines HOST [slots=N] [address=A]"
            ),
            click.option("--ssh-command", default="", help="reaches them [XLA_RUN_SSH; ssh]"),
            click.option(
                "--python", default="", help="the interpreter there [the path of this one]"
            ),
        )
    ):
        command = option(command)
    return command


def hosts_of(hosts: str, hostfile: str, nprocs: int | None, *, once: bool) -> list[Host]:
    """The hosts that the options name, each with its number of ranks; none: this one.

    Raises:
        UsageError: they cannot be read, or say no number of ranks.
    """
    if not hosts and not hostfile:
        return []
    if hosts and hostfile:
        raise UsageError("--hosts and --hostfile both name the hosts; leave one out")
    if once:
        raise UsageError("--once runs the command on this host; leave out --once, or the hosts")
    if hosts:
        return host_list.with_slots(host_list.of_option(hosts), nprocs)
    try:
        lines = Path(hostfile).read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"--hostfile {hostfile}: it cannot be read: {error}") from error
    return host_list.with_slots(host_list.of_file(lines, hostfile), nprocs)


def asked_device(hosts: Sequence[Host], environ: Environ) -> Choice:
    """The device kind that PJRT_DEVICE asks for, "" where the hosts shall say what they have.

    Raises:
        UsageError: it is none, or XDIST_TRANSPORT asks several hosts to share memory.
    """
    if len(hosts) > 1 and settings.text(environ, "XDIST_TRANSPORT").lower() == "host":
        raise UsageError(f"XDIST_TRANSPORT=host: {len(hosts)} hosts share no memory; unset it")
    asked = devices.asked_device(environ)
    if asked in ("", "CPU"):
        return Choice(asked, "")
    # Whether they have it is theirs to say.
    there = Found(dict.fromkeys(devices.KINDS, 1), dict.fromkeys(devices.KINDS, True))
    return devices.choose(environ, there)


def ssh_command(given: str, environ: Environ) -> list[str]:
    """The command line that reaches a host.

    Raises:
        SettingError: it is none.
    """
    return settings.ssh_command({"XLA_RUN_SSH": given} if given else environ)
