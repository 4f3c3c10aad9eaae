"""Tensor types: shape, dtype and nominal layout. Equal types are one object.

A type lives as long as something uses it, so a job whose shapes never repeat does not collect them.
"""

import threading
import weakref

import torch


class TensorType:
    """The type of a tensor: shape, torch dtype, nominal strides and storage offset. Interned."""

    __slots__ = (
        "__weakref__", "_meta", "at_zero",
        "dtype", "numel", "offset", "shape", "shares_places", "stride", "wrap_stride",
    )  # fmt: skip

    def __init__(
        self, shape: tuple[int, ...], dtype: torch.dtype, stride: tuple[int, ...], offset: int
    ) -> None:
        self.shape = shape
        self.dtype = dtype
        self.stride = stride
        self.offset = offset
        # torch makes a wrapper sooner when it may compute row-major strides itself.
        plain = offset == 0 and stride == contiguous_strides(shape)
        self.wrap_stride = None if plain else stride
        numel = 1
        for size in shape:
            numel *= size
        self.numel = numel
        # Whether several elements may lie at one place: `overlaps`, or windows that do.
        self.shares_places = not plain and _shares_places(shape, stride)
        self._meta: torch.Tensor | None = None
        # The type of the same at its storage's beginning, where that is another.
        self.at_zero = None if offset == 0 else tensor_type(shape, dtype, stride, 0)

    @property
    def meta(self) -> torch.Tensor:
        """A meta tensor of this type. Shared by every inference, so nothing may write to it."""
        if self._meta is None:
            self._meta = meta_tensor(self.shape, self.dtype, self.stride, self.offset)
        return self._meta

    @property
    def is_plain(self) -> bool:
        """Whether it is its storage from the beginning, in row-major order."""
        return self.wrap_stride is None

    def __repr__(self) -> str:
        return f"{str(self.dtype).removeprefix('torch.')}{list(self.shape)}"


def _shares_places(shape: tuple[int, ...], strides: tuple[int, ...]) -> bool:
    reach = 0
    for stride, size in sorted(zip(strides, shape)):
        if size > 1:
            if stride <= reach:
                return True
            reach += (size - 1) * stride
    return False


_Key = tuple[tuple[int, ...], torch.dtype, tuple[int, ...], int]
_types: dict[_Key, weakref.ref[TensorType]] = {}
# Reentrant: a garbage collection inside may intern a type from a finalizer.
_lock = threading.RLock()


def tensor_type(
    shape: tuple[int, ...], dtype: torch.dtype, stride: tuple[int, ...], offset: int = 0
) -> TensorType:
    """The one type of this shape, dtype and layout."""
    key = (shape, dtype, stride, offset)
    reference = _types.get(key)
    found = reference() if reference is not None else None
    return found if found is not None else _interned(key)


def _interned(key: _Key) -> TensorType:
    made = TensorType(*key)
    with _lock:
        reference = _types.get(key)
        found = reference() if reference is not None else None
        if found is not None:
            return found
        _types[key] = weakref.ref(made, lambda gone: _forget(key, gone))
    return made


def _forget(key: _Key, gone: weakref.ref[TensorType]) -> None:
    with _lock:
        if _types.get(key) is gone:
            del _types[key]


def dense_type(shape: tuple[int, ...], dtype: torch.dtype) -> TensorType:
    """The type of a contiguous tensor."""
    return tensor_type(shape, dtype, contiguous_strides(shape))


def type_of_meta(meta: torch.Tensor) -> TensorType:
    """The type of a tensor as torch's meta kernels describe it."""
    return tensor_type(tuple(meta.shape), meta.dtype, meta.stride(), int(meta.storage_offset()))


def meta_tensor(
    shape: tuple[int, ...], dtype: torch.dtype, stride: tuple[int, ...], offset: int = 0
) -> torch.Tensor:
    """A meta tensor with this layout, at its offset in a storage just large enough."""
    if offset == 0:
        return torch.empty_strided(shape, stride, dtype=dtype, device="meta")
    reach = offset + 1 + sum((n - 1) * s for n, s in zip(shape, stride) if n > 0)
    storage = torch.empty(reach, dtype=dtype, device="meta")
    return storage.as_strided(shape, stride, offset)


def contiguous_strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Row-major strides, as torch counts them (a size of 0 counts as 1)."""
    strides = []
    step = 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(size, 1)
    return tuple(reversed(strides))


def overlaps(type_: TensorType) -> bool:
    """Whether several elements of a layout share memory, as after `expand`."""
    # What is plain never does; asked at every write.
    return not type_.is_plain and any(s == 0 and n > 1 for n, s in zip(type_.shape, type_.stride))


def extent(type_: TensorType) -> int:
    """How many elements of a storage a layout reaches into."""
    if not type_.numel:
        return 0
    return type_.offset + 1 + sum((n - 1) * s for n, s in zip(type_.shape, type_.stride))
