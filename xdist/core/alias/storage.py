"""Storages as torch's Python sees them: an identity, an address and a size, no bytes.

Device tensors have no memory that Python may touch, but libraries compare addresses to find out
which tensors share memory. So every storage has a range of addresses of its own.
"""

import threading
import weakref
from typing import Any

import torch

from torch_xdist.core.alias.views import make_as_strided, write
from torch_xdist.core.devices.tensor import XlaTensor, wrap
from torch_xdist.core.trace.tensor_types import extent
from torch_xdist.core.trace.values import Value, ViewValue, root_of
from torch_xdist.errors import DeviceError

# The epoch of a value whose storage was freed; tapes count theirs from 1.
_FREED = -1
# Addresses are never given out twice. The first is above those of a process' own memory.
_ALIGNMENT = 64
_next_address = 1 << 56
_lock = threading.Lock()


def address_of(value: Value) -> int:
    """Where the first element of a value lies; unique among storages, and never 0."""
    return _base_of(root_of(value)) + value.type.offset * value.type.dtype.itemsize


def _base_of(root: Value) -> int:
    global _next_address
    try:
        return root.address
    except AttributeError:
        with _lock:
            root.address = _next_address
            # One more, so that an empty storage has an address of its own too.
            _next_address += (_nbytes(root) // _ALIGNMENT + 1) * _ALIGNMENT
        return root.address


def _nbytes(root: Value) -> int:
    """The bytes of a storage: as far as the tensor that owns it reaches."""
    return extent(root.type) * root.type.dtype.itemsize


class DeviceStorage:
    """What `untyped_storage()` answers: one object for each storage, as long as a tensor has it.

    It keeps no memory: without a tensor it has no bytes.
    """

    def __init__(self, root: Value) -> None:
        self.root = weakref.ref(root)
        self._address = _base_of(root)
        self.device = root.trace.device.torch

    def data_ptr(self) -> int:
        return self._address

    _cdata = property(data_ptr)

    def nbytes(self) -> int:
        root = self.root()
        return 0 if root is None or root.epoch == _FREED else _nbytes(root)

    def size(self) -> int:
        return self.nbytes()

    __len__ = nbytes

    def __eq__(self, other: object) -> bool:
        return isinstance(other, DeviceStorage) and other._address == self._address

    def __hash__(self) -> int:
        return self._address

    def resize_(self, size_bytes: int) -> "DeviceStorage":
        """To 0: the value goes; from 0: there is some value again. `fully_shard` does that."""
        root = self.root()
        if root is None:
            return self
        if size_bytes == 0 and not isinstance(root, ViewValue):
            root.epoch, root.buffer, root.generation = _FREED, None, root.generation + 1
        elif size_bytes and self.nbytes() == 0 and root.type.numel:
            empty: Any = torch.zeros(root.type.shape, dtype=root.type.dtype, device=self.device)
            write(root, empty.value)
        return self

    def untyped(self) -> "DeviceStorage":
        return self

    def share_memory_(self) -> Any:
        """Raises DeviceError: no other process reaches a device's memory."""
        raise DeviceError(
            f"share_memory_: a tensor on {self.device} lies in no memory that processes share;"
            " share it on the CPU, tensor.cpu().share_memory_(), and move it in each process"
        )

    def is_shared(self) -> bool:
        return False


# Python's storages have identities, by which scripts tell whether tensors share memory.
_storages: "weakref.WeakKeyDictionary[Value, DeviceStorage]" = weakref.WeakKeyDictionary()


def storage_of(value: Value) -> DeviceStorage:
    """The storage that a value is in."""
    root = root_of(value)
    found = _storages.get(root)
    if found is None:
        found = _storages[root] = DeviceStorage(root)
    return found


def flat_view(storage: DeviceStorage) -> ViewValue:
    """All of a storage as one dim of the dtype it was made with.

    Raises DeviceError where no tensor has it any more.
    """
    root = storage.root()
    if root is None:
        raise DeviceError(
            f"set_: the tensor whose storage this is, on {storage.device}, is gone, and its bytes"
            " with it; keep a tensor of that storage as long as it is needed"
        )
    return make_as_strided(root, (extent(root.type),), (1,), 0)


class TypedDeviceStorage:
    """What `storage()` answers: the same by elements, and it keeps them."""

    def __init__(self, tensor: XlaTensor) -> None:
        self._root = root_of(tensor.value)
        self._untyped_storage = storage_of(self._root)
        self.dtype = tensor.dtype
        self.device = self._untyped_storage.device

    def untyped(self) -> DeviceStorage:
        return self._untyped_storage

    def data_ptr(self) -> int:
        return self._untyped_storage.data_ptr()

    _cdata = property(data_ptr)

    def element_size(self) -> int:
        return self.dtype.itemsize

    def nbytes(self) -> int:
        return self._untyped_storage.nbytes()

    def size(self) -> int:
        return self.nbytes() // self.dtype.itemsize

    _size = __len__ = size

    def resize_(self, size: int) -> None:
        self._untyped_storage.resize_(size * self.dtype.itemsize)

    _resize_ = resize_

    def share_memory_(self) -> Any:
        return self._untyped_storage.share_memory_()

    _share_memory_ = share_memory_

    def is_shared(self) -> bool:
        return False

    def _elements(self) -> torch.Tensor:
        """All of it as a tensor of one dim, which shares its memory."""
        return wrap(flat_view(self._untyped_storage)).view(self.dtype)

    def __getitem__(self, index: int) -> Any:
        return self._elements()[index].item()

    def __setitem__(self, index: int | slice, value: Any) -> None:
        self._elements()[index] = value

    def fill_(self, value: Any) -> "TypedDeviceStorage":
        self._elements().fill_(value)
        return self

    def tolist(self) -> list[Any]:
        return self._elements().tolist()

    def cpu(self) -> torch.TypedStorage:
        return self._elements().cpu()._typed_storage()

    def __eq__(self, other: object) -> bool:
        is_typed = isinstance(other, TypedDeviceStorage)
        return is_typed and other._untyped_storage == self._untyped_storage  # type: ignore[attr-defined]

    def __hash__(self) -> int:
        return hash(self._untyped_storage)
