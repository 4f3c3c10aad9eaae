"""Tensors as bytes, and collectives on CPU tensors: messages from host to host.

They travel at once, outside any program: object collectives and set-up use them, with sizes that
change at every call, for which a program each would be compiled.
"""

import io
from collections.abc import Sequence

import torch

from torch_xdist.collectives.messages import communicator
from torch_xdist.ranks import collective_ops


def packed(tensors: Sequence[torch.Tensor]) -> bytes:
    """The values of tensors; what they wait for runs first."""
    stored = io.BytesIO()
    torch.save([tensor.detach().cpu().clone() for tensor in tensors], stored)
    return stored.getvalue()


def unpacked(payload: bytes) -> list[torch.Tensor]:
    """The tensors, on the CPU."""
    return torch.load(io.BytesIO(payload), weights_only=True)


def fill(targets: Sequence[torch.Tensor], values: Sequence[torch.Tensor]) -> None:
    """Write each value into its target, on whichever device that is."""
    with torch.no_grad():
        for target, value in zip(targets, values):
            shaped = value if value.shape == target.shape else value.reshape(target.shape)
            target.detach().copy_(shaped)


def shared(
    tag: str, ranks: tuple[int, ...], tensors: Sequence[torch.Tensor]
) -> list[list[torch.Tensor]]:
    """What every one of `ranks` brought, in their order."""
    collective_ops.run_pending()
    return [unpacked(payload) for payload in communicator.exchange(tag, packed(tensors), ranks)]


def sent(target: int, subject: str, tensors: Sequence[torch.Tensor]) -> None:
    """Send tensors to a rank, without waiting for it to receive them."""
    collective_ops.run_pending()
    communicator.current().send(target, subject, packed(tensors))


def received(source: int | None, subject: str) -> tuple[int, list[torch.Tensor]]:
    """Wait for what a rank (None: any) has sent: (the rank, the tensors on the CPU)."""
    collective_ops.run_pending()
    rank, payload = communicator.current().receive(source, subject)
    return rank, unpacked(payload)
