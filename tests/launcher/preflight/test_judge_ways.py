"""What is called wrong with the ways between hosts."""

from preflight_answers import answer

from torch_xdist.launcher.preflight import judge_ways
from torch_xdist.launcher.preflight.inquiry import Answer
from torch_xdist.launcher.preflight.ways import Reached

OPEN: Reached = {"ms": 0.1}
CLOSED: Reached = {"why_not": "timed out", "port": 61000}


def pod(*rows: str) -> list[Answer]:
    """One row per host: "o" an open way to the host of that place, "x" a closed one."""
    hosts = [answer(name) for name in "abcdefgh"[: len(rows)]]
    for index, (host, row) in enumerate(zip(hosts, rows, strict=True)):
        ways = {"o": OPEN, "x": CLOSED}
        host.reached = {i: ways[letter] for i, letter in enumerate(row) if i != index}
    return hosts


def texts(hosts: list[Answer]) -> list[str]:
    return [trouble.text for trouble in judge_ways.troubles(hosts, hosts)]


def test_open_ways_are_no_trouble() -> None:
    assert texts(pod("-oo", "o-o", "oo-")) == []


def test_a_way_that_is_closed_in_one_direction_is_named() -> None:
    (found,) = judge_ways.troubles(*[pod("-x", "o-")] * 2)
    assert (found.host, found.column, found.exit_code) == ("b", "net", 73)
    assert found.text == (
        "host a cannot reach host b at 10.0.0.98 (port 61000: timed out); hosts must reach each "
        "other on any port: open the firewall between them, or name another address in a "
        "--hostfile: b address=ADDRESS"
    )


def test_a_host_that_nobody_reaches_is_one_trouble() -> None:
    (text,) = texts(pod("-ox", "o-x", "oo-"))
    assert text.startswith("hosts a, b cannot reach host c at ")


def test_a_host_that_reaches_nobody_is_one_trouble() -> None:
    (text,) = texts(pod("-oo", "o-o", "xx-"))
    assert text == (
        "host c reaches none of the other hosts (timed out); hosts must reach each other on any "
        "port: open the firewall between them"
    )


def test_a_host_that_does_not_say_whom_it_reaches_is_named() -> None:
    hosts = pod("-o", "o-")
    hosts[0].tries_ways, hosts[0].reached = True, None
    (found,) = judge_ways.troubles(hosts, hosts)
    assert (found.host, found.exit_code) == ("a", 73)
    assert found.text == (
        "host a: it did not say in time whether it reaches the other hosts; give it more time with "
        "--limit"
    )


def test_an_address_that_is_none_of_a_host_is_named() -> None:
    hosts = pod("-", "")
    assert hosts[1].facts is not None
    hosts[1].facts.update(ports=[], why_no_ports="Cannot assign requested address")
    (text,) = texts(hosts)
    assert text.startswith("host b: it cannot listen at 10.0.0.98 (Cannot assign requested addres")
    assert text.endswith("in a --hostfile: b address=ADDRESS")


def rated(*megabytes: float) -> list[Answer]:
    hosts = pod(*("-" * (len(megabytes) + 1)).split("-")[: len(megabytes) + 1])
    for index, rate in enumerate(megabytes, 1):
        hosts[0].rates[index] = {
            "round_trip_ms": 0.1,
            "there_bytes_per_s": rate * 1e6,
            "back_bytes_per_s": 9e9,
        }
    return hosts


def test_a_host_that_is_much_slower_than_the_others_is_a_warning() -> None:
    hosts = rated(1000, 1100, 90, 1000)
    (found,) = judge_ways.troubles(hosts, hosts)
    assert found.is_warning and found.host == "d"
    assert found.text == (
        "host d: 90 MB/s between it and host a, while 1000 MB/s are usual here; every step waits "
        "for the slowest host"
    )


def test_two_ways_have_no_middle() -> None:
    assert texts(rated(1000, 10)) == []


def test_a_way_that_could_not_be_measured_has_no_speed() -> None:
    hosts = rated(1000)
    hosts[0].rates[1] = {"why_not": "timed out"}
    assert judge_ways.slower(hosts[0], 1) is None
