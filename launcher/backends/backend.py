"""What a backend is: it names hosts, starts one agent on each, and says why one is gone.

Everything else is the control plane's. `local` is the smallest one; see CONTRIBUTING.md.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from torch_xdist.launcher.facts.host_list import Host
from torch_xdist.system.frames import Message

if TYPE_CHECKING:  # gRPC takes 0.2 s to import
    from torch_xdist.launcher.control import Server

# Queues a message for one agent, and never waits.
Send = Callable[[Mapping[str, Any], bytes], None]


@dataclass(frozen=True, slots=True)
class Plane:
    """The head's end of the control plane, as an agent is given it.

    `post` takes what an agent says, from any thread; `server` calls it for agents that come to it.
    An agent that speaks over a stream of its own ends with `{"op": "gone", "why": ...}`.
    """

    server: "Server"
    post: Callable[[int, Message, bytes], None]


@dataclass(frozen=True, slots=True)
class Gone:
    """An agent that is gone, in words, and the exit code of the job.

    `is_lost` says that its host may be: nothing is known of its ranks any more, and `text` is why.
    """

    text: str
    exit_code: int
    is_lost: bool = False


class AgentProcess(Protocol):
    """An agent that was started."""

    def connect(self, plane: Plane, config: Message, stdin: int | None) -> Send:
        """Tell it its `config`, give it the stdin of one rank, and how it is spoken to."""

    def why_gone(self) -> str | None:
        """None while it lives, so far as is known without asking it; else how it ended."""

    def silent_s(self) -> float:
        """For how long it has said nothing, though it should; 0 where that tells nothing."""

    def lives_on_s(self) -> float:
        """For how long its ranks may still run where it is gone for us, but not for itself."""

    def explain(self, why: str, name: str, *, has_said_hello: bool) -> Gone:
        """What it means that it is gone; `why` is what its stream or `why_gone` said."""

    def end(self, limit_s: float = 10.0) -> None:
        """Gone within the limit, with everything that it started."""


class Backend(Protocol):
    """Starts agents; an agent is what `launcher/on_host/agent.py` runs."""

    def hosts(self) -> Sequence[str]:
        """The hosts of an attempt as the user knows them, host 0 first."""

    def take(self, hosts: Sequence[Host]) -> None:
        """The next attempt runs on these: some of those that the job names."""

    def there(self) -> Collection[int]:
        """The numbers of the job's hosts that are known to be there before they are asked."""

    def start(self, host_index: int, job_id: str, warmth: str, mark: str) -> AgentProcess:
        """Start the agent of one host, with its stdin attached.

        Args:
            mark: "NAME=value", with which the environment of all that it starts is marked.
        """

    def rank_secret(self, attempt: int) -> bytes:
        """What the ranks of an attempt seal with; b"" where the head makes one and sends it."""

    def close(self, exit_code: int, text: str) -> None:
        """The job is over, after all attempts; `text` is one line that says how."""
