"""Which rank and which device a thread works for, and how a helper thread takes that over.

Where one process drives several devices, each by a thread of its own, every thread is a rank. A
thread that such a thread makes (of a loader, of asynchronous step closures) would be rank 0 on
xla:0 otherwise, whoever made it.
"""

from collections.abc import Callable

from torch_xdist import world
from torch_xdist.collectives.messages import communicator
from torch_xdist.core.devices import device


def identity_of_thread() -> Callable[[], None]:
    """What gives the thread that calls it the rank and the default device of this one."""
    index = device.default_index() if device.is_started() else None
    replica, own_communicator = world.replica(), communicator.of_thread()

    def assume() -> None:
        # A thread that uses no device must not start one.
        if index is not None:
            device.set_default_index(index)
        world.be_replica(replica)
        communicator.use(own_communicator, thread_only=True)

    return assume
