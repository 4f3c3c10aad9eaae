"""A job that is rehearsed for a topology: its programs are compiled for that, and none runs.

`xla-run compile` starts the user's script with XDIST_REHEARSE set. The script is then one rank of
the topology: its device is a chip that is described alone, its buffers hold nothing, and what makes
a program compiles it in another process (see `compiler`) and returns what hands out zeros. After
some steps the process ends. What was found is in a file, which is written anew as it grows.
"""

import atexit
import json
import os
import sys
import threading
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NoReturn

from torch_xdist import dtypes, settings, world
from torch_xdist.ahead import largest, saved, step
from torch_xdist.ahead.alone import Alone
from torch_xdist.ahead.compiler import Compiler
from torch_xdist.ahead.hollow import TALLY, Hollow
from torch_xdist.ahead.hollow_layout import HollowLayout
from torch_xdist.ahead.topology import Topology, devices
from torch_xdist.ahead.verdict import REFUSED, Verdict
from torch_xdist.collectives.messages import communicator
from torch_xdist.core.devices import closures, transfer
from torch_xdist.core.devices import device as devices_here
from torch_xdist.core.programs import program
from torch_xdist.core.programs.jax_internals import module_bytes
from torch_xdist.core.programs.launch import Launch
from torch_xdist.core.trace import notes
from torch_xdist.core.trace.trace import types_of
from torch_xdist.core.trace.user_frames import shortened, user_line
from torch_xdist.system.process_tree import die_with_parent

# One program may take as long: the largest that were tried took minutes.
_LIMIT_S = 1800.0
# A script that never ends a step would go on for ever.
_RUNS_AT_MOST = 100


@dataclass(slots=True)
class Found:
    """One program: where it was cut, what the compiler made of it, and how often it was asked for.

    Attributes:
        held_bytes: of buffers on the chip that are no arguments of it, before their padding.
        state_bytes, batch_bytes: of its arguments on the chip, before their padding: those that it
            may write its results to, which are parameters and their states, and the others.
        runs: by the number of the step.
    """

    where: str
    rows: int
    verdict: Verdict
    held_bytes: int
    state_bytes: int
    batch_bytes: int
    largest: list[dict[str, Any]]
    runs: Counter[int] = field(default_factory=Counter)

    def told(self) -> dict[str, Any]:
        """For the file: all but the HLO."""
        verdict = self.verdict
        return {
            "where": self.where,
            "operators": self.rows,
            "outcome": verdict.kind,
            "words": verdict.words,
            "seconds": round(verdict.seconds, 3),
            "bytes": {
                **verdict.bytes,
                "held": self.held_bytes,
                "state": self.state_bytes,
                "batch": self.batch_bytes,
            },
            "flops": verdict.flops,
            "accessed_bytes": verdict.accessed_bytes,
            "collectives": verdict.exchanges,
            "largest": self.largest,
            "across_slices": verdict.across_slices,
            "runs": dict(self.runs),
        }


class Rehearsal:
    """The rehearsal of this process; `asked` is what XDIST_REHEARSE says."""

    def __init__(self, asked: dict[str, Any]) -> None:
        self._topology = Topology(asked["topology"], asked["slices"])
        self._name = asked["name"]
        self._steps = asked["steps"]
        self._memory_bytes = asked["memory"]
        self._report = Path(asked["report"])
        self._saved = saved.Folder(asked["save"]) if asked["save"] else None
        self._kept = 0
        self._compiler = Compiler(_LIMIT_S)
        self._lock = threading.Lock()
        self._found: list[Found] = []
        self._step = 0
        self._is_over = False

    def start(self) -> None:
        """The chips become the devices of this process, just before its first use of one."""
        there = devices(self._topology)[: world.of_process().world_size]
        devices_here.describe(there, HollowLayout, self._memory)
        communicator.use(Alone(world.of_process().world_size))
        closures.add_step_closure(self._step_ended)

    def _memory(self) -> dict[str, int]:
        return {"bytes_in_use": TALLY.live_bytes, "bytes_limit": self._memory_bytes}

    def build(self, made: program.Program, launch: Launch) -> Any:
        """Compile a program there; returns what runs it."""
        state, batch = map(_local_bytes, (launch.donated, launch.kept))
        held = TALLY.live_bytes - state - batch
        where, began = shortened(user_line()), time.monotonic()
        number = len(self._found) + 1
        self._tell(
            f"compiling program {number} for {self._name}:"
            f" step {self._step + 1}, {made.rows} operators ({where})"
        )
        verdict = step.with_kernels(self._compiled(made, launch), launch)
        for one in verdict.exchanges:
            group = one.pop("group")
            one.update(ranks=len(group), axes=self._axes(launch, group))
        sizes = max(0, held), state, batch
        found = Found(where, made.rows, verdict, *sizes, largest.of_launch(launch))
        took_s = time.monotonic() - began
        self._tell(f"program {number}: {found.verdict.kind} after {took_s:.0f} s")
        with self._lock:
            self._found.append(found)
        self.write()
        return self._runner(found, launch)

    def _compiled(self, made: program.Program, launch: Launch) -> Verdict:
        try:
            lowered = made.executable.lower(program.signature(launch, made))
        except NotImplementedError as error:
            return Verdict(REFUSED, f"JAX has no form of it for this platform: {error}")
        places, module = self._places(launch), module_bytes(lowered)
        options = step.options_of(lowered, devices(self._topology), len(places))
        if self._saved is None:
            return self._compiler.compile(module, self._topology, places, options)
        given = saved.given(lowered, options)
        verdict = self._compiler.compile(module, self._topology, places, options, given.options)
        if verdict.is_ok:
            self._saved.keep(given.key, verdict.executable, verdict.seconds)
            self._kept += 1
        return replace(verdict, executable=b"")

    def _places(self, launch: Launch) -> list[int]:
        layout = launch.device.layout
        if layout is not None:
            return [*layout.order]
        has_collectives = bool(launch.tape.collectives) and bool(launch.device.peers)
        return [*range(len(launch.device.peers) if has_collectives else 1)]

    def _axes(self, launch: Launch, group: list[int]) -> list[str]:
        """Along which axes of the torus a group lies; "slices" where it leaves the slice."""
        there, places = devices(self._topology), self._places(launch)
        members: list[Any] = [there[places[place]] for place in group]
        # A v4's cores are devices of one chip.
        names = [*zip("xyz", zip(*[[*one.coords] for one in members]))]
        names.append(("cores", tuple(one.core_on_chip for one in members)))
        names.append(("slices", tuple(getattr(one, "slice_index", 0) for one in members)))
        return [name for name, along in names if len({*along}) > 1]

    def _runner(self, found: Found, launch: Launch) -> Any:
        """What stands for a run: arguments that are given away go, results come, all hollow."""
        types = types_of(launch.entries)
        shapes = [(types[slot].shape, dtypes.to_jax(types[slot].dtype)) for slot in launch.outs]
        layout: Any = launch.device.layout
        said = launch.placement.results if launch.placement is not None else ()
        number = len(self._found)
        laid = found.verdict.result_shardings or [""] * len(shapes)

        def run(donated: Any, kept: Any, floats: Any, ints: Any) -> list[Any]:
            for buffer in donated:
                buffer.delete()
            found.runs[self._step] += 1
            if found.runs[self._step] >= _RUNS_AT_MOST:
                self.end(f"program {number} has run {_RUNS_AT_MOST} times in one step")
            if layout is None:
                return [Hollow(shape, dtype) for shape, dtype in shapes]
            return [layout.result(*one, *how) for one, how in zip(shapes, zip(said, laid))]

        return run

    def _step_ended(self) -> None:
        self._step += 1
        if self._step >= self._steps:
            self.end("")
        closures.add_step_closure(self._step_ended)

    def end(self, why: str) -> NoReturn:
        """Write what was found and end the process: what the script does next is nobody's wish."""
        self._is_over = True
        self.write(why)
        self._compiler.close()
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        os._exit(0)

    def at_exit(self) -> None:
        """The script has ended by itself."""
        if not self._is_over:
            self.write()
            self._compiler.close()

    def write(self, why: str = "") -> None:
        """Write the file, at once for who reads it."""
        chip = devices(self._topology)[0]
        told = {
            "topology": str(self._topology),
            "chips": world.of_process().world_size,
            "kind": chip.device_kind,
            "steps": self._step,
            "ended": why,
            "kept": self._kept,
            "programs": [found.told() for found in self._found],
        }
        beside = self._report.with_suffix(".new")
        # It may hold what the script's lines say, in a folder of everybody.
        with open(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            json.dump(told, file)
        beside.replace(self._report)

    def _tell(self, text: str) -> None:
        print(f"xla-run compile: {text}", file=sys.stderr, flush=True)


def begin() -> None:
    """Rehearse from the first use of a device on."""
    die_with_parent()
    # So that the largest arrays have lines of the script.
    notes.set_noting(True)
    rehearsal = Rehearsal(settings.rehearsal())
    devices_here.start_with(rehearsal.start)
    program.build_with(rehearsal.build)
    transfer.place_with(lambda there: Hollow.of)
    atexit.register(rehearsal.at_exit)


def _local_bytes(buffers: Sequence[Any]) -> int:
    return sum(buffer.local_bytes for buffer in buffers if isinstance(buffer, Hollow))
