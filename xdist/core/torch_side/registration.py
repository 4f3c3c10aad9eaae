"""Teaching torch the device "xla": guard, factories, device module, seeds, autocast.

Imported once by `import torch_xla`; it starts no JAX backend, no thread and no network.
"""

import ctypes
from collections.abc import Callable
from typing import Any

import torch

from torch_xdist.core.composites import (
    attention,
    batch_norm,
    chunked_losses,
    composite_outs,
    kept_on_host,
    optimizer_states,
    optimizers,
    recurrent,
    running_gradients,
    sgd,
    sparse,
    sparse_math,  # noqa: F401 its kernels
)
from torch_xdist.core.devices import precision, rng, torch_generator
from torch_xdist.core.devices.tensor import XlaTensor
from torch_xdist.core.jax_side import higher_order
from torch_xdist.core.record import dispatch, handlers_copy, handlers_schema, handlers_storage
from torch_xdist.core.run import loop_cuts, recorded_metrics
from torch_xdist.core.torch_side import (
    accelerator,
    autocast,
    device_module,
    factories,
    in_dynamo,
    lazy_modules,
    moved_modules,
    nested_attention,
    tensor_methods,
    wrapper_subclasses,
)
from torch_xdist.core.unimported import without_dtensor, without_dynamo, without_sympy
from torch_xdist.releases import hooks, patches

_keep: list[Any] = []


def register() -> None:
    """Make `device="xla"` work in this process; a second call changes nothing."""
    if _keep:
        return
    # Before the first operator on a subclass: torch looks this function up once.
    _skip_dispatch_rules()
    without_dtensor.register()
    without_dynamo.register()
    without_sympy.register()
    for handlers in (handlers_copy, handlers_schema, handlers_storage, sparse, kept_on_host):
        dispatch.install(handlers.HANDLERS)
    XlaTensor.__torch_dispatch__ = staticmethod(dispatch.dispatch)  # type: ignore[method-assign]
    recorded_metrics.register()
    tensor_methods.register()
    _share_guard()
    factories.register()
    composite_outs.register()
    chunked_losses.register()
    optimizers.register()
    sgd.register()
    optimizer_states.register()
    loop_cuts.register()
    higher_order.register()
    lazy_modules.register()
    moved_modules.register()
    wrapper_subclasses.register()
    nested_attention.register()
    attention.register()
    batch_norm.register()
    recurrent.register()
    running_gradients.register()
    torch._register_device_module("xla", device_module)
    accelerator.register()
    torch_generator.register()
    _follow_seeds()
    precision.follow_torch()
    _pass_autocast()
    in_dynamo.register()


# Of a guard's methods: exchangeDevice, setDevice, uncheckedSetDevice, getStream. Their places are
# those of the virtual methods in c10/core/impl/DeviceGuardImplInterface.h, and never changed.
_OF_META = (1, 3, 4, 5)
_METHODS_OF_GUARD = 32


def _share_guard() -> None:
    """Let "xla" find a device guard: that of `lazy`, which tells the present device.

    It ends the process where it is asked for the stream of a device that is not `lazy`, as autograd
    does with the fake tensors of a captured graph; there it does what that of `meta` does, nothing.
    """
    guards = hooks.device_guards()
    if guards[hooks.XLA]:
        return
    methods = (ctypes.c_void_p * _METHODS_OF_GUARD)(*_methods_of(guards[hooks.LAZY]))
    for place in _OF_META:
        methods[place] = _methods_of(guards[hooks.META])[place]
    guard = ctypes.c_void_p(ctypes.addressof(methods))
    # torch never frees a guard.
    _keep.extend([methods, guard])
    guards[hooks.XLA] = ctypes.addressof(guard)


def _methods_of(guard: int) -> ctypes.Array[ctypes.c_void_p]:
    """The table of virtual methods of an object of C++, which the object's first word points at."""
    table = ctypes.c_void_p.from_address(guard).value
    assert table is not None
    return (ctypes.c_void_p * _METHODS_OF_GUARD).from_address(table)


def _skip_dispatch_rules() -> None:
    """Answer at once when torch asks, per call, for a custom operator's rule for our class.

    Nobody registers rules for it, and the look-up takes half as long as recording a row.
    """

    def skipping(find_rule: Callable[..., Any]) -> Callable[..., Any]:
        def find_torch_dispatch_rule(op: Any, torch_dispatch_class: type) -> Any:
            return (
                None if torch_dispatch_class is XlaTensor else find_rule(op, torch_dispatch_class)
            )

        return find_torch_dispatch_rule

    patches.wrap("torch._library.simple_registry.find_torch_dispatch_rule", skipping)


def _follow_seeds() -> None:
    """`torch.manual_seed` seeds the xla devices too, as it does cuda's."""
    seed_torch = torch.manual_seed

    def manual_seed(seed: int) -> torch.Generator:
        rng.seed_all(int(seed))
        return seed_torch(seed)

    manual_seed.__doc__ = seed_torch.__doc__
    for target in ("torch.manual_seed", "torch.random.manual_seed"):
        patches.replace(target, manual_seed)


def _pass_autocast() -> None:
    library = torch.library.Library("_", "IMPL", "AutocastXLA")
    library.fallback(torch.library.fallthrough_kernel)
    _keep.append(library)
    autocast.register()


register()
