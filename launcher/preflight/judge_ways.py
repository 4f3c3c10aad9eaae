"""What is wrong with the ways between hosts, from what each of them found: pure."""

import statistics
from collections.abc import Iterator, Sequence

from torch_xdist.launcher.facts.errors import ExitCode
from torch_xdist.launcher.preflight.inquiry import Answer
from torch_xdist.launcher.preflight.trouble import Trouble, others_text

# Ways that are so much slower than the middle one are named; fewer than three have no middle.
_SLOW_SHARE = 0.25
_LEAST_RATES = 3


def troubles(
    here: Sequence[Answer], answers: Sequence[Answer], other_address: str = ""
) -> list[Trouble]:
    """Ports that are closed and ways that are slow.

    Args:
        here: the hosts that have answered.
        answers: all hosts; ways name them by their places among these.
        other_address: how a host is given another address; "": in a host file.
    """
    if len(answers) < 2:
        return []
    return [
        *_closed_ports(here, other_address),
        *_closed_ways(here, answers, other_address),
        *_slow_ways(answers),
    ]


def _closed_ports(here: Sequence[Answer], other_address: str) -> Iterator[Trouble]:
    for one in here:
        why = (one.facts or {}).get("why_no_ports")
        if why:
            named = (
                "name an address of it that other hosts reach in a --hostfile: "
                f"{one.name} address=ADDRESS"
            )
            text = (
                f"host {one.name}: it cannot listen at {one.address} ({why}); "
                f"{other_address or named}"
            )
            yield Trouble(one.name, "net", text, exit_code=ExitCode.HOST)


def _closed_ways(
    here: Sequence[Answer], answers: Sequence[Answer], other_address: str
) -> Iterator[Trouble]:
    """A host that reaches nobody is one trouble, and so is one that is reached by some not."""
    failed: dict[int, dict[str, str]] = {}
    for one in here:
        if one.tries_ways and one.reached is None:
            text = (
                f"host {one.name}: it did not say in time whether it reaches the other hosts; give "
                "it more time with --limit"
            )
            yield Trouble(one.name, "net", text, exit_code=ExitCode.HOST)
        lost = {i: way for i, way in (one.reached or {}).items() if "why_not" in way}
        if len(lost) > 1 and len(lost) == len(one.reached or {}):
            why = next(iter(lost.values()))["why_not"]
            text = (
                f"host {one.name} reaches none of the other hosts ({why}); hosts must reach each "
                "other on any port: open the firewall between them"
            )
            yield Trouble(one.name, "net", text, exit_code=ExitCode.HOST)
            continue
        for index, way in lost.items():
            failed.setdefault(index, {})[one.name] = f"port {way['port']}: {way['why_not']}"
    for index, sources in sorted(failed.items()):
        to = answers[index]
        named = f"name another address in a --hostfile: {to.name} address=ADDRESS"
        text = (
            f"{others_text(list(sources))} cannot reach host {to.name} at {to.address} "
            f"({next(iter(sources.values()))}); hosts must reach each other on any port: open the "
            f"firewall between them, or {other_address or named}"
        )
        yield Trouble(to.name, "net", text, exit_code=ExitCode.HOST)


def _slow_ways(answers: Sequence[Answer]) -> Iterator[Trouble]:
    for first in answers:
        slowest = {i: bytes_per_s for i in first.rates if (bytes_per_s := slower(first, i))}
        if len(slowest) < _LEAST_RATES:
            continue
        middle = statistics.median(slowest.values())
        for index, rate in slowest.items():
            if rate < _SLOW_SHARE * middle:
                name = answers[index].name
                text = (
                    f"host {name}: {rate / 1e6:.0f} MB/s between it and host {first.name}, while "
                    f"{middle / 1e6:.0f} MB/s are usual here; every step waits for the slowest host"
                )
                yield Trouble(name, "net", text, is_warning=True)


def slower(first: Answer, index: int) -> float | None:
    """Bytes per second in the slower direction between two hosts; None: not measured."""
    found = first.rates.get(index, {})
    if "there_bytes_per_s" not in found:
        return None
    return min(found["there_bytes_per_s"], found["back_bytes_per_s"])
