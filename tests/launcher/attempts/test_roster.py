"""Which hosts an attempt runs on, decided without one."""

from torch_xdist.launcher.attempts.roster import LOST, UNFIT, LineUp, Roster
from torch_xdist.launcher.facts.host_list import Host


def hosts(names: str, slots: int = 2) -> list[Host]:
    return [Host(name, slots=slots) for name in names]


def names(found: LineUp | None) -> str:
    assert found is not None
    return "".join(host.name for host in found.hosts)


def after(roster: Roster, *lost: int, there: tuple[int, ...] | None = None) -> LineUp | None:
    """The line-up after an attempt in which these hosts, by their numbers in it, were lost."""
    roster.put_out(dict.fromkeys(lost, "its stream ended"), LOST)
    roster.next_attempt()
    return roster.line_up(there)


def test_the_first_attempt_runs_on_the_named_hosts_without_the_spares() -> None:
    found = Roster(hosts("ab"), hosts("cd")).line_up()
    assert found == LineUp(hosts("ab"))


def test_a_spare_takes_the_place_of_a_host_that_was_lost_and_its_ranks() -> None:
    roster = Roster([Host("a", slots=2), Host("b", slots=3), Host("c", slots=4)], hosts("de", 9))
    roster.line_up()
    found = after(roster, 1)
    assert found is not None
    assert found.hosts == [Host("a", slots=2), Host("d", slots=3), Host("c", slots=4)]
    assert found.news == (
        "host b was lost (its stream ended); spare d takes its place (1 of 2 spares left)",
    )


def test_spares_are_used_up_in_their_order_and_then_the_lost_are_tried_again() -> None:
    roster = Roster(hosts("ab"), hosts("cd"))
    roster.line_up()
    assert names(after(roster, 1)) == "ac"
    assert names(after(roster, 0)) == "dc"
    # b has been out longest, and has a chance to be back.
    found = after(roster, 1)
    assert names(found) == "db"
    assert found is not None
    told = "host c was lost (its stream ended); host b is tried again in its place"
    assert found.news == (told,)


def test_without_a_spare_the_host_that_was_lost_is_tried_again() -> None:
    roster = Roster(hosts("ab"), hosts("c"))
    roster.line_up()
    assert names(after(roster, 0, 1)) == "cb"
    assert not Roster(hosts("ab")).is_flexible
    plain = Roster(hosts("ab"))
    plain.line_up()
    assert after(plain, 1) == LineUp(hosts("ab")), "as before there were spares, without a word"


def test_a_job_goes_on_with_fewer_hosts_where_these_are_enough() -> None:
    roster = Roster(hosts("abc"), least=2)
    roster.line_up()
    found = after(roster, 1)
    assert found == LineUp(
        hosts("ac"), ("host b was lost (its stream ended); the job goes on with 2 of 3 hosts",)
    )


def test_a_host_that_was_left_out_is_tried_again_at_the_attempt_after_the_next() -> None:
    roster = Roster(hosts("abc"), least=1)
    roster.line_up()
    assert names(after(roster, 1)) == "ac"
    found = after(roster, 0)
    assert names(found) == "bc"
    assert found is not None
    assert found.news == (
        "host b takes part again",
        "host a was lost (its stream ended); the job goes on with 2 of 3 hosts",
    )


def test_hosts_that_just_were_lost_are_tried_where_fewer_would_be_too_few() -> None:
    roster = Roster(hosts("abc"), least=2)
    roster.line_up()
    assert names(after(roster, 0, 1)) == "ac"


def test_no_host_is_tried_twice_in_one_attempt() -> None:
    roster = Roster(hosts("ab"), hosts("c"))
    roster.line_up()
    roster.put_out({1: ""}, UNFIT)
    found = roster.line_up()
    assert names(found) == "ac"
    assert found is not None
    told = "host b could not take part; spare c takes its place (0 of 1 spares left)"
    assert found.news == (told,)
    roster.put_out({1: ""}, UNFIT)
    assert roster.line_up() is None
    assert roster.shortage() == "no spare is left"
    few = Roster(hosts("ab"), least=1)
    few.line_up()
    few.put_out({0: "", 1: ""}, UNFIT)
    assert few.line_up() is None
    assert few.shortage() == "at least 1 hosts are needed, and fewer are left"


def test_nodes_take_part_when_they_are_there_under_their_own_numbers() -> None:
    roster = Roster(hosts("abc"), least=2, first_stays=True)
    assert names(roster.line_up((0, 2))) == "ac"
    assert names(after(roster, 1, there=(0, 1))) == "ab"
    assert after(roster, 1, there=(0,)) is None
    found = roster.line_up((0, 1, 2))
    assert found is not None
    assert names(found) == "abc", "one that is lost and there again has come back"


def test_nothing_goes_on_without_node_0() -> None:
    roster = Roster(hosts("ab"), least=1, first_stays=True)
    roster.line_up((0, 1))
    assert after(roster, 0, there=(1,)) is None
