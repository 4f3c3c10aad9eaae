"""What a job is, and what it is called. It travels as JSON from `spawn` to the job's head."""

import secrets
import time
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from torch_xdist.launcher.facts.cluster import HostOfMany
from torch_xdist.launcher.facts.errors import UsageError
from torch_xdist.launcher.facts.host_list import Host
from torch_xdist.launcher.facts.settings import Timeouts, timeouts


@dataclass
class Job:
    """All that the head of a job needs to know.

    kind: "function" (pickled, in the payload), "script" and "module" (Python, run inside a fork of
    the warm nursery), "program" (anything else, executed). `sys_path` goes in front of sys.path.
    `log_root` is where the folder of its logs is made; without `log_root_is_named` the launcher
    chose it, and removes the oldest folders there. Without `ranks_of_command` the command runs once
    and is no rank: it may spawn its own. `stdin_rank` is the rank that gets the launcher's stdin.
    `max_preemptions` is how often the job is started again after a lost host or a preemption; None:
    these count as failures. `hosts` are other machines, which have `nprocs` ranks together; empty:
    this one. There `device` may be "", for what they have; `way` ("ssh", "slurm", "gcloud") reaches
    them, by the program and options of `way_command`, and `python` is their interpreter, which
    the words of `inside` start there (`docker run IMAGE`). On Ray ("ray") `way_command` is an
    address and the resources of each. Where they come by themselves ("nodes") it is the address and
    the port of node 0. An empty `cwd`: where a login begins. An attempt begins with `least_hosts`
    of them (0: all), nodes after a wait of `elastic_wait_s`; `spares` may stand in for others.
    `ship` is a folder that every host gets a copy of, in which its ranks start: its real path, with
    `cwd` and the script in it; `ship_limit_bytes` is the most that its files may have.
    With a `part` these are the ranks of one host among others that each start their own, as many as
    here; all are numbered host by host.
    """

    kind: str
    argv: list[str]
    nprocs: int
    device: str = "CPU"
    headline: str = ""
    job_id: str = ""
    state_dir: str = ""
    log_root: str = ""
    log_root_is_named: bool = False
    cwd: str = ""
    sys_path: list[str] = field(default_factory=list)
    env: dict[str, str] = field(default_factory=dict)
    tee: str = "all"
    max_restarts: int = 0
    max_preemptions: int | None = None
    timeouts: Timeouts = field(default_factory=Timeouts)
    keep_logs: bool = True
    ranks_of_command: bool = True
    needs_coordinator: bool = True
    stdin_rank: int | None = None
    hosts: list[Host] = field(default_factory=list)
    way: str = "ssh"
    way_command: list[str] = field(default_factory=list)
    python: str = ""
    inside: list[str] = field(default_factory=list)
    part: HostOfMany | None = None
    ship: str = ""
    ship_limit_bytes: int = 0
    spares: list[Host] = field(default_factory=list)
    least_hosts: int = 0
    elastic_wait_s: float = 30.0

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> "Job":
        """Read what `to_json` wrote."""
        hosts, spares = ([Host(**host) for host in data[name]] for name in ("hosts", "spares"))
        part = data["part"] and HostOfMany(
            **{**data["part"], "names": tuple(data["part"]["names"])}
        )
        made = {"timeouts": timeouts(data["timeouts"]), "hosts": hosts, "spares": spares}
        return cls(**{**data, **made, "part": part})

    @property
    def warmth(self) -> str:
        """Whether the nursery imports torch and jax for this job."""
        return "cold" if self.kind == "program" else "warm"

    @property
    def world_size(self) -> int:
        """How many ranks there are, those of other hosts included."""
        return self.nprocs * (self.part.hosts if self.part else 1)

    def ranks(self) -> range:
        """The ranks that are started here."""
        first = self.nprocs * self.part.host_index if self.part else 0
        return range(first, first + self.nprocs)

    def shares(self) -> list[int]:
        """How many ranks each host has; their ranks are consecutive."""
        return [host.slots for host in self.hosts] or [self.nprocs]

    def labels(self) -> list[str]:
        """What stands before the lines of each rank: "2", on other hosts "a/2"."""
        names = [host.name for host in self.hosts for _ in range(host.slots)]
        return [f"{name}/{rank}" for rank, name in enumerate(names)] or [
            str(rank) for rank in self.ranks()
        ]

    def to_json(self) -> dict[str, Any]:
        """Infinite timeouts travel as "off": JSON has no infinity."""
        data = asdict(self)
        data["timeouts"] = self.timeouts.to_environ()
        return data

    def on(self, hosts: list[Host]) -> "Job":
        """The same job on these hosts, as one attempt sees it."""
        return replace(self, hosts=hosts, nprocs=sum(host.slots for host in hosts))

    def teed(self, ranks: range) -> list[int]:
        """Those of these ranks whose lines are shown: all, none, or "0,2"."""
        if self.tee in ("all", "none"):
            return list(ranks) if self.tee == "all" else []
        return [rank for rank in map(int, self.tee.split(",")) if rank in ranks]


def new_id() -> str:
    """A name that sorts by time and that two jobs do not share: "1121-224512-3f9a2c"."""
    return time.strftime("%m%d-%H%M%S-") + secrets.token_hex(3)


def new_mark() -> str:
    """What tells the processes of an attempt from all others: "NAME=value"."""
    return f"XLA_RUN_MARK={secrets.token_hex(16)}"


def check_id(job_id: str) -> str:
    """The name itself, if it can be a file name and an environment value.

    Raises:
        UsageError: it cannot.
    """
    plain = all(c.isascii() and (c.isalnum() or c in "._-") for c in job_id)
    if not plain or not 0 < len(job_id) <= 80 or job_id.startswith("."):
        raise UsageError(
            f"job id: {job_id!r} cannot name a job; use up to 80 letters, digits, '.', '_' and "
            "'-', and no '.' at the start"
        )
    return job_id
