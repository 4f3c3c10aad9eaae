"""StableHLO as JAX functions; needs jax and numpy alone, so a model runs where torch is not."""

import functools
import hashlib
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from torch_xdist.errors import ArgumentError
from torch_xdist.export import modules
from torch_xdist.export.bundle import call_parameters, function_of, load_bundle

# How many combinations of sizes an artifact with open ones is kept for.
_KEPT = 64


def load(folder: str | os.PathLike[str], method_name: str = "") -> Callable[..., list[jax.Array]]:
    """A function that `save_as_stablehlo` wrote, of numpy or JAX arrays.

    Args:
        method_name: which of its functions; default: the first.

    It takes the model's arguments as one flat sequence and gives its results as one list. It can be
    called inside `jax.jit`.
    """
    bundle = load_bundle(folder)
    func = function_of(bundle, method_name)
    program = Program(func.bytecode)

    def call(*arrays: Any) -> list[jax.Array]:
        given = call_parameters(list(arrays), func.meta, bundle)
        return program(*program.checked(given))

    return call


class Program:
    """A portable artifact as a JAX function of arrays; returns a list.

    Sizes that it leaves open may be others at each call.
    """

    def __init__(self, bytecode: bytes) -> None:
        self.digest = hashlib.sha256(bytecode).hexdigest()[:16]
        self._bytecode = bytecode
        self._module = modules.module_of(bytecode)
        self._inputs, self._outputs = modules.signature_of(self._module)
        self._call_of = functools.lru_cache(maxsize=_KEPT)(self._for_shapes)

    def checked(self, values: Sequence[Any]) -> list[Any]:
        """Values as arrays. Raises ArgumentError for other shapes or dtypes than it takes."""
        arrays = [value if hasattr(value, "dtype") else np.asarray(value) for value in values]
        self.check([(tuple(a.shape), np.dtype(a.dtype).name) for a in arrays])
        return arrays

    def check(self, given: Sequence[tuple[tuple[int, ...], str]]) -> None:
        """Raise ArgumentError where it does not take arrays of these shapes and dtypes."""
        fits = len(given) == len(self._inputs) and all(
            dtype == wanted.dtype and wanted.fits(shape)
            for (shape, dtype), wanted in zip(given, self._inputs)
        )
        if not fits:
            raise ArgumentError(
                f"StableHLO: called with {', '.join(f'{d}{list(s)}' for s, d in given)}; it takes"
                f" {', '.join(map(str, self._inputs))}"
            )

    def __call__(self, *arrays: Any) -> list[Any]:
        call = self._call_of(tuple(tuple(array.shape) for array in arrays))
        # An artifact may take or give 64 bits, which JAX leaves out where it is not told.
        with jax.enable_x64(True):
            return call(*arrays)  # type: ignore[no-any-return]

    def _for_shapes(self, shapes: tuple[tuple[int, ...], ...]) -> Callable[..., Any]:
        bytecode, outputs = self._bytecode, self._outputs
        if any(None in wanted.shape for wanted in self._inputs):
            module = modules.with_sizes(self._module, shapes)
            bytecode, (_, outputs) = modules.bytecode_of(module), modules.signature_of(module)
        inputs = [jax.ShapeDtypeStruct(s, w.dtype) for s, w in zip(shapes, self._inputs)]

        # Of the same signature: what JAX notes of it is right for the artifact too.
        def like(*arrays: Any) -> list[Any]:
            return [jnp.zeros(out.shape, out.dtype) for out in outputs]

        checks = [jax.export.DisabledSafetyCheck.platform()]
        with jax.enable_x64(True):
            exported = jax.export.export(jax.jit(like, keep_unused=True), disabled_checks=checks)(
                *inputs
            )
        return replace(exported, mlir_module_serialized=bytecode).call
