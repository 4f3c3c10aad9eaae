"""A training step of a model in bfloat16: the device beside eager torch, torch.compile and JAX.

Each peer has a process of its own, one after the other, so that each has the GPU's memory. All
train the same weights on the same batch with AdamW; losses say whether they compute the same.
"""

import contextlib
import gzip
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from gpu_parts.place import Place

SCRIPT = Path(__file__).resolve().parents[1] / "check_gpu.py"
# In order of importance.
PEERS = ("xdist", "eager", "jax", "inductor")
ROUNDS = 5
# A round is about so long.
_ROUND_S = 1.0
_WARM_STEPS = 3

Launch = Callable[[], Any]


def measure(place: Place, model: str) -> None:
    """All peers of one model, each within its share of the time."""
    found: dict[str, dict[str, Any]] = {}
    for number, peer in enumerate(PEERS):
        limit_s = place.left_s / (len(PEERS) - number)
        told = _in_a_process(place, model, peer, limit_s)
        if "why" in told:
            place.left_out(peer, told["why"])
        else:
            found[peer] = told
            place.found(peer, told)
    place.need("the device's own steps ran", "xdist" in found, ", ".join(found))
    if "xdist" in found:
        compare(place, found)


def compare(place: Place, found: dict[str, dict[str, Any]]) -> None:
    """The device's figures by those of the others, and the aims that they are held against."""
    ours = found["xdist"]
    ratios = {p: round(ours["step_ms"] / f["step_ms"], 3) for p, f in found.items()}
    place.found("step time / peer's", ratios)
    for peer, figures in found.items():
        apart = abs(figures["first_loss"] - ours["first_loss"]) / abs(ours["first_loss"])
        place.need(
            f"the first loss is {peer}'s", apart < 0.02, [ours["first_loss"], figures["first_loss"]]
        )
    if "eager" in ratios:
        place.need_on_gpu("not slower than eager torch", lambda: ratios["eager"] <= 1.0, ratios)
    if "jax" in ratios:
        place.need_on_gpu("within 5 % of JAX", lambda: ratios["jax"] <= 1.05, ratios)
    busy = ours.get("busy_share")
    if busy is not None:
        place.need_on_gpu("the device is busy for 95 % of the time", lambda: busy >= 0.95, busy)


def _in_a_process(place: Place, model: str, peer: str, limit_s: float) -> dict[str, Any]:
    """What the peer's process tells; {"why": ...} where it tells nothing."""
    words = ["--peer", peer, "--only", model, *(["--rehearse"] * place.rehearses)]
    with tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen(
            [sys.executable, str(SCRIPT), *words],
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            env={**os.environ, "TORCHINDUCTOR_FORCE_DISABLE_CACHES": "1"},
        )
        try:
            said, _ = process.communicate(timeout=max(limit_s, 1))
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
            return {"why": f"not done after its {limit_s:.0f} s"}
        for line in reversed(said.splitlines()):
            with contextlib.suppress(ValueError):
                return dict(json.loads(line))
        errors.seek(0)
        last = [line for line in errors.read().splitlines() if line.strip()][-1:]
        return {"why": f"ended with code {process.returncode}: {' '.join(last)[:300]}"}


# ---- one peer, in its own process --------------------------------------------------------------


def figures(model: str, peer: str, rehearses: bool) -> dict[str, Any]:
    """Run it: milliseconds of a step, of these the host's; the first steps; memory; losses."""
    launch, read, wait = _steps(model, peer, rehearses)
    started = time.perf_counter()
    losses = []
    for _ in range(_WARM_STEPS):
        losses.append(read(launch()))
    first_s = time.perf_counter() - started
    started = time.perf_counter()
    launch()
    wait()
    once_s = time.perf_counter() - started
    a_round = 2 if rehearses else max(2, min(50, int(_ROUND_S / once_s)))
    whole, host = [], []
    for _ in range(2 if rehearses else ROUNDS):
        started = time.perf_counter()
        for _ in range(a_round):
            last = launch()
        launched = time.perf_counter()
        wait()
        whole.append((time.perf_counter() - started) / a_round)
        host.append((launched - started) / a_round)
    return {
        "step_ms": round(1e3 * statistics.median(whole), 3),
        "rounds_ms": [round(1e3 * one, 3) for one in whole],
        "host_ms": round(1e3 * statistics.median(host), 3),
        "steps_a_round": a_round,
        "first_three_s": round(first_s, 2),
        "first_loss": losses[0],
        "last_loss": read(last),
        "peak_bytes": peak_bytes(peer, rehearses),
        "busy_share": None if peer in ("eager", "inductor") else _busy(launch, wait),
    }


def _steps(model: str, peer: str, rehearses: bool) -> tuple[Launch, Callable[[Any], float], Launch]:
    """What launches a step and returns its loss, what reads that, and what waits for the device."""
    from large_models import PUBLISHED, TINY

    measured = (TINY if rehearses else PUBLISHED)[model]
    # jaxlib 0.10.2 on CPUs refuses products of bfloat16 that gradients of 1x1 convolutions become.
    is_half = not (rehearses and model == "resnet50")
    if peer == "jax":
        import jax
        import jax_models

        if not is_half:
            jax_models.HALF = jax.numpy.float32
        launch, read = jax_models.step_of(model, measured)
        last: list[Any] = []

        def step() -> Any:
            last[:] = [launch()]
            return last[0]

        return step, read, lambda: jax.block_until_ready(last)
    if peer == "xdist":
        import torch_xla
        import torch_xla.core.xla_model as xm

        launch = _torch_step(measured, torch_xla.device(), torch_xla.sync, is_half)
        return launch, lambda loss: loss.item(), xm.wait_device_ops
    import torch

    place = "cpu" if rehearses else "cuda"
    # Compiling C++ takes a rehearsal's time; how a graph is captured is the same.
    backend = None if peer == "eager" else "aot_eager" if rehearses else "inductor"
    launch = _torch_step(measured, place, lambda: None, is_half, backend)
    return launch, lambda loss: loss.item(), (lambda: None) if rehearses else torch.cuda.synchronize


def _torch_step(
    measured: Any, device: Any, after: Launch, is_half: bool, backend: str | None = None
) -> Launch:
    """AdamW under autocast to bfloat16; convolutions channels last, as eager torch is quickest."""
    import torch

    torch.manual_seed(0)
    model: Any = measured.model()
    inputs, target = measured.batch()
    kind = torch.device(device).type
    model, inputs, target = model.to(device), inputs.to(device), target.to(device)
    if inputs.dim() == 4 and kind == "cuda":
        model, inputs = (one.to(memory_format=torch.channels_last) for one in (model, inputs))
    several = {"fused": True} if kind == "cuda" else {}
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.01, **several)
    run = model if backend is None else torch.compile(model, backend=backend)

    def step() -> torch.Tensor:
        optimizer.zero_grad()
        with torch.autocast(kind, torch.bfloat16, enabled=is_half):
            logits = run(inputs)
        loss = measured.loss(logits, target)
        loss.backward()
        optimizer.step()
        after()
        return loss.detach()

    return step


def peak_bytes(peer: str, rehearses: bool) -> int | None:
    """The most memory of the device that was held at once; None on a CPU."""
    if rehearses:
        return None
    if peer in ("eager", "inductor"):
        import torch

        return torch.cuda.max_memory_allocated()
    import jax

    return int((jax.local_devices()[0].memory_stats() or {}).get("peak_bytes_in_use", 0))


def _busy(launch: Launch, wait: Launch) -> float | None:
    """The share of time in which a kernel ran, of a few steps; None where no GPU was traced."""
    import jax

    with tempfile.TemporaryDirectory() as folder:
        with jax.profiler.trace(folder, create_perfetto_trace=True):
            for _ in range(5):
                launch()
            wait()
        for path in Path(folder).rglob("perfetto_trace.json.gz"):
            with gzip.open(path) as file:
                return busy_share(json.load(file).get("traceEvents", []))
    return None


def busy_share(events: Iterable[dict[str, Any]]) -> float | None:
    """The share of the time from the first kernel to the last one's end in which one ran.

    Events are those of a trace in Chrome's format; kernels are on the streams of "/device:GPU".
    """
    events = list(events)
    gpus = {
        event["pid"]
        for event in events
        if event.get("name") == "process_name" and "/device:GPU" in event["args"]["name"]
    }
    streams = {
        (event["pid"], event["tid"])
        for event in events
        if event.get("name") == "thread_name" and "Stream" in event["args"]["name"]
    }
    spans = sorted(
        (event["ts"], event["ts"] + event["dur"])
        for event in events
        if event.get("ph") == "X"
        and event["pid"] in gpus
        and (event["pid"], event["tid"]) in streams
    )
    if not spans:
        return None
    covered = sum(end - begin for begin, end in _joined(spans))
    whole = max(end for _, end in spans) - spans[0][0]
    return round(covered / whole, 4) if whole else None


def _joined(spans: list[tuple[float, float]]) -> Iterator[tuple[float, float]]:
    """Spans in order, those that touch as one."""
    first, last = spans[0]
    for begin, end in spans[1:]:
        if begin > last:
            yield first, last
            first, last = begin, end
        last = max(last, end)
    yield first, last
