"""How the ranks of an attempt come to start: the agents say hello and tell of their hosts, host 0
serves what the ranks meet at, the others try their way to it, and all get their orders.

Called on the head's thread alone.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from torch_xdist.launcher.backends.backend import Send
from torch_xdist.launcher.facts import devices, placement
from torch_xdist.launcher.facts.errors import HostError, PreflightError
from torch_xdist.launcher.facts.host import HostFacts, refusal
from torch_xdist.launcher.facts.job import Job
from torch_xdist.launcher.facts.placement import Meeting, Place
from torch_xdist.launcher.head.hosts import Hosts, HostState
from torch_xdist.launcher.shipping import sender
from torch_xdist.launcher.shipping.sender import Sending
from torch_xdist.system.frames import Message

REACH_S = 10.0
# What agents say before their ranks start.
OPS = ("hello", "coordinator", "reached", *sender.OPS)


class Start:
    """The start of one attempt.

    Args:
        meeting: what is known of it before any host is: `control` and `secret`.
        log_dir: of this attempt, as the head would keep it; "": no logs are kept.
        note: shows a line.
        started: called with the line at start, when the ranks have got their orders.
        sending: brings the job's code to the hosts; None: they have it.
    """

    def __init__(
        self,
        job: Job,
        number: int,
        hosts: Hosts,
        meeting: Meeting,
        log_dir: str,
        note: Callable[[str], None],
        started: Callable[[str], None],
        sending: Sending | None = None,
    ) -> None:
        self._job, self._number, self._hosts = job, number, hosts
        self._meeting, self._log_dir = meeting, log_dir
        self._note, self._started = note, started
        self._headline = job.headline
        self._sending, self._have_met = sending, False
        # A job of thousands of hosts hears of each once, and looks at all of them once.
        self._silent = {state.index for state in hosts}
        self._untried = {state.index for state in hosts} - {0}

    def absent(self) -> list[HostState]:
        """The hosts whose agents have not said hello, where a host has a name before that."""
        return [state for state in self._hosts if state.facts is None and state.name]

    def absent_names(self) -> list[str]:
        """How these are called."""
        return [state.name for state in self.absent()]

    def first_absent(self) -> int | None:
        """The first rank of these: the others wait for it."""
        return next((state.ranks[0] for state in self.absent()), None)

    @property
    def silence(self) -> str:
        """What that means."""
        if self._job.way == "nodes":
            return f"not yet at {':'.join(self._job.way_command)}"
        if self._job.way == "ray":
            return "not started by Ray yet"
        return "no answer"

    def absent_ranks(self, here: list[int]) -> list[int]:
        """The ranks that are waited for, where those `here` have not arrived."""
        return here

    def go_on(self) -> None:
        """Another host, with a head of its own, has said something."""

    def take(self, state: HostState, message: Message) -> None:
        """One of `OPS`.

        Raises:
            LauncherError: the job cannot start.
        """
        match message["op"]:
            case "hello":
                self.greet(state, message)
            case "coordinator":
                self.serve(message["address"])
            case "reached":
                self.reach(state, message["why"])
            case op if self._sending is not None:
                self._sending.take(state.index, message)
                if op == "shipped" and self._have_met:
                    self._start_ranks()

    def greet(self, state: HostState, hello: Message) -> None:
        """The hello of an agent; the last one sets all going.

        Raises:
            HostError: host 0 has no address to meet at.
            PreflightError, DevicesError: the hosts cannot do this job together.
        """
        if why := refusal(hello):
            raise PreflightError(f"host {state.name}: {why}").due_to(state.index)
        state.facts = HostFacts.from_json(hello["facts"])
        state.name = state.name or state.facts.name
        if self._job.way in ("nodes", "ray"):
            # Its user knows it by its number, and needs the machine when something happened there.
            state.name = f"{state.name} on {state.facts.name}"
        if self._keeps_own_logs and not state.facts.log_root:
            why = state.facts.why_no_logs
            self._note(f"warning: host {state.name}: no logs are kept there: {why}")
        if self._sending is not None:
            self._sending.begin(state.index, state.name, state.send)
        self._silent.discard(state.index)
        if not self._silent:
            self._begin_meeting()

    def _begin_meeting(self) -> None:
        """All hosts are known: host 0 is to serve what the ranks meet at."""
        needs_coordinator = self._job.needs_coordinator
        if self._job.hosts:
            self._choose_device()
            needs_coordinator = len(self._hosts) > 1 or self._job.device != "CPU"
        first, facts = self._hosts[0].name, self._facts(self._hosts[0])
        if not facts.port:
            raise HostError(
                f"host {first}: {facts.address} is no address of it; name one that other hosts "
                f"reach it at in a --hostfile: {first} address=ADDRESS"
            ).due_to(0)
        self._meeting = replace(self._meeting, master_addr=facts.address, master_port=facts.port)
        if self._job.world_size > 1 and needs_coordinator:
            order = {"world_size": self._job.world_size, "host": facts.address}
            self._hosts[0].send({"op": "coordinate", **order}, b"")
        else:
            self._start_ranks()

    def serve(self, address: str) -> None:
        """Host 0 serves what the ranks meet at; the other hosts try to reach it."""
        self._meeting = replace(self._meeting, coordinator=address)
        if len(self._hosts) == 1:
            self._start_ranks()
        for state in list(self._hosts)[1:]:
            state.send({"op": "reach", "address": address, "limit_s": REACH_S}, b"")

    def reach(self, state: HostState, why_not: str) -> None:
        """What a host says about its way to host 0.

        Raises:
            HostError: there is none.
        """
        if why_not:
            first, facts = self._hosts[0].name, self._facts(self._hosts[0])
            or_else = (
                f", or give another address than {facts.address} in a --hostfile: "
                f"{first} address=ADDRESS"
                if self._job.way == "ssh"
                else ""
            )
            raise HostError(
                f"host {state.name} cannot reach host {first} at {self._meeting.coordinator} "
                f"({why_not}); hosts must reach each other on any port: open the firewall between "
                f"them{or_else}"
            )
        self._untried.discard(state.index)
        if not self._untried:
            self._start_ranks()

    def _choose_device(self) -> None:
        every = [self._facts(state) for state in self._hosts]
        choice = placement.device_of(self._job, [state.name for state in self._hosts], every)
        self._job.device = choice.kind
        environ = {**every[0].environ, **self._job.env}
        count = len(every)
        self._headline = devices.start_line(self._job.nprocs, count, choice, environ)

    def _start_ranks(self) -> None:
        self._have_met = True
        if self._sending is not None and not self._sending.are_all_there:
            return
        places = [Place(state.facts, self.log_dir_on(state)) for state in self._hosts]
        orders = placement.rank_orders(self._job, self._number, self._meeting, places)
        for state, place, own in zip(self._hosts, places, orders, strict=True):
            common = placement.common_order(self._job, place.log_dir, state.ranks)
            if self._sending is not None:
                common = self._sending.moved(state.index, self._job, common)
            is_own = self._keeps_own_logs and bool(place.log_dir)
            order = {"op": "start", "time_s": time.time(), **common, "is_own_log_dir": is_own}
            state.send({**order, "ranks": own}, b"")
        self._started(self._headline)

    def log_dir_on(self, state: HostState) -> str:
        """Where a host keeps the logs of its ranks: here, or below a folder of its own."""
        if not self._keeps_own_logs:
            return self._log_dir
        root = state.facts.log_root if state.facts is not None else ""
        tail = Path(self._log_dir or f"{self._job.job_id}/attempt-{self._number}").parts[-2:]
        return str(Path(root, *tail)) if root else ""

    def log_place(self, rank: int) -> str:
        """Where the log of a rank is; on another host, behind the name of that."""
        state = self._hosts.of_rank(rank)
        folder = self.log_dir_on(state)
        return f"{state.name}:{folder}" if self._job.hosts and folder else folder

    def own_logs_of(self, ranks: Sequence[int]) -> list[tuple[int, str, Send]]:
        """The places of those logs that only a host has, and the ways to its agent."""
        found = [(rank, self._hosts.of_rank(rank)) for rank in ranks if self._keeps_own_logs]
        return [
            (rank, place, state.send)
            for rank, state in found
            if not state.gone and (place := self.log_place(rank))
        ]

    @property
    def _keeps_own_logs(self) -> bool:
        """Whether every host keeps the logs of its ranks in a place of its own."""
        return bool(self._job.hosts) and not self._job.log_root_is_named

    @staticmethod
    def _facts(state: HostState) -> HostFacts:
        assert state.facts is not None
        return state.facts
