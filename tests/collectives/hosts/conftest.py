"""Worlds of ranks on several hosts; the hosts are this machine, but share no memory."""

import socket
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
from rank_pool import RankPool

SECRET = b"known to all"


def become(
    rank: int,
    size: int,
    per_host: Sequence[int],
    address: str,
    secret: bytes,
    function: Any,
    rest: Any,
) -> Any:
    """Join, and call the function (rank, size, ...)."""
    from torch_xdist.collectives.hosts import transport

    host_of = [host for host, count in enumerate(per_host) for _ in range(count)]
    host = host_of[rank]
    # Where nobody leads, each host has a name of its own for the job.
    job = f"{address} on {host}"
    transport.join(rank, size, address, job, host_index=host, secret=secret)
    return function(rank, size, *rest)


@pytest.fixture
def between_hosts() -> Iterator[Callable]:
    """`between_hosts((2, 1), function, ...)`: what happened on each of three ranks."""
    pools = []

    def run(
        per_host: Sequence[int],
        function: Any,
        *rest: Any,
        secret: bytes = SECRET,
        timeout_s: float = 60.0,
    ) -> list[tuple[bool, Any]]:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            address = f"127.0.0.1:{probe.getsockname()[1]}"
        size = sum(per_host)
        pools.append(RankPool(size))
        given = (per_host, address, secret, function, rest)
        return pools[-1].outcomes(size, become, *given, join=False, timeout_s=timeout_s)

    yield run
    for pool in pools:
        pool.__exit__(None, None, None)


@pytest.fixture
def good(between_hosts: Callable) -> Callable:
    """The same, where no rank fails: what each returned."""

    def run(*given: Any, **options: Any) -> list[Any]:
        outcomes = between_hosts(*given, **options)
        assert all(is_good for is_good, _ in outcomes), outcomes
        return [value for _, value in outcomes]

    return run
