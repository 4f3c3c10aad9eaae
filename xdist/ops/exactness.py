"""How exact convolutions and products are, where torch has flags of their own for it: on GPUs.

Set by `core/trace/global_state.py` before a program is made, which has it in its key.
"""

from collections.abc import Iterable
from typing import Any

import jax
import numpy as np

_rounded: list[frozenset[Any]] = [frozenset()]
_of_convolutions: list[jax.lax.Precision | None] = [None]


def of_convolutions() -> jax.lax.Precision | None:
    """None: as matrix products are, by JAX's own setting."""
    return _of_convolutions[0]


def choose_for_convolutions(precision: jax.lax.Precision | None) -> None:
    """Use it for the programs made from now on."""
    _of_convolutions[0] = precision


def rounded_products() -> frozenset[Any]:
    """The halves whose products XLA is asked for as halves, which it sums in float32 as well."""
    return _rounded[0]


def round_products(dtypes: Iterable[Any]) -> None:
    """Ask so for products of these dtypes in the programs made from now on."""
    _rounded[0] = frozenset(map(np.dtype, dtypes))
