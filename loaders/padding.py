"""Fixed shapes for batches of variable length, so that a few programs serve them all.

A padding names sizes for dims: `pad_to={1: 128}` brings dim 1 of every tensor that has one to 128,
`buckets={1: (64, 128, 256)}` to the smallest of these that holds it. Runs on the host, in the
thread that makes the batches. A tensor longer than the largest size is an error, never cut.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from torch_xdist.loaders.errors import ArgumentError, BatchError
from torch_xdist.loaders.structure import mapped, tensors

SEQUENCE_DIM = 1  # dim 0 counts the samples, dim 1 is the length

PadTo = int | Mapping[int, int] | None
Buckets = Sequence[int] | Mapping[int, Sequence[int]] | None
PadValue = float | Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Padding:
    """Sizes by dim, ascending, and the value that fills by key of the batch."""

    sizes: Mapping[int, tuple[int, ...]]
    values: Mapping[str, float]
    value: float = 0.0

    def __call__(self, batch: Any) -> Any:
        """The batch with every tensor padded at the end of its dims.

        Raises: BatchError for a tensor longer than the largest size, by its path.
        """
        return mapped(batch, lambda tensor, name: self._padded(batch, tensor, name))

    def _padded(self, batch: Any, tensor: torch.Tensor, name: str) -> torch.Tensor:
        missing = [0] * tensor.ndim
        for dim, sizes in self.sizes.items():
            if -tensor.ndim <= dim < tensor.ndim:
                size = tensor.shape[dim]
                fitting = next((s for s in sizes if s >= size), None)
                if fitting is None:
                    raise _too_long(batch, tensor, dim, sizes[-1])
                missing[dim] = fitting - size
        if not any(missing):
            return tensor
        # F.pad counts from the last dim, two numbers (before, after) for each.
        pairs = [amount for right in reversed(missing) for amount in (0, right)]
        return torch.nn.functional.pad(tensor, pairs, value=self.values.get(name, self.value))


def padding(pad_to: PadTo, buckets: Buckets, pad_value: PadValue) -> Padding | None:
    """Parse the loader's `pad_to`, `buckets` and `pad_value`; None where nothing is to be padded.

    Raises: ArgumentError for sizes that are not positive whole numbers, or a dim given twice.
    """
    sizes: dict[int, tuple[int, ...]] = {}
    if pad_to is not None:
        exact = pad_to if isinstance(pad_to, Mapping) else {SEQUENCE_DIM: pad_to}
        sizes.update({dim: (size,) for dim, size in exact.items()})
    if buckets is not None:
        ranges = buckets if isinstance(buckets, Mapping) else {SEQUENCE_DIM: buckets}
        for dim, choices in ranges.items():
            if dim in sizes:
                raise ArgumentError(
                    f"loader: pad_to and buckets both give sizes for dim {dim}; keep one of them"
                )
            sizes[dim] = tuple(sorted(choices))
    for dim, choices in sizes.items():
        if not choices or not all(isinstance(s, int) and s > 0 for s in choices):
            raise ArgumentError(
                f"loader: sizes {list(choices)} for dim {dim}; give whole numbers above 0"
            )
    if isinstance(pad_value, Mapping):
        return Padding(sizes, dict(pad_value)) if sizes else None
    return Padding(sizes, {}, pad_value) if sizes else None


def _too_long(batch: Any, tensor: torch.Tensor, dim: int, largest: int) -> BatchError:
    path = next((path for path, found in tensors(batch) if found is tensor), "")
    return BatchError(
        f"loader: dim {dim} of batch{path}, shape {tuple(tensor.shape)}, has size"
        f" {tensor.shape[dim]}, more than the largest size to pad to, {largest};"
        f" add a bucket of at least {tensor.shape[dim]}, or cut the sample in the dataset"
    )
