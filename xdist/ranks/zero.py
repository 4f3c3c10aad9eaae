"""An optimizer whose state is divided between the ranks: each has and steps 1/n of every parameter.

A step records: gradients averaged and scattered, clipped by their global norm, the optimizer on
this rank's shards, and the shards gathered into the parameters. All of it stays in the trace.
"""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch.optim import Optimizer

from torch_xdist import world
from torch_xdist.collectives.groups import checked, equal_sized, group_of
from torch_xdist.ranks import collective_ops, sharded_grad_scaler

Groups = list[list[int]] | None
# Stages of which each exchanges in groups of ranks.
Scheme = list[dict[str, Any]]
_NO_CAP_MB = 2**40


class ZeroRedundancyOptimizer(Optimizer):
    """torch_xla's optimizer of that name, around any other.

    Parameters [s0, ...] are divided along dim 0, padded to a multiple of the number of ranks.

    Args:
        params: parameters or groups, as for any optimizer; the same on every rank.
        optimizer_class: what steps the shards, made with `defaults`.
        optimizer_dtype: of the shards and the state; default float32.
        grad_clipping: scale the gradients so that their norm over all ranks is `max_norm` at most.
        max_norm: default 1.0.
        sharding_groups: the groups of ranks that share one state; default all ranks.
        grad_norm_groups: groups over which the squares of the norm are summed once more.
        lazy_init: `init_zero` is called by the user, before the first step.
        bucket_cap_mb_all_gather: MiB per gathering row; 0: all parameters in one.
        bucket_cap_mb_reduce_scatter: the same for gradients.
        use_grad_acc_hook: accumulate gradients in `optimizer_dtype`, in `parameter.main_grad`.
        save_master_weights: the state dict holds the shards too.
        higher_cc_precision: gradients travel in `optimizer_dtype`.
    """

    def __init__(
        self,
        params: Iterable[Any],
        optimizer_class: type[Optimizer],
        optimizer_dtype: torch.dtype | None = None,
        grad_clipping: bool = True,
        max_norm: float | None = None,
        pin_layout: bool = True,
        sharding_groups: Groups = None,
        grad_norm_groups: Groups = None,
        lazy_init: bool = False,
        bucket_cap_mb_all_gather: float = 0,
        bucket_cap_mb_reduce_scatter: float = 0,
        use_grad_acc_hook: bool = False,
        save_master_weights: bool = False,
        higher_cc_precision: bool = False,
        **defaults: Any,
    ) -> None:
        super().__init__(params, defaults)
        sharded_grad_scaler.register()
        self._is_sharded, self._sharding_groups = True, sharding_groups
        self.optimizer_class, self.defaults = optimizer_class, defaults
        self.optimizer_dtype = optimizer_dtype or torch.float32
        self.max_norm = (1.0 if max_norm is None else max_norm) if grad_clipping else None
        self.grad_norm_groups = grad_norm_groups
        self._grad_norm: torch.Tensor | None = None
        self._find_members()
        self._gather_mb = bucket_cap_mb_all_gather or _NO_CAP_MB
        self._scatter_mb = bucket_cap_mb_reduce_scatter or _NO_CAP_MB
        self._has_hooks, self._saves_weights = use_grad_acc_hook, save_master_weights
        self._travels_wide = higher_cc_precision
        self._pairs: list[tuple[torch.Tensor, torch.nn.Parameter]] = []
        self._hooks: list[Any] = []
        self.inited = False
        if not lazy_init:
            self.init_zero()

    def _find_members(self) -> None:
        size, name = world.world_size(), "ZeroRedundancyOptimizer"
        self._groups = checked(self._sharding_groups, size, of=name)
        self._count = equal_sized(self._groups, size, of=name)
        self._member = group_of(world.rank(), self._groups, size).index(world.rank())

    @property
    def grad_norm(self) -> torch.Tensor | None:
        """The norm of the newest step's gradients before clipping; None without clipping."""
        return self._grad_norm

    @property
    def sharding_groups(self) -> list[list[int]]:
        """The groups of ranks that share one state; they can be set before `init_zero`."""
        return self._sharding_groups or [list(range(world.world_size()))]

    @sharding_groups.setter
    def sharding_groups(self, groups: Groups) -> None:
        if self.inited:
            raise RuntimeError(
                "ZeroRedundancyOptimizer.sharding_groups: already inited, so the parameters are"
                " divided; set the groups before init_zero(), with lazy_init=True"
            )
        self._sharding_groups = groups
        self._find_members()

    @torch.no_grad()
    def init_zero(self) -> None:
        """Divide the parameters, and make the optimizer of the shards."""
        self.remove_hooks()
        self._pairs = []
        groups = []
        for group in self.param_groups:
            shards = [torch.nn.Parameter(self._shard(p)) for p in group["params"]]
            self._pairs.extend(zip(group["params"], shards))
            groups.append({**group, "params": shards})
        self.base_optimizer = self.optimizer_class(groups, **self.defaults)
        if self._has_hooks:
            for parameter, _ in self._pairs:
                self._hooks.append(parameter.register_post_accumulate_grad_hook(self._accumulate))
        self.inited = True

    def remove_hooks(self) -> None:
        """Accumulate gradients in `parameter.grad` again, as torch does."""
        for hook in self._hooks:
            hook.remove()
        self._hooks = []

    def _accumulate(self, parameter: torch.Tensor) -> None:
        gradient = parameter.grad
        if gradient is not None:
            wide = gradient.to(self.optimizer_dtype)
            held = getattr(parameter, "main_grad", None)
            parameter.main_grad = wide if held is None else held.add_(wide)  # type: ignore[attr-defined]
            parameter.grad = None

    def _padded(self, tensor: torch.Tensor) -> torch.Tensor:
        """`tensor` [s0, ...] with zeros behind, so that the ranks divide dim 0; 0-d as [1]."""
        rows = tensor.reshape(1) if tensor.dim() == 0 else tensor
        missing = -rows.shape[0] % self._count
        if not missing:
            return rows
        return torch.cat([rows, rows.new_zeros((missing, *rows.shape[1:]))])

    def _shard(self, parameter: torch.Tensor) -> torch.Tensor:
        whole = self._padded(parameter.detach())
        return whole.chunk(self._count)[self._member].to(self.optimizer_dtype, copy=True)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None, **arguments: Any) -> Any:  # type: ignore[override]
        """Average the gradients, step the shards, and gather the parameters.

        Args:
            arguments: of the other optimizer's step; `sharding_scheme` is ours, see
                `allgather_weights_and_update_full_parameter`.
        """
        if not self.inited:
            raise RuntimeError("ZeroRedundancyOptimizer.step: must call init_zero() first")
        scheme = self._scheme(arguments.pop("sharding_scheme", None))
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        # Schedulers write to our groups, the other optimizer reads its own.
        for ours, theirs in zip(self.param_groups, self.base_optimizer.param_groups):
            theirs.update({name: value for name, value in ours.items() if name != "params"})
        self._scatter_gradients(scheme)
        if self.max_norm is not None:
            self._clip()
        self.base_optimizer.step(**arguments)
        self.base_optimizer.zero_grad(set_to_none=True)
        self.allgather_weights_and_update_full_parameter(scheme)
        return loss

    def _scheme(self, given: Scheme | None) -> Scheme:
        if given is not None:
            return given
        return [{"scale_factor": 1.0, "sharding_group": self._groups, "group_size": self._count}]

    def _gradient(self, parameter: torch.Tensor) -> torch.Tensor | None:
        return getattr(parameter, "main_grad", None) if self._has_hooks else parameter.grad

    def _scatter_gradients(self, scheme: Scheme) -> None:
        found = [(self._gradient(p), shard) for p, shard in self._pairs]
        used = [(gradient, shard) for gradient, shard in found if gradient is not None]
        wide = [g.to(self.optimizer_dtype) if self._travels_wide else g for g, _ in used]
        parts = [self._padded(gradient) for gradient in wide]
        for stage in scheme:
            parts = collective_ops.reduce_scatter_bucketized(
                collective_ops.REDUCE_SUM,
                parts,
                stage["scale_factor"] / stage["group_size"],
                0,
                stage["group_size"],
                stage["sharding_group"],
                bucket_cap_mb=self._scatter_mb,
            )
        for (_, shard), part in zip(used, parts):
            shard.grad = part.to(self.optimizer_dtype)

    def _clip(self) -> None:
        gradients = [shard.grad for _, shard in self._pairs if shard.grad is not None]
        if not gradients or self.max_norm is None:
            return
        squares = torch.stack([g.square().sum() for g in gradients]).sum()
        if self._count > 1:
            squares = collective_ops.all_reduce("sum", squares, groups=self._groups)
        if self.grad_norm_groups is not None:
            squares = collective_ops.all_reduce("sum", squares, groups=self.grad_norm_groups)
        self._grad_norm = squares.sqrt()
        scale = (self.max_norm / (self._grad_norm + 1e-6)).clamp(max=1.0)
        for gradient in gradients:
            gradient.mul_(scale)

    @torch.no_grad()
    def allgather_weights_and_update_full_parameter(
        self, sharding_scheme: Scheme | None = None
    ) -> None:
        """Write all ranks' shards into the parameters; every rank calls it.

        Args:
            sharding_scheme: stages of which each gathers in groups, the last one first; gradients
                are scattered the other way. Of each its "sharding_group" (groups of ranks), their
                "group_size", and the "scale_factor" of gradients. Default: one stage.
        """
        whole = [shard.detach().to(parameter.dtype) for parameter, shard in self._pairs]
        for stage in reversed(self._scheme(sharding_scheme)):
            groups = stage["sharding_group"]
            whole = collective_ops.all_gather_bucketized(
                whole, 0, groups, bucket_cap_mb=self._gather_mb
            )
        for (parameter, _), rows in zip(self._pairs, whole):
            size = parameter.shape[0] if parameter.dim() else 1
            parameter.copy_(rows[:size].reshape(parameter.shape))

    def zero_grad(self, set_to_none: bool = False) -> None:
        """Make the gradients zero, the accumulated ones too, or forget them."""
        super().zero_grad(set_to_none)
        for parameter, _ in self._pairs:
            if set_to_none and hasattr(parameter, "main_grad"):
                del parameter.main_grad
            elif hasattr(parameter, "main_grad"):
                parameter.main_grad.zero_()

    def get_shape_info(self) -> dict[int, torch.Size]:
        """The shapes of the parameters, by their numbers."""
        listed = [p for group in self.param_groups for p in group["params"]]
        return {index: parameter.shape for index, parameter in enumerate(listed)}

    def state_dict(self) -> dict[str, Any]:
        """This rank's part of the state: `base_state`, and the shards where they are saved."""
        state = super().state_dict()
        state["base_state"] = self.base_optimizer.state_dict()["state"]
        state["shape_info"] = self.get_shape_info()
        if self._saves_weights:
            weights = {i: shard.detach() for i, (_, shard) in enumerate(self._pairs)}
            state["sharded_master_weights"] = weights
        return state

    @torch.no_grad()
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take what `state_dict` of the same rank, of as many, gave."""
        state = dict(state_dict)
        base = state.pop("base_state")
        weights = state.pop("sharded_master_weights", {})
        state.pop("shape_info", None)
        super().load_state_dict(state)
        theirs = self.base_optimizer.state_dict()
        self.base_optimizer.load_state_dict({**theirs, "state": base})
        for index, weight in weights.items():
            self._pairs[index][1].copy_(weight)
        if weights:
            self.allgather_weights_and_update_full_parameter()
