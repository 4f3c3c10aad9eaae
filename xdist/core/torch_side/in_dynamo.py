"""Device tensors as torch's dynamo sees them: plain tensors of device "xla", not a subclass.

dynamo breaks its graph at classes it does not know, and AOT autograd takes those with inner tensors
apart. Ours has none: a fake tensor of its type, dtype and device is all a graph is captured with.
And dynamo shall not look into this package's own code, nor into JAX's.

dynamo takes long to import, so it is completed when somebody imports it.
"""

import functools
from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch

from torch_xdist.core.devices.device import index_of
from torch_xdist.core.devices.tensor import XlaTensor
from torch_xdist.core.trace.user_frames import OUR_PACKAGES
from torch_xdist.releases import late_imports, patch_table, patches, probes

_BUILDER = "torch._dynamo.variables.builder"
_RULES = "torch._dynamo.trace_rules"
_CONFIG = "torch._dynamo.config"
_NOT_LOOKED_INTO = (*OUR_PACKAGES, "jax", "jaxlib")


def register() -> None:
    """Complete torch's modules, now or when they are imported."""
    patches.wrap("torch._subclasses.fake_tensor.FakeTensor.__new__", _with_index)
    late_imports.when_imported(_BUILDER, _know_the_class)
    late_imports.when_imported(_RULES, _skip)
    late_imports.when_imported(_CONFIG, _keep_static)


def _with_index(usual: Callable[..., Any]) -> Any:
    """Fake tensors of "xla" are of the present device, as they are of "cuda".

    What is moved to "xla" comes as one of `lazy`, the device underneath, which its guard tells.
    """

    @functools.wraps(usual)
    def __new__(
        cls: Any, fake_mode: Any, elem: Any, device: Any = None, *args: Any, **kwargs: Any
    ) -> Any:
        if device is not None:
            found = torch.device(device)
            if found.type == "lazy" or (found.type == "xla" and found.index is None):
                device = torch.device("xla", index_of(None))
        return usual(cls, fake_mode, elem, device, *args, **kwargs)

    return staticmethod(__new__)


def _know_the_class(builder: ModuleType) -> None:
    probes.require(patch_table.DYNAMO)

    def knowing(usual: Callable[..., Any]) -> Any:
        @functools.wraps(usual)
        def _type_dispatch(*args: Any) -> dict[Any, Any]:
            # dynamo keeps the table it returns.
            table: dict[Any, Any] = usual(*args)
            table.setdefault(XlaTensor, builder.VariableBuilder.wrap_tensor)
            return table

        return staticmethod(_type_dispatch)

    def plain(usual: Callable[[Any], Any]) -> Callable[[Any], Any]:
        @functools.wraps(usual)
        def infer_subclass_type(value: Any) -> Any:
            return None if value.__class__ is XlaTensor else usual(value)

        return infer_subclass_type

    patches.wrap(f"{_BUILDER}.VariableBuilder._type_dispatch", knowing)
    patches.wrap(f"{_BUILDER}.infer_subclass_type", plain)


def _skip(rules: ModuleType) -> None:
    for package in _NOT_LOOKED_INTO:
        rules.add(package)


def _keep_static(config: ModuleType) -> None:
    """Another shape is another graph, where the user asks for nothing else: XLA compiles each."""
    config.automatic_dynamic_shapes = False  # type: ignore[attr-defined]
