"""What a round of `chaos_hosts.py` is: hosts, options, faults, drawn from one number, and what each
fault may lead to.

A fault has an owner, a rank or a host: only that one may be blamed, and only with the codes that
docs/failures.md gives it. The same number draws the same round.
"""

import random
from dataclasses import dataclass

NAMES = "abc"
# Silence of 2 s is a lost connection, of 8 s a lost host.
LOST_S, GRACE_S = 2.0, 8.0
SHORT_CUT_S = 4.0
HANG_S, RETURN_S = 5.0, 40.0
# A launcher that was killed by SIGKILL, as Popen says it.
KILLED = -9


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of fault.

    Args:
        owner: "rank", "host" or "head": whom it befalls, and who may be blamed for it.
        codes: how the job may end where nothing is started again; 0: it is no end of the job.
        ways: how the hosts may be started: over ssh, as nodes.
        lost: whether a host goes by it, for which a spare or fewer hosts make up.
        again: whether `--max-restarts` makes up for it.
    """

    name: str
    owner: str
    codes: tuple[int, ...]
    ways: tuple[str, ...] = ("ssh", "nodes")
    lost: bool = False
    again: bool = False


KINDS = (
    Kind("rank killed", "rank", (137,), again=True),
    Kind("rank stopped", "rank", (76,), again=True),
    Kind("exception", "rank", (1,), again=True),
    Kind("os._exit", "rank", (9,), again=True),
    Kind("agent killed", "host", (73,), lost=True, again=True),
    Kind("ssh killed", "host", (0,), ("ssh",)),
    Kind("sshd killed", "host", (0,), ("ssh",)),
    Kind("link cut for a while", "host", (0,)),
    Kind("way there cut for a while", "host", (0,)),
    Kind("way back cut for a while", "host", (0,)),
    Kind("link cut", "host", (73,), lost=True, again=True),
    Kind("way back cut", "host", (73,), lost=True, again=True),
    Kind("host killed", "host", (73,), lost=True, again=True),
    Kind("link slow", "host", (0,)),
    Kind("disk full", "host", (0,)),
    Kind("head killed", "head", (KILLED,)),
    Kind("head stopped for a while", "head", (0,)),
    Kind("SIGTERM", "head", (143,)),
    Kind("SIGINT", "head", (130,)),
)
# Of two faults at once each may be seen first; these are seen, or told, by the head that lives on.
_PAIRABLE = ("rank killed", "exception", "os._exit", "link cut", "host killed", "link slow")
_PAIRABLE += ("disk full", "ssh killed", "link cut for a while", "SIGTERM")


@dataclass(frozen=True, slots=True)
class Fault:
    """A kind, and whom it befalls: a host by its number, a rank by its own; `at_s` from the first
    moment at which all ranks train.
    """

    kind: Kind
    host: int
    rank: int
    at_s: float


@dataclass(frozen=True, slots=True)
class Plan:
    """One round.

    Args:
        hosts: those that are named, spares at their end.
        fewest: with how many the job goes on; `hosts` - `spares`: not with fewer.
    """

    seed: int
    way: str
    hosts: int
    ranks_per_host: int
    restarts: int
    spares: int
    fewest: int
    faults: tuple[Fault, ...]

    @property
    def at_work(self) -> int:
        """How many hosts the first attempt runs on."""
        return self.hosts - self.spares

    @property
    def world(self) -> int:
        return self.at_work * self.ranks_per_host

    @property
    def is_elastic(self) -> bool:
        return self.spares > 0 or self.fewest < self.at_work

    def options(self) -> list[str]:
        """Of `xla-run`, alike for all nodes."""
        words = ["-n", str(self.ranks_per_host), "--max-restarts", str(self.restarts)]
        words += ["--lost-after", f"{LOST_S:g}", "--beat-every", "0.5"]
        words += ["--reconnect-within", f"{GRACE_S:g}"]
        if any(fault.kind.name == "rank stopped" for fault in self.faults):
            words += ["--hang-timeout", f"{HANG_S:g}"]
        if self.way == "nodes":
            few = f"{self.fewest}:" if self.is_elastic else ""
            words += ["--elastic-wait", "3"] if self.is_elastic else []
            # So long the next attempt waits for a node that somebody may start again.
            words += ["--rendezvous-timeout", f"{RETURN_S:g}"]
            return [*words, "--nnodes", f"{few}{self.hosts}"]
        words += ["--hosts", ",".join(NAMES[: self.hosts])]
        if self.spares:
            words += ["--spares", str(self.spares)]
        elif self.is_elastic:
            words += ["--min-hosts", str(self.fewest)]
        return words

    def codes(self) -> set[int]:
        """With which the job may end."""
        ends = [self._codes_of(fault) | self._healed(fault) for fault in self.faults]
        fatal = [codes for codes in ends if codes != {0}]
        return set().union(*(fatal or ends))

    def _healed(self, fault: Fault) -> set[int]:
        """0 where another fault of the host mends its link again, maybe in time."""
        names = {one.kind.name for one in self.faults if one.host == fault.host}
        is_mended = fault.kind.name == "link cut" and "link cut for a while" in names
        return {0} if is_mended else set()

    def _codes_of(self, fault: Fault) -> set[int]:
        kind, codes = fault.kind, set(fault.kind.codes)
        if self.way == "nodes" and fault.host == 0 and kind.name in _ENDS_NODE_0:
            # Node 0 goes on alone where one is enough.
            is_enough = self.fewest == 1 and "cut" in kind.name
            return {0} if is_enough else {_ENDS_NODE_0[kind.name]}
        makes_up = (kind.again and self.restarts) or (kind.lost and self.is_elastic)
        if not makes_up:
            return codes
        # A host that stays away is away in the next attempt, too.
        stays = kind.name in ("link cut", "way back cut", "host killed") and not self.is_elastic
        if stays:
            # Over ssh the next attempt finds at once that it is away; a node is waited for.
            return codes | {77} | ({72} if self.way == "nodes" else set())
        return {0, *(codes if len(self.faults) > 1 else ())}

    def __str__(self) -> str:
        what = " and ".join(
            f"{fault.kind.name} ({_owner(fault)}) after {fault.at_s:.2f} s" for fault in self.faults
        )
        more = f", --max-restarts {self.restarts}" if self.restarts else ""
        more += f", --spares {self.spares}" if self.spares else ""
        more += f", at least {self.fewest}" if self.is_elastic and not self.spares else ""
        return f"{self.way}, {self.hosts} hosts of {self.ranks_per_host}{more}: {what}"


# Where node 0 is cut off, it loses all others, and they lose it.
_ENDS_NODE_0 = {"link cut": 73, "way back cut": 73, "host killed": KILLED}


def _owner(fault: Fault) -> str:
    kind = fault.kind.owner
    return {"rank": f"rank {fault.rank}", "host": f"host {NAMES[fault.host]}"}.get(kind, kind)


def draw(seed: int, kind_name: str = "") -> Plan:
    """The round of a number; with `kind_name` one of this kind of fault alone."""
    dice = random.Random(seed)
    way, hosts = dice.choice(("ssh", "nodes")), dice.choice((2, 3))
    per_host, restarts = dice.choice((1, 2)), dice.choice((0, 0, 1))
    spares, fewest = 0, hosts
    spare_hosts = dice.choice(("", "", "spares", "fewer"))
    if spare_hosts == "spares" and way == "ssh" and hosts == 3:
        spares, fewest = 1, 2
    elif spare_hosts:
        fewest = hosts - 1
    kinds = [kind for kind in KINDS if way in kind.ways and kind_name in ("", kind.name)]
    first = dice.choice(kinds)
    chosen = [first]
    if first.name in _PAIRABLE and dice.random() < 0.25 and not kind_name:
        chosen.append(dice.choice([k for k in kinds if k.name in _PAIRABLE and k is not first]))
    faults = tuple(_befalls(kind, hosts - spares, per_host, dice) for kind in chosen)
    return Plan(seed, way, hosts, per_host, restarts, spares, fewest, faults)


def _befalls(kind: Kind, at_work: int, per_host: int, dice: random.Random) -> Fault:
    host = dice.randrange(at_work)
    rank = host * per_host + dice.randrange(per_host)
    return Fault(kind, host, rank, dice.choice((0.0, dice.random(), 2 * dice.random())))
