"""Operations one after another, and the computations they make.

An operation knows the type of its result as soon as it is made, so what does not fit is told at the
user's line. A computation is a function of JAX arrays with a key: computations of equal keys
compute the same, whatever lines made them.
"""

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
import torch

from torch_xdist.builder import lowerings
from torch_xdist.builder.shapes import Kind
from torch_xdist.core.devices.transfer import as_numpy
from torch_xdist.core.tapes.partial_run import post_order
from torch_xdist.errors import ArgumentError, NoLoweringError

PARAMETER = "Parameter"


class XlaBuilder:
    """Where operations are collected. Attributes: parameters: by their numbers."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.parameters: dict[int, XlaOp] = {}


class XlaOp:
    """One operation. `type` is its result's."""

    __slots__ = ("attributes", "builder", "name", "operands", "type")

    def __init__(
        self,
        builder: XlaBuilder,
        name: str,
        operands: Sequence["XlaOp"],
        attributes: Mapping[str, Any],
        type_: Kind,
    ) -> None:
        self.builder = builder
        self.name = name
        self.operands = tuple(operands)
        self.attributes = attributes
        self.type = type_


class XlaComputation:
    """A function of JAX arrays.

    Attributes:
        parameters: the types of its arguments.
        function: returns an array, or a tuple.
        key: with the types it determines what the function computes.
    """

    def __init__(
        self, name: str, parameters: Sequence[Kind], function: Callable[..., Any], key: Hashable
    ) -> None:
        self.name = name
        self.parameters = tuple(parameters)
        self.function = function
        self.key = key


def operation(
    builder: XlaBuilder, name: str, operands: Sequence[XlaOp], attributes: Mapping[str, Any]
) -> XlaOp:
    """One operation more. Raises ArgumentError for an unknown name, or what does not fit."""
    given = {n: v for n, v in attributes.items() if v is not None and n != "builder"}
    if given.pop("static_operands", ()):
        raise NoLoweringError(
            f"xla_builder: {name} with static operands is not there, and neither has XLA it;"
            " broadcast them to the shape of the others"
        )
    # Operands that torch_xla hands over among the attributes.
    among = [n for n, v in given.items() if _are_operations(v)]
    operands = [*operands, *(op for n in among for op in given.pop(n))]
    kept = {n: snapshot(v) for n, v in given.items()}
    rule = lowerings.find(name)
    try:
        # In a function, for a tuple is one operand.
        type_ = jax.eval_shape(lambda *xs: rule(*xs, **kept), *(op.type for op in operands))
    except (TypeError, ValueError, LookupError) as error:
        shapes = ", ".join(str(op.type) for op in operands) or "no operands"
        raise ArgumentError(f"xla_builder: {name} of {shapes} with {given}: {error}") from error
    return XlaOp(builder, name, operands, kept, type_)


def _are_operations(value: Any) -> bool:
    return isinstance(value, list | tuple) and bool(value) and isinstance(value[0], XlaOp)


def parameter(builder: XlaBuilder, number: int, type_: Kind) -> XlaOp:
    """One argument of the computation."""
    op = XlaOp(builder, PARAMETER, (), {"number": number}, type_)
    builder.parameters[number] = op
    return op


def built(name: str, root: XlaOp) -> XlaComputation:
    """The computation whose result is `root`. Raises ArgumentError where a parameter is missing."""
    found = root.builder.parameters
    if sorted(found) != list(range(len(found))):
        raise ArgumentError(
            f"xla_builder: computation {name!r} has the parameters {sorted(found)}; number them"
            f" from 0 to {len(found) - 1}"
        )
    order = post_order([root], lambda op: op.operands)
    types = [found[number].type for number in range(len(found))]

    def function(*arguments: Any) -> Any:
        made: dict[int, Any] = {}
        for op in order:
            if op.name == PARAMETER:
                made[id(op)] = arguments[op.attributes["number"]]
            else:
                rule = lowerings.find(op.name)
                made[id(op)] = rule(*(made[id(x)] for x in op.operands), **op.attributes)
        return made[id(root)]

    return XlaComputation(name, types, function, _key(order, types))


def _key(order: Sequence[XlaOp], types: Sequence[Kind]) -> Hashable:
    place = {id(op): i for i, op in enumerate(order)}
    rows = tuple(
        (
            op.name,
            tuple(place[id(operand)] for operand in op.operands),
            tuple((name, frozen(value)) for name, value in sorted(op.attributes.items())),
        )
        for op in order
    )
    return rows, frozen(types)


def snapshot(value: Any) -> Any:
    """An attribute as it is kept: a tensor or an array of the user's may change later."""
    if isinstance(value, torch.Tensor):
        return np.array(as_numpy(value.cpu()))
    if isinstance(value, np.ndarray):
        return value.copy()
    if isinstance(value, list | tuple | torch.Size):
        return tuple(map(snapshot, value))
    return value


def frozen(value: Any) -> Hashable:
    """An attribute or a type as part of a key."""
    if isinstance(value, XlaComputation):
        return value.key
    if isinstance(value, np.ndarray):
        return value.dtype.name, value.shape, value.tobytes()
    if isinstance(value, jax.ShapeDtypeStruct):
        return value.shape, value.dtype.name
    if isinstance(value, Mapping):
        return tuple((name, frozen(part)) for name, part in sorted(value.items()))
    if isinstance(value, list | tuple):
        return tuple(map(frozen, value))
    return type(value).__name__, value
