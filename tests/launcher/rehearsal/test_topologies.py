"""Names of slices."""

import pytest

from torch_xdist.launcher.facts.errors import UsageError
from torch_xdist.launcher.rehearsal.chips import CHIPS
from torch_xdist.launcher.rehearsal.topologies import _KINDS, Slice, read


def test_names_are_those_of_google_cloud():
    assert read("v5e-256") == [Slice("v5e-256", "v5e", "v5e:16x16", 256)]
    assert read("v5litepod-8") == [Slice("v5litepod-8", "v5e", "v5e:2x4", 8)]
    # They count TensorCores, of which these chips have two; of a v4's each is a device.
    assert read("v5p-16, v4-16") == [
        Slice("v5p-16", "v5p", "v5p:2x2x2", 8),
        Slice("v4-16", "v4", "v4:2x2x2", 16),
    ]


def test_a_shape_is_a_name_too():
    assert read("v6e:4x8") == [Slice("v6e:4x8", "v6e", "v6e:4x8", 32)]


def test_slices_multiply_the_ranks():
    [found] = read("v5e-16", slices=2)
    assert found.world_size == 32 and found.title == "2 x v5e-16"


def test_every_generation_has_its_figures():
    assert CHIPS.keys() == _KINDS.keys()


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("gpu", "--topology 'gpu': a name such as v5e-256"),
        ("v9-8", "--topology 'v9-8': a name such as v5e-256"),
        ("", "a name such as"),
        ("v5e-7", "'v5e-7': there is no such slice; there are v5e-1, v5e-4, v5e-8, v5e-16"),
        ("v5p-3", "there is no such slice; there are v5p-8, v5p-16"),
    ],
)
def test_other_names_are_refused(name, words):
    with pytest.raises(UsageError, match=words):
        read(name)
