"""A lowered module through the compiler of devices that are not here."""

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np

try:
    from jax._src.compiler import get_compile_options
    from jax._src.interpreters import mlir
    from jaxlib._jax import DeviceList  # type: ignore[attr-defined]
except ImportError:
    get_compile_options = None  # type: ignore[assignment]

from torch_xdist.errors import ReleaseError


def compile_module(
    module: bytes,
    devices: Sequence[jax.Device],
    places: Sequence[int],
    options: Mapping[str, Any],
    all_options: bytes = b"",
) -> Any:
    """XLA's executable of a module in MLIR's bytecode or text. It cannot be run.

    Args:
        places: the module's devices among these, in the order of its partitions.
        options: of XLA's, by name.
        all_options: instead of these, all that JAX would tell XLA, serialized.

    Raises:
        ReleaseError: this release of JAX compiles otherwise.
    """
    if get_compile_options is None:
        raise ReleaseError(
            f"jax {jax.__version__} has no get_compile_options, with which modules are compiled for"
            " devices that are not here; use one of the releases in docs/versions.md"
        )
    chosen = [devices[place] for place in places]
    assignment = np.array([[device.id for device in chosen]])
    told = get_compile_options(1, len(chosen), assignment, dict(options) or None)
    if all_options:
        told = type(told).ParseFromString(all_options)
    client: Any = chosen[0].client
    listed = DeviceList(tuple(chosen))
    with mlir.make_ir_context():
        parsed = mlir.ir.Module.parse(module)
        return client.compile(parsed, executable_devices=listed, compile_options=told)
