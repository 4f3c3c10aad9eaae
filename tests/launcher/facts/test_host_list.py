"""The hosts that a user names, in an option or a file."""

import ipaddress
import random
import re

import pytest

from torch_xdist.launcher.facts import host_list
from torch_xdist.launcher.facts.errors import UsageError
from torch_xdist.launcher.facts.host_list import Host


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("a,b", ["a", "b"]),
        (" a , b,", ["a", "b"]),
        ("tpu[001-003,7]", ["tpu001", "tpu002", "tpu003", "tpu7"]),
        ("r[1-2]n[8-9].lan,x", ["r1n8.lan", "r1n9.lan", "r2n8.lan", "r2n9.lan", "x"]),
        ("me@a:2222,10.0.0.7", ["me@a", "10.0.0.7"]),
        ("2001:db8::1", ["2001:db8::1"]),
    ],
)
def test_a_list_names_hosts_in_order(text: str, names: list[str]) -> None:
    assert [host.destination for host in host_list.of_option(text)] == names


def test_a_host_may_have_a_user_and_a_port() -> None:
    assert host_list.of_option("me@a[1-2]:2222") == [
        Host("a1", "me", 2222),
        Host("a2", "me", 2222),
    ]


def test_two_servers_of_one_host_are_two_hosts() -> None:
    assert len(host_list.of_option("a:22,a:23")) == 2


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "--hosts: no host in ''; a list such as a,b"),
        (",", "--hosts: no host in ','; a list such as a,b"),
        ("a,b,a", "--hosts: host a stands there 2 times; name it once, with slots=N in a"),
        ("tpu[3-1]", "--hosts: '3-1' in 'tpu[3-1]' is no range; numbers such as [001-003,7]"),
        ("tpu[a-c]", "--hosts: 'a-c' in 'tpu[a-c]' is no range; numbers such as [001-003,7]"),
        ("tpu[]", "--hosts: '' in 'tpu[]' is no range; numbers such as [001-003,7]"),
        ("tpu[0-999999]", "--hosts: '0-999999' in 'tpu[0-999999]' is no range"),
        ("tpu[1-2", "--hosts: 'tpu[1-2' is no host; a name or an address is needed"),
        ("a:0", "--hosts: 'a:0' is no host; a name or an address is needed"),
        ("a:b", "--hosts: 'a:b' is no host; a name or an address is needed"),
        ("@a", "--hosts: '@a' is no host; a name or an address is needed"),
        # An option of ssh's would be obeyed.
        ("-oProxyCommand=sh", "--hosts: '-oProxyCommand=sh' is no host; a name or an"),
        ("a b", "--hosts: 'a b' is no host; a name or an address is needed"),
    ],
)
def test_a_list_that_cannot_be_right_is_refused(text: str, told: str) -> None:
    with pytest.raises(UsageError, match=re.escape(told)):
        host_list.of_option(text)


def test_a_file_gives_slots_and_addresses() -> None:
    text = "# two kinds\na slots=2 # fast\n\nb[1-2] slots=4\nc address=10.0.0.9\n"
    assert host_list.of_file(text, "hosts") == [
        *(Host("a", slots=2), Host("b1", slots=4), Host("b2", slots=4)),
        Host("c", address="10.0.0.9"),
    ]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("# nothing\n", "--hostfile hosts: no host in it; a line such as `a slots=2` is needed"),
        ("a\nb slots=0\n", "--hostfile hosts, line 2: 'slots=0' cannot be read; after the host"),
        ("a max_slots=2\n", "--hostfile hosts, line 1: 'max_slots=2' cannot be read; after"),
        ("a\na\n", "--hostfile hosts: host a stands there 2 times; name it once"),
    ],
)
def test_a_file_that_cannot_be_right_is_refused(text: str, told: str) -> None:
    with pytest.raises(UsageError, match=re.escape(told)):
        host_list.of_file(text, "hosts")


def test_the_number_of_ranks_holds_for_hosts_without_one_of_their_own() -> None:
    given = [Host("a", slots=2), Host("b")]
    assert [host.slots for host in host_list.with_slots(given, 4)] == [2, 4]


def test_a_host_without_a_number_of_ranks_is_refused() -> None:
    with pytest.raises(UsageError, match=r"host b: how many ranks it gets is not said; give -n N"):
        host_list.with_slots([Host("a", slots=2), Host("b")], None)


@pytest.mark.parametrize(
    ("text", "host"),
    [
        ("[2001:db8::1]", Host("2001:db8::1")),
        ("[2001:db8::1]:2222", Host("2001:db8::1", port=2222)),
        ("me@[2001:db8::1]:2222", Host("2001:db8::1", "me", 2222)),
        ("me@[::ffff:10.0.0.1]", Host("::ffff:10.0.0.1", "me")),
        ("[fe80::1%eth0]", Host("fe80::1%eth0")),
        ("me@fe80::1%eth0.100", Host("fe80::1%eth0.100", "me")),
        ("[::1]:22", Host("::1", port=22)),
    ],
)
def test_an_ipv6_address_may_stand_in_brackets(text: str, host: Host) -> None:
    assert host_list.of_option(text) == [host]
    assert host_list.of_option(f"a[1-2],{text},b")[2] == host


@pytest.mark.parametrize(
    "text", ["[::1", "::1]", "[::1]:0", "[::1]:", "[::1]:x", "[::1]x", "[g::1]", "[::1%]", "@[::1]"]
)
def test_what_is_no_address_in_brackets_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match=r"is no host|is no range"):
        host_list.of_option(text)


def test_whatever_address_a_host_has_it_is_read_back() -> None:
    draw = random.Random(7)
    for _ in range(500):
        address = str(ipaddress.IPv6Address(draw.getrandbits(128) >> draw.choice((0, 64, 112))))
        zone, user, port = (
            draw.choice(("", "%eth0")),
            draw.choice(("", "me")),
            draw.randrange(65536),
        )
        text = f"{user}{'@' * bool(user)}[{address}{zone}]{f':{port}' * bool(port)}"
        assert host_list.of_option(text) == [Host(address + zone, user, port)]


def test_the_address_of_a_line_may_be_an_ipv6_one() -> None:
    for text in ("[fd00::1]", "fd00::1"):
        (host,) = host_list.of_file(f"a slots=2 address={text}", "hosts")
        assert host.address == "fd00::1"
