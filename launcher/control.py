"""The control plane: a gRPC stream from every agent to the head of the job, and single calls to it.

No protobuf: a message is one frame (`system/frames.py`). Every call carries the job's token in its
metadata; an interceptor compares it in constant time, and of a call without it no message is read.
The server listens on loopback unless it is told another address, and never shares its port.

After the first frame of an agent, which is small, each goes in pieces: gRPC gives the size of a
message 32 bits, and results may be larger. The first byte of a piece says whether more follow.

An agent says `hello` first, with the version of this protocol and the number of its host; a second
agent for the same host is refused. Then agents send what `head/` has handlers for (`started`,
`beats`, `log`, `ended`, ...), and get orders (`start`, `release`, `stop`, `stacks`, `bye`).

On loopback nothing is pinged: a process that is stopped (Ctrl-Z) answers no ping and is not gone.
There the agent sees the end of the head at the end of its stdin, and the head that of the agent's
process.
"""

import hmac
import queue
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc

from torch_xdist.launcher.facts.errors import AuthError, HostError
from torch_xdist.launcher.facts.host import VERSION, refusal
from torch_xdist.launcher.facts.settings import LOOPBACK
from torch_xdist.system import frames
from torch_xdist.system.frames import Message

SERVICE = "xlarun.Control"
TOKEN_KEY = "xla-run-token"
CALL_LIMIT_S = 30.0
_PIECE_BYTES = 256 << 20
_MORE, _LAST = b"+", b"."
# Calls of strangers are refused on threads too; beyond these they wait their turn.
_SPARE_THREADS = 4
_OPTIONS = (
    ("grpc.so_reuseport", 0),
    ("grpc.enable_http_proxy", 0),
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
)
_KEEPALIVE = (
    ("grpc.keepalive_time_ms", 5_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.http2.min_ping_interval_without_data_ms", 4_000),
)

OnMessage = Callable[[int, Message, bytes], None]
OnCall = Callable[[Message], Message]


class Server:
    """The head's end. `on_message` and `on_call` run on gRPC's threads."""

    def __init__(
        self,
        token: str,
        on_message: OnMessage,
        on_call: OnCall,
        host: str = LOOPBACK,
        agents: int = 1,
    ) -> None:
        self.token = token
        self._on_message, self._on_call = on_message, on_call
        self._outboxes: dict[int, queue.SimpleQueue[bytes | None]] = {}
        self._greeted: set[int] = set()
        self._lock = threading.Lock()
        self._server = grpc.server(
            ThreadPoolExecutor(agents + _SPARE_THREADS),
            interceptors=[_TokenCheck(token)],
            options=_options(host),
        )
        handlers = {
            "Agent": grpc.stream_stream_rpc_method_handler(self._agent),
            "Call": grpc.unary_unary_rpc_method_handler(self._call),
        }
        self._server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler(SERVICE, handlers),)
        )
        try:
            port = self._server.add_insecure_port(f"{host}:0")
        except RuntimeError as error:
            raise HostError(
                f"control plane: cannot listen on {host}; an address of this host is needed"
            ) from error
        self.address = f"{host}:{port}"
        self._server.start()

    def send(self, host_index: int, message: Mapping[str, Any], blob: bytes = b"") -> None:
        """Queue a message for the agent of a host; kept until the agent has connected."""
        self._outbox(host_index).put(frames.encode(message, *((blob,) if blob else ())))

    def close(self) -> None:
        for outbox in self._outboxes.values():
            outbox.put(None)
        self._server.stop(grace=0.5).wait()

    def _outbox(self, host_index: int) -> "queue.SimpleQueue[bytes | None]":
        with self._lock:
            return self._outboxes.setdefault(host_index, queue.SimpleQueue())

    def _agent(self, requests: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
        # As it is in every version of this protocol.
        hello = frames.decode(next(requests)).message
        host_index = int(hello["host_index"])
        self._greet(hello, host_index, context)
        outbox = self._outbox(host_index)
        reader = threading.Thread(
            target=self._read, args=(host_index, hello, requests, outbox), daemon=True
        )
        reader.start()
        context.add_callback(lambda: outbox.put(None))
        while (frame := outbox.get()) is not None:
            yield from _pieces(frame)

    def _greet(self, hello: Message, host_index: int, context: grpc.ServicerContext) -> None:
        if why := refusal(hello):
            context.abort(grpc.StatusCode.FAILED_PRECONDITION, why)
        with self._lock:
            is_second = host_index in self._greeted
            self._greeted.add(host_index)
        if is_second:
            context.abort(grpc.StatusCode.ALREADY_EXISTS, f"host {host_index} has an agent already")

    def _read(
        self,
        host_index: int,
        hello: Message,
        requests: Iterator[bytes],
        outbox: "queue.SimpleQueue[bytes | None]",
    ) -> None:
        self._on_message(host_index, hello, b"")
        why = "the agent closed its stream"
        try:
            for frame in _joined(requests):
                self._on_message(host_index, frame.message, frame.blob)
        except Exception as error:
            why = type(error).__name__
        # The agent waits for the end of its call: until then it cannot know that all has arrived.
        outbox.put(None)
        self._on_message(host_index, {"op": "gone", "why": why}, b"")

    def _call(self, request: bytes, context: grpc.ServicerContext) -> bytes:
        return frames.encode(self._on_call(frames.decode(request).message))


class _TokenCheck(grpc.ServerInterceptor):
    """Lets calls with the job's token through; to the others no message is read."""

    def __init__(self, token: str) -> None:
        self._token = token.encode()
        # A streaming handler reads its messages one by one, when it asks for them: this never does.
        self._refusal = grpc.stream_stream_rpc_method_handler(_refuse)

    def intercept_service(self, continuation: Any, details: grpc.HandlerCallDetails) -> Any:
        given = dict(details.invocation_metadata).get(TOKEN_KEY, "")
        if hmac.compare_digest(str(given).encode(), self._token):
            return continuation(details)
        return self._refusal


def _refuse(_: Iterator[bytes], context: grpc.ServicerContext) -> None:
    context.abort(grpc.StatusCode.UNAUTHENTICATED, "the job's token is needed")


class AgentStream:
    """An agent's end: `send` queues, `on_message` runs on one thread, `on_close` when it ends."""

    def __init__(
        self,
        address: str,
        token: str,
        hello: Message,
        on_message: Callable[[Message, bytes], None],
        on_close: Callable[[str], None],
    ) -> None:
        self._outbox: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self.pending_bytes = 0
        """Of the messages that gRPC has not taken yet."""
        first = frames.encode({**hello, "op": "hello", "version": VERSION})
        self._channel = grpc.insecure_channel(address, options=_options(address))
        method = self._channel.stream_stream(f"/{SERVICE}/Agent")
        self._call = method(
            self._messages(first), metadata=((TOKEN_KEY, token),), wait_for_ready=True
        )
        self._on_message, self._on_close = on_message, on_close
        threading.Thread(target=self._read, daemon=True, name="control").start()

    def send(self, message: Mapping[str, Any], blob: bytes = b"") -> None:
        frame = frames.encode(message, *((blob,) if blob else ()))
        with self._lock:
            self.pending_bytes += len(frame)
        self._outbox.put(frame)

    def _messages(self, first: bytes) -> Iterator[bytes]:
        yield first
        while (frame := self._outbox.get()) is not None:
            for piece in _pieces(frame):
                with self._lock:
                    self.pending_bytes -= len(piece) - 1
                yield piece

    def close(self, limit_s: float = 2.0) -> None:
        """Send what is queued, then end the stream."""
        self._outbox.put(None)
        done = threading.Event()
        self._call.add_callback(done.set)
        done.wait(limit_s)
        self._channel.close()

    def _read(self) -> None:
        why = "the head closed the stream"
        try:
            for frame in _joined(self._call):
                self._on_message(frame.message, frame.blob)
        except grpc.RpcError as error:
            why = f"{error.code().name}: {error.details()}"  # type: ignore[attr-defined]
        self._on_close(why)


def call(
    address: str, token: str, message: Mapping[str, Any], limit_s: float = CALL_LIMIT_S
) -> Message:
    """One question to the head of a job.

    Raises:
        AuthError: the token is not the job's.
        HostError: nobody answers at `address`.
    """
    with grpc.insecure_channel(address, options=_options(address)) as channel:
        ask = channel.unary_unary(f"/{SERVICE}/Call")
        try:
            answer = ask(frames.encode(message), timeout=limit_s, metadata=((TOKEN_KEY, token),))
        except grpc.RpcError as error:
            code, details = error.code(), error.details()  # type: ignore[attr-defined]
            if code is grpc.StatusCode.UNAUTHENTICATED:
                raise AuthError(
                    f"launcher at {address}: {details}; this call was refused"
                ) from None
            raise HostError(f"launcher at {address}: {code.name}: {details}") from None
    return frames.decode(answer).message


def _pieces(frame: bytes) -> Iterator[bytes]:
    view = memoryview(frame)
    for start in range(0, len(frame), _PIECE_BYTES):
        is_last = start + _PIECE_BYTES >= len(frame)
        yield b"".join((_LAST if is_last else _MORE, view[start : start + _PIECE_BYTES]))


def _joined(pieces: Iterable[bytes]) -> Iterator[frames.Frame]:
    parts: list[memoryview] = []
    for piece in pieces:
        parts.append(memoryview(piece)[1:])
        if piece.startswith(_LAST):
            whole = b"".join(parts)
            parts.clear()
            yield frames.decode(whole)


def _options(address: str) -> tuple[tuple[str, int], ...]:
    on_loopback = address.startswith(LOOPBACK)
    return _OPTIONS if on_loopback else (*_OPTIONS, *_KEEPALIVE)
