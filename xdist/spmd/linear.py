"""Linear layers as one product, whose dims keep their shardings: a matrix product flattens them."""

from collections.abc import Callable
from types import MethodType
from typing import Any

import torch
import torch.nn.functional as F
from torch.amp import custom_bwd, custom_fwd

from torch_xdist.core.devices.tensor import XlaTensor
from torch_xdist.ranks.collective_ops import optimization_barrier_

_FORWARD = "(Tensor input, Tensor weight, Tensor? bias) -> Tensor"
_BACKWARD = (
    "(Tensor grad_output, Tensor input, Tensor weight, Tensor? bias, bool needs_input_grad_input,"
    " bool needs_input_grad_weight, bool needs_input_grad_bias) -> (Tensor, Tensor, Tensor)"
)


def _forward(input: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    if isinstance(input, XlaTensor):
        return F.linear(input, weight, bias)  # one row; torch takes an einsum apart
    product = torch.einsum("...n,mn->...m", input, weight)
    return product if bias is None else product + bias


def _backward(
    grad_output: torch.Tensor,
    input: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    needs_input_grad_input: bool,
    needs_input_grad_weight: bool,
    needs_input_grad_bias: bool,
) -> tuple[Any, Any, Any]:
    if isinstance(grad_output, XlaTensor):
        wanted = needs_input_grad_input, needs_input_grad_weight, needs_input_grad_bias
        return torch.ops.aten.linear_backward(input, grad_output, weight, wanted)  # type: ignore[no-any-return]
    of_input = of_weight = of_bias = None
    if needs_input_grad_input:
        of_input = torch.einsum("...m,mn->...n", grad_output, weight).clone()
    if needs_input_grad_weight:
        of_weight = torch.einsum("...m,...n->mn", grad_output, input).clone()
    if bias is not None and needs_input_grad_bias:
        of_bias = torch.einsum("...m->m", grad_output).clone()
    return of_input, of_weight, of_bias


# As operators, so that tracers of torch do not take the einsum apart.
_forward_op = torch.library.custom_op(
    "xla::einsum_linear_forward", mutates_args=(), schema=_FORWARD
)(_forward)
_forward_op.register_fake(_forward)
_backward_op = torch.library.custom_op(
    "xla::einsum_linear_backward", mutates_args=(), schema=_BACKWARD
)(_backward)
_backward_op.register_fake(_backward)


class XLAPatchedLinear(torch.autograd.Function):
    """`torch.nn.functional.linear` as an einsum, forward and backward; knows autocast."""

    @staticmethod
    @custom_fwd(device_type="xla", cast_inputs=torch.get_autocast_dtype("xla"))
    def forward(  # type: ignore[override]
        ctx: Any, input: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None
    ) -> torch.Tensor:
        ctx.save_for_backward(input, weight, bias)
        return torch.ops.xla.einsum_linear_forward(input, weight, bias)

    @staticmethod
    @custom_bwd(device_type="xla")
    def backward(ctx: Any, grad_output: torch.Tensor) -> Any:  # type: ignore[override]
        input, weight, bias = ctx.saved_tensors
        needs = [*ctx.needs_input_grad[:2], bias is not None and ctx.needs_input_grad[2]]
        return torch.ops.xla.einsum_linear_backward(grad_output, input, weight, bias, *needs)


def xla_patched_nn_linear_forward(m: torch.nn.Linear, input: torch.Tensor) -> torch.Tensor:
    """The forward of a linear layer as an einsum; scripts set it as a layer's forward."""
    return XLAPatchedLinear.apply(input, m.weight, m.bias)  # type: ignore[no-any-return]


class EinsumLinear(torch.nn.Linear):
    """A linear layer as an einsum; takes what `torch.nn.Linear` takes."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return xla_patched_nn_linear_forward(self, input)


def apply_xla_patch_to_nn_linear(module: torch.nn.Module) -> torch.nn.Module:
    """Make every linear layer inside a module an EinsumLinear, with the parameters it has."""
    for name, child in module.named_children():
        if not isinstance(child, torch.nn.Linear):
            apply_xla_patch_to_nn_linear(child)
        elif not isinstance(child, EinsumLinear):
            sizes = child.in_features, child.out_features
            layer = EinsumLinear(*sizes, bias=child.bias is not None, device="meta")
            layer.load_state_dict(child.state_dict(keep_vars=True), assign=True)
            setattr(module, name, layer)
    return module


def patch_forward_of_linears(
    module: torch.nn.Module,
    patched_function: Callable[[Any, torch.Tensor], torch.Tensor] = xla_patched_nn_linear_forward,
) -> torch.nn.Module:
    """Give every linear layer in a module `patched_function(layer, input)` as its forward pass.

    A layer whose forward pass is its own already keeps it, but one of `checkpoint_module` is
    patched inside of the checkpoint.
    """
    for part in module.modules():
        for name in ("forward", "_xla_checkpointed_forward_original"):
            method = getattr(part, name, None)
            if getattr(method, "__func__", None) is torch.nn.Linear.forward:
                part._nn_linear_forward_original = method  # type: ignore[assignment]
                setattr(part, name, MethodType(patched_function, part))
    return module


def apply_backward_optimization_barrier(m: torch.nn.Module) -> None:
    """Keep XLA from fusing the backward of a module with that of others.

    Without it the gradients of many layers may wait in memory to be exchanged together.
    """

    def barrier(module: torch.nn.Module, grad_input: Any, grad_output: Any) -> None:
        gradients = [p.grad for p in module.parameters() if p.grad is not None]
        gradients += [g for g in grad_input if isinstance(g, torch.Tensor)]
        optimization_barrier_(gradients)

    m.register_full_backward_hook(barrier)
