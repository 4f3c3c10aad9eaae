"""What a unit of FSDP tells and is told, besides its passes: parts, names, states."""

import contextlib
from collections.abc import Iterator, Sequence
from enum import Enum, auto
from typing import Any

from torch import nn

from torch_xdist.ranks.fsdp import state as state_dicts
from torch_xdist.ranks.fsdp.flatten import FlatModule
from torch_xdist.ranks.fsdp.options import Groups, units_of
from torch_xdist.ranks.fsdp.passes import Sharded


class TrainingState(Enum):
    """Where a unit is in a step.

    Backward: BACKWARD_PRE from its first gradient, BACKWARD_POST while its own are scattered.
    """

    IDLE = auto()
    FORWARD = auto()
    BACKWARD_PRE = auto()
    BACKWARD_POST = auto()


class Unit(nn.Module):
    """A module whose parameters are divided; `module.py` sets it up and runs it."""

    world_size: int
    rank: int
    compute_dtype: Any
    buffer_dtype: Any
    flatten_parameters: bool
    reshard_after_forward: bool
    sharding_groups: Groups
    training_state = TrainingState.IDLE
    _sharded: list[Sharded]
    _syncs: bool
    _fsdp_wrapped_module: FlatModule

    def assert_state(self, state: TrainingState | Sequence[TrainingState]) -> None:
        """Raise ValueError unless the unit is in this state, or in one of several."""
        wanted = [state] if isinstance(state, TrainingState) else list(state)
        if self.training_state not in wanted:
            raise ValueError(
                f"FSDP: expected to be in states {wanted} but current state is"
                f" {self.training_state}; call it where the unit is in one of them"
            )

    @property
    def sharded_params(self) -> list[nn.Parameter]:
        """This rank's shards of the unit's own parameters."""
        return [entry.shard for entry in self._sharded]

    @property
    def module(self) -> FlatModule:
        """The wrapped module."""
        return self._fsdp_wrapped_module

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """Keep whole gradients of backward passes, until one outside of this scatters their sum."""
        units = [(unit, unit._syncs) for unit in units_of(self)]
        for unit, _ in units:
            unit._syncs = False
        try:
            yield
        finally:
            for unit, before in units:
                unit._syncs = before

    def set_gradient_divide_factors(self, pre: float, post: float, recursive: bool) -> None:
        """Divide each rank's gradient by `pre` and the sum by `post`; default: the mean.

        Args:
            recursive: the units inside too.
        """
        for unit in units_of(self) if recursive else [self]:
            unit.gradient_predivide_factor, unit.gradient_postdivide_factor = pre, post

    @property
    def params_with_grad(self) -> list[nn.Parameter]:
        """The shards that have a gradient."""
        return [p for p in self.parameters() if p.grad is not None]

    def get_original_names_and_sharded_parameters(self) -> list[tuple[str, nn.Parameter]]:
        """(name in the unwrapped module, shard) of every sharded parameter."""
        return state_dicts.original_names(self)

    def get_shard_metadata(self) -> dict[str, Any]:
        """What `consolidate_sharded_model_checkpoints` needs; save it with the state dict."""
        return state_dicts.metadata_of(self)

    def full_state_dict(self, rank0_only: bool = False) -> dict[str, Any]:
        """The unwrapped module's state dict, on the CPU. Call it on every rank: it gathers.

        Args:
            rank0_only: the other ranks get {}.
        """
        return state_dicts.full_state_dict(self, rank0_only=rank0_only)

    def load_full_state_dict(self, state: dict[str, Any], strict: bool = True) -> Any:
        """Take the unwrapped module's state dict; each rank keeps its shards of it."""
        return state_dicts.load_full_state_dict(self, state, strict=strict)

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("_fsdp_wrapped_module"), name)

    def __getitem__(self, key: Any) -> Any:
        return self.module[key]

    def extra_repr(self) -> str:
        """The division and the dtypes."""
        return (
            f"world_size={self.world_size}, rank={self.rank}, compute_dtype={self.compute_dtype}, "
            f"buffer_dtype={self.buffer_dtype}, flatten_parameters={self.flatten_parameters}, "
            f"reshard_after_forward={self.reshard_after_forward}, "
            f"sharding_groups={self.sharding_groups}"
        )
