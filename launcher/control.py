"""The control plane: one gRPC stream from every agent to the controller, and single calls to it.

No protobuf: a message is one frame (`frames.py`). Every call carries the job's token in its
metadata; it is compared in constant time, before a byte of the message is read. The server listens
on loopback unless it is told another address, and never shares its port.
"""

import hmac
import queue
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc

from torch_xdist.launcher import frames
from torch_xdist.launcher.errors import AuthError, HostError
from torch_xdist.launcher.frames import Message

SERVICE = "xlarun.Control"
TOKEN_KEY = "xla-run-token"
CALL_LIMIT_S = 30.0
_OPTIONS = (
    ("grpc.so_reuseport", 0),
    ("grpc.enable_http_proxy", 0),
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    ("grpc.keepalive_time_ms", 5_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.http2.min_ping_interval_without_data_ms", 4_000),
)

OnMessage = Callable[[int, Message, bytes], None]
OnCall = Callable[[Message], Message]


class Server:
    """The controller's end. `on_message` and `on_call` run on gRPC's threads."""

    def __init__(
        self,
        token: str,
        on_message: OnMessage,
        on_call: OnCall,
        host: str = "127.0.0.1",
        hosts: int = 1,
    ) -> None:
        self._token = token.encode()
        self._on_message, self._on_call = on_message, on_call
        self._outboxes: dict[int, queue.SimpleQueue[bytes | None]] = {}
        self._lock = threading.Lock()
        self._server = grpc.server(ThreadPoolExecutor(hosts + 4), options=_OPTIONS)
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

    def send(self, host: int, message: Mapping[str, Any], blob: bytes = b"") -> None:
        """Queue a message for the agent of `host`; kept until the agent has connected."""
        self._outbox(host).put(frames.encode(message, blob))

    def close(self) -> None:
        for outbox in self._outboxes.values():
            outbox.put(None)
        self._server.stop(grace=0.5).wait()

    def _outbox(self, host: int) -> "queue.SimpleQueue[bytes | None]":
        with self._lock:
            return self._outboxes.setdefault(host, queue.SimpleQueue())

    def _check(self, context: grpc.ServicerContext) -> None:
        given = dict(context.invocation_metadata()).get(TOKEN_KEY, "")
        if not hmac.compare_digest(str(given).encode(), self._token):
            context.abort(grpc.StatusCode.UNAUTHENTICATED, "the job's token is needed")

    def _agent(self, requests: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
        self._check(context)
        hello, _ = frames.decode(next(requests))
        host = int(hello["host_index"])
        outbox = self._outbox(host)
        reader = threading.Thread(
            target=self._read, args=(host, hello, requests, outbox), daemon=True
        )
        reader.start()
        context.add_callback(lambda: outbox.put(None))
        while (frame := outbox.get()) is not None:
            yield frame

    def _read(
        self,
        host: int,
        hello: Message,
        requests: Iterator[bytes],
        outbox: "queue.SimpleQueue[bytes | None]",
    ) -> None:
        self._on_message(host, hello, b"")
        why = "the agent closed its stream"
        try:
            for frame in requests:
                self._on_message(host, *frames.decode(frame))
        except Exception as error:
            why = type(error).__name__
        # The agent waits for the end of its call: until then it cannot know that all has arrived.
        outbox.put(None)
        self._on_message(host, {"op": "gone", "why": why}, b"")

    def _call(self, request: bytes, context: grpc.ServicerContext) -> bytes:
        self._check(context)
        return frames.encode(self._on_call(frames.decode(request)[0]))


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
        self.send(hello)
        self._channel = grpc.insecure_channel(address, options=_OPTIONS)
        method = self._channel.stream_stream(f"/{SERVICE}/Agent")
        self._call = method(
            iter(self._outbox.get, None), metadata=((TOKEN_KEY, token),), wait_for_ready=True
        )
        self._on_message, self._on_close = on_message, on_close
        threading.Thread(target=self._read, daemon=True, name="control").start()

    def send(self, message: Mapping[str, Any], blob: bytes = b"") -> None:
        self._outbox.put(frames.encode(message, blob))

    def pending(self) -> int:
        """Messages that the controller has not taken yet."""
        return self._outbox.qsize()

    def close(self, limit_s: float = 2.0) -> None:
        """Send what is queued, then end the stream."""
        self._outbox.put(None)
        done = threading.Event()
        self._call.add_callback(done.set)
        done.wait(limit_s)
        self._channel.close()

    def _read(self) -> None:
        why = "the controller closed the stream"
        try:
            for frame in self._call:
                self._on_message(*frames.decode(frame))
        except grpc.RpcError as error:
            why = f"{error.code().name}: {error.details()}"  # type: ignore[attr-defined]
        self._on_close(why)


def call(
    address: str, token: str, message: Mapping[str, Any], limit_s: float = CALL_LIMIT_S
) -> Message:
    """One question to a controller.

    Raises:
        AuthError: the token is not the job's.
        HostError: nobody answers at `address`.
    """
    with grpc.insecure_channel(address, options=_OPTIONS) as channel:
        ask = channel.unary_unary(f"/{SERVICE}/Call")
        try:
            answer = ask(frames.encode(message), timeout=limit_s, metadata=((TOKEN_KEY, token),))
        except grpc.RpcError as error:
            code, details = error.code(), error.details()  # type: ignore[attr-defined]
            if code is grpc.StatusCode.UNAUTHENTICATED:
                raise AuthError(
                    f"controller at {address}: {details}; this call was refused"
                ) from None
            raise HostError(f"controller at {address}: {code.name}: {details}") from None
    return frames.decode(answer)[0]
