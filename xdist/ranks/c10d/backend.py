"""torch.distributed on the xla device: the backend "xla". Importing this module registers it."""

from types import SimpleNamespace
from typing import Any

import torch.distributed as dist

from torch_xdist import settings, world
from torch_xdist.core.devices import device
from torch_xdist.errors import ShardingError, WorldError
from torch_xdist.ranks.c10d import (
    device_mesh,
    functional,
    init_methods,
    thread_worlds,
    torch_fsdp,
)
from torch_xdist.ranks.c10d.process_group import ProcessGroupXla
from torch_xdist.releases import patches


def _create(options: Any, backend_options: Any = None) -> ProcessGroupXla:
    """torch.distributed's factory, for the world's group and for each `new_group`."""
    if settings.asks_for_spmd():
        raise ShardingError(
            "init_process_group('xla'): XLA backend is not supported with SPMD, where XLA inserts"
            " the collectives; for the CPU tensors of several processes use 'gloo'"
        )
    ranks = list(options.global_ranks_in_group) or list(range(options.group_size))
    if world.replica() is not None:
        _check_thread(options)
    elif len(ranks) == options.group_size and not world.current().is_rank:
        world.become(options.group_rank, options.group_size)
    if world.world_size() < len(ranks):
        raise WorldError(
            f"init_process_group('xla'): {len(ranks)} ranks, but this process is rank "
            f"{world.rank()} of {world.world_size()} by its environment; start it with xmp.spawn, "
            "xla-run or torchrun, which set RANK and WORLD_SIZE"
        )
    device.start()
    return ProcessGroupXla(
        getattr(options, "store", None),
        ranks.index(world.rank()),
        len(ranks),
        getattr(options, "timeout", None),
        ranks=ranks,
        name=f"c10d/{options.group_id}",
    )


def _check_thread(options: Any) -> None:
    """Raise WorldError where the variables of the process were taken for those of this thread."""
    here = world.current()
    is_whole = not options.global_ranks_in_group
    if is_whole and (options.group_rank, options.group_size) != (here.rank, here.world_size):
        raise WorldError(
            f"init_process_group('xla'): rank {options.group_rank} of {options.group_size}, but "
            f"this thread is rank {here.rank} of {here.world_size} by its device; give "
            f"init_method='xla://', or rank={here.rank} and world_size={here.world_size}"
        )


def _everybody() -> ProcessGroupXla:
    """All ranks as a group, where nobody called init_process_group."""
    rank, size = world.rank(), world.world_size()
    return _create(
        SimpleNamespace(
            global_ranks_in_group=[], group_size=size, group_rank=rank, group_id="everybody"
        )
    )


def register() -> None:
    """Make "xla" a backend of torch.distributed; a second call changes nothing."""
    device_mesh.register()
    functional.register(_everybody)
    torch_fsdp.register()
    if "xla" in dist.Backend.backend_list:
        return
    # What a group of ours does, metrics and the traces of its programs tell.
    patches.extend("torch.distributed.distributed_c10d._FR_SELF_RECORDING_BACKENDS", ["xla"])
    dist.Backend.register_backend("xla", _create, extended_api=True, devices=["xla", "cpu"])
    init_methods.register()
    thread_worlds.register()


register()
