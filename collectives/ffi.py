"""Python functions as custom calls of XLA:CPU, through XLA's stable C interface (FFI) and ctypes.

A function registered here gets the program's own buffers as numpy views: nothing is copied, results
are written in place, and the program names it by a string, so that it can be stored in the
persistent compilation cache (a program that holds `jax.pure_callback` cannot). The structures
follow `xla/ffi/api/c_api.h`, version 0.1 and later: fields are only ever appended.
"""

import ctypes
from collections.abc import Callable
from ctypes import POINTER, Structure, c_char_p, c_int, c_int32, c_int64, c_size_t, c_void_p
from typing import Any

import jax
import ml_dtypes
import numpy as np

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


_Handler = ctypes.CFUNCTYPE(c_void_p, POINTER(_Frame))
_Create = ctypes.CFUNCTYPE(c_void_p, POINTER(_ErrorArgs))
_Ordinal = ctypes.CFUNCTYPE(c_void_p, POINTER(_OrdinalArgs))
# The table of functions starts with size, extension, version (24 bytes) and a private pointer.
_TABLE = 2 * _WORD + ctypes.sizeof(_Version) + _WORD
_ERROR_CREATE, _DEVICE_ORDINAL = 0, 17
_KEPT: dict[str, Any] = {}  # ctypes functions live as long as the process: XLA holds their address


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
        target(_arrays(frame.inputs), _arrays(frame.outputs), spec, _ordinal(frame))
    except BaseException as error:
        return _failure(frame, f"{type(error).__name__}: {error}")
    return None


def _arrays(values: _Values) -> list[np.ndarray]:
    return [_array(values.values[i].contents) for i in range(values.count)]


def _array(buffer: _Buffer) -> np.ndarray:
    dtype = _DTYPES[buffer.dtype]
    shape = tuple(buffer.dims[: buffer.rank])
    count = 1
    for size in shape:
        count *= size
    if not count:
        return np.empty(shape, dtype)
    memory: Any = (ctypes.c_char * (count * dtype.itemsize)).from_address(buffer.data)
    return np.frombuffer(memory, dtype).reshape(shape)


def _function(frame: _Frame, index: int, kind: Any) -> Any:
    return kind(c_void_p.from_address(frame.api + _TABLE + index * _WORD).value)


def _ordinal(frame: _Frame) -> int:
    arguments = _OrdinalArgs(ctypes.sizeof(_OrdinalArgs), None, frame.context, 0)
    _function(frame, _DEVICE_ORDINAL, _Ordinal)(ctypes.byref(arguments))
    return arguments.ordinal


def _failure(frame: _Frame, message: str) -> int:
    text = message.encode()
    arguments = _ErrorArgs(ctypes.sizeof(_ErrorArgs), None, text, _INTERNAL)
    return _function(frame, _ERROR_CREATE, _Create)(ctypes.byref(arguments))
