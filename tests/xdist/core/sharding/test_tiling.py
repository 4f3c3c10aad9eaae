"""`Tiling`: the text that XLA reads, the shapes of the parts, and which device holds which part."""

import pytest

from torch_xdist.core.sharding.tiling import MANUAL, Tiling, replicated


def parts(tiling, *shape):
    """{device: (which copy, (start, stop) of each dim)}."""
    return {
        device: (copy, tuple((one.start, one.stop) for one in part))
        for device, copy, part in tiling.parts(shape)
    }


@pytest.mark.parametrize(
    ("tiling", "text"),
    [
        (Tiling((4,), (0, 1, 2, 3)), "{devices=[4]0,1,2,3}"),
        (Tiling((2, 2), (0, 2, 1, 3)), "{devices=[2,2]0,2,1,3}"),
        (Tiling((2, 1), (0, 1, 2, 3)), "{devices=[2,1,2]0,1,2,3 last_tile_dim_replicate}"),
        (Tiling((1, 2, 1), (3, 2, 1, 0)), "{devices=[1,2,1,2]3,2,1,0 last_tile_dim_replicate}"),
        (Tiling((1, 1), (0, 1, 2, 3)), "{replicated}"),
        (Tiling((), (0, 1)), "{replicated}"),
        (Tiling((1,), (0,)), "{replicated}"),
        (MANUAL, "{manual}"),
    ],
)
def test_the_text_is_spelled_as_xla_does(tiling, text):
    assert tiling.text == text


def test_a_tiling_knows_how_many_tiles_and_copies_it_has():
    tiling = Tiling((2, 1), (0, 1, 2, 3))
    assert (tiling.count, tiling.copies, tiling.is_replicated) == (2, 2, False)


def test_a_replicated_tiling_has_one_tile_that_every_device_holds():
    tiling = replicated(2, [1, 0])
    assert tiling == Tiling((1, 1), (1, 0))
    assert (tiling.count, tiling.copies, tiling.is_replicated) == (1, 2, True)


@pytest.mark.parametrize(
    ("tiles", "shape", "shard", "padded"),
    [
        ((4, 1), (8, 3), (2, 3), (8, 3)),
        ((2, 2), (5, 4), (3, 2), (6, 4)),
        ((4,), (5,), (2,), (8,)),
        ((4,), (1,), (1,), (4,)),
        ((4,), (0,), (0,), (0,)),
        ((1, 1), (5, 7), (5, 7), (5, 7)),
        ((), (), (), ()),
    ],
)
def test_shapes_are_padded_where_the_tiles_do_not_divide_them(tiles, shape, shard, padded):
    tiling = Tiling(tiles, (0, 1, 2, 3))
    assert tiling.shard_shape(shape) == shard
    assert tiling.padded_shape(shape) == padded


def test_each_device_of_an_even_tiling_has_its_own_part():
    assert parts(Tiling((2, 2), (0, 2, 1, 3)), 4, 6) == {
        0: (0, ((0, 2), (0, 3))),
        2: (0, ((0, 2), (3, 6))),
        1: (0, ((2, 4), (0, 3))),
        3: (0, ((2, 4), (3, 6))),
    }


def test_the_last_parts_of_an_uneven_tiling_are_short_or_empty():
    assert parts(Tiling((4,), (0, 1, 2, 3)), 5) == {
        0: (0, ((0, 2),)),
        1: (0, ((2, 4),)),
        2: (0, ((4, 5),)),
        3: (0, ((5, 5),)),
    }


def test_devices_that_hold_the_same_part_are_counted_as_copies():
    assert parts(Tiling((2,), (0, 3, 1, 2)), 4) == {
        0: (0, ((0, 2),)),
        3: (1, ((0, 2),)),
        1: (0, ((2, 4),)),
        2: (1, ((2, 4),)),
    }


def test_every_device_of_a_replicated_number_holds_it_whole():
    assert parts(replicated(0, range(3))) == {0: (0, ()), 1: (1, ()), 2: (2, ())}


def test_tilings_that_say_the_same_are_equal_and_hash_alike():
    assert {Tiling((2,), (0, 1)), Tiling((2,), (0, 1))} == {Tiling((2,), (0, 1))}
    assert Tiling((2,), (0, 1)) != Tiling((2,), (1, 0))
