"""`torch_xla.launch`: one way in, under torchrun and without it."""

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

from torch_xdist import world
from torch_xdist.launcher import cluster
from torch_xdist.launcher.errors import LauncherError
from torch_xdist.launcher.spawn import spawn

# A rank of srun or mpirun carries other names than torchrun's, which all else here reads. What
# cannot be read is an error of `spawn` and `launch`, not of an import.
with contextlib.suppress(LauncherError):
    cluster.adopt()


def launch(
    fn: Callable[..., Any],
    args: Sequence[Any] = (),
    start_method: str = "spawn",
    debug_single_process: bool = False,
) -> Any:
    """Run `fn(index, *args)` on every device.

    In a rank that a launcher started, the function runs here, with its local rank; else one
    process per device is spawned.

    Args:
        debug_single_process: one rank only.
    """
    cluster.adopt()
    if world.current().is_rank:
        return fn(world.current().local_rank, *args)
    nprocs = 1 if debug_single_process else None
    return spawn(fn, args=args, nprocs=nprocs, start_method=start_method)
