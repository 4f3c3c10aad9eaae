#!/usr/bin/env python
"""Time collectives between ranks of several hosts: ours inside a program, beside torch's gloo.

    scripts/bench_hosts.py [--hosts 2] [--ranks 2] [--mb 0.001,0.0625,1,25,100] [--repeat 10]
                           [--rate 1gbit] [--loss 1] [--sides hosts,gloo] [--op all_gather]

The hosts are network namespaces on a bridge, so it needs root; with `--hosts 1` it needs none. The
sides are `gloo`, which is torch's, `hosts`, `mesh`, and on one host also `host`. A size is that of
the whole tensor: of an all-gather each rank brings its part. All live at once and are timed by
turns, so that a busy machine slows each of them. One JSON line per size: milliseconds of the
slowest rank, as the median over the turns with the quartiles, and each side's median over gloo's.
`--rate` limits what each host sends (tc's words), `--loss` is the percentage of its packets that
get lost, of 1500 bytes each then.
"""

import argparse
import contextlib
import json
import os
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

_NET = "10.203.17"
_OPS = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "all_to_all")
# Of all packets, those whose random number is below a bound go to a class whose queue holds none.
_LOSE = "4,32 0 0 4294963256,53 1 0 {bound},6 0 0 4294967295,6 0 0 0"
Call = Callable[[], None]


def main() -> None:
    """Read the options and time each size."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])  # type: ignore[union-attr]
    parser.add_argument("--hosts", type=int, default=2)
    parser.add_argument("--ranks", type=int, default=2, help="on each host")
    parser.add_argument("--mb", default="0.001,0.0625,1,25,100")
    parser.add_argument("--repeat", type=int, default=10)
    parser.add_argument("--rate", default="", help="of each host's link: 1gbit")
    parser.add_argument("--loss", type=float, default=0.0, help="percent of the packets")
    parser.add_argument("--sides", default="hosts,gloo")
    parser.add_argument("--op", choices=_OPS, default=_OPS[0])
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        _serve(options.serve, options.op)
        return
    if options.hosts > 1 and os.geteuid():
        sys.exit(f"bench_hosts: {options.hosts} hosts are network namespaces, which root makes")
    with contextlib.ExitStack() as stack:
        spaces = stack.enter_context(_spaces(options.hosts, options.rate, options.loss))
        sides = options.sides.split(",")
        worlds = {
            side: stack.enter_context(_world(side, number, spaces, options.ranks, options.op))
            for number, side in enumerate(sides)
        }
        facts = {name: getattr(options, name) for name in ("op", "hosts", "ranks", "rate", "loss")}
        for megabytes in map(float, options.mb.split(",")):
            times = _times(worlds, max(1, round(megabytes * 250_000) // 48) * 48, options.repeat)
            print(json.dumps({**facts, "mb": megabytes, **_told(times)}), flush=True)


def _times(worlds: dict[str, "World"], count: int, repeat: int) -> dict[str, list[float]]:
    times: dict[str, list[float]] = {side: [] for side in worlds}
    for turn in range(repeat + 2):
        for side, world in worlds.items():
            taken_s = world.run(count)
            if turn >= 2:
                times[side].append(taken_s)
    return times


def _told(times: dict[str, list[float]]) -> dict[str, Any]:
    told: dict[str, Any] = {}
    medians = {side: statistics.median(seconds) for side, seconds in times.items()}
    for side, seconds in times.items():
        low, _, high = statistics.quantiles(seconds, n=4)
        told[f"{side}_ms"] = round(medians[side] * 1e3, 3)
        told[f"{side}_quartiles_ms"] = [round(low * 1e3, 3), round(high * 1e3, 3)]
    for side in times:
        if side != "gloo" and "gloo" in times:
            told[f"{side}_to_gloo"] = round(medians[side] / medians["gloo"], 2)
    return told


@contextlib.contextmanager
def _spaces(hosts: int, rate: str, loss: float) -> Iterator[list[str]]:
    """The names of the hosts' namespaces; "" for this one, where there is one host."""
    if hosts == 1:
        yield [""]
        return
    mark = f"bh{os.getpid() % 100_000}"
    spaces = [f"{mark}n{host}" for host in range(hosts)]
    try:
        _tool(f"ip link add {mark}b type bridge")
        _tool(f"ip link set {mark}b up")
        for host, space in enumerate(spaces):
            _tool(f"ip netns add {space}")
            _tool(f"ip link add {space}v type veth peer name eth0 netns {space}")
            _tool(f"ip link set {space}v master {mark}b up")
            _tool(f"ip -n {space} addr add {_NET}.{host + 1}/24 dev eth0")
            for device in ("lo", "eth0"):
                _tool(f"ip -n {space} link set {device} up")
            if rate or loss:
                _limit(space, rate or "100gbit", loss)
        yield spaces
    finally:
        for space in spaces:
            _tool(f"ip netns del {space}", check=False)
        _tool(f"ip link del {mark}b", check=False)


def _limit(space: str, rate: str, loss: float) -> None:
    tc = f"ip netns exec {space} tc"
    _tool(f"{tc} qdisc add dev eth0 root handle 1: htb default 10")
    _tool(f"{tc} class add dev eth0 parent 1: classid 1:10 htb rate {rate} burst 256k cburst 256k")
    _tool(f"{tc} qdisc add dev eth0 parent 1:10 pfifo limit 1000")
    if loss:
        _tool(f"ip -n {space} link set dev eth0 gso_max_segs 1")
        _tool(f"{tc} class add dev eth0 parent 1: classid 1:20 htb rate 1mbit")
        _tool(f"{tc} qdisc add dev eth0 parent 1:20 bfifo limit 1")
        program = _LOSE.format(bound=round(loss / 100 * 2**32))
        words = f"{tc} filter add dev eth0 parent 1: protocol all prio 1 bpf bytecode".split()
        subprocess.run([*words, program, "flowid", "1:20"], check=True)


def _tool(line: str, *, check: bool = True) -> None:
    subprocess.run(line.split(), check=check, stderr=None if check else subprocess.DEVNULL)


class World:
    """The processes of one side, waiting for orders."""

    def __init__(self, processes: list[subprocess.Popen[str]]) -> None:
        self.processes = processes

    def run(self, count: int) -> float:
        """Seconds that a collective of `count` float32 takes on the slowest rank."""
        for process in self.processes:
            assert process.stdin is not None
            process.stdin.write(f"{count}\n")
            process.stdin.flush()
        return max(self._answer(process) for process in self.processes)

    @staticmethod
    def _answer(process: subprocess.Popen[str]) -> float:
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line:
            sys.exit(f"bench_hosts: a rank ended with {process.wait()}; its error is above")
        return float(line)


@contextlib.contextmanager
def _world(side: str, number: int, spaces: list[str], local_size: int, op: str) -> Iterator[World]:
    size = local_size * len(spaces)
    processes = []
    secret, port = os.urandom(16).hex(), 29400 + 10 * number if len(spaces) > 1 else _port()
    for rank in range(size):
        host, local_rank = divmod(rank, local_size)
        environ = {
            **os.environ,
            "RANK": str(rank),
            "LOCAL_RANK": str(local_rank),
            "WORLD_SIZE": str(size),
            "LOCAL_WORLD_SIZE": str(local_size),
            "GROUP_RANK": str(host),
            "GROUP_WORLD_SIZE": str(len(spaces)),
            "MASTER_ADDR": f"{_NET}.1" if len(spaces) > 1 else "127.0.0.1",
            "MASTER_PORT": str(port),
            "XLA_RUN_SECRET": secret,
            "XDIST_TRANSPORT": side,
            "GLOO_SOCKET_IFNAME": "eth0" if len(spaces) > 1 else "lo",
            "PJRT_DEVICE": "CPU",
        }
        if side == "gloo":
            del environ["XDIST_TRANSPORT"]
        before = ["ip", "netns", "exec", spaces[host]] if spaces[host] else []
        words = [*before, sys.executable, os.path.abspath(__file__), "--serve", side, "--op", op]
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        processes.append(subprocess.Popen(words, env=environ, **pipes))
    try:
        yield World(processes)
    finally:
        # Rank 0 last: it serves what the others met at, and they say so when that goes first.
        for process in reversed(processes):
            process.kill()
            process.wait()


def _port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _serve(side: str, op: str) -> None:
    # What libraries print must not be taken for an answer.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    make = _gloo(op) if side == "gloo" else _ours(op)
    barrier = make(4 * int(os.environ["WORLD_SIZE"]))
    calls: dict[int, Call] = {}
    for line in sys.stdin:
        count = int(line)
        if count not in calls:
            calls.clear()
            calls[count] = make(count)
        barrier()
        start_s = time.perf_counter()
        calls[count]()
        answers.write(f"{time.perf_counter() - start_s}\n")
        answers.flush()


def _gloo(op: str) -> Callable[[int], Call]:
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo")

    def make(count: int) -> Call:
        x, part = torch.zeros(count), torch.zeros(count // dist.get_world_size())
        return {
            "all_reduce": lambda: dist.all_reduce(x),
            "all_gather": lambda: dist.all_gather_into_tensor(x, part),
            "reduce_scatter": lambda: dist.reduce_scatter_tensor(part, x),
            "broadcast": lambda: dist.broadcast(x, 0),
            "all_to_all": lambda: dist.all_to_all_single(torch.empty_like(x), x),
        }[op]

    return make


def _ours(op: str) -> Callable[[int], Call]:
    import jax
    import jax.numpy as jnp

    from torch_xdist import world
    from torch_xdist.collectives import inside
    from torch_xdist.core.programs import collective_program

    jax.config.update("jax_platforms", "cpu")
    world.join()

    collective = {
        "all_reduce": lambda x: inside.all_reduce([x], "sum")[0],
        "all_gather": lambda x: inside.all_gather(x, 0),
        "reduce_scatter": lambda x: inside.reduce_scatter(x, "sum", 0),
        "broadcast": lambda x: inside.broadcast(x, 0),
        "all_to_all": lambda x: inside.all_to_all(x, 0, 0),
    }[op]

    def step(donated: Any, kept: Any, floats: Any, ints: Any) -> list[jax.Array]:
        return [collective(x) for x in [*donated, *kept]]

    def make(count: int) -> Call:
        device = jax.local_devices()[0]
        calls = [(f"{op} of {count}", "bench_hosts.py")]
        program = collective_program.executable(step, calls, device, {})
        size = count // world.world_size() if op == "all_gather" else count
        x = [jax.device_put(jnp.zeros(size, jnp.float32), device)]
        numbers = jnp.zeros(1, jnp.float32), jnp.zeros(1, jnp.int32)
        # Gradients are reduced where they lie; other collectives leave their operand alone.
        in_place = op == "all_reduce"
        run = program.compile((x, [], *numbers) if in_place else ([], x, *numbers))

        def call() -> None:
            if in_place:
                x[:] = run(x, [], *numbers)
                jax.block_until_ready(x)
            else:
                jax.block_until_ready(run([], x, *numbers))

        return call

    return make


if __name__ == "__main__":
    main()
