"""How exact convolutions and products are, where torch has flags of their own for it: on GPUs.

Set by `core/trace/global_state.py` before a program is made, which has it in its key.
"""

import jax

_rounded: list[tuple[str, ...]] = [()]
_of_convolutions: list[jax.lax.Precision | None] = [None]


def of_convolutions() -> jax.lax.Precision | None:
    """None: as matrix products are, by JAX's own setting."""
    return _of_convolutions[0]


def choose_for_convolutions(precision: jax.lax.Precision | None) -> None:
    """Use it for the programs made from now on."""
    _of_convolutions[0] = precision


def rounded_products() -> tuple[str, ...]:
    """The names of the halves whose products XLA is asked for as such; it sums in float32 too."""
    return _rounded[0]


def round_products(names: tuple[str, ...]) -> None:
    """Ask so for products of these dtypes in the programs made from now on."""
    _rounded[0] = names
