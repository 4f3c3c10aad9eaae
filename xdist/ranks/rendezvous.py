"""Rendezvous of the ranks on the host, outside any program, and what stands on them."""

import io
import pickle
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

import torch

from torch_xdist import world
from torch_xdist.collectives.messages import communicator
from torch_xdist.core.devices import device, steps
from torch_xdist.core.run.device_trace import is_forked
from torch_xdist.errors import WorldError
from torch_xdist.files import saving

_T = TypeVar("_T")


def rendezvous(tag: str, payload: bytes = b"", replicas: Sequence[int] = ()) -> list[bytes]:
    """Wait until every rank has come here with this tag; their payloads in the order of ranks.

    A rank has come when its device has done all that the thread recorded before.

    Args:
        replicas: only these ranks come; all where empty.
    """
    if not isinstance(payload, bytes):
        raise TypeError(
            f"rendezvous({tag!r}): payload is a {type(payload).__name__}; it must be bytes"
        )
    if _has_device():
        steps.settle("rendezvous")
    if world.process_count() == 1:
        return [payload]
    return communicator.exchange(tag, payload, tuple(replicas) or None)


def _has_device() -> bool:
    """Whether this process drives a device: it has used one, or a launcher made it a rank.

    One that is alone may yet start ranks, and one forked from a rank loads data.
    """
    if world.process_count() > 1 or device.is_started():
        return True
    return world.current().is_rank and not is_forked()


def xla_rendezvous(
    payload: bytes = b"", ordinals: Sequence[int] | None = None, tag: str | None = None
) -> list[bytes]:
    """End the step, then `rendezvous` of all ranks."""
    everybody = list(range(world.process_count()))
    if ordinals and sorted(ordinals) != everybody:
        raise ValueError(
            f"Only global rendezvous is supported: ordinals are {list(ordinals)} of "
            f"{len(everybody)} ranks; leave them out, or use rendezvous(tag, payload, replicas)"
        )
    if not isinstance(payload, bytes):
        raise TypeError(
            f"xla_rendezvous: `payload` must be bytes, not {type(payload).__name__}; encode it"
        )
    steps.sync()
    return rendezvous(tag or "xla_rendezvous", payload)


def mesh_reduce(tag: str, data: Any, reduce_fn: Callable[[list[Any]], _T]) -> _T:
    """`reduce_fn` of every rank's `data`, in the order of ranks, with tensors on the CPU.

    Runs on every rank; same on every rank where `reduce_fn` is a pure function. `data` is tensors,
    numbers, strings and collections of these; any object where the ranks share a secret, as under
    `xla-run`, or a host.
    """
    host_data = saving.to_cpu(data)
    if world.process_count() == 1:
        return reduce_fn([host_data])
    stored = io.BytesIO()
    torch.save(host_data, stored)
    payloads = rendezvous(tag, stored.getvalue())
    return reduce_fn([_opened(tag, rank, payload) for rank, payload in enumerate(payloads)])


def _opened(tag: str, rank: int, payload: bytes) -> Any:
    """What a rank brought to `mesh_reduce`: tensors and plain data, or a pickle from this job.

    A pickle runs code, so it is opened only where no other process can have written it.
    """
    try:
        return torch.load(io.BytesIO(payload), weights_only=True)
    except pickle.UnpicklingError as error:
        if not communicator.current().is_authenticated:
            raise WorldError(
                f"mesh_reduce({tag!r}): rank {rank} brought what only a pickle can carry, and the "
                "ranks of this job share no secret by which to know that it comes from them; give "
                "tensors, numbers, strings and collections of these, start the ranks with xla-run, "
                "or set XLA_RUN_SECRET to the same random hexadecimal digits on all of them "
                f"({str(error).splitlines()[0]})"
            ) from None
    return torch.load(io.BytesIO(payload), weights_only=False)


def do_on_ordinals(
    target: Callable[..., _T], data: Iterable[Any] = (), ordinals: Sequence[int] = (0,)
) -> _T | None:
    """Call `target(*data)`, tensors on the CPU, on these ranks; then all ranks meet.

    Returns what the target returned, None on the other ranks.
    """
    arguments = saving.to_cpu(list(data))
    result = target(*arguments) if world.process_index() in ordinals else None
    rendezvous("xm.do_on_ordinals")
    return result
