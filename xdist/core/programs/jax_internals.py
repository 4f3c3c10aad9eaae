"""What is asked of JAX beside its public interface, each with what is done where it is gone."""

import contextlib
from collections.abc import Callable
from typing import Any

import jax
from jax._src import config

from torch_xdist.errors import ReleaseError

try:
    from jaxlib import _hlo, _jax  # type: ignore[attr-defined]
except ImportError:
    _hlo = _jax = None  # type: ignore[assignment]
try:
    from jax._src.lax import windowed_reductions
except ImportError:
    windowed_reductions = None  # type: ignore[assignment]
try:
    from jax._src.interpreters import mlir
except ImportError:
    mlir = None  # type: ignore[assignment]


def callable_of(compiled: jax.stages.Compiled) -> Callable[..., Any]:
    """A compiled program as JAX's C++ calls it, where it does, without Python in between."""
    try:
        fast = compiled._executable.create_cpp_call(compiled._params)
    except AttributeError:
        fast = None
    return compiled if fast is None else fast


def shardings_in_hlo() -> contextlib.AbstractContextManager[Any]:
    """Inside it JAX lowers shardings as HLO has them, not for Shardy, where it still can."""
    state = getattr(config, "use_shardy_partitioner", None)
    return contextlib.nullcontext() if state is None else state(False)


def hlo_of_module(module: str, *, in_tuple: bool = False) -> str | None:
    """A StableHLO module as HLO text with the shapes of operands; None where JAX cannot.

    Args:
        in_tuple: one result is a tuple as well.
    """
    try:
        options = _hlo.HloPrintOptions()
        options.print_percent = options.print_operand_shape = True
        options.print_metadata = False
        computation = _jax.mlir.mlir_module_to_xla_computation(
            module, use_tuple_args=False, return_tuple=in_tuple
        )
        return str(computation.get_hlo_module().to_string(options))
    except AttributeError:
        return None


def proto_of_module(module: str) -> bytes:
    """A StableHLO module as a serialized HloModuleProto."""
    _need(_jax and hasattr(_jax.mlir, "mlir_module_to_xla_computation"), "a program as HLO")
    computation = _jax.mlir.mlir_module_to_xla_computation(
        module, use_tuple_args=False, return_tuple=False
    )
    return bytes(computation.as_serialized_hlo_module_proto())


def stablehlo_of_proto(proto: bytes) -> bytes:
    """A serialized HloModuleProto as StableHLO."""
    _need(_jax and hasattr(_jax.mlir, "hlo_to_stablehlo"), "HLO in a program")
    return bytes(_jax.mlir.hlo_to_stablehlo(proto))


def select_and_scatter(*arguments: Any) -> Any:
    """XLA's SelectAndScatter (operand, select, sizes, strides, padding, source, start, scatter)."""
    of_jax = getattr(windowed_reductions, "_select_and_scatter", None)
    _need(of_jax, "SelectAndScatter")
    return of_jax(*arguments)  # type: ignore[misc]


def sizes_at_run_time(ctx: Any, shape: tuple[Any, ...]) -> Any:
    """A shape with open sizes as the array that it is when the program runs."""
    of_jax = getattr(mlir, "eval_dynamic_shape_as_tensor", None)
    _need(of_jax, "sizes that are open in a program")
    return of_jax(ctx, shape)  # type: ignore[misc]


def with_known_sizes(module: Any) -> Any:
    """A StableHLO module with open sizes, for those that its main function says."""
    of_jax = getattr(mlir, "refine_polymorphic_shapes", None)
    _need(of_jax, "way to run an artifact with open sizes")
    return of_jax(module)  # type: ignore[misc]


def _need(found: Any, what: str) -> None:
    if not found:
        raise ReleaseError(f"jax {jax.__version__} has no {what}; install jax 0.10.2, which has")


def in_one_call(results: list[Any], function: Callable[..., Any], *arguments: Any) -> None:
    """`results.append(function(*arguments))`, with nothing of Python in between for a C function.

    After a call Python looks for signals before it stores what the call returned.
    """
    results.extend(map(function, *[(argument,) for argument in arguments]))
