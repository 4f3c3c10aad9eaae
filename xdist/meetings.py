"""Ranks that wait for each other on the host, and what they tell each other there.

A rendezvous has a tag: the n-th call with a tag on one rank meets the n-th on the others. None of
these is inside a program; those that take tensors compute them first.
"""

import io
from collections.abc import Callable, Sequence
from typing import Any

import torch

from torch_xdist import cuts, device, saving, world
from torch_xdist.collectives import channel


def rendezvous(tag: str, payload: bytes = b"", replicas: Sequence[int] = ()) -> list[bytes]:
    """Wait until every rank (or every one of `replicas`) has called this with `tag`.

    Args:
        tag: any text, the same on every rank; it may be empty.
        payload: bytes for the others.
        replicas: the ranks that meet; default all.

    Returns the payloads in the order of the ranks; the same on every rank.
    """
    if isinstance(payload, str):
        payload = payload.encode()
    device.start()
    return channel.exchange(tag, bytes(payload), tuple(sorted(replicas)) or None)


def xla_rendezvous(
    payload: bytes = b"", ordinals: Sequence[int] | None = None, tag: str | None = None
) -> list[bytes]:
    """End the step, then `rendezvous` of all ranks.

    Raises TypeError for a payload that is not bytes, ValueError for a part of the ranks.
    """
    if not isinstance(payload, bytes):
        raise TypeError(f"xla_rendezvous: payload must be bytes, not {type(payload).__name__}")
    if ordinals and len(ordinals) != world.world_size():
        raise ValueError(
            f"xla_rendezvous: Only global rendezvous is supported; {len(ordinals)} of"
            f" {world.world_size()} ranks were named"
        )
    cuts.sync()
    return rendezvous(tag or "xla_rendezvous", payload)


def pjrt_rendezvous(
    tag: str, payload: bytes = b"", ordinals: Sequence[int] | None = None
) -> list[bytes]:
    """`xla_rendezvous` with the tag first."""
    return xla_rendezvous(payload, ordinals, tag)


def mesh_reduce(tag: str, data: Any, reduce_fn: Callable[[list[Any]], Any]) -> Any:
    """`reduce_fn` of the list of every rank's `data`, called on every rank.

    Args:
        data: any object torch.save can write; device tensors arrive as CPU tensors.
        reduce_fn: takes the list in the order of the ranks.
    """
    local = saving.to_cpu(data)
    if world.world_size() == 1:
        return reduce_fn([local])
    buffer = io.BytesIO()
    torch.save(local, buffer)
    payloads = rendezvous(tag, buffer.getvalue())
    return reduce_fn([torch.load(io.BytesIO(p), weights_only=False) for p in payloads])


def do_on_ordinals(
    target: Callable[..., Any], data: Sequence[Any] = (), ordinals: Sequence[int] = (0,)
) -> Any:
    """Call `target(*data)` on the named ranks while the others wait.

    The device tensors in `data` arrive as CPU tensors. Returns what the target returned, None on
    the other ranks.
    """
    running = world.rank() in ordinals
    local = saving.to_cpu(list(data)) if running else saving.compute(data)
    result = target(*local) if running else None
    rendezvous("torch_xla.core.xla_model.do_on_ordinals")
    return result
