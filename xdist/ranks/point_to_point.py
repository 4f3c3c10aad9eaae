"""`xm.send` and `xm.recv`: a tensor from one rank to another, matched by the number of a channel.

A channel joins one sender with one receiver, and its messages arrive in the order they are sent.
The sender does not wait, so the ranks of a ring may all send first. No other rank records anything.

On the host transport both are rows of the trace. Over the mesh, where all ranks run one program,
what is pending runs first, and the message goes from host to host through the coordination service.
"""

import operator

import torch

from torch_xdist import world
from torch_xdist.collectives import inside
from torch_xdist.collectives.errors import MismatchError
from torch_xdist.collectives.mesh import store
from torch_xdist.core.record.jax_ops import trace_among
from torch_xdist.errors import WorldError
from torch_xdist.ranks import collective_ops, tensor_messages, traced
from torch_xdist.ranks.tensor_lists import dtype_and_shape


def send(value: torch.Tensor, channel_id: int) -> torch.Tensor:
    """Send `value` to the rank that calls `recv` on this channel; returns it."""
    if traced.has_no_value(value):
        return torch.empty_like(value)
    number = _checked("send", value, channel_id)
    if world.transport() != "host":
        collective_ops.run_pending()
        store.current().send_to_any(f"channel {number}", tensor_messages.packed([value]))
        return value
    return collective_ops.record("xla.send", lambda x: inside.send(x, number), [value], number)[0]


def recv(output: torch.Tensor, channel_id: int) -> torch.Tensor:
    """Receive into `output` what a rank sends on this channel; returns it.

    Raises:
        MismatchError: another shape or dtype was sent, or (on the host transport) nobody is left
            to send. On the host transport it comes where the value is read.
    """
    if traced.has_no_value(output):
        return output
    number = _checked("recv", output, channel_id)
    if world.transport() != "host":
        collective_ops.run_pending()
        source, payload = store.current().receive_from_any(f"channel {number}")
        values = tensor_messages.unpacked(payload)
        if values[0].shape != output.shape or values[0].dtype != output.dtype:
            sent, wanted = map(dtype_and_shape, (values[0], output))
            raise MismatchError(
                f"channel {number}: rank {source} sent {sent}, and rank {world.rank()} called"
                f" recv(channel {number}) of {wanted}; give recv a tensor of the shape and dtype"
                " that is sent"
            )
        tensor_messages.fill([output], values)
        return output
    results = collective_ops.record(
        "xla.recv", lambda x: inside.receive(x, number), [output], number
    )
    collective_ops.overwrite([output], results)
    return output


def _checked(name: str, tensor: torch.Tensor, channel_id: int) -> int:
    trace_among(f"xm.{name}", [tensor])  # type: ignore[list-item]
    if world.world_size() == 1:
        raise WorldError(
            f"xm.{name}(channel_id={channel_id}): the world has one rank, and a message needs two"
        )
    return operator.index(channel_id)
