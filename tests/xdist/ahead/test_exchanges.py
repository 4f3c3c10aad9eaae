"""Collectives in a program's text."""

import pytest

from torch_xdist.ahead import exchanges

HLO = """
  %all-reduce.1 = (f32[8,128]{1,0:T(8,128)}, bf16[16]{0}) all-reduce(%a, %b), channel_id=1, replica_groups={{0,1,2,3}}, to_apply=%sum
  %all-gather-start.1 = (f32[4,2]{1,0}, f32[16,2]{1,0}) all-gather-start(%c), replica_groups=[2,4]<=[8], dimensions={0}
  %all-gather-done.1 = f32[16,2]{1,0} all-gather-done(%all-gather-start.1)
  %reduce-scatter.3 = f32[2]{0} reduce-scatter(%d), replica_groups=[4,2]<=[2,4]T(1,0), dimensions={0}
  %collective-permute.1 = pred[32]{0} collective-permute(%e), source_target_pairs={{0,3},{3,0}}
  ROOT %add = f32[2]{0} add(%all-reduce.1, %d)
"""  # noqa: E501


def test_collectives_are_told_with_what_they_move():
    assert exchanges.of_hlo(HLO) == [
        {"kind": "all-reduce", "async": False, "group": [0, 1, 2, 3], "bytes": 4128, "count": 1},
        {"kind": "all-gather", "async": True, "group": [0, 1, 2, 3], "bytes": 128, "count": 1},
        {"kind": "reduce-scatter", "async": False, "group": [0, 4], "bytes": 16, "count": 1},
        {"kind": "collective-permute", "async": False, "group": [0, 3], "bytes": 32, "count": 1},
    ]


def test_alike_ones_are_one_entry():
    assert [one["count"] for one in exchanges.of_hlo(HLO + HLO)] == [2, 2, 2, 2]


@pytest.mark.parametrize(
    ("text", "group"),
    [
        ("replica_groups=[1,8]<=[8]", (0, 1, 2, 3, 4, 5, 6, 7)),
        ("replica_groups=[8,2]<=[2,2,4]T(2,0,1)", (0, 4)),
        ("replica_groups=[4,4]<=[2,2,4]T(2,0,1)", (0, 4, 8, 12)),
        ("replica_groups=mesh['axis_0'=4,'axis_1'=1,'axis_2'=2] {'axis_0'}, more={}", (0, 2, 4, 6)),
        ("replica_groups=mesh['a'=2,'b'=2,'c'=2] {'a','c'}", (0, 1, 4, 5)),
        ("replica_groups=mesh['a'=4,'b'=2] {'a':(1)2}", ()),
        ("no groups", ()),
    ],
)
def test_groups_may_be_strides(text, group):
    assert exchanges.group_of(text) == group
