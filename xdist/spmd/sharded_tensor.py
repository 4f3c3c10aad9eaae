"""`XLAShardedTensor`: a device tensor that knows its mesh, and the parts of it on each device."""

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._dtensor_spec import DTensorSpec, TensorMeta
from torch.distributed.tensor.placement_types import Partial, Placement, Replicate, Shard
from torch.utils._pytree import tree_map

from torch_xdist.core.devices.tensor import XlaTensor
from torch_xdist.spmd import marks
from torch_xdist.spmd.marks import unwrapped
from torch_xdist.spmd.op_sharding import ShardingType, type_of
from torch_xdist.spmd.shards import XLAShard, load_local_shards, local_shards


@contextlib.contextmanager
def no_dispatch() -> Iterator[None]:
    """Inside it no subclass of tensors is asked about operators."""
    guard = torch._C._DisableTorchDispatch()
    try:
        yield
    finally:
        del guard


class XLAShardedTensor(DTensor):
    """A device tensor with its sharding; operators on it compute on the whole tensor.

    Attributes:
        global_tensor: the device tensor, which it shares.
        mesh_shape, partition_spec: as it was marked; None where XLA chose.
        axis_names: of the mesh, where the spec may use them.
    """

    global_tensor: Any
    mesh_shape: tuple[int, ...] | None
    partition_spec: Any
    _cached_spec: Any
    axis_names: tuple[str, ...] | None
    __slots__ = ("_cached_spec", "axis_names", "global_tensor", "mesh_shape", "partition_spec")

    @staticmethod
    def __new__(
        cls: Any,
        elem: torch.Tensor,
        mesh_shape: Any = None,
        partition_spec: Any = None,
        *args: Any,
        **kwargs: Any,
    ) -> "XLAShardedTensor":
        inner = elem.global_tensor if isinstance(elem, XLAShardedTensor) else elem
        made = torch.Tensor._make_wrapper_subclass(
            cls,
            inner.size(),
            strides=inner.stride(),
            storage_offset=inner.storage_offset(),
            dtype=inner.dtype,
            layout=inner.layout,
            # For which torch core has a device guard.
            device=inner.value.trace.device.lazy if isinstance(inner, XlaTensor) else inner.device,
            requires_grad=kwargs.get("requires_grad", False),
        )
        made.global_tensor = inner.detach() if made.requires_grad else inner
        made.mesh_shape = mesh_shape or getattr(elem, "mesh_shape", None)
        made.partition_spec = partition_spec or getattr(elem, "partition_spec", None)
        made.axis_names = getattr(elem, "axis_names", None)
        made._cached_spec = None
        return made

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Everything is set by `__new__`; DTensor has nothing to add."""

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        return self.global_tensor.device  # type: ignore[no-any-return]

    @property
    def is_xla(self) -> bool:  # type: ignore[override]
        return True

    @property
    def local_shards(self) -> list[XLAShard]:
        """What each device of this process holds, copied to the host."""
        return local_shards(self.global_tensor)

    def load_local_shards_(self, shards: list[XLAShard]) -> None:
        """Write back what each device of this process shall hold."""
        load_local_shards(self.global_tensor, [shard.data for shard in shards])
        self.invalidate_spec_cache()

    @property
    def sharding_spec(self) -> str:
        """As XLA's HLO spells it."""
        found = marks.tiling_of(self.global_tensor)
        return "" if found is None else found.text

    @property
    def sharding_type(self) -> ShardingType:
        """Its kind; REPLICATED where nothing was said yet."""
        found = marks.tiling_of(self.global_tensor)
        return ShardingType.REPLICATED if found is None else type_of(found)

    def __repr__(self) -> str:  # type: ignore[override]
        return f"XLAShardedTensor({self.global_tensor!r})"

    def cpu(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        """All of it on the host."""
        return self.global_tensor.cpu(*args, **kwargs)

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        results = func(*tree_map(unwrapped, args), **tree_map(unwrapped, kwargs or {}))
        return tree_map(_wrapped, results)

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return super(DTensor, cls).__torch_function__(func, types, args, kwargs or {})

    @property
    def _spec(self) -> DTensorSpec:  # type: ignore[override]
        if self._cached_spec is None:
            self._cached_spec = self._found_spec()
        return self._cached_spec

    def _found_spec(self) -> DTensorSpec:
        for name in ("mesh_shape", "partition_spec"):
            if getattr(self, name) is None:
                raise ValueError(
                    f"{name} must be specified to create DTensorSpec: this tensor is the result of"
                    " an operator, whose sharding XLA chooses; mark it with xs.mark_sharding"
                )
        assert self.mesh_shape is not None
        count = len(marks.layout("DTensorSpec").devices)
        mesh = DeviceMesh("xla", torch.arange(count).reshape(self.mesh_shape))
        cut = {axis: dim for dim, entry in enumerate(self.partition_spec) for axis in _axes(entry)}
        names = self.axis_names or ()
        for name in (axis for axis in cut if isinstance(axis, str) and axis not in names):
            raise ValueError(f"axis {name} of {self.partition_spec} is not one of {names}")
        dims = {names.index(a) if isinstance(a, str) else a: dim for a, dim in cut.items()}
        placements = [
            Shard(dims[axis]) if axis in dims else Replicate()
            for axis in range(len(self.mesh_shape))
        ]
        whole = self.global_tensor
        meta = TensorMeta(whole.shape, whole.stride(), whole.dtype)
        return DTensorSpec(mesh=mesh, placements=tuple(placements), tensor_meta=meta)

    @property
    def placements(self) -> tuple[Placement, ...]:
        """How it is sharded, as DTensor says it: an entry for each axis of the mesh."""
        try:
            return self._spec.placements
        except ValueError as error:
            raise ValueError(
                "Placements not available: XLAShardedTensor requires mesh_shape and partition_spec"
                " to be set. Use mark_sharding() to properly initialize sharding information."
            ) from error

    def invalidate_spec_cache(self) -> None:
        """Forget the DTensorSpec, after the sharding changed."""
        self._cached_spec = None

    def redistribute(  # type: ignore[override]
        self, device_mesh: Any, placements: Sequence[Placement], *, async_op: bool = False
    ) -> "XLAShardedTensor":
        """The same tensor in another sharding over an `xs.Mesh`.

        Args:
            placements: an entry for each axis of the mesh.
            async_op: as a copy.
        """
        spec = spec_of_placements(self.global_tensor.shape, device_mesh, placements)
        result = self.global_tensor.clone() if async_op else self.global_tensor
        tiling = device_mesh.tiling(spec)
        marks.annotate(result, tiling)
        return XLAShardedTensor(result, device_mesh.mesh_shape, spec)


def spec_of_placements(shape: Sequence[int], mesh: Any, placements: Sequence[Placement]) -> Any:
    """The partition spec that DTensor's placements mean."""
    if len(placements) != len(mesh.mesh_shape):
        raise ValueError(
            f"Number of placements ({len(placements)}) must match mesh dimensions"
            f" ({len(mesh.mesh_shape)})"
        )
    spec: list[int | None] = [None] * len(shape)
    for axis, placement in enumerate(placements):
        if isinstance(placement, Partial):
            raise NotImplementedError(
                "Partial placement is not yet implemented: XLA finishes sums where they are made;"
                " use Shard or Replicate"
            )
        if isinstance(placement, Shard):
            if placement.dim >= len(shape):
                raise IndexError(
                    f"Shard dimension {placement.dim} is out of bounds for tensor with"
                    f" {len(shape)} dimensions"
                )
            spec[placement.dim] = axis
    return tuple(spec)


def _axes(entry: Any) -> tuple[Any, ...]:
    """The axes that one entry of a partition spec names, by index or name."""
    axes = entry if isinstance(entry, tuple) else (entry,)
    return tuple(axis for axis in axes if axis is not None)


def _wrapped(value: Any) -> Any:
    return XLAShardedTensor(value) if isinstance(value, XlaTensor) else value
