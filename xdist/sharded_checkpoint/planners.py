"""What torch.distributed.checkpoint writes and reads of sharded tensors: each part by itself.

A part is written once, by one process, without its padding. Loading takes what each device needs
from whatever parts the checkpoint has, so the mesh may be another one.
"""

import dataclasses
import io
import math
from collections import ChainMap
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.distributed._shard._utils import narrow_tensor_by_index
from torch.distributed.checkpoint._dedup_save_plans import dedup_save_plans
from torch.distributed.checkpoint._traverse import set_element
from torch.distributed.checkpoint.default_planner import (
    create_default_global_load_plan,
    create_default_global_save_plan,
    create_default_local_load_plan,
    create_default_local_save_plan,
)
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import (
    LoadPlan,
    LoadPlanner,
    ReadItem,
    SavePlan,
    SavePlanner,
    TensorWriteData,
    WriteItem,
    WriteItemType,
)
from torch.distributed.checkpoint.planner_helpers import create_read_items_for_chunk_list
from torch.distributed.checkpoint.utils import find_state_dict_object

from torch_xdist.errors import CheckpointError
from torch_xdist.sharded_checkpoint.state_dicts import (
    CpuShards,
    Path,
    flatten_state_dict,
    separated,
)
from torch_xdist.spmd.sharded_tensor import XLAShardedTensor
from torch_xdist.spmd.shards import XLAShard


class SPMDSavePlanner(SavePlanner):
    """Writes state dicts with sharded tensors; for `torch.distributed.checkpoint.save(planner=)`.

    Attributes:
        sharded_state_dict: the sharded tensors, or their parts on the host, by flat name.
        unsharded_state_dict: everything else.
    """

    def __init__(self) -> None:
        self.is_coordinator = False
        self.mappings: Any = None
        self.sharded_state_dict: dict[str, Any] = {}
        self.unsharded_state_dict: dict[str, Any] = {}
        self._local_shards: dict[str, list[XLAShard]] = {}

    # torch's order is another: what is no bool in the second place is its storage_meta.
    def set_up_planner(  # type: ignore[override]
        self, state_dict: Any, is_coordinator: bool = False, storage_meta: Any = None
    ) -> None:
        if not isinstance(is_coordinator, bool):
            is_coordinator = bool(storage_meta)
        self.is_coordinator = is_coordinator
        flat, self.mappings = flatten_state_dict(state_dict)
        self.sharded_state_dict, self.unsharded_state_dict = separated(flat)
        self._local_shards = {}

    def create_local_plan(self) -> SavePlan:
        plan = create_default_local_save_plan(self.unsharded_state_dict, self.is_coordinator)
        parts = [
            _write_item(name, number, part, self._shape(name))
            for name in self.sharded_state_dict
            for number, part in _first_of_each(self._shards(name))
        ]
        return dataclasses.replace(plan, items=[*plan.items, *parts], planner_data=self.mappings)

    def _shape(self, name: str) -> torch.Size:
        value = self.sharded_state_dict[name]
        return value.global_shape if isinstance(value, CpuShards) else value.shape

    def _shards(self, name: str) -> list[XLAShard]:
        """The local parts of a tensor, copied to the host once."""
        if name not in self._local_shards:
            value = self.sharded_state_dict[name]
            is_copied = isinstance(value, CpuShards)
            self._local_shards[name] = value.shards if is_copied else value.local_shards
        return self._local_shards[name]

    def create_global_plan(self, all_plans: list[SavePlan]) -> tuple[list[SavePlan], Metadata]:
        plans, metadata = create_default_global_save_plan(
            dedup_save_plans(all_plans), rewrite_index_hints=False
        )
        mappings = dict(ChainMap(*[plan.planner_data for plan in plans]))
        return plans, dataclasses.replace(metadata, planner_data=mappings)

    def finish_plan(self, new_plan: SavePlan) -> SavePlan:
        return new_plan

    def resolve_data(self, write_item: WriteItem) -> torch.Tensor | io.BytesIO:
        return self.transform_object(write_item, self.lookup_object(write_item.index))

    def lookup_object(self, index: MetadataIndex) -> Any:
        """The value that an index of a plan means: of a sharded tensor one part, unpadded."""
        if index.fqn in self.unsharded_state_dict:
            return self.unsharded_state_dict[index.fqn]
        part = self._shards(index.fqn)[index.index]  # type: ignore[index]
        _check_place("WriteItem", index, part)
        return part.unpadded_data

    def transform_object(self, write_item: WriteItem, object: Any) -> Any:
        if write_item.type != WriteItemType.BYTE_IO:
            return object
        stream = io.BytesIO()
        torch.save(object, stream)
        return stream


class SPMDLoadPlanner(LoadPlanner):
    """Reads into state dicts with sharded tensors, in place.

    For `torch.distributed.checkpoint.load(planner=)`. The tensors are on the device and sharded as
    they shall be; the checkpoint may have other parts.
    """

    def __init__(self) -> None:
        self.metadata: Any = None
        self.is_coordinator = False
        self.original_state_dict: Any = None
        self.mappings: Any = None
        self.sharded_state_dict: dict[str, XLAShardedTensor] = {}
        self.unsharded_state_dict: dict[str, Any] = {}
        self._local_shards: dict[str, list[XLAShard]] = {}
        self._missing: dict[str, int] = {}

    def set_up_planner(
        self, state_dict: Any, metadata: Metadata | None = None, is_coordinator: bool = False
    ) -> None:
        self.metadata = metadata
        self.is_coordinator = is_coordinator
        self.original_state_dict = state_dict
        flat, self.mappings = flatten_state_dict(state_dict)
        self.sharded_state_dict, self.unsharded_state_dict = separated(flat)
        self._local_shards = {}

    def create_local_plan(self) -> LoadPlan:
        plan = create_default_local_load_plan(self.unsharded_state_dict, self.metadata)
        items = [
            item
            for name, tensor in self.sharded_state_dict.items()
            for item in self._read_items(name, tensor)
        ]
        return dataclasses.replace(plan, items=[*plan.items, *items])

    def _read_items(self, name: str, tensor: XLAShardedTensor) -> list[ReadItem]:
        if name not in self.metadata.state_dict_metadata:
            raise CheckpointError(
                f"checkpoint: it has no {name}, which the state dict has; it has"
                f" {sorted(self.metadata.state_dict_metadata)[:8]}, ..."
            )
        saved = self.metadata.state_dict_metadata[name]
        if getattr(saved, "size", None) != tensor.shape:
            is_tensor = isinstance(saved, TensorStorageMetadata)
            raise CheckpointError(
                f"checkpoint: {name} is {list(saved.size) if is_tensor else 'no tensor'} in it, and"
                f" a tensor of shape {list(tensor.shape)} in the state dict"
            )
        chunks = [_chunk(part) for part in self._shards(name)]
        return create_read_items_for_chunk_list(name, saved, chunks)

    def _shards(self, name: str) -> list[XLAShard]:
        if name not in self._local_shards:
            parts = self._local_shards[name] = self.sharded_state_dict[name].local_shards
            self._missing[name] = sum(part.unpadded_data.numel() for part in parts)
        return self._local_shards[name]

    def create_global_plan(self, global_plan: list[LoadPlan]) -> list[LoadPlan]:
        return create_default_global_load_plan(global_plan)

    def finish_plan(self, central_plan: LoadPlan) -> LoadPlan:
        return central_plan

    def load_bytes(self, read_item: ReadItem, value: io.BytesIO) -> None:
        path = _with_own_keys(self.original_state_dict, self.mappings[read_item.dest_index.fqn])
        set_element(self.original_state_dict, path, torch.load(value, weights_only=True))

    def resolve_tensor(self, read_item: ReadItem) -> torch.Tensor:
        return self.transform_tensor(read_item, self.lookup_tensor(read_item.dest_index))

    def lookup_tensor(self, index: MetadataIndex) -> torch.Tensor:
        """The tensor that an index of a plan means: of a sharded one a part on the host."""
        if index.fqn in self.unsharded_state_dict:
            return find_state_dict_object(self.unsharded_state_dict, index)  # type: ignore[no-any-return]
        part = self._shards(index.fqn)[index.index]  # type: ignore[index]
        _check_place("ReadItem", index, part)
        return part.data

    def transform_tensor(self, read_item: ReadItem, tensor: torch.Tensor) -> torch.Tensor:
        return narrow_tensor_by_index(tensor, read_item.dest_offsets, read_item.lengths)

    def commit_tensor(self, read_item: ReadItem, tensor: torch.Tensor) -> None:
        """Take over what was read; the parts go to the devices when all of a tensor's are there."""
        name = read_item.dest_index.fqn
        if name not in self.sharded_state_dict:
            return
        self._missing[name] -= math.prod(read_item.lengths)
        if self._missing[name] < 0:
            raise CheckpointError(
                f"checkpoint: {-self._missing[name]} more elements were read for {name} than the"
                " devices hold"
            )
        if self._missing[name] == 0:
            self.sharded_state_dict[name].load_local_shards_(self._local_shards.pop(name))


def _with_own_keys(container: Any, path: Path) -> Path:
    """A path with the keys that the containers have; torch's paths have text for numbers."""
    keys = []
    for part in path:
        if isinstance(container, Mapping) and part not in container:
            part = next((key for key in container if str(key) == part), part)
        keys.append(part)
        container = container[part]
    return tuple(keys)


def _first_of_each(parts: Sequence[XLAShard]) -> list[tuple[int, XLAShard]]:
    """Each distinct part once, with its number; one behind the end of the tensor holds nothing."""
    first: dict[torch.Size, tuple[int, XLAShard]] = {}
    for number, part in enumerate(parts):
        if math.prod(_sizes(part)) > 0:
            first.setdefault(_offsets(part), (number, part))
    return [*first.values()]


def _offsets(part: XLAShard) -> torch.Size:
    return torch.Size(place.start for place in part.indices)  # type: ignore[union-attr]


def _sizes(part: XLAShard) -> torch.Size:
    return torch.Size(place.stop - place.start for place in part.indices)  # type: ignore[union-attr]


def _chunk(part: XLAShard) -> ChunkStorageMetadata:
    return ChunkStorageMetadata(offsets=_offsets(part), sizes=_sizes(part))


def _write_item(name: str, number: int, part: XLAShard, shape: torch.Size) -> WriteItem:
    return WriteItem(
        index=MetadataIndex(name, _offsets(part), number),
        type=WriteItemType.SHARD,
        tensor_data=TensorWriteData(
            chunk=_chunk(part),
            properties=TensorProperties.create_from_tensor(part.data),
            size=shape,
        ),
    )


def _check_place(what: str, index: MetadataIndex, part: XLAShard) -> None:
    if index.offset != _offsets(part):
        raise CheckpointError(
            f"checkpoint: the {what} for {index.fqn} is of the part at {index.offset}, and part"
            f" {index.index} lies at {_offsets(part)}"
        )
