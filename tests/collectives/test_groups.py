"""Groups of ranks: what is accepted, and what the errors say."""

import pytest

from torch_xdist.collectives import groups
from torch_xdist.collectives.errors import ArgumentError


def test_all_ranks_in_order_are_no_groups():
    assert groups.checked([[0, 1, 2]], 3, of="x") is None
    assert groups.checked(None, 3, of="x") is None
    assert groups.checked([], 3, of="x") is None


def test_groups_become_tuples():
    assert groups.checked([[0, 2], [3, 1]], 4, of="x") == ((0, 2), (3, 1))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ([[0, 5]], r"all_reduce: rank 5 is not a rank of groups=\[\[0, 5\]\]; each rank from 0"),
        ([[0, 1], [1, 2]], "all_reduce: rank 1 is there twice"),
        ([[0], [2]], "all_reduce: rank 1 is in no group"),
        ([[0, 1, 2], []], r"all_reduce: groups=\[\[0, 1, 2\], \[\]\] has a group without ranks"),
        ([0, 1, 2], r"all_reduce: groups=\[0, 1, 2\] is no list of lists of ranks; write it as"),
    ],
)
def test_wrong_groups_name_the_rank(given, message):
    with pytest.raises(ArgumentError, match=message):
        groups.checked(given, 3, of="all_reduce")


def test_partial_groups_may_leave_ranks_out():
    assert groups.checked([[0, 2]], 3, of="x", partial=True) == ((0, 2),)


def test_groups_of_different_size_are_refused_where_the_shape_depends_on_it():
    with pytest.raises(ArgumentError, match=r"all_gather: groups .* have sizes \[1, 2\]"):
        groups.equal_sized(((0, 1), (2,)), 3, of="all_gather")


def test_a_dim_that_cannot_be_cut_says_how_much_to_pad():
    message = (
        r"reduce_scatter over 8 ranks: dim 0 of shape \(13, 2\) has size 13, which 8 does not "
        "divide; pad it by 3"
    )
    with pytest.raises(ArgumentError, match=message):
        groups.shard_length((13, 2), 0, 8, of="reduce_scatter")


def test_pairs_need_ranks_and_different_ends():
    assert groups.checked_pairs([[0, 1], [1, 0]], 2, of="x") == ((0, 1), (1, 0))
    with pytest.raises(ArgumentError, match=r"permute: \[0, 2\] is no pair of ranks"):
        groups.checked_pairs([[0, 2]], 2, of="permute")
    with pytest.raises(ArgumentError, match="rank 1 is target of several pairs"):
        groups.checked_pairs([[0, 1], [1, 1]], 2, of="permute")


def test_the_group_of_a_rank():
    assert groups.group_of(1, None, 3) == (0, 1, 2)
    assert groups.group_of(3, ((0, 2), (3, 1)), 4) == (3, 1)
