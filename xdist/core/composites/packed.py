"""Packed sequences of recurrent layers, laid out with every sequence as long as the longest.

torch keeps them as the rows of all sequences at the first time, then those at the second, and so
on, the longest sequence first. Its own loop over them is a dozen operators per time step, each of
another shape. Laid out, [t, b, ...], they are one row, whose states stay where a sequence is over.
"""

from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True, slots=True)
class Layout:
    """Where the rows of packed sequences lie, on the device.

    Attributes:
        times: the longest sequence's.
        rows: of each time of each sequence the row it is, [t b]; the first one where there is none.
        places: of each row the place it is at among these, [rows].
        within: whether a time is one of its sequence, [t, b, 1].
    """

    times: int
    rows: torch.Tensor
    places: torch.Tensor
    within: torch.Tensor


def layout_of(batch_sizes: torch.Tensor, device: torch.device) -> Layout:
    """From the number of sequences that there are at each time, on the CPU."""
    within = torch.arange(int(batch_sizes[0])) < batch_sizes[:, None]
    rows = torch.where(within.flatten(), within.flatten().cumsum(0) - 1, 0)
    places = within.flatten().nonzero()[:, 0]
    host = (rows, places, within[..., None])
    return Layout(len(batch_sizes), *(part.to(device) for part in host))


class Unpacked(torch.autograd.Function):
    """Rows [n, ...] to [t, b, ...], with zeros where a sequence is over."""

    @staticmethod
    def forward(ctx: Any, rows: torch.Tensor, layout: Layout) -> torch.Tensor:
        ctx.layout = layout
        out = rows.index_select(0, layout.rows).unflatten(0, (layout.times, -1))
        return out.where(layout.within, 0)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[Any, ...]:
        return Packed.apply(grad, ctx.layout), None


class Packed(torch.autograd.Function):
    """[t, b, ...] to rows [n, ...]."""

    @staticmethod
    def forward(ctx: Any, laid_out: torch.Tensor, layout: Layout) -> torch.Tensor:
        ctx.layout = layout
        return laid_out.flatten(0, 1).index_select(0, layout.places)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[Any, ...]:
        return Unpacked.apply(grad, ctx.layout), None
