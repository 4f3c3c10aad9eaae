"""The messages of a rank that no other rank is there for: rank 0 of a topology, rehearsed."""

from torch_xdist.errors import WorldError


class Alone:
    """A `Communicator` to which every other rank says what this one says."""

    rank, is_authenticated = 0, True

    def __init__(self, world_size: int) -> None:
        self.world_size = world_size

    def exchange(self, tag: str, payload: bytes, ranks: tuple[int, ...]) -> list[bytes]:
        return [payload] * len(ranks)

    def send(self, target: int, tag: str, payload: bytes) -> None:
        """Nobody is there to take it."""

    def receive(self, source: int | None, tag: str) -> tuple[int, bytes]:
        who = "any rank" if source is None else f"rank {source}"
        raise WorldError(
            f"xla-run compile: rank 0 waits for a message of {who} ({tag}), and no other rank is"
            " there; leave the call out where XDIST_REHEARSE is set"
        )
