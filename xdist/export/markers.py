"""Marking regions: `torch.ops.xla.mark_tensor`, and the builder that numbers the marks."""

import json
import uuid
from dataclasses import asdict, dataclass, is_dataclass
from typing import Any

import torch

from torch_xdist.errors import ArgumentError

_library = torch.library.Library("xla", "FRAGMENT")
_library.define(
    "mark_tensor(Tensor x, str name, int pos, str id, bool is_input, Any? attr=None) -> Tensor"
)


@dataclass
class BoundaryMetadata:
    """What a mark says.

    Attributes:
        name: of the pattern, and of the composite.
        pos: which input or output of it.
        id: which instance of the pattern.
        attr: the composite's attributes; on outputs.
    """

    name: str
    pos: int
    id: str
    is_input: bool = True
    attr: dict[str, Any] | None = None


class BoundaryMetadataSerializer(json.JSONEncoder):
    """Writes `BoundaryMetadata` as JSON."""

    def default(self, obj: Any) -> Any:
        is_ours = is_dataclass(obj) and not isinstance(obj, type)
        return asdict(obj) if is_ours else super().default(obj)


def assert_valid_composite_attr(attr: Any) -> None:
    """Raise ArgumentError for attributes that a composite cannot have."""
    if attr is None:
        return
    if not isinstance(attr, dict):
        raise ArgumentError(
            f"Composite attr must be a Python dictionary, and it is a {type(attr).__name__}."
        )
    for name, value in attr.items():
        if not isinstance(name, str):
            raise ArgumentError(f"Composite attr name must be a Python str, and {name!r} is none.")
        parts = value if isinstance(value, list | tuple) else [value]
        allowed = (float, int, bool) if isinstance(value, list | tuple) else (str, float, int, bool)
        kinds = {type(part) for part in parts}
        if len(kinds) != 1 or not kinds <= {*allowed}:
            raise ArgumentError(
                "Composite attr value must be either Python str, float, int, bool, list[int],"
                f" list[float], list[bool]; {name!r} is {value!r}."
            )


def serialize_composite_attr(attr: dict[str, Any] | None) -> tuple[tuple[str, Any], ...] | None:
    """Attributes as `mark_tensor` takes them."""
    if attr is None:
        return None
    assert_valid_composite_attr(attr)
    return tuple(attr.items())


def deserialize_composite_attr(attr: Any) -> dict[str, Any] | None:
    """Attributes as they were."""
    return None if attr is None else dict(attr)


def _get_uuid() -> str:
    """A name for one instance of a pattern."""
    return uuid.uuid4().hex


# What `torch._dynamo.assume_constant_result` does, which is not loaded here.
for _constant in (serialize_composite_attr, deserialize_composite_attr, _get_uuid):
    _constant._dynamo_marked_constant = True  # type: ignore[union-attr]


def mark_tensor_xla(
    x: torch.Tensor, name: str, pos: int, id: str, is_input: bool, attr: Any = None
) -> torch.Tensor:
    """`torch.ops.xla.mark_tensor`."""
    return torch.ops.xla.mark_tensor(x, name, pos, id, is_input, attr)  # type: ignore[no-any-return]


def xla_mark_tensor(x: torch.Tensor, info: str) -> torch.Tensor:
    """`mark_tensor`, by what `BoundaryMetadataSerializer` wrote."""
    told = BoundaryMetadata(**json.loads(info))
    attr = serialize_composite_attr(told.attr)
    return mark_tensor_xla(x, told.name, told.pos, told.id, told.is_input, attr)


@torch.library.impl(_library, "mark_tensor", "CompositeExplicitAutograd")
def mark_tensor(
    x: torch.Tensor, name: str, pos: int, id: str, is_input: bool, attr: Any = None
) -> torch.Tensor:
    """Elsewhere than on the device: the tensor itself."""
    return x


@torch.library.impl(_library, "mark_tensor", "Meta")
def mark_tensor_meta(
    x: torch.Tensor, name: str, pos: int, id: str, is_input: bool, attr: Any = None
) -> torch.Tensor:
    """Of its type."""
    return torch.empty_like(x)


def _gradient(ctx: Any, grad: torch.Tensor) -> tuple[Any, ...]:
    """A mark changes nothing, so neither does its gradient."""
    return grad, None, None, None, None, None


torch.library.register_autograd("xla::mark_tensor", _gradient, lib=_library)


class StableHLOCompositeBuilder:
    """Marks the inputs and outputs of one region, which becomes a `stablehlo.composite`.

    Args:
        name: of the composite.
        attr: its attributes: str, int, float, bool, and lists of the last three.
    """

    def __init__(self, name: str, attr: dict[str, Any] | None = None) -> None:
        self.attr = attr
        self.name = name
        self.id = _get_uuid()

    def _mark_tensor(self, *tensors: torch.Tensor, is_input: bool) -> Any:
        attr = None if is_input else serialize_composite_attr(self.attr)
        marked = []
        for pos, tensor in enumerate(tensors):
            if not isinstance(tensor, torch.Tensor):
                raise ArgumentError(f"input must be a torch tensor. Got {type(tensor)}.")
            marked.append(mark_tensor_xla(tensor, self.name, pos, self.id, is_input, attr))
        return marked[0] if len(marked) == 1 else tuple(marked)

    def mark_inputs(self, *tensors: torch.Tensor) -> Any:
        """The tensors, marked; use these in their place. Call it once."""
        return self._mark_tensor(*tensors, is_input=True)

    def mark_outputs(self, *tensors: torch.Tensor) -> Any:
        """The tensors, marked; use these in their place. Call it once."""
        return self._mark_tensor(*tensors, is_input=False)
