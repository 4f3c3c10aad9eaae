"""Which members of a group are on which host."""

from torch_xdist.collectives.hosts.layout import laid_out

HOST_OF = ["a", "a", "b", "b", "b", "c"]


def test_hosts_come_in_the_order_of_the_group_and_members_are_positions():
    layout = laid_out((5, 2, 0, 3), 3, HOST_OF)
    assert layout.hosts == ((0,), (1, 3), (2,))
    assert (layout.here, layout.place) == (1, 1)
    assert layout.local == (2, 3)


def test_each_share_is_folded_once_on_every_host():
    layout = laid_out((0, 1, 2, 3, 4, 5), 0, HOST_OF)
    for host, members in enumerate(layout.hosts):
        folded = [layout.folded_at(host, place) for place in range(len(members))]
        assert sorted(member for shares in folded for member in shares) == list(range(6))
        for place, shares in enumerate(folded):
            assert {layout.folder(host, member) for member in shares} <= {members[place]}


def test_the_wires_of_a_host_go_to_different_ranks_of_another_one():
    wires = [laid_out((0, 1, 2, 3, 4), rank, HOST_OF).counterpart(1) for rank in (0, 1)]
    assert wires == [2, 3]
    back = [laid_out((0, 1, 2, 3, 4), rank, HOST_OF).counterpart(0) for rank in (2, 3, 4)]
    assert back == [0, 1, 0]
