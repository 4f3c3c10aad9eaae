"""torch_xla's own kernels of SGD, Adam and AdamW: one row for each parameter's whole update.

A flag on the device, `found_inf`, leaves everything as it is where it is not zero, and is not
counted as a step. The step counter is on the device too. `syncfree` has the optimizers.
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import torch

from torch_xdist.core.record.jax_ops import record_jax
from torch_xdist.ranks.collective_ops import overwrite


def sgd_step(
    found_inf: torch.Tensor,
    state_steps: Sequence[torch.Tensor],
    params: Sequence[torch.Tensor],
    d_p_list: Sequence[torch.Tensor],
    momentum_buffer_list: list[torch.Tensor | None],
    *,
    weight_decay: float,
    momentum: float,
    lr: float,
    dampening: float,
    nesterov: bool,
    maximize: bool,
) -> None:
    """SGD of several parameters, in place; a momentum buffer that is None is made."""
    for index, (step, param, gradient) in enumerate(
        zip(state_steps, params, d_p_list, strict=True)
    ):
        buffer = momentum_buffer_list[index]
        if buffer is None:
            # The update starts it with the gradient.
            buffer = torch.zeros_like(gradient)
            momentum_buffer_list[index] = buffer
        _xla_sgd_optimizer_step_(
            found_inf, step, param, buffer, gradient,
            weight_decay, momentum, lr, dampening, nesterov, maximize,
        )  # fmt: skip


def adam_step(
    found_inf: torch.Tensor,
    state_steps: Sequence[torch.Tensor],
    params: Sequence[torch.Tensor],
    grads: Sequence[torch.Tensor],
    exp_avgs: Sequence[torch.Tensor],
    exp_avg_sqs: Sequence[torch.Tensor],
    max_exp_avg_sqs: Sequence[torch.Tensor],
    *,
    amsgrad: bool,
    beta1: float,
    beta2: float,
    lr: float,
    weight_decay: float,
    eps: float,
    maximize: bool,
    use_adamw: bool,
) -> None:
    """Adam or AdamW of several parameters, in place."""
    lists = (state_steps, params, grads, exp_avgs, exp_avg_sqs, max_exp_avg_sqs)
    for step, param, grad, mean, square, largest in zip(*lists, strict=True):
        _xla_adam_optimizer_step_(
            found_inf, step, param, grad, mean, square, largest,
            beta1, beta2, lr, weight_decay, eps, amsgrad, maximize, use_adamw,
        )  # fmt: skip


@torch.no_grad()
def _xla_sgd_optimizer_step_(
    found_inf: torch.Tensor,
    step: torch.Tensor,
    param: torch.Tensor,
    buf: torch.Tensor,
    d_p: torch.Tensor,
    weight_decay: float,
    momentum: float,
    lr: float,
    dampening: float,
    nesterov: bool,
    maximize: bool,
) -> None:
    """SGD of one parameter: writes `step`, `param` and, with momentum, `buf`."""
    has_decay, has_momentum = weight_decay != 0, momentum != 0

    def update(
        skip: jax.Array, step: jax.Array, param: jax.Array, buf: jax.Array, grad: jax.Array,
        weight_decay: jax.Array, momentum: jax.Array, lr: jax.Array, dampening: jax.Array,
    ) -> list[jax.Array]:  # fmt: skip
        weight_decay, momentum, lr, dampening = (
            x.astype(param.dtype) for x in (weight_decay, momentum, lr, dampening)
        )
        skip = skip.reshape(()) != 0
        grad = -grad if maximize else grad
        grad = grad + param * weight_decay if has_decay else grad
        moved = buf
        if has_momentum:
            # The first step starts the buffer with the gradient, as torch does.
            moved = jnp.where(step != 0, buf * momentum + grad * (1 - dampening), grad)
            grad = grad + moved * momentum if nesterov else moved
        return _unless(
            skip, (step + jnp.ones_like(step), param - grad * lr, moved), (step, param, buf)
        )

    static = (has_decay, has_momentum, nesterov, maximize)
    numbers = [float(x) for x in (weight_decay, momentum, lr, dampening)]
    tensors = [found_inf, step, param, buf, d_p]
    results = record_jax("xla.sgd_optimizer_step", update, tensors, static, scalars=numbers)  # type: ignore[arg-type]
    overwrite([step, param, buf], results)


@torch.no_grad()
def _xla_adam_optimizer_step_(
    found_inf: torch.Tensor,
    step: torch.Tensor,
    param: torch.Tensor,
    grad: torch.Tensor,
    exp_avg: torch.Tensor,
    exp_avg_sq: torch.Tensor,
    max_exp_avg_sq: torch.Tensor,
    beta1: float,
    beta2: float,
    lr: float,
    weight_decay: float,
    eps: float,
    amsgrad: bool,
    maximize: bool,
    use_adamw: bool,
) -> None:
    """Adam, or AdamW, of one parameter: writes all tensors but `found_inf` and `grad`.

    `max_exp_avg_sq` is written with `amsgrad` only; without, it may be empty.
    """
    written = [step, param, exp_avg, exp_avg_sq, *([max_exp_avg_sq] if amsgrad else [])]

    def update(
        skip: jax.Array, grad: jax.Array, step: jax.Array, param: jax.Array, mean: jax.Array,
        square: jax.Array, *rest: jax.Array,
    ) -> list[jax.Array]:  # fmt: skip
        old = (step, param, mean, square, *rest[: len(written) - 4])
        beta1, beta2, lr, decay, eps = (x.astype(param.dtype) for x in rest[len(written) - 4 :])
        skip = skip.reshape(()) != 0
        grad = -grad if maximize else grad
        count = step + jnp.ones_like(step)
        if use_adamw:
            param = param * (1 - lr * decay)
        else:
            grad = grad + param * decay
        mean = mean * beta1 + grad * (1 - beta1)
        square = square * beta2 + grad * grad * (1 - beta2)
        largest = [jnp.maximum(rest[0], square)] if amsgrad else []
        powers = count.astype(param.dtype)
        root = jnp.sqrt(largest[0] if amsgrad else square)
        denominator = root / jnp.sqrt(1 - beta2**powers) + eps
        param = param - lr / (1 - beta1**powers) * (mean / denominator)
        return _unless(skip, (count, param, mean, square, *largest), old)

    numbers = [float(x) for x in (beta1, beta2, lr, weight_decay, eps)]
    static = (amsgrad, maximize, use_adamw)
    tensors = [found_inf, grad, *written]
    results = record_jax("xla.adam_optimizer_step", update, tensors, static, scalars=numbers)  # type: ignore[arg-type]
    overwrite(written, results)


def _unless(skip: jax.Array, new: Sequence[jax.Array], old: Sequence[jax.Array]) -> list[jax.Array]:
    return [jnp.where(skip, y, x.astype(y.dtype)) for x, y in zip(new, old)]
