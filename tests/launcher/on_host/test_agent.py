"""The agent of a host: what it says of its own failure, and the limits that are its own."""

from collections.abc import Callable

MANY = ("--nprocs", "24")


def limited(options: str) -> tuple[str, ...]:
    """Before a command: it may open so many files."""
    return ("bash", "-c", f'ulimit {options} && exec "$@"', "-")


def test_an_agent_that_may_not_open_enough_files_says_so(start: Callable) -> None:
    ended = start("print('ran')", *MANY, before=limited("-n 64")).end()
    assert ended.code == 70, ended.err
    assert "the agent failed:" in ended.err and "Too many open files" in ended.err


def test_the_soft_limit_of_open_files_holds_for_the_ranks_and_not_for_their_agent(
    start: Callable,
) -> None:
    body = "import resource; print(resource.getrlimit(resource.RLIMIT_NOFILE)[0])"
    ended = start(body, *MANY, before=limited("-S -n 64")).end()
    assert ended.code == 0, ended.err
    assert sorted(ended.out.splitlines()) == sorted(f"[{rank}] 64" for rank in range(24))
