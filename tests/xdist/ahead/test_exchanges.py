"""Collectives in a program's text."""

import pytest

from torch_xdist.ahead import exchanges

HLO = """
ENTRY %main.3 (a: f32[8,128], b: bf16[16]) -> f32[2] {
  %all-reduce.1 = (f32[8,128]{1,0:T(8,128)}, bf16[16]{0}) all-reduce(%a, %b), channel_id=1, replica_groups={{0,1,2,3}}, to_apply=%sum
  %all-gather-start.1 = (f32[4,2]{1,0}, f32[16,2]{1,0}) all-gather-start(%c), replica_groups=[2,4]<=[8], dimensions={0}
  %fusion.1 = f32[2]{0} fusion(%all-reduce.1), kind=kOutput, calls=%fused
  %copy.1 = f32[2]{0} copy(%fusion.1)
  %convolution.1 = f32[2]{0} convolution(%copy.1, %w)
  %all-gather-done.1 = f32[16,2]{1,0} all-gather-done(%all-gather-start.1)
  %reduce-scatter.3 = f32[2]{0} reduce-scatter(%d), replica_groups=[4,2]<=[2,4]T(1,0), dimensions={0}
  %collective-permute.1 = pred[32]{0} collective-permute(%e), source_target_pairs={{0,3},{3,0}}
  ROOT %add = f32[2]{0} add(%all-reduce.1, %d)
}
"""  # noqa: E501
# As libtpu 0.0.42.1 writes it, shortened: one all-reduce through two fusions, another through none.
CHAINS = """
%fused_computation.21 (param_0.99: f32[32,32]) -> (f32[32,32], u32[]) {
  %all-reduce.17 = f32[32,32]{1,0} all-reduce(%param_0.99), channel_id=1, replica_groups={{0,1}}, to_apply=%r, frontend_attributes={chain_id="0"}
}

%async_collective_fusion.57 (param_0.103: f32[32,32], param_2.67: s32[2]) -> (f32[32,32], u32[]) {
  %convolution.4 = f32[32,32]{1,0} convolution(%param_1, %param_2)
  %all-reduce.19 = f32[32,32]{1,0} all-reduce(%param_0.103), channel_id=1, replica_groups={{0,1}}, to_apply=%r, frontend_attributes={chain_id="0"}
}

%async_collective_fusion.62 (param_0.108: f32[32,32], param_2.70: s32[2]) -> (f32[32,32], u32[]) {
  %all-reduce.21 = f32[32,32]{1,0} all-reduce(%param_0.108), channel_id=1, replica_groups={{0,1}}, to_apply=%r, frontend_attributes={chain_id="0"}
}

%fused_computation.22 (param_0.112: f32[32,32]) -> (f32[32,32], u32[]) {
  %all-reduce.25 = f32[32,32]{1,0} all-reduce(%param_0.112), channel_id=1, replica_groups={{0,1}}, to_apply=%r, frontend_attributes={chain_id="1"}
}

ENTRY %main (p: f32[32,32]) -> f32[32,32] {
  %async-collective-start = (f32[32,32]{1,0}, u32[]) fusion(%p), kind=kCustom, calls=%fused_computation.21
  ROOT %all-reduce.9 = f32[32,32]{1,0} all-reduce(%p), channel_id=3, replica_groups={{0,1}}, to_apply=%r
}
"""  # noqa: E501


def told(kind, group, size, *, fusions=None, count=1):
    return {
        "kind": kind, "async": fusions is not None, "fusions": fusions or 0, "group": group,
        "bytes": size, "count": count,
    }  # fmt: skip


def by_kind(found):
    return sorted(found, key=lambda one: (one["kind"], one["async"], one["fusions"]))


def test_collectives_are_told_with_what_they_move_and_what_runs_meanwhile():
    assert by_kind(exchanges.of_hlo(HLO)) == [
        told("all-gather", [0, 1, 2, 3], 128, fusions=2),
        told("all-reduce", [0, 1, 2, 3], 4128),
        told("collective-permute", [0, 3], 32),
        told("reduce-scatter", [0, 4], 16),
    ]


def test_a_chain_of_fusions_is_one_collective():
    assert by_kind(exchanges.of_hlo(CHAINS)) == [
        told("all-reduce", [0, 1], 4096),
        told("all-reduce", [0, 1], 4096, fusions=0),
        told("all-reduce", [0, 1], 4096, fusions=2),
    ]


def test_many_arrays_at_once_are_told_with_the_comments_between_them():
    types = [*["f32[8]{0:T(128)S(1)}"] * 5, *["/*index=5*/f32[2,2]{1,0}"], *["bf16[4]{0}"] * 4]
    types += ["/*index=10*/f32[1]{0}"]
    line = f"  %all-reduce.2 = ({', '.join(types)}) all-reduce(%a), replica_groups={{{{0,1}}}}"
    size = 5 * 32 + 16 + 4 * 8 + 4
    assert exchanges.of_hlo(line) == [told("all-reduce", [0, 1], size)]


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
