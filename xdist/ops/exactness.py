"""How exact convolutions of float32 are, where torch has a flag of their own for it: on GPUs.

Set by `core/trace/global_state.py` before a program is made, which has it in its key.
"""

import jax

_of_convolutions: list[jax.lax.Precision | None] = [None]


def of_convolutions() -> jax.lax.Precision | None:
    """None: as matrix products are, by JAX's own setting."""
    return _of_convolutions[0]


def choose_for_convolutions(precision: jax.lax.Precision | None) -> None:
    """Use it for the programs made from now on."""
    _of_convolutions[0] = precision
