"""From the objects of a training job to plain data and tensors, and back.

`collected` takes what a checkpoint holds out of the objects; `snapshot` copies its tensors, so that
training may go on while they are written; `joined` puts data and tensors together again.
"""

import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import numpy as np
import torch

from torch_xdist.checkpoint.file import MARK, Entry, entry
from torch_xdist.core.devices import device, rng, steps, transfer
from torch_xdist.core.devices.tensor import XlaTensor
from torch_xdist.core.run.device_trace import buffers_of
from torch_xdist.errors import CheckpointError

RNG = "rng"
CUT_REASON = "checkpoint"


@dataclass(frozen=True, slots=True)
class Collected:
    """Plain data by name, with markers for its tensors; the tensors and their ranks by path."""

    states: dict[str, Any]
    values: dict[str, Any]
    versions: dict[str, Any]  # a module's state_dict has those of its submodules as an attribute
    tensors: dict[str, torch.Tensor]
    owners: dict[str, int]

    def of_rank(self, rank: int) -> dict[str, torch.Tensor]:
        """The tensors that a rank writes."""
        return {path: t for path, t in self.tensors.items() if self.owners[path] == rank}


def is_stateful(thing: Any) -> bool:
    """Whether an object has a state of its own to save."""
    return hasattr(thing, "state_dict") and hasattr(thing, "load_state_dict")


def end_step() -> None:
    """Run what this thread has recorded, so that reading the states is no program of its own."""
    steps.run_own(CUT_REASON)


def collected(
    things: Mapping[str, Any], owner: Callable[[str, dict[str, torch.Tensor]], dict[str, int]]
) -> Collected:
    """Take the states of objects, the plain values as they are, and the random states.

    Args:
        things: by name; the name `rng` is taken.
        owner: gives the rank that writes each of the tensors of one name.

    Raises: CheckpointError for a name that cannot be used.
    """
    if RNG in things:
        raise CheckpointError(f"checkpoint.save: the name {RNG!r} is taken; choose another")
    result = Collected({}, {}, {}, {}, {})
    for name, thing in [*things.items(), (RNG, random_states())]:
        has_state = is_stateful(thing)
        tensors: dict[str, torch.Tensor] = {}
        state = thing.state_dict() if has_state else thing
        plain = _split(state, name, tensors, {})
        if has_state and hasattr(state, "_metadata"):
            result.versions[name] = {k: dict(v) for k, v in state._metadata.items()}
        owners = owner(name, tensors)
        for mark in _marks(plain):
            mark["rank"] = owners[mark[MARK]]
        (result.states if has_state or name == RNG else result.values)[name] = plain
        result.tensors.update(tensors)
        result.owners.update(owners)
    return result


def _split(
    value: Any, path: str, tensors: dict[str, torch.Tensor], seen: dict[Any, dict[str, Any]]
) -> Any:
    """`value` as plain data with markers for its tensors, which go into `tensors` by path."""
    if isinstance(value, np.ndarray):
        value = torch.from_numpy(value)
    if isinstance(value, torch.Tensor):
        if (same := _memory(value)) in seen:
            return dict(seen[same])
        mark = {
            MARK: path,
            "dtype": str(value.dtype).removeprefix("torch."),
            "shape": list(value.shape),
        }
        tensors[path] = value
        seen[same] = mark
        return mark
    if isinstance(value, Mapping):
        return {
            key: _split(item, _joined(path, key, tensors), tensors, seen)
            for key, item in value.items()
        }
    if isinstance(value, list | tuple):
        items = [
            _split(item, _joined(path, i, tensors), tensors, seen) for i, item in enumerate(value)
        ]
        return items if isinstance(value, list) else tuple(items)
    return value.item() if isinstance(value, np.generic) else value


def _memory(tensor: torch.Tensor) -> Any:
    """What is equal for two tensors that are one: tied parameters are, under several names.

    `state_dict` makes new tensors, of the same memory.
    """
    if isinstance(tensor, XlaTensor):
        return id(getattr(tensor, "value", tensor))
    if tensor.layout is not torch.strided or type(tensor) not in (torch.Tensor, torch.nn.Parameter):
        return id(tensor)
    where = tensor.untyped_storage()._cdata, tensor.storage_offset()
    return where, tensor.shape, tensor.stride(), tensor.dtype, tensor.is_conj(), tensor.is_neg()


def _joined(path: str, key: Any, tensors: Mapping[str, Any]) -> str:
    name = f"{path}.{key}"
    while name in tensors:
        # A key with a dot in it may read like a nested one.
        name += "'"
    return name


def _marks(plain: Any) -> Iterator[dict[str, Any]]:
    if isinstance(plain, dict) and MARK in plain:
        yield plain
    elif isinstance(plain, dict | list | tuple):
        for item in plain.values() if isinstance(plain, dict) else plain:
            yield from _marks(item)


Read = Callable[[int, str, torch.dtype, tuple[int, ...]], torch.Tensor]


def joined(plain: Any, read: Read) -> Any:
    """Plain data with its markers replaced by what `read(rank, name, dtype, shape)` gives."""
    if isinstance(plain, dict):
        if MARK in plain:
            dtype = getattr(torch, plain["dtype"])
            return read(plain["rank"], plain[MARK], dtype, tuple(plain["shape"]))
        return {key: joined(item, read) for key, item in plain.items()}
    if isinstance(plain, list | tuple):
        items = [joined(item, read) for item in plain]
        return items if isinstance(plain, list) else tuple(items)
    return plain


def snapshot(tensors: Mapping[str, torch.Tensor]) -> dict[str, Entry]:
    """Entries of copies: later changes of the tensors do not reach them.

    Device tensors are copied on their device (twice their memory until they are written), so that
    the step goes on donating the originals. Cost: cuts the trace if a tensor is pending.
    """
    on_device = {name: t for name, t in tensors.items() if isinstance(t, XlaTensor)}
    # Read here: in the writing thread a read could cut the trace of the step under way.
    buffers = buffers_of([t.value for t in on_device.values()]) if on_device else []
    local = [buffer.addressable_data(0) for buffer in buffers]
    copies = dict(zip(on_device, (jax.device_put(b, b.device, may_alias=False) for b in local)))
    return {
        name: Entry(t.dtype, tuple(t.shape), partial(transfer.host_bytes, copies[name], t.dtype))
        if name in copies
        else entry(t.detach().clone())
        for name, t in tensors.items()
    }


def streamed(tensors: Mapping[str, torch.Tensor]) -> dict[str, Entry]:
    """Entries that read each tensor when its turn comes; none may change until then."""
    return {name: entry(tensor) for name, tensor in tensors.items()}


def random_states() -> dict[str, Any]:
    """The states of torch, Python, numpy and the devices of this process."""
    name, keys, position, has_gauss, gauss = np.random.get_state(legacy=True)
    return {
        "torch": torch.get_rng_state(),
        "python": random.getstate(),
        "numpy": (name, torch.from_numpy(np.asarray(keys, np.int64)), position, has_gauss, gauss),
        "devices": [rng.get_rng_state(index) for index in range(device.device_count())],
    }


def restore_random_states(states: Mapping[str, Any]) -> None:
    """Set what `random_states` gave; devices beyond those saved are left alone."""
    torch.set_rng_state(states["torch"].clone())
    random.setstate(states["python"])
    name, keys, *rest = states["numpy"]
    np.random.set_state((name, keys.numpy().astype(np.uint32), *rest))
    for index, state in zip(range(device.device_count()), states["devices"]):
        rng.set_rng_state(state, index)
