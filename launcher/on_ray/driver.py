"""The Ray driver of one attempt: a child of the head, the only process here that loads Ray.

Ray ends a driver whose cluster is gone, puts in signal handlers and prints: none of that shall
happen to the head. What the head wants comes over the socket that is stdin: the request, then each
host with a descriptor, whose bytes are carried to that host's agent and back, unread. Where the
socket ends, so does this process, and with it all that Ray holds for it: actors and placement.
"""

import contextlib
import logging
import os
import select
import socket
import sys
import threading
import time
from typing import Any

from torch_xdist.launcher.facts.errors import ExitCode
from torch_xdist.launcher.on_ray import actor as actors
from torch_xdist.launcher.on_ray.request import Request, needed, shortage, words_of
from torch_xdist.system.frames import Frame, Link, Message, write_all

# What is larger would go through Ray's object store, and from there perhaps to a disk.
_MOST_BYTES = 64 << 10
_CONNECT_S = 5.0
_LOOK_S = 0.5
_NOTICE_S = 10.0
# Ray's words for a server of its client that did not answer within half a minute.
_NO_SERVER = "Starting Ray client server failed"


class Refused(Exception):
    """The job cannot begin: the exit code and the words."""


def main() -> None:
    """`python -m torch_xdist.launcher.on_ray.driver`."""
    link = Link(socket.socket(fileno=os.dup(0)))
    # Its end says that the head is gone, also while Ray is waited for.
    threading.Thread(target=_leave_with_head, args=(link.fileno(),), daemon=True).start()
    code = 0
    try:
        received = link.receive()
        if received is not None:
            _Driver(link, received.message).run()
    except Refused as refused:
        code, text = refused.args
        link.send({"op": "refused", "exit_code": int(code), "text": text})
    # Ray's own end of a process may wait for a cluster that is gone.
    os._exit(int(code))


def _leave_with_head(fd: int) -> None:
    poll = select.poll()
    poll.register(fd, select.POLLRDHUP)
    poll.poll()
    os._exit(0)


class _Driver:
    def __init__(self, link: Link, first: Message) -> None:
        self._link, self._request = link, Request(**first["request"])
        self._until_s, self._python = float(first["until_s"]), str(first["python"])

    def run(self) -> None:
        self._ray = self._connected()
        group = self._placed()
        carriers = [
            threading.Thread(target=self._carry, args=(group, frame)) for frame in self._hosts()
        ]
        for carrier in carriers:
            carrier.start()
        for carrier in carriers:
            carrier.join()
        with contextlib.suppress(Exception):
            self._ray.util.remove_placement_group(group)
        self._ray.shutdown()

    def _hosts(self) -> list[Frame]:
        """What the head says of each host, with the descriptor of its stream."""
        found = [self._link.receive() for _ in range(self._request.hosts)]
        return [frame for frame in found if frame is not None]

    def _connected(self) -> Any:
        """Ray, with the cluster."""
        try:
            import ray
        except ImportError as error:
            raise Refused(
                ExitCode.PREFLIGHT,
                f"--ray: Ray cannot be loaded by {sys.executable} ({error}); install it: "
                "pip install 'torch-xdist[ray]'",
            ) from None
        address = self._request.address
        try:
            self._reach(address)
            self._join(ray, address)
        except (ConnectionError, TimeoutError, OSError) as error:
            raise Refused(ExitCode.HOST, _no_cluster(address, str(error))) from None
        except RuntimeError as error:
            text = " ".join(str(error).split())
            if "ersion mismatch" in text:
                raise Refused(
                    ExitCode.PREFLIGHT,
                    f"Ray cluster {address}: {text}; use the cluster's releases of Ray and Python",
                ) from None
            raise Refused(ExitCode.HOST, _no_cluster(address, text)) from None
        return ray

    def _join(self, ray: Any, address: str) -> None:
        """Become a driver of the cluster.

        Ray forks a server for each client beside threads of gRPC, and one that was forked in an
        unlucky moment never answers: another one is asked for.
        """
        while True:
            try:
                ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
                return
            except (ConnectionError, RuntimeError) as error:
                if _NO_SERVER not in str(error) or time.monotonic() >= self._until_s:
                    raise
            text = f"{address}: {_NO_SERVER[0].lower()}{_NO_SERVER[1:]}; Ray is asked for another"
            self._link.send({"op": "note", "text": text})

    def _reach(self, address: str) -> None:
        """Whether somebody listens there: Ray itself tries for long."""
        host, _, port = address.rpartition(":")
        if host and port.isdecimal() and "/" not in host:
            socket.create_connection((host, int(port)), _CONNECT_S).close()

    def _placed(self) -> Any:
        """The placement group, when all of it is there."""
        from ray.util.placement_group import placement_group

        bundles = [dict(self._request.resources) for _ in range(self._request.hosts)]
        group = placement_group(bundles, strategy="STRICT_SPREAD", name=self._request.name)
        notice_at_s = time.monotonic() + _NOTICE_S
        while not group.wait(_LOOK_S):
            now_s = time.monotonic()
            if now_s >= self._until_s:
                raise Refused(ExitCode.RENDEZVOUS, f"Ray has found no place: {self._shortage()}")
            if now_s >= notice_at_s:
                notice_at_s = now_s + 3 * _NOTICE_S
                self._link.send({"op": "note", "text": f"Ray finds no place: {self._shortage()}"})
        return group

    def _shortage(self) -> str:
        try:
            return shortage(self._request, self._ray.nodes(), self._ray.available_resources())
        except Exception as error:
            return f"{needed(self._request)} are needed ({words_of(error)})"

    # ---- one host, on a thread ------------------------------------------------------------------

    def _carry(self, group: Any, frame: Frame) -> None:
        """Run its agent to its end, and say how that was; then its stream ends."""
        host, (fd,) = frame.message, frame.descriptors
        end: Message = {"op": "ended", "index": host["index"], "why": "", "code": None}
        try:
            end |= self._run_agent(self._actor(group, host["index"]), host, fd)
        except Exception as error:
            end["why"] = f"Ray: {words_of(error)}"
        self._link.send(end)
        with socket.socket(fileno=fd) as sock, contextlib.suppress(OSError):
            sock.shutdown(socket.SHUT_RDWR)

    def _actor(self, group: Any, index: int) -> Any:
        from ray import cloudpickle
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        cloudpickle.register_pickle_by_value(actors)
        given = dict(self._request.resources)
        return (
            self._ray.remote(actors.AgentActor)
            .options(
                num_cpus=given.pop("CPU", 0),
                num_gpus=given.pop("GPU", 0),
                memory=given.pop("memory", None),
                resources=given,
                max_concurrency=4,
                enable_task_events=False,
                scheduling_strategy=PlacementGroupSchedulingStrategy(
                    group, placement_group_bundle_index=index
                ),
            )
            .remote()
        )

    def _run_agent(self, actor: Any, host: Message, fd: int) -> Message:
        ray = self._ray
        try:
            kept = [*(ray.get_runtime_context().runtime_env.get("env_vars") or {})]
            facts = (self._python, host["argv"], host["env"], kept)
            if why := ray.get(actor.start.remote(*facts)):
                return {"why": why}
            threading.Thread(target=self._feed, args=(actor, fd), daemon=True).start()
            while True:
                kind, data, code = ray.get(actor.read.remote(_MOST_BYTES))
                if kind == "end":
                    return {"code": code}
                if kind == "stdout":
                    write_all(fd, data)
                else:
                    text = data.decode(errors="replace")
                    self._link.send({"op": "said", "index": host["index"], "text": text})
        finally:
            with contextlib.suppress(Exception):
                ray.kill(actor)

    def _feed(self, actor: Any, fd: int) -> None:
        """What the head says; one piece is there before the next is sent."""
        with contextlib.suppress(Exception):
            while data := os.read(fd, _MOST_BYTES):
                self._ray.get(actor.write.remote(data))
            actor.write.remote(b"")


def _no_cluster(address: str, why: str) -> str:
    where = "found here" if address == "auto" else f"reached at {address}"
    return (
        f"no Ray cluster can be {where}: {why.strip()}; start one (ray start --head), or name it "
        "by --ray-address or RAY_ADDRESS"
    )


if __name__ == "__main__":
    main()
