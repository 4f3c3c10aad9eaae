"""Write checkpoints: ordinary torch files of CPU tensors, written whole or not at all.

A file gets a temporary name beside its own and is renamed when it is complete, so a reader never
sees half of one. Device tensors are brought over one at a time: the host never holds more of the
checkpoint than its largest tensor. The files load anywhere, with `weights_only=True`.
"""

import os
import pickle
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, BinaryIO

import numpy as np
import torch

from torch_xdist import world
from torch_xdist.arena import ToXlaTensorArena, for_each_instance
from torch_xdist.core.composites.sparse import SparseXlaTensor
from torch_xdist.core.devices import ordinals, transfer
from torch_xdist.core.devices.tensor import XlaTensor
from torch_xdist.core.run.device_trace import buffer_of, buffers_of
from torch_xdist.core.trace.values import Value, root_of
from torch_xdist.errors import CheckpointError


def is_device_tensor(value: Any) -> bool:
    """True for a tensor whose values live on an xla device."""
    return isinstance(value, torch.Tensor) and value.device.type == "xla"


def to_cpu(data: Any) -> Any:
    """The same data with its device tensors as CPU tensors; tensors that were one stay one."""
    arena = ToXlaTensorArena(
        lambda tensors: _one_each(tensors, lambda t: t.detach().cpu()),
        is_device_tensor,
        keep_tuples=True,
    )
    return arena.transform(data)


def maybe_convert_to_cpu(data: Any, convert: bool = True) -> Any:
    """`to_cpu(data)`. Where `convert` is false, the tensors are computed but nothing is kept."""
    found = compute(data)
    return to_cpu(found) if convert else None


def compute(data: Any) -> Any:
    """Run what the device tensors in `data` wait for; every rank does it before a save.

    Returns the data to write: where tensors have parts in several processes, which gather them all
    together, with CPU tensors. A view is read from its base when its turn comes: all of them at
    once would take memory.
    """
    if world.shares_device():
        return to_cpu(data)
    found: list[torch.Tensor] = []
    for_each_instance(data, is_device_tensor, found.append)
    buffers_of([root for tensor in found for root in _roots(tensor)], reason="save")
    return data


def _roots(tensor: torch.Tensor) -> list[Value]:
    """The storages a device tensor looks into; of a sparse one, of its parts."""
    if isinstance(tensor, SparseXlaTensor):
        return _roots(tensor.indices_part) + _roots(tensor.values_part)
    return [root_of(tensor.value)] if isinstance(tensor, XlaTensor) else []


def save(
    data: Any,
    file_or_path: str | os.PathLike[str] | BinaryIO,
    master_only: bool = True,
    global_master: bool = False,
) -> None:
    """Write `data` with its tensors on the CPU, as torch.save would. Call it on every rank.

    Every rank computes its tensors; one per host writes. There is no barrier: a rank that reads
    the file must wait for the one that writes it (`rendezvous`).

    Args:
        file_or_path: a path is written whole or not at all, holding one tensor in memory at a
            time; a file object gets the bytes of torch.save.
        master_only: False: every rank writes, each to its own path.
        global_master: write on rank 0 of the job only, not on one rank of each host.
    """
    data = compute(data)
    if master_only and not ordinals.is_master_ordinal(local=not global_master):
        return
    if isinstance(file_or_path, str | os.PathLike):
        write(data, file_or_path)
    else:
        torch.save(to_cpu(data), file_or_path)


def check_view_sharing(obj: Any) -> None:
    """Raise CheckpointError where two device tensors inside `obj` share memory."""
    found: list[torch.Tensor] = []
    for_each_instance(obj, is_device_tensor, found.append)
    owners: dict[Any, int] = {}
    for number, tensor in enumerate(found):
        first = owners.setdefault(memory_of(tensor)[0], number)
        if first != number:
            raise CheckpointError(
                f"check_view_sharing: Tensor ID {first} ({tuple(found[first].shape)}) is sharing a"
                f" view with tensor ID {number} ({tuple(tensor.shape)}); clone one of them"
            )


def _one_each(
    tensors: list[torch.Tensor], make: Callable[[torch.Tensor], torch.Tensor]
) -> list[torch.Tensor]:
    """`make` of each distinct tensor: two wrappers of the same memory get the same result."""
    made: dict[Any, torch.Tensor] = {}
    results = []
    for tensor in tensors:
        key = memory_of(tensor)
        if key not in made:
            made[key] = make(tensor)
        results.append(_as_before(tensor, made[key]))
    return results


def memory_of(tensor: torch.Tensor) -> tuple[Any, ...]:
    """What two tensors have in common exactly when they are the same part of the same memory."""
    if isinstance(tensor, SparseXlaTensor):
        return memory_of(tensor.indices_part), memory_of(tensor.values_part), tensor.shape
    pointer = tensor.untyped_storage().data_ptr()
    return pointer, tensor.storage_offset(), tensor.shape, tensor.stride(), tensor.dtype


def _as_before(tensor: torch.Tensor, made: torch.Tensor) -> torch.Tensor:
    """`made` with the class and the requires_grad of the tensor it stands for."""
    if isinstance(tensor, torch.nn.Parameter):
        return torch.nn.Parameter(made, requires_grad=tensor.requires_grad)
    return made.detach().requires_grad_(tensor.requires_grad)


def write(data: Any, path: str | os.PathLike[str]) -> None:
    """Write `data` to `path` as torch.save would write its CPU copy, atomically and streamed.

    A device or a pipe (/dev/null, /dev/stdout) gets the bytes: a rename would take its place.

    Raises CheckpointError that names the path when the file cannot be written.
    Cost: host memory of the largest tensor, of all where it is no file; it is written once.
    """
    final = Path(path)
    if final.exists() and not final.is_file() and not final.is_dir():
        _write_into(data, final)
        return
    sources: dict[int, torch.Tensor] = {}
    arena = ToXlaTensorArena(
        lambda tensors: _one_each(tensors, lambda t: _placeholder(t, sources)),
        is_device_tensor,
        keep_tuples=True,
    )
    skeleton = arena.transform(data)
    with atomic_file(path) as partial:
        if sources:
            _write_streamed(skeleton, sources, partial)
        else:
            torch.save(skeleton, partial)


def _write_into(data: Any, device: Path) -> None:
    try:
        with device.open("wb") as stream:
            torch.save(to_cpu(data), stream)
    except OSError as error:
        raise _cannot_write(device, error) from error


def _placeholder(tensor: torch.Tensor, sources: dict[int, torch.Tensor]) -> torch.Tensor:
    if isinstance(tensor, SparseXlaTensor):
        return tensor.detach().cpu()
    # Memory that nobody touches: it takes address space, not RAM.
    empty = torch.empty(tensor.shape, dtype=tensor.dtype)
    if empty.numel():
        sources[empty.untyped_storage().data_ptr()] = tensor.detach()
    return empty


def _write_streamed(skeleton: Any, sources: dict[int, torch.Tensor], partial: Path) -> None:
    """Let torch write the file with holes where the values go, then fill the holes."""
    spy = _StorageSpy()
    with torch.serialization.skip_data():
        torch.save(skeleton, partial, pickle_module=spy.pickle_module())
    offsets: Any = torch._C.PyTorchFileReader(os.fspath(partial))
    with partial.open("r+b") as file:
        for key, storage in spy.storages.items():
            if not storage.nbytes():
                continue
            file.seek(offsets.get_record_offset(f"data/{key}"))
            whole = torch.empty(0, dtype=torch.uint8).set_(storage)
            file.write(host_bytes(sources.get(storage.data_ptr(), whole)).data)


def host_bytes(tensor: torch.Tensor) -> np.ndarray:
    """The bytes of a tensor's values in row-major order, as uint8 [bytes], only to be read.

    They share the tensor's memory where they can; nothing may write to it until they are written.
    """
    plain = tensor.detach().resolve_conj().resolve_neg()
    if isinstance(plain, XlaTensor):
        return transfer.host_bytes(buffer_of(plain.value, "save"), plain.dtype)
    return plain.cpu().contiguous().reshape(-1).view(torch.uint8).numpy()


class _StorageSpy:
    """Notes which record of the file belongs to which storage, while torch pickles."""

    def __init__(self) -> None:
        self.storages: dict[str, torch.UntypedStorage] = {}

    def pickle_module(self) -> Any:
        """A stand-in for `pickle` whose Pickler tells this spy about storages.

        torch overrides `persistent_id` in a subclass, so an instance attribute it is; only the
        Python pickler looks one up.
        """
        storages = self.storages

        class Pickler(pickle._Pickler):  # type: ignore[name-defined, misc]
            def dump(self, obj: Any) -> None:
                torch_id = self.persistent_id

                def noting(item: Any) -> Any:
                    name = torch_id(item)
                    if name is not None:
                        storages[name[2]] = getattr(item, "_untyped_storage", item)
                    return name

                self.persistent_id = noting  # type: ignore[method-assign, assignment]
                super().dump(obj)

        return SimpleNamespace(Pickler=Pickler, __name__="pickle")


@contextmanager
def atomic_file(path: str | os.PathLike[str]) -> Iterator[Path]:
    """A temporary path beside `path`, synced and renamed to it when the block ends well.

    Raises CheckpointError for what the file system refuses; the temporary file is removed then.
    """
    final = Path(path)
    partial = final.with_name(f".{final.name}.{secrets.token_hex(4)}.partial")
    try:
        yield partial
        _sync(partial)
        partial.replace(final)
        _sync(final.parent)
    except OSError as error:
        raise _cannot_write(final, error) from error
    except RuntimeError as error:
        if final.parent.is_dir():
            raise
        # torch reports a missing folder as a RuntimeError of its own.
        raise _cannot_write(final, error) from error
    finally:
        partial.unlink(missing_ok=True)


def _cannot_write(path: Path, error: Exception) -> CheckpointError:
    return CheckpointError(
        f"save: {path} cannot be written ({error}); make its folder, free space, or choose"
        " another path"
    )


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
