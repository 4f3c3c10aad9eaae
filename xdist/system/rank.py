"""Who a rank is: one record, written into its environment by the launcher and read from there.

The names are torchrun's, so that other libraries find them, and ours (XLA_RUN_*). The launcher
writes a `Rank`, `launcher/facts/cluster.py` makes one of what another launcher says, and
`torch_xdist.world` reads the one of this process. Nothing here reads os.environ by itself.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from torch_xdist.system import addresses
from torch_xdist.system.errors import RankError

DEFAULT_PORT = 12355
_SECRET = re.compile(r"(?:[0-9a-fA-F]{2}){16,}")
_LAST_PORT = 65535
_OURS, _TORCHRUN, _UNNAMED = "xla-run", "torchrun", "the environment (RANK)"


@dataclass(frozen=True, slots=True)
class Rank:
    """One rank's place. A process outside any launcher is rank 0 of 1, and `is_rank` is false.

    `host_index` of `hosts` counts machines. `master_addr` and `master_port` are where libraries
    meet; torchrun keeps its own store there. `coordinator` is the address of JAX's coordination
    service where the launcher runs one. `control` is the launcher's address, `task` what the rank
    runs ("function", "script", "module", "program"); both only under our launcher.

    `secret` is random, the same on all ranks, new for each attempt, and known to processes of the
    same user alone: messages are sealed with it (`frames.seal`). Other launchers hand out none, and
    none can be derived from what they tell, for other users can read that: under them it
    is b"", unless XLA_RUN_SECRET was set for the whole job. Who has b"" must not unpickle what came
    over a channel that others can write to.
    """

    rank: int = 0
    world_size: int = 1
    local_rank: int = 0
    local_world_size: int = 1
    host_index: int = 0
    hosts: int = 1
    master_addr: str = "127.0.0.1"
    master_port: int = 0
    job_id: str = ""
    attempt: int = 0
    max_restarts: int = 0
    log_dir: str = ""
    error_file: str = ""
    control: str = ""
    coordinator: str = ""
    task: str = ""
    launcher: str = ""
    secret: bytes = field(default=b"", repr=False)

    @property
    def is_rank(self) -> bool:
        """Whether some launcher has made this process a rank."""
        return bool(self.launcher)

    @property
    def meeting(self) -> str:
        """A name for this attempt that ranks of no other job on the host use.

        Several jobs may have the same id (torchrun's default is "none"), but not the same port.
        """
        port = self.master_port or DEFAULT_PORT
        return f"{self.job_id}/{self.master_addr}:{port}/{self.attempt}"

    @property
    def coordinator_address(self) -> str:
        """Where JAX's coordination service is: the launcher's, else beside the master port.

        Other launchers use the master port for themselves; the one next to it is as good as any.
        """
        port = self.master_port or DEFAULT_PORT
        beside = port + 1 if port < _LAST_PORT else port - 1
        return self.coordinator or addresses.joined(self.master_addr, beside)

    @property
    def serves_coordinator(self) -> bool:
        """Whether this rank must run that service, since the launcher runs none."""
        return self.is_rank and not self.coordinator and self.rank == 0

    def to_environ(self) -> dict[str, str]:
        """torchrun's names and ours; all values are text."""
        return {
            **self.torchrun_names(),
            "PJRT_LOCAL_PROCESS_RANK": str(self.local_rank),
            "PJRT_LOCAL_PROCESS_COUNT": str(self.local_world_size),
            "TORCHELASTIC_RUN_ID": self.job_id,
            "TORCHELASTIC_RESTART_COUNT": str(self.attempt),
            "TORCHELASTIC_MAX_RESTARTS": str(self.max_restarts),
            "TORCHELASTIC_ERROR_FILE": self.error_file,
            "XLA_RUN_JOB_ID": self.job_id,
            "XLA_RUN_ATTEMPT": str(self.attempt),
            "XLA_RUN_HOST_INDEX": str(self.host_index),
            "XLA_RUN_LOG_DIR": self.log_dir,
            "XLA_RUN_CONTROL": self.control,
            "XLA_RUN_COORDINATOR": self.coordinator,
            "XLA_RUN_TASK": self.task,
            "XLA_RUN_SECRET": self.secret.hex(),
        }

    def torchrun_names(self) -> dict[str, str]:
        """What every library looks for, whichever launcher started it."""
        return {
            "RANK": str(self.rank),
            "LOCAL_RANK": str(self.local_rank),
            "WORLD_SIZE": str(self.world_size),
            "LOCAL_WORLD_SIZE": str(self.local_world_size),
            "GROUP_RANK": str(self.host_index),
            "GROUP_WORLD_SIZE": str(self.hosts),
            "ROLE_RANK": str(self.rank),
            "ROLE_WORLD_SIZE": str(self.world_size),
            "ROLE_NAME": "default",
            "MASTER_ADDR": self.master_addr,
            "MASTER_PORT": str(self.master_port),
        }

    def checked(self) -> "Rank":
        """Itself.

        Raises:
            RankError: an index is not below its count.
        """
        pairs = (
            ("rank", self.rank, self.world_size),
            ("local rank", self.local_rank, self.local_world_size),
            ("host", self.host_index, self.hosts),
        )
        for what, index, count in pairs:
            if index >= count:
                raise RankError(
                    f"{self.launcher}: {what} {index} of {count}; an index below the count is "
                    "needed: the variables are left over from another job, unset them"
                )
        return self


# What `from_environ` takes for a rank; a process that shall be none must not have them.
RANK_VARIABLES = (
    *Rank().torchrun_names(),
    *("PJRT_LOCAL_PROCESS_RANK", "PJRT_LOCAL_PROCESS_COUNT", "XLA_RUN_COORDINATOR"),
    *("XLA_RUN_SECRET", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_ERROR_FILE"),
    *("TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_MAX_RESTARTS"),
)


def from_environ(environ: Mapping[str, str]) -> Rank:
    """The rank that these variables name; without RANK and WORLD_SIZE, the one of no launcher.

    Raises:
        RankError: a value is no number, or an index is not below its count.
    """
    if not _text(environ, "RANK") or not _text(environ, "WORLD_SIZE"):
        return Rank()
    rank, size = _number(environ, "RANK"), _number(environ, "WORLD_SIZE", least=1)
    local_size = _number(environ, "LOCAL_WORLD_SIZE", least=1, default=size)
    hosts = _number(environ, "GROUP_WORLD_SIZE", least=1, default=max(1, size // local_size))
    job, elastic = _text(environ, "XLA_RUN_JOB_ID"), _text(environ, "TORCHELASTIC_RUN_ID")
    # A torchrun that runs as the command of xla-run leaves our job's name to its ranks.
    ours = job if job == (elastic or job) else ""
    found = Rank(
        rank=rank,
        world_size=size,
        local_rank=_number(environ, "LOCAL_RANK", default=rank if local_size == size else 0),
        local_world_size=local_size,
        host_index=_host_index(environ, default=min(rank // local_size, hosts - 1)),
        hosts=hosts,
        master_addr=_text(environ, "MASTER_ADDR") or "127.0.0.1",
        master_port=_number(environ, "MASTER_PORT", default=0),
        job_id=ours or elastic,
        attempt=_number(environ, "XLA_RUN_ATTEMPT" if ours else "TORCHELASTIC_RESTART_COUNT", 0, 0),
        max_restarts=_number(environ, "TORCHELASTIC_MAX_RESTARTS", default=0),
        error_file=_text(environ, "TORCHELASTIC_ERROR_FILE"),
        launcher=_OURS if ours else _TORCHRUN if elastic else _UNNAMED,
        secret=secret_of(environ),
    )
    if ours:
        found = replace(
            found,
            log_dir=_text(environ, "XLA_RUN_LOG_DIR"),
            control=_text(environ, "XLA_RUN_CONTROL"),
            coordinator=_text(environ, "XLA_RUN_COORDINATOR"),
            task=_text(environ, "XLA_RUN_TASK"),
        )
    return found.checked()


def _host_index(environ: Mapping[str, str], default: int) -> int:
    # Ray Train and others have torchrun's names but for this one.
    return _number(environ, "GROUP_RANK", default=_number(environ, "NODE_RANK", default=default))


def _text(environ: Mapping[str, str], name: str) -> str:
    return environ.get(name, "").strip()


def _number(
    environ: Mapping[str, str], name: str, least: int = 0, default: int | None = None
) -> int:
    value = _text(environ, name)
    if not value and default is not None:
        return default
    if not value.isdecimal() or int(value) < least:
        raise RankError(
            f"{name}: {value!r} is no whole number from {least} up; correct or unset it"
        )
    return int(value)


def secret_of(environ: Mapping[str, str]) -> bytes:
    """XLA_RUN_SECRET; b"" where it is not set.

    Raises:
        RankError: its value is no hexadecimal digits, or so few that it can be guessed.
    """
    value = _text(environ, "XLA_RUN_SECRET")
    if value and _SECRET.fullmatch(value) is None:
        raise RankError(
            "XLA_RUN_SECRET: 32 hexadecimal digits or more are needed, an even number of them; "
            'make some (python -c "import secrets; print(secrets.token_hex(32))") and set the same '
            "on all ranks, or unset it"
        )
    return bytes.fromhex(value)
