"""Hollow buffers behind the logical device."""

import jax
import numpy as np
import pytest

from torch_xdist.ahead import hollow_layout
from torch_xdist.ahead.hollow import TALLY, Hollow
from torch_xdist.ahead.hollow_layout import HollowLayout
from torch_xdist.core.sharding.tiling import Tiling
from torch_xdist.errors import ReleaseError


@pytest.fixture
def layout():
    return HollowLayout(jax.devices()[:1])


def test_what_is_put_there_is_of_the_padded_shape_and_takes_no_memory(layout):
    held = layout.put(np.ones((3, 4), np.float32), Tiling((1, 1), (0,)))
    assert isinstance(held, Hollow) and layout.is_here(held)
    assert np.asarray(held).tolist() == np.ones((3, 4)).tolist()


def test_a_buffer_of_one_chip_is_replicated_when_it_is_needed(layout):
    single = Hollow((8, 2), np.dtype("float32"))
    assert not layout.is_here(single)
    placed = layout.placed(single)
    assert layout.is_here(placed) and placed.shape == (8, 2)
    assert layout.placed(placed) is placed


def test_a_result_lies_as_it_was_said_else_as_the_compiler_has_it(layout):
    before = TALLY.live_bytes
    said = layout.result((4, 4), np.dtype("int8"), Tiling((1, 1), (0,)), "")
    unsaid = layout.result((4, 4), np.dtype("int8"), None, "")
    assert said.sharding.mesh == unsaid.sharding.mesh == layout.mesh
    assert TALLY.live_bytes - before == 32


def test_a_release_that_cannot_read_shardings_is_told(layout, monkeypatch):
    monkeypatch.setattr(hollow_layout, "parse_flatten_op_sharding", None)
    with pytest.raises(ReleaseError, match=r"has no parse_flatten_op_sharding, with which"):
        layout.result((4, 4), np.dtype("int8"), None, "00")
