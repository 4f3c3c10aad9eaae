"""Values that are sharded by hand: which ones they are, and whose parts they stand for."""

from collections.abc import Iterable

from torch_xdist.core.programs.manual_region import manual_slots
from torch_xdist.core.run.device_trace import trace_here
from torch_xdist.core.sharding.arrays import Parts
from torch_xdist.core.sharding.layout import Layout
from torch_xdist.core.sharding.tiling import Tiling
from torch_xdist.core.trace.values import Value

# The tilings by which tensors began to be sharded by hand: without one there is none to look for.
BEGAN_AS: set[Tiling] = set()


def is_manual(value: Value) -> bool:
    """Whether a value stands for what each device holds of a tensor that is sharded by hand."""
    if value.buffer is not None:
        return isinstance(value.buffer, Parts)
    trace = trace_here(value.trace.device)
    slot, tape = trace.slot_of(value), trace.tape
    parts = [leaf for leaf, buffer in tape.buffers.items() if isinstance(buffer, Parts)]
    return slot in manual_slots(tape.entries, parts)


def devices_of(values: Iterable[Value]) -> Layout | None:
    """The devices whose parts some of the values stand for; None where none does."""
    if not BEGAN_AS:
        return None
    return next((value.trace.device.layout for value in values if is_manual(value)), None)
