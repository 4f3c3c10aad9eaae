"""Groups of a TPU's chips in the order of a ring."""

import pytest

import torch_xla.core.xla_model as xm
import torch_xla.distributed.xla_multiprocessing as xmp
from torch_xdist.torch_xla_compat import runtime_facts, tpu_facts


def test_where_there_is_no_tpu_there_is_no_order():
    assert xm.create_optimized_replica_groups() is None
    assert set(xmp.device_kind_handler_dict) == {"v5p", "v6e"}


@pytest.mark.parametrize(
    ("kind", "bounds", "found"),
    [
        ("v5p", (2, 2, 2), [[0, 1, 3, 2, 6, 7, 5, 4]]),
        ("v6e", (2, 4, 1), [[0, 2, 4, 6, 7, 5, 3, 1]]),
        ("v6e", (1, 4, 1), None),
        ("v5p", (2, 2, 1), None),
        ("v4", (2, 2, 2), None),
    ],
)
def test_the_chips_of_some_shapes_form_a_ring(monkeypatch, kind, bounds, found):
    places = [
        {"coords": [x, y, z]}
        for z in range(bounds[2])
        for y in range(bounds[1])
        for x in range(bounds[0])
    ]
    monkeypatch.setattr(tpu_facts, "get_tpu_type", lambda: kind)
    monkeypatch.setattr(runtime_facts, "global_runtime_device_attributes", lambda: places)
    groups = xmp.create_optimized_replica_groups()
    assert groups == found
    for group in groups or []:
        # Neighbours in the group are neighbours on the wires.
        for one, other in zip(group, group[1:] + group[:1]):
            steps = zip(places[one]["coords"], places[other]["coords"])
            assert sum(abs(a - b) for a, b in steps) == 1
