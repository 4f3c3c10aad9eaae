"""HLO modules as computations, and computations as HLO modules."""

import hashlib
import re
from collections.abc import Callable, Sequence
from typing import Any

import jax

from torch_xdist.builder.graph import XlaComputation
from torch_xdist.builder.hlo_call import call_of_hlo
from torch_xdist.core.programs.hlo_text import hlo_text

_NOT_OF_A_NAME = re.compile(r"\W+")


def from_proto(name: str, proto: bytes) -> XlaComputation:
    """The computation of a serialized HLO module."""
    function, parameters = call_of_hlo(proto)
    return XlaComputation(name, parameters, function, hashlib.sha256(proto).hexdigest())


def text(computation: XlaComputation) -> str:
    """A computation as HLO text."""
    return hlo_text(lowered(computation.name, computation.function, computation.parameters))


def lowered(name: str, function: Callable[..., Any], parameters: Sequence[Any]) -> Any:
    """A function as JAX lowers it, under a name."""

    def named(*arguments: Any) -> Any:
        return function(*arguments)

    named.__name__ = _NOT_OF_A_NAME.sub("_", name)
    return jax.jit(named, keep_unused=True).lower(*parameters)
