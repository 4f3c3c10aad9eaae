"""Programs for other devices than this process has: those of a topology that is described alone.

From `at` on everything that depends on the platform is chosen as on such a device. What is computed
is still computed here, so rows that only such a device runs can be lowered, not read.
"""

import contextlib
from collections.abc import Iterator, Sequence

import jax

from torch_xdist import platforms, world
from torch_xdist.core.devices import device as devices_here
from torch_xdist.core.trace import global_state
from torch_xdist.core.trace.plans import PLANS
from torch_xdist.system.rank import Rank

_aimed: list[jax.Device] = []


def devices() -> list[jax.Device]:
    """All devices of the job, as JAX has them, or those that programs are aimed at."""
    return list(_aimed) or devices_here.all_devices()


@contextlib.contextmanager
def at(targets: Sequence[jax.Device], *, ranks: bool = False) -> Iterator[None]:
    """Inside it this process records programs for these devices.

    Args:
        ranks: whether this thread is the first of as many ranks, each with a device.
    """
    outer, here = list(_aimed), world.replica()
    _choose(targets)
    if ranks:
        count = len(targets)
        world.be_replica(Rank(world_size=count, local_world_size=count))
    try:
        yield
    finally:
        _choose(outer)
        world.be_replica(here)


def _choose(targets: Sequence[jax.Device]) -> None:
    # Plans hold what was chosen.
    PLANS.clear()
    _aimed[:] = targets
    for device in devices_here.started():
        platform = targets[0].platform if targets else device.jax.platform
        device.choices = platforms.of(platform)
        global_state.follow_torch(device.choices)
