"""What is asked of JAX's cache of programs beside its public interface.

JAX keeps an executable under a key that it finds after tracing and lowering. What is packed here is
the rest of a compiled program, without the executable: what it is called with and what it returns.
With both, the program is what JAX compiled, and nothing has to be traced.
"""

import io
import pickle
from typing import Any

import jax
import numpy as np

try:
    from jax._src import compilation_cache
except ImportError:
    compilation_cache = None  # type: ignore[assignment]
try:
    from jax.experimental import serialize_executable
except ImportError:
    serialize_executable = None  # type: ignore[assignment]
try:
    from jaxlib import lapack
except ImportError:
    lapack = None  # type: ignore[assignment]
try:
    from jaxlib import _jax  # type: ignore[attr-defined]
except ImportError:
    _jax = None  # type: ignore[assignment]

_EXECUTABLE = "executable"
# What the names of jaxlib's calls of LAPACK begin with.
_OF_LAPACK = b"lapack_"


def keep_compiled(store: Any) -> bool:
    """Have JAX ask `get(key)` and `put(key, bytes)` of a store for what it compiles, if it can."""
    names = "_cache", "_cache_initialized", "reset_cache", "_get_cache"
    if not all(hasattr(compilation_cache, name) for name in names):
        return False
    of_jax: Any = compilation_cache
    of_jax.reset_cache()
    of_jax._cache, of_jax._cache_initialized = store, True
    return True


def packed(compiled: jax.stages.Compiled) -> bytes | None:
    """All of a compiled program but its executable; None for one that only this process can run.

    That is one with functions of Python's in it, or with constants beside it.
    """
    of_jax: Any = compiled
    try:
        unloaded = of_jax._executable._unloaded_executable
        parts = "host_callbacks", "ordered_effects", "unordered_effects", "keepalive", "mut"
        if any(getattr(unloaded, part) for part in parts) or of_jax._params.const_args:
            return None
        info, tree = jax.tree.flatten(of_jax.args_info)
        buffer = io.BytesIO()
        _Packing(buffer).dump((unloaded, info, of_jax._no_kwargs, tree, of_jax.out_tree))
    except (AttributeError, TypeError, ValueError, pickle.PicklingError):
        return None
    return buffer.getvalue()


def unpacked(rest: bytes, entry: bytes, device: jax.Device) -> jax.stages.Compiled:
    """A compiled program on a device, of what `packed` gave and of the entry of JAX's cache.

    Raises whatever stands in the way: bytes that are damaged, another release of JAX.
    """
    of_jax: Any = compilation_cache
    executable, _ = of_jax.extract_executable_and_time(of_jax.decompress_executable(entry))
    if _OF_LAPACK in executable:
        # jaxlib looks for LAPACK's functions when a call is lowered; a process that finds the
        # program compiled would jump to address 0.
        lapack.prepare_lapack_call("potrf", np.dtype(np.float32))
    unloaded, info, no_kwargs, tree, out_tree = _Unpacking(rest, executable, device).load()
    return jax.stages.Compiled(
        unloaded.load(), [], tree.unflatten(info), out_tree, no_kwargs=no_kwargs
    )


def can_pack() -> bool:
    """Whether this JAX has what the functions here ask of it."""
    names = "extract_executable_and_time", "decompress_executable"
    return (
        all(hasattr(compilation_cache, name) for name in names)
        and hasattr(serialize_executable, "_JaxPjrtPickler")
        and hasattr(_jax, "DeviceList")
    )


_Pickler: Any = getattr(serialize_executable, "_JaxPjrtPickler", pickle.Pickler)


class _Packing(_Pickler):  # type: ignore[misc]
    """Writes names for what is no data: the executable, its device, its client."""

    def persistent_id(self, obj: Any) -> Any:
        found = super().persistent_id(obj)
        kind = found[0] if found else ""
        return (_EXECUTABLE,) if kind == "exec" else found


class _Unpacking(pickle.Unpickler):
    """Puts what is here in the places of these names."""

    def __init__(self, rest: bytes, executable: bytes, device: Any) -> None:
        super().__init__(io.BytesIO(rest))
        self._executable = executable
        self._device = device

    def persistent_load(self, pid: Any) -> Any:
        kind, *number = pid
        if kind == _EXECUTABLE:
            devices = _jax.DeviceList((self._device,))
            return self._device.client.deserialize_executable(self._executable, devices)
        if kind == "device" and number == [self._device.id]:
            return self._device
        if kind == "client":
            return self._device.client
        raise pickle.UnpicklingError(f"a program of {pid}, on device {self._device.id}")
