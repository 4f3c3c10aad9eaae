"""torch_xla's fully sharded data parallel: each rank holds 1/n of every parameter.

A unit is a wrapped module. Its forward pass gathers its parameters inside the trace; the backward
pass gathers them again and scatters the gradients, averaged over the ranks. Nothing here cuts.
"""

import copy
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from torch_xdist.collectives.buckets import CAP_BYTES
from torch_xdist.core.devices import device, steps
from torch_xdist.core.devices.tensor import XlaTensor, wrap
from torch_xdist.core.run.device_trace import buffers_of
from torch_xdist.ranks import sharded_grad_scaler
from torch_xdist.ranks.fsdp.flat_parameter import Owner
from torch_xdist.ranks.fsdp.flatten import FlatModule, owners_of
from torch_xdist.ranks.fsdp.options import (
    Groups,
    check_dtypes,
    check_has_no_units,
    check_module,
    groups_to_join,
    is_unit,
    members_of,
    predivide_factor,
    sum_of,
    tell_no_effect,
    units_of,
)
from torch_xdist.ranks.fsdp.passes import (
    Exit,
    Gather,
    Sharded,
    barrier,
    clip_by_norm,
    parts_of,
    put,
    remove,
    take_out,
)
from torch_xdist.ranks.fsdp.shards import Bundle, Members, cut_shard, layout_of
from torch_xdist.ranks.fsdp.unit import TrainingState, Unit
from torch_xdist.ranks.fsdp.wrap import Policy, materialize, recursive_wrap

_SEPARATOR = "_FSDP_SHARD_SEPARATOR_"


class XlaFullyShardedDataParallel(Unit):
    """A module whose parameters, gradients and optimizer state are divided between the ranks.

    Make the optimizer afterwards, of `.parameters()`, and call `optimizer.step()`: the gradients
    are averaged already. Inner modules may be units of their own.

    Args:
        module: what is wrapped; its parameters may be on the CPU, the device or `meta`.
        reshard_after_forward: gather again for the backward pass, to need less memory.
        flatten_parameters: join the unit's parameters into one.
        execute_sharding_on_init: cut the shards now, so that the whole parameters are freed.
        optimization_barrier_in_forward: gather a unit only when its inputs are there.
        optimization_barrier_in_backward: gather it again only when its gradients are there.
        sync_on_finalization: end the step after the backward pass.
        disable_reshard_on_root: keep the outermost unit's parameters until its backward pass.
        compute_dtype: of the gathered parameters and the inputs; the shards keep theirs.
        buffer_dtype: of the buffers; default `compute_dtype`.
        fp32_reduce_scatter: gradients travel as float32.
        sharding_groups: lists of ranks that share one copy; default all ranks in one.
        sharding_rank: this rank's place in its group; only checked.
        sharding_world_size: the size of the groups; only checked.
        shard_param_on_dim_0: shards keep the dims of the parameter but the first.
        pin_layout_in_collective_ops: no meaning here.
        reduce_scatter_bucket_size_mb: MiB of shards in one exchange at most; 0: 64.
        coalesce_all_gather_ops: no meaning here: the parameters of a unit always travel together.
        auto_wrap_policy: which submodules become units; see `fsdp.wrap`.
        auto_wrapper_callable: makes those units; default this class.
        param_init_fn: called for modules on the meta device; default `reset_parameters()`.
        _shard_size_multiple: shards that are flat have a multiple of so many elements.
        _use_xla_patched_linear, _debug...: no effect: what they are about is not here.
        mark_step_on_finalization: the older name of `sync_on_finalization`.
    """

    def __init__(
        self,
        module: nn.Module,
        reshard_after_forward: bool = True,
        flatten_parameters: bool = False,
        execute_sharding_on_init: bool = True,
        optimization_barrier_in_forward: bool = True,
        optimization_barrier_in_backward: bool = True,
        sync_on_finalization: bool = False,
        disable_reshard_on_root: bool = True,
        compute_dtype: torch.dtype | None = None,
        buffer_dtype: torch.dtype | None = None,
        fp32_reduce_scatter: bool = False,
        sharding_groups: Groups = None,
        sharding_rank: int | None = None,
        sharding_world_size: int | None = None,
        shard_param_on_dim_0: bool = False,
        pin_layout_in_collective_ops: bool = True,
        reduce_scatter_bucket_size_mb: int = 0,
        coalesce_all_gather_ops: bool = False,
        auto_wrap_policy: Policy | None = None,
        auto_wrapper_callable: Callable[..., nn.Module] | None = None,
        param_init_fn: Callable[[nn.Module], None] | None = None,
        _shard_size_multiple: int = 128,
        _use_xla_patched_linear: bool = True,
        _debug_dummy_forward_pass: bool = False,
        _debug_msg: str = "xla_fsdp",
        _debug_print: bool = False,
        _debug_dummy_all_gather_op: bool = False,
        _debug_dummy_all_reduce_op: bool = False,
        _debug_dummy_reduce_scatter_op: bool = False,
        _debug_dummy_optimization_barrier_op: bool = False,
        *,
        mark_step_on_finalization: bool | None = None,
    ) -> None:
        options = {n: v for n, v in locals().items() if n not in _NOT_PASSED_ON}
        check_module(module)
        check_dtypes(compute_dtype=compute_dtype, buffer_dtype=buffer_dtype)
        super().__init__()
        if auto_wrap_policy is not None:
            check_has_no_units(module)
            make = auto_wrapper_callable or type(self)
            recursive_wrap(module, auto_wrap_policy, make, only_wrap_children=True, **options)
        if mark_step_on_finalization is not None:
            sync_on_finalization = mark_step_on_finalization
        tell_no_effect({n: v for n, v in options.items() if n.startswith(("_use", "_debug"))})
        self.sync_on_finalization = sync_on_finalization
        self.reshard_after_forward = reshard_after_forward
        self.flatten_parameters = flatten_parameters
        self.optimization_barrier_in_forward = optimization_barrier_in_forward
        self.optimization_barrier_in_backward = optimization_barrier_in_backward
        self.disable_reshard_on_root = disable_reshard_on_root
        self.compute_dtype = compute_dtype
        self.buffer_dtype = buffer_dtype or compute_dtype
        self.fp32_reduce_scatter = fp32_reduce_scatter
        self.sharding_groups = sharding_groups
        self._join_group(members_of(sharding_groups, sharding_rank, sharding_world_size))
        self._bucket_bytes = int(reduce_scatter_bucket_size_mb * 2**20) or CAP_BYTES
        self._layout = functools.partial(
            layout_of,
            count=self.world_size,
            on_dim_0=shard_param_on_dim_0 and not flatten_parameters,
            multiple=1 if shard_param_on_dim_0 else _shard_size_multiple,
        )
        self.xla_device = device.device()
        materialize(module, param_init_fn, is_unit)
        self._set_up(module, run=execute_sharding_on_init)

    def _join_group(self, members: Members) -> None:
        sharded_grad_scaler.register()
        self._members = members
        self.rank, self.world_size = members.member, members.count
        self.gradient_predivide_factor = predivide_factor(self.world_size)
        self.gradient_postdivide_factor = self.world_size / self.gradient_predivide_factor

    def _set_up(self, module: nn.Module, *, run: bool) -> None:
        """Shard a module that has its values; `run` cuts the shards now."""
        self._is_root: bool | None = None
        self._syncs = True
        self._bundle: Bundle | None = None
        self._sharded: list[Sharded] = []
        # Parameters of other units that this one's modules use too: (whose, which part, names).
        self._borrowed: list[tuple[Sharded, int, list[Owner]]] = []
        self._shard(module)
        self._move_buffers()
        if run:
            values = [s.value for s in self.sharded_params]  # type: ignore[attr-defined]
            buffers_of(values, reason="shard")
        self._place(with_gradients=False)

    # Sharding

    def _shard(self, module: nn.Module) -> None:
        new = [p for p in module.parameters() if not hasattr(p, "_is_sharded")]
        own = [p for p in new if not hasattr(p, "_in_unit")]
        groups = groups_to_join(own) if self.flatten_parameters else []
        members = [list(owners_of(module, group)) for group in groups]
        inner = FlatModule(module, groups)
        self._fsdp_wrapped_module = inner
        for index, flat in enumerate(inner._joined):
            name = f"flat_param_{index}"
            parts = list(zip(inner.shapes[index], inner.members[index]))
            entry = self._add(flat, f"_fsdp_wrapped_module.{name}", parts)
            for place, parameter in enumerate(members[index]):
                parameter._in_unit = (entry, place)  # type: ignore[attr-defined]
            del inner._parameters[name]
        inner._joined = [entry.shard for entry in self._sharded]
        inner.flat_params = inner._joined  # type: ignore[assignment]
        for parameter, owners in owners_of(self, [] if self.flatten_parameters else own).items():
            name = f"{owners[0][0]}.{owners[0][2]}"
            entry = self._add(parameter, name, [(parameter.shape, owners)])
            parameter._in_unit = (entry, 0)  # type: ignore[attr-defined]
            take_out(owners)
        for parameter, owners in owners_of(
            self, [p for p in new if hasattr(p, "_in_unit")]
        ).items():
            self._borrowed.append((*parameter._in_unit, owners))  # type: ignore[attr-defined]
            take_out(owners)

    def _add(self, whole: nn.Parameter, name: str, parts: list[Any]) -> Sharded:
        layout = self._layout(whole.shape)
        is_float = whole.dtype.is_floating_point
        dtype = self.compute_dtype if self.compute_dtype and is_float else whole.dtype
        data = cut_shard(whole, layout, self._members).to(self.xla_device)
        shard = nn.Parameter(data, requires_grad=whole.requires_grad)
        shard._is_sharded, shard.sharding_groups = True, self.sharding_groups  # type: ignore[attr-defined]
        shard._orig_size, shard._orig_name = whole.shape, name  # type: ignore[attr-defined]
        shard._name = f"_fsdp_shard.{name}".replace(".", _SEPARATOR)  # type: ignore[attr-defined]
        self.register_parameter(shard._name, shard)  # type: ignore[attr-defined]
        self._sharded.append(Sharded(shard, layout, dtype, parts))
        return self._sharded[-1]

    def _move_buffers(self) -> None:
        for module in self.modules():
            for name, buffer in module.named_buffers(recurse=False):
                if buffer.device != self.xla_device:
                    buffer = buffer.to(self.xla_device)
                if buffer.is_floating_point() and self.buffer_dtype not in (None, buffer.dtype):
                    original = buffer.dtype
                    buffer = buffer.to(self.buffer_dtype)
                    buffer._orig_dtype = original  # type: ignore[attr-defined]
                setattr(module, name, buffer)

    # The passes

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The wrapped module's, with gathered parameters."""
        self._find_root()
        if self.compute_dtype not in (None, torch.float32):
            cast = lambda t: t.to(self.compute_dtype) if t.is_floating_point() else t  # noqa: E731
            args, kwargs = pytree.tree_map_only(torch.Tensor, cast, (args, kwargs))
        bundle = self._place(with_gradients=torch.is_grad_enabled())
        if self.optimization_barrier_in_forward:
            bundle.wait_for(pytree.tree_leaves((args, kwargs)))
        self.training_state = TrainingState.FORWARD
        try:
            outputs = self._fsdp_wrapped_module(*args, **kwargs)
        finally:
            self.training_state = TrainingState.IDLE
        outputs = self._leave(outputs, bundle)
        if self._reshards:
            bundle.drop()
        return outputs

    @property
    def _reshards(self) -> bool:
        return self.reshard_after_forward and not (self._is_root and self.disable_reshard_on_root)

    def _find_root(self) -> None:
        if self._is_root is None:
            for unit in units_of(self):
                unit._is_root = unit is self

    def _place(self, *, with_gradients: bool) -> Bundle:
        """Give the modules their wholes, which are gathered when they are read."""
        entries = [*self._sharded, *(entry for entry, _, _ in self._borrowed)]
        shards = [entry.shard for entry in entries]
        bundle = self._bundle
        if bundle is None or not bundle.is_of(shards):
            layouts, dtypes = [e.layout for e in entries], [e.dtype for e in entries]
            bundle = Bundle(shards, layouts, dtypes, self._members, self._bucket_bytes)
            self._bundle = bundle
        if with_gradients and any(shard.requires_grad for shard in shards):
            wholes = Gather.apply(self, bundle, *shards)
        else:
            wholes = [wrap(value) for value in bundle.values]
        for entry, whole in zip(self._sharded, wholes):
            for (_, owners), part in zip(entry.parts, parts_of(entry, whole)):
                put(owners, part)
        for (entry, index, owners), whole in zip(self._borrowed, wholes[len(self._sharded) :]):
            put(owners, parts_of(entry, whole)[index])
        return bundle

    def _leave(self, outputs: Any, bundle: Bundle) -> Any:
        tensors, spec = pytree.tree_flatten(outputs)
        places = [i for i, t in enumerate(tensors) if isinstance(t, XlaTensor) and t.requires_grad]
        if torch.is_grad_enabled() and places and (self._has_barriers or self.sync_on_finalization):
            for index, output in zip(
                places, Exit.apply(self, bundle, *[tensors[i] for i in places])
            ):
                tensors[index] = output
        return pytree.tree_unflatten(tensors, spec)

    @property
    def _has_barriers(self) -> bool:
        return self.optimization_barrier_in_forward or self.optimization_barrier_in_backward

    def _begin_backward(self, bundle: Bundle, gradients: Sequence[Any]) -> list[Any]:
        self.training_state = TrainingState.BACKWARD_PRE
        if self._is_root and self.sync_on_finalization:
            torch.autograd.Variable._execution_engine.queue_callback(steps.sync)  # type: ignore[attr-defined]
        if self.optimization_barrier_in_backward:
            gradients = barrier(gradients)
            bundle.wait_for(gradients)
        return list(gradients)

    def _reduce(self, bundle: Bundle, gradients: Sequence[torch.Tensor | None]) -> list[Any]:
        """The shards' gradients, of those of the wholes. Inside no_sync: none yet."""
        self.training_state = TrainingState.BACKWARD_POST
        try:
            return self._reduced(bundle, gradients)
        finally:
            self.training_state = TrainingState.IDLE

    def _reduced(self, bundle: Bundle, gradients: Sequence[torch.Tensor | None]) -> list[Any]:
        found = [sum_of(one, held) for one, held in zip(gradients, bundle.held)]
        if self._reshards or self._syncs:
            bundle.drop()
        if not self._syncs:
            bundle.held = found
            return [None] * len(found)
        bundle.held = [None] * len(found)
        return bundle.scatter(
            found,
            self.gradient_predivide_factor,
            self.gradient_postdivide_factor,
            wide=self.fp32_reduce_scatter,
        )

    @torch.no_grad()
    def clip_grad_norm_(
        self, max_norm: float, norm_type: float = 2.0, groups: Groups = None
    ) -> torch.Tensor:
        """Scale the gradients so that their norm over all ranks is `max_norm` at most.

        Args:
            norm_type: p, or infinity.
            groups: the ranks that hold one model's shards; default all.

        Returns the norm before, on the device.
        """
        if self._is_root is False:
            raise RuntimeError(
                "clip_grad_norm_: this unit of FSDP is inside another, and has a part of the "
                "gradients only; call it on the outermost"
            )
        gradients = [p.grad for p in self.parameters() if p.grad is not None]
        return clip_by_norm(gradients, float(max_norm), float(norm_type), groups, self.xla_device)

    def __deepcopy__(self, memo: dict[int, Any]) -> "XlaFullyShardedDataParallel":
        """Shards are copied; the wholes, which belong to them, are made anew."""
        copied = type(self).__new__(type(self))
        memo[id(self)] = copied
        bundle, self._bundle = self._bundle, None
        for owners in self._owners():
            remove(owners)
        try:
            copied.__dict__.update(copy.deepcopy(self.__dict__, memo))
        finally:
            self._bundle = bundle
            self._place(with_gradients=False)
        copied._place(with_gradients=False)
        return copied

    def _owners(self) -> Iterator[list[Owner]]:
        for entry in self._sharded:
            yield from (owners for _, owners in entry.parts)
        yield from (owners for _, _, owners in self._borrowed)


_NOT_PASSED_ON = {
    "self",
    "__class__",
    "module",
    "auto_wrap_policy",
    "auto_wrapper_callable",
    "mark_step_on_finalization",
}
