"""Python functions as custom calls of XLA:CPU, through XLA's stable C interface (FFI) and ctypes.

A function registered here gets the program's own buffers as numpy views: nothing is copied, results
are written in place, and the program names it by a string, so that it can be stored in the
persistent compilation cache (a program that holds `jax.pure_callback` cannot). The structures
follow `xla/ffi/api/c_api.h`, version 0.1 and later: fields are only ever appended.

A call with much data gives XLA a future at once and runs on a thread of ours: the program goes on
with all that does not need the call's results, on a single core too. A small one runs at once on
XLA's thread: handing it over would cost more (100 us) than it could win.
"""

import ctypes
import functools
import math
from collections.abc import Callable
from ctypes import POINTER, Structure, c_char_p, c_int, c_int32, c_int64, c_size_t, c_void_p
from typing import Any

import jax
import jaxlib
import ml_dtypes
import numpy as np

from torch_xdist.collectives.errors import CollectiveError
from torch_xdist.collectives.workers import Workers

Target = Callable[[list[np.ndarray], list[np.ndarray], bytes, int], None]

_EXECUTE = 3
_METADATA_EXTENSION = 1
_INTERNAL = 13
_API_VERSION = (0, 1)
_WORD = ctypes.sizeof(c_void_p)

_DTYPES: dict[int, np.dtype] = {
    number: np.dtype(kind)
    for number, kind in {
        1: np.bool_,
        2: np.int8,
        3: np.int16,
        4: np.int32,
        5: np.int64,
        6: np.uint8,
        7: np.uint16,
        8: np.uint32,
        9: np.uint64,
        10: np.float16,
        11: np.float32,
        12: np.float64,
        15: np.complex64,
        16: ml_dtypes.bfloat16,
        18: np.complex128,
        19: ml_dtypes.float8_e5m2,
        20: ml_dtypes.float8_e4m3fn,
        24: ml_dtypes.float8_e5m2fnuz,
        25: ml_dtypes.float8_e4m3fnuz,
    }.items()
}


class _Extension(Structure):
    _fields_ = [("size", c_size_t), ("type", c_int), ("next", c_void_p)]


class _Version(Structure):
    _fields_ = [("size", c_size_t), ("ext", c_void_p), ("major", c_int), ("minor", c_int)]


class _Metadata(Structure):
    _fields_ = [("size", c_size_t), ("version", _Version), ("traits", ctypes.c_uint32)]


class _MetadataExtension(Structure):
    _fields_ = [("head", _Extension), ("metadata", POINTER(_Metadata))]


class _Buffer(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("ext", c_void_p),
        ("dtype", c_int),
        ("data", c_void_p),
        ("rank", c_int64),
        ("dims", POINTER(c_int64)),
    ]


class _Values(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("ext", c_void_p),
        ("count", c_int64),
        ("types", POINTER(c_int)),
        ("values", POINTER(POINTER(_Buffer))),
    ]


class _Span(Structure):
    _fields_ = [("data", c_void_p), ("length", c_size_t)]


class _Attributes(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("ext", c_void_p),
        ("count", c_int64),
        ("types", POINTER(c_int)),
        ("names", POINTER(POINTER(_Span))),
        ("values", POINTER(POINTER(_Span))),
    ]


class _Frame(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("ext", POINTER(_Extension)),
        ("api", c_void_p),
        ("context", c_void_p),
        ("stage", c_int),
        ("inputs", _Values),
        ("outputs", _Values),
        ("attributes", _Attributes),
        ("future", c_void_p),
    ]


class _ErrorArgs(Structure):
    _fields_ = [("size", c_size_t), ("ext", c_void_p), ("message", c_char_p), ("code", c_int)]


class _OrdinalArgs(Structure):
    _fields_ = [("size", c_size_t), ("ext", c_void_p), ("context", c_void_p), ("ordinal", c_int32)]


class _FutureArgs(Structure):
    _fields_ = [("size", c_size_t), ("ext", c_void_p), ("future", c_void_p)]


class _FutureErrorArgs(Structure):
    _fields_ = [*_FutureArgs._fields_, ("error", c_void_p)]


_Handler = ctypes.CFUNCTYPE(c_void_p, POINTER(_Frame))
_Create = ctypes.CFUNCTYPE(c_void_p, POINTER(_ErrorArgs))
_Ordinal = ctypes.CFUNCTYPE(c_void_p, POINTER(_OrdinalArgs))
_Future = ctypes.CFUNCTYPE(c_void_p, POINTER(_FutureArgs))
_FutureError = ctypes.CFUNCTYPE(c_void_p, POINTER(_FutureErrorArgs))
# The table of functions starts with size, extension, version (24 bytes) and a private pointer.
_TABLE = 2 * _WORD + ctypes.sizeof(_Version) + _WORD
_ERROR_CREATE, _DEVICE_ORDINAL = 0, 17
_FUTURE_CREATE, _FUTURE_SET_AVAILABLE, _FUTURE_SET_ERROR = 13, 14, 15
_KEPT: dict[str, Any] = {}  # ctypes functions live as long as the process: XLA holds their address
_WORKERS = Workers("xdist-exchange")
_SMALL_BYTES = 2**19  # of operands and results together


def register(name: str, target: Target) -> None:
    """Make `target(inputs, outputs, spec, device ordinal)` the custom call `name` of the CPU.

    `spec` is the program's string attribute of that name. An exception becomes the error of the
    program that was running.
    """
    if name not in _KEPT:
        _KEPT[name] = handler = _Handler(lambda frame: _serve(frame.contents, target))
        jax.ffi.register_ffi_target(name, jax.ffi.pycapsule(handler), platform="cpu")


def _serve(frame: _Frame, target: Target) -> int | None:
    if frame.ext and frame.ext.contents.type == _METADATA_EXTENSION:
        extension = ctypes.cast(frame.ext, POINTER(_MetadataExtension)).contents
        version = extension.metadata.contents.version
        version.major, version.minor = _API_VERSION
        return None
    if frame.stage != _EXECUTE:
        return None
    try:
        span = frame.attributes.values[0].contents
        spec = ctypes.string_at(span.data, span.length)
        inputs, outputs = _arrays(frame.inputs), _arrays(frame.outputs)
        job = functools.partial(target, inputs, outputs, spec, _ordinal(frame))
        if sum(x.nbytes for x in (*inputs, *outputs)) < _SMALL_BYTES:
            job()
        else:
            frame.future = _handed_over(frame.api, job)
    except BaseException as error:
        return _failure(frame.api, error)
    return None


def _handed_over(api: int, job: Callable[[], None]) -> int:
    """The future of a job that a thread of ours does; XLA keeps the buffers until it is done."""
    created = _FutureArgs(ctypes.sizeof(_FutureArgs), None, None)
    _function(api, _FUTURE_CREATE, _Future)(ctypes.byref(created))
    _WORKERS.run(functools.partial(_complete, api, created.future, job))
    return created.future


def _complete(api: int, future: int, job: Callable[[], None]) -> None:
    """Do the job and let the program go on; it does so on this thread."""
    failure = None
    try:
        job()
    except BaseException as error:
        failure = _failure(api, error)
    if failure is not None:
        failed = _FutureErrorArgs(ctypes.sizeof(_FutureErrorArgs), None, future, failure)
        _function(api, _FUTURE_SET_ERROR, _FutureError)(ctypes.byref(failed))
        return
    done = _FutureArgs(ctypes.sizeof(_FutureArgs), None, future)
    _function(api, _FUTURE_SET_AVAILABLE, _Future)(ctypes.byref(done))


def _arrays(values: _Values) -> list[np.ndarray]:
    return [_array(values.values[i].contents) for i in range(values.count)]


def _array(buffer: _Buffer) -> np.ndarray:
    dtype = _DTYPES[buffer.dtype]
    shape = tuple(buffer.dims[: buffer.rank])
    size = math.prod(shape) * dtype.itemsize
    if not size:
        return np.empty(shape, dtype)
    return np.ndarray(shape, dtype, (ctypes.c_char * size).from_address(buffer.data))


@functools.cache
def _function(api: int, index: int, kind: Any) -> Any:
    """A function of XLA's table, whose first field is the table's size."""
    offset, size = _TABLE + index * _WORD, c_size_t.from_address(api).value
    address = c_void_p.from_address(api + offset).value if offset + _WORD <= size else None
    if not address:
        raise CollectiveError(
            f"this jaxlib ({jaxlib.__version__}): XLA's table of functions has {size} bytes, and "
            f"function {index} of XLA's FFI is not there; install jaxlib 0.10 or later"
        )
    return kind(address)


def _ordinal(frame: _Frame) -> int:
    arguments = _OrdinalArgs(ctypes.sizeof(_OrdinalArgs), None, frame.context, 0)
    _function(frame.api, _DEVICE_ORDINAL, _Ordinal)(ctypes.byref(arguments))
    return arguments.ordinal


def text_of(error: BaseException) -> str:
    """What the runtime's error says of an error of a call."""
    return f"{type(error).__name__}: {error}"


def _failure(api: int, error: BaseException) -> int:
    try:
        # A path of a user's file may hold what UTF-8 cannot.
        text = text_of(error).encode(errors="backslashreplace")
    except Exception:
        text = type(error).__name__.encode()  # it cannot be shown, and the program must end
    arguments = _ErrorArgs(ctypes.sizeof(_ErrorArgs), None, text, _INTERNAL)
    return _function(api, _ERROR_CREATE, _Create)(ctypes.byref(arguments))
