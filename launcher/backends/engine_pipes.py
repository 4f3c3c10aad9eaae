"""Pipes to an agent that an engine of the cluster carries: those of srun, and of a Ray actor.

The engine says who may speak, and hides nothing from its network. So what is said is inside TLS
(`tls`), under a key pair that the head makes for its job: the digest of the certificate stands
among the agent's own words, and of the job's variables only those go before the handshake that the
interpreter itself reads.

A link that is cut for a while ends no such pipe, and nothing could take its place: the other side
is waited for as long as for a new connection elsewhere.
"""

import math
from collections.abc import Callable, Mapping

from torch_xdist.launcher.pipe_stream import PipeStream
from torch_xdist.launcher.tls import KeyPair, Tls, key_pair
from torch_xdist.system.frames import Message

_OF_THE_INTERPRETER = ("PYTHON", "LD_")


class EnginePipes:
    """What the pipes to all agents of a job have in common.

    Args:
        engine: what carries them, as the user calls it.
        note: shows a line; from any thread.
    """

    def __init__(self, engine: str, note: Callable[[str], None]) -> None:
        means = f"what {engine} carries is as private as the network of the cluster"
        self._pair: KeyPair | None = key_pair(note, means)
        self._note = note

    @property
    def words(self) -> list[str]:
        """The last ones of the agent's command line: they hold no secret."""
        return [self._pair.digest.hex()] if self._pair else []

    def accepting(self) -> Tls | None:
        """The head's end of one connection."""
        return self._pair.accepting() if self._pair else None

    def open_part(self, env: Mapping[str, str]) -> dict[str, str]:
        """The variables that an agent is started with."""
        if self._pair is None:
            return dict(env)
        return {n: value for n, value in env.items() if n.startswith(_OF_THE_INTERPRETER)}

    def greet(self, stream: PipeStream, env: Mapping[str, str]) -> None:
        """Say first which variables there are."""
        if self._pair is not None:
            stream.send({"op": "environ", "env": dict(env)})

    def lost_s(self, config: Message) -> float:
        """How long each side may be silent."""
        within_s = float(config.get("reconnect_s") or 0.0)
        return max(float(config["lost_s"]), within_s if within_s < math.inf else 0.0)

    def tell_silence(self, name: str, lost_s: float) -> Callable[[str], None]:
        """Shows that an agent says nothing."""
        return lambda why: self._note(f"host {name}: {why}, waiting up to {lost_s:.0f} s for one")
