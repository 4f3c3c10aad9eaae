"""Orders of ranks that suit how the chips of a TPU are wired.

Neighbours in a group are neighbours on the wires, and the last is one of the first: a ring.
"""

from collections.abc import Callable

from torch_xdist.torch_xla_compat import runtime_facts, tpu_facts

Groups = list[list[int]]

_RING_OF_2_2_2 = (0, 1, 3, 2, 6, 7, 5, 4)
_RING_OF_2_4 = (0, 2, 4, 6, 7, 5, 3, 1)


def _bounds() -> tuple[int, ...]:
    """How many chips there are along x, y and z."""
    found = [d.get("coords", (0, 0, 0)) for d in runtime_facts.global_runtime_device_attributes()]
    return tuple(1 + max(places) for places in zip(*found))


def _of_v5p() -> Groups | None:
    return [list(_RING_OF_2_2_2)] if _bounds() == (2, 2, 2) else None


def _of_v6e() -> Groups | None:
    return [list(_RING_OF_2_4)] if _bounds()[:2] == (2, 4) else None


# By the TPU's kind; scripts may add more.
device_kind_handler_dict: dict[str, Callable[[], Groups | None]] = {
    "v5p": _of_v5p,
    "v6e": _of_v6e,
}


def create_optimized_replica_groups() -> Groups | None:
    """One group of all chips in the order of a ring, for collectives; None where none is known."""
    handler = device_kind_handler_dict.get(tpu_facts.get_tpu_type())
    return handler() if handler is not None else None
