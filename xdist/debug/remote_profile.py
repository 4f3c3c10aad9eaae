"""Profiles of other processes, from the profiler's server that each of them started.

The server writes the files itself, so it must reach the folder. The request is small enough to be
written here, by the numbers of its fields.

Source: tsl/profiler/protobuf/profiler_service.proto and profiler_options.proto of OpenXLA.
"""

import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

_METHOD = "/tensorflow.ProfilerService/Profile"
_VARINT, _BYTES = 0, 2
_EVENTS = 1_000_000
# The numbers of the fields of ProfileOptions that are set.
_OPTIONS = {"host_tracer_level": 2, "device_tracer_level": 3, "python_tracer_level": 4}
_VERSION, _HAS_HLO, _DURATION, _IS_EMPTY = 5, 7, 9, 7
# What this process asks for at present.
RUNNING: list[Sequence[str]] = []
# How long the server may take to write what it collected.
_WRITING_S = 60


def collect(
    addresses: str,
    logdir: str,
    duration_ms: int,
    attempts: int,
    timeout_s: float,
    interval_s: float,
    options: Mapping[str, int],
) -> None:
    """Let the servers profile their processes for a while; blocks until they have written it.

    Args:
        addresses: host:port, several separated by commas.
        logdir: what TensorBoard is given; all files of a call are one run there.
        attempts: how often to ask again for a profile in which nothing happened.
        timeout_s, interval_s: how long, and how often, to try servers that do not answer.

    Raises RuntimeError where a server does not answer, or nothing ever happened.
    """
    threading.Event().wait(options.get("delay_ms", 0) / 1e3)
    found = [address.strip() for address in addresses.split(",") if address.strip()]
    if not found:
        raise RuntimeError(f"trace: service_addr={addresses!r} names no server; give host:port")
    for _ in range(max(1, attempts)):
        run = time.strftime("%Y_%m_%d_%H_%M_%S")
        requests = [
            request(f"{logdir}/plugins/profile", run, address, duration_ms, options)
            for address in found
        ]
        answers = _ask(found, requests, duration_ms, timeout_s, interval_s)
        if not all(map(is_empty, answers)):
            return
    raise RuntimeError(
        f"trace: nothing happened at {addresses} in {attempts} times {duration_ms} ms; profile"
        " while steps run, or longer"
    )


def _ask(
    addresses: Sequence[str],
    requests: Sequence[bytes],
    duration_ms: int,
    timeout_s: float,
    interval_s: float,
) -> list[bytes]:
    """What the servers answer, all asked at once."""
    import grpc

    RUNNING.append(addresses)
    channels = [grpc.insecure_channel(address) for address in addresses]
    try:
        until = time.monotonic() + timeout_s
        for address, channel in zip(addresses, channels):
            _wait_for(grpc, address, channel, until, interval_s)
        limit_s = duration_ms / 1e3 + _WRITING_S
        calls = [
            channel.unary_unary(_METHOD).future(message, timeout=limit_s)
            for channel, message in zip(channels, requests)
        ]
        return [_answer(grpc, *pair) for pair in zip(addresses, calls)]
    finally:
        for channel in channels:
            channel.close()
        RUNNING.remove(addresses)


def _wait_for(grpc: Any, address: str, channel: Any, until: float, interval_s: float) -> None:
    while True:
        try:
            rest = until - time.monotonic()
            grpc.channel_ready_future(channel).result(timeout=min(max(rest, 0.1), interval_s))
            return
        except grpc.FutureTimeoutError:
            if time.monotonic() >= until:
                raise RuntimeError(
                    f"trace: no profiler's server answers at {address}; call xp.start_server there"
                ) from None


def _answer(grpc: Any, address: str, call: Any) -> bytes:
    try:
        return bytes(call.result())
    except grpc.RpcError as error:
        raise RuntimeError(
            f"trace: the profiler's server at {address} failed: {error.code().name}:"
            f" {error.details()}; another profile may be running there"
        ) from error


def request(
    root: str, run: str, address: str, duration_ms: int, options: Mapping[str, int]
) -> bytes:
    """A serialized ProfileRequest."""
    asked = _number(_VERSION, 1) + _number(_HAS_HLO, 1) + _number(_DURATION, duration_ms)
    for name, field in _OPTIONS.items():
        asked += _number(field, int(options.get(name, 0)))
    host = address.replace(":", "_").replace("/", "_")
    return (
        _number(1, duration_ms)
        + _number(2, _EVENTS)
        + _bytes(3, b"trace_viewer")
        + _bytes(4, asked)
        + _bytes(5, root.encode())
        + _bytes(6, run.encode())
        + _bytes(7, host.encode())
    )


def is_empty(response: bytes) -> bool:
    """Whether a serialized ProfileResponse says that nothing happened: its field 7."""
    return response == _number(_IS_EMPTY, 1)


def _number(field: int, value: int) -> bytes:
    return _varint(field << 3 | _VARINT) + _varint(value)


def _bytes(field: int, value: bytes) -> bytes:
    return _varint(field << 3 | _BYTES) + _varint(len(value)) + value


def _varint(value: int) -> bytes:
    """A number in groups of seven bits, the lowest first."""
    found = bytearray()
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    found.append(value)
    return bytes(found)
