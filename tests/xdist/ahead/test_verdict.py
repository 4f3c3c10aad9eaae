"""What is read from a compiled program's text."""

from torch_xdist.ahead.verdict import Verdict, across_slices, aliases_of, collectives_of, wide_of

HLO = """
HloModule jit_step, input_output_alias={ {1}: (0, {}, may-alias), {2}: (1, {}, must-alias) }, entry
  %all-reduce.6 = f32[32,256]{1,0:T(8,128)} all-reduce(%fusion.12), channel_id=1
  %ag = (f32[8]{0}, f32[64]{0}) all-gather-start(%x), channel_id=2
  %agd = f32[64]{0} all-gather-done(%ag)
  %send = (f32[33]{0}, u32[], token[]) send(%b, %t), frontend_attributes={\
_xla_megascale_target="{1,2}x{0:3}",_xla_megascale_transfer_type="ALL_REDUCE"}
  %indices = s64[8,4]{1,0} convert(%i)
  %step = s64[] add(%a, %b)
  %number = f64[2]{0:T(128)} parameter(3)
  %no_numbers = f64[1,0]{1,0} parameter(4)
"""


def test_collectives_are_counted_by_kind_and_a_pair_once():
    assert collectives_of(HLO) == {"all-reduce": 1, "all-gather": 1}


def test_collectives_between_slices_are_counted_apart():
    assert across_slices(HLO) == {"ALL_REDUCE": 1}


def test_arrays_of_64_bits_are_counted_and_scalars_are_not():
    assert wide_of(HLO) == {"s64": 1, "f64": 1}


def test_the_donated_share_is_of_what_was_given_away():
    assert aliases_of(HLO) == 2
    assert Verdict("ok", aliases=2, donated=2).donated_share == 1.0
    assert Verdict("ok").donated_share == 0.0
