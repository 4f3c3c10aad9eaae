"""The program of what is pending on a device, lowered for a topology and given to its compiler."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import jax

from torch_xdist import platforms
from torch_xdist.ahead import wide
from torch_xdist.ahead.compiler import Compiler
from torch_xdist.ahead.retarget import retargeted
from torch_xdist.ahead.topology import Topology, devices
from torch_xdist.ahead.verdict import REFUSED, Verdict
from torch_xdist.core.composites import splash_attention
from torch_xdist.core.devices import device as devices_here
from torch_xdist.core.programs import compile_options, program
from torch_xdist.core.programs.jax_internals import module_bytes, options_in
from torch_xdist.core.programs.launch import Launch, live_values, prepare
from torch_xdist.core.trace.trace import rows_of
from torch_xdist.dynamo.private_names import _clear_pending_irs


def pending(topology: Topology, compiler: Compiler) -> Verdict:
    """Compile what this thread has recorded since its last cut; it stays pending.

    The program is that of the next cut: the same results, the same buffers donated. It must have
    been recorded inside `aim.at` the topology's devices.
    """
    trace: Any = devices_here.trace_of(devices_here.default_index())
    tape = trace.tape
    values = live_values(tape)
    outs = sorted({value.slot for value in values} - tape.buffers.keys())
    tilings = {v.slot: t for v in values if (t := getattr(v, "tiling", None)) is not None}
    del values
    launch = prepare(tape, trace.device, outs, may_donate=True, tilings=tilings)
    return compiled(launch, topology, compiler)


def compiled(launch: Launch, topology: Topology, compiler: Compiler) -> Verdict:
    """Compile the program of a launch for a topology."""
    there = devices(topology)
    count = 1 if launch.placement is None and not launch.tape.collectives else len(there)
    target = retargeted(launch, there[:count])
    try:
        lowered = program.lowered(target)
    except NotImplementedError as error:
        return Verdict(REFUSED, f"JAX has no form of it for this platform: {error}")
    order = target.device.layout.order if launch.placement is not None else range(count)
    verdict = compiler.compile(
        module_bytes(lowered), topology, [*order], options_of(lowered, there, count)
    )
    inside = wide.inside(lowered.compiler_ir("stablehlo"))
    told = with_kernels(verdict, launch)
    return replace(told, donated=sum(launch.mask), wide_inside=inside)


def with_kernels(verdict: Verdict, launch: Launch) -> Verdict:
    """What is told of a program, with what its kernels compute, which XLA does not count."""
    if not verdict.is_ok:
        return verdict
    more = sum(splash_attention.flops(row[0]) for _, row in rows_of(launch.entries))
    return replace(verdict, flops=verdict.flops + more)


def options_of(lowered: Any, there: Sequence[jax.Device], count: int) -> dict[str, Any]:
    """With what a lowered program of so many of these devices is compiled."""
    several = compile_options.options_of_several(platforms.of(there[0].platform))
    return {**(several if count > 1 else {}), **options_in(lowered)}


def forget() -> None:
    """Drop what this thread has recorded since its last cut."""
    _clear_pending_irs()
