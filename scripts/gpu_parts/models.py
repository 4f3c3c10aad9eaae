"""A training step of a model in bfloat16: the device beside eager torch, torch.compile and JAX.

Each peer has a process of its own, one after the other, so that each has the GPU's memory. All
train the same weights on the same batch with AdamW; losses say whether they compute the same.
"""

import contextlib
import gzip
import json
import os
import select
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from gpu_parts.place import LOGS, Place

SCRIPT = Path(__file__).resolve().parents[1] / "check_gpu.py"
MODELS = ("gpt2", "resnet50", "vit_b", "bert_large")
# In order of importance: of all models first these peers, then those.
TURNS = (("xdist", "jax"), ("eager",), ("inductor",))
# When the time is shared out: of these, eager torch has nothing to compile.
_WEIGHT = {"xdist": 3, "jax": 3, "eager": 1, "inductor": 3}
# How many processes there are at a time.
_AHEAD = 4
ROUNDS = 3
# A round is about so long.
_ROUND_S = 1.0
_WARM_STEPS = 3
_TRACED_STEPS = 5
# So many kernels are told by name.
_SLOWEST = 25

Launch = Callable[[], Any]


def models(place: Place, names: Sequence[str] = MODELS) -> None:
    """All peers of these models, each within its share of the time, what counts most first."""
    turns = deque((name, peer) for peers in TURNS for name in names for peer in peers)
    found: dict[str, dict[str, Any]] = {name: {} for name in names}
    started: deque[_Peer] = deque()
    with contextlib.ExitStack() as stack:
        weights = [_WEIGHT[peer] for _, peer in turns]
        for number, (name, peer) in enumerate([*turns]):
            # The next ones import and make their models; the device is the one's whose turn it is.
            while turns and len(started) < _AHEAD:
                started.append(stack.enter_context(_Peer(*turns.popleft(), place.rehearses)))
            process = started.popleft()
            limit_s = place.left_s * weights[number] / sum(weights[number:])
            process.wait_until_ready(limit_s / 2)
            told = process.told(limit_s)
            if "why" in told:
                place.left_out(f"{name}, {peer}", told["why"])
            else:
                found[name][peer] = told
                place.found(f"{name}, {peer}", told)
    for name, of_peers in found.items():
        place.need(f"{name}: the device's own steps ran", "xdist" in of_peers, ", ".join(of_peers))
        if "xdist" in of_peers:
            compare(place, name, of_peers)


def compare(place: Place, name: str, found: dict[str, dict[str, Any]]) -> None:
    """The device's figures by those of the others, and the aims that they are held against."""
    ours = found["xdist"]
    ratios = {p: round(ours["step_ms"] / f["step_ms"], 3) for p, f in found.items()}
    place.found(f"{name}: step time / peer's", ratios)
    for peer, figures in found.items():
        apart = abs(figures["first_loss"] - ours["first_loss"]) / abs(ours["first_loss"])
        place.need(
            f"{name}: the first loss is {peer}'s",
            apart < 0.02,
            [ours["first_loss"], figures["first_loss"]],
        )
    if "eager" in ratios:
        place.need_on_gpu(
            f"{name}: not slower than eager torch", lambda: ratios["eager"] <= 1.0, ratios
        )
    if "jax" in ratios:
        place.need_on_gpu(f"{name}: within 5 % of JAX", lambda: ratios["jax"] <= 1.05, ratios)
    busy = ours.get("busy_share")
    if busy is not None:
        words = f"{name}: the device is busy for 95 % of the time"
        place.need_on_gpu(words, lambda: busy >= 0.95, busy)


class _Peer:
    """The process of one peer, which waits for its turn; runs/check_gpu has what it says."""

    def __init__(self, model: str, peer: str, rehearses: bool) -> None:
        LOGS.mkdir(parents=True, exist_ok=True)
        self.log = LOGS / f"{model}-{peer}.log"
        words = ["--peer", model, peer, *(["--rehearse"] * rehearses)]
        with self.log.open("w") as errors:
            self.process = subprocess.Popen(
                [sys.executable, str(SCRIPT), *words],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env={**os.environ, "TORCHINDUCTOR_FORCE_DISABLE_CACHES": "1"},
            )

    def __enter__(self) -> "_Peer":
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.communicate()

    def wait_until_ready(self, limit_s: float) -> None:
        """Until it has made its model; what it is late by comes out of its turn."""
        assert self.process.stdout is not None
        if select.select([self.process.stdout], [], [], max(limit_s, 0))[0]:
            self.process.stdout.readline()

    def told(self, limit_s: float) -> dict[str, Any]:
        """What it tells of its turn; {"why": ...} where it tells nothing."""
        try:
            said, _ = self.process.communicate("your turn\n", timeout=max(limit_s, 1))
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            return {"why": f"not done after its {limit_s:.0f} s"}
        for line in reversed(said.splitlines()):
            with contextlib.suppress(ValueError):
                return dict(json.loads(line))
        last = [line for line in self.log.read_text().splitlines() if line.strip()][-1:]
        return {"why": f"ended with code {self.process.returncode}: {' '.join(last)[:300]}"}


# ---- one peer, in its own process --------------------------------------------------------------


def figures(model: str, peer: str, rehearses: bool) -> dict[str, Any]:
    """Run it: milliseconds of a step, of these the host's; the first steps; memory; losses.

    It begins when a line comes on stdin: till then the device is another's.
    """
    begin = _begin(model, peer, rehearses)
    print("ready", flush=True)
    sys.stdin.readline()
    launch, read, wait = begin()
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
        **({} if peer in ("eager", "inductor") else _traced(launch, wait)),
    }


def _begin(
    model: str, peer: str, rehearses: bool
) -> Callable[[], tuple[Launch, Callable[[Any], float], Launch]]:
    """Make all that needs no device. Called, it gives three functions: one launches a step and
    returns its loss, one reads that, one waits for the device."""
    from large_models import PUBLISHED, TINY

    measured = (TINY if rehearses else PUBLISHED)[model]
    # jaxlib 0.10.2 on CPUs refuses products of bfloat16 that gradients of 1x1 convolutions become.
    is_half = not (rehearses and model == "resnet50")
    made = measured.make()
    if peer == "jax":
        import jax_models

        return lambda: _jax_steps(jax_models, model, measured, made, is_half)
    if peer == "xdist":
        import torch_xla
        import torch_xla.core.xla_model as xm

        return lambda: (
            _torch_step(measured, made, torch_xla.device(), torch_xla.sync, is_half),
            lambda loss: loss.item(),
            xm.wait_device_ops,
        )
    import torch

    place = "cpu" if rehearses else "cuda"
    # Compiling C++ takes a rehearsal's time; how a graph is captured is the same.
    backend = None if peer == "eager" else "aot_eager" if rehearses else "inductor"
    return lambda: (
        _torch_step(measured, made, place, lambda: None, is_half, backend),
        lambda loss: loss.item(),
        (lambda: None) if rehearses else torch.cuda.synchronize,
    )


def _jax_steps(
    jax_models: Any, model: str, measured: Any, made: Any, is_half: bool
) -> tuple[Launch, Callable[[Any], float], Launch]:
    import jax

    if not is_half:
        jax_models.HALF = jax.numpy.float32
    launch, read = jax_models.step_of(model, measured, made)
    last: list[Any] = []

    def step() -> Any:
        last[:] = [launch()]
        return last[0]

    return step, read, lambda: jax.block_until_ready(last)


def _torch_step(
    measured: Any,
    made: Any,
    device: Any,
    after: Launch,
    is_half: bool,
    backend: str | None = None,
) -> Launch:
    """AdamW under autocast to bfloat16; convolutions channels last, as eager torch is quickest."""
    import torch

    model, inputs, target = made
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


def _traced(launch: Launch, wait: Launch) -> dict[str, Any]:
    """How busy a GPU was in a few steps, and which kernels took most; nothing where none was."""
    import jax

    with tempfile.TemporaryDirectory() as folder:
        # Python's own calls, traced, would take longer than the device.
        options = jax.profiler.ProfileOptions()
        options.python_tracer_level = 0
        with jax.profiler.trace(folder, create_perfetto_trace=True, profiler_options=options):
            for _ in range(_TRACED_STEPS):
                launch()
            wait()
        for path in Path(folder).rglob("perfetto_trace.json.gz"):
            with gzip.open(path) as file:
                kernels = kernels_of(json.load(file).get("traceEvents", []))
            return {"busy_share": busy_share(kernels), "kernels_ms": slowest(kernels)}
    return {}


class Kernel(NamedTuple):
    """One run of a kernel on a stream, in microseconds."""

    name: str
    begin_us: float
    end_us: float


def kernels_of(events: Iterable[dict[str, Any]]) -> list[Kernel]:
    """Those of a trace in Chrome's format, in order; they are on the streams of "/device:GPU"."""
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
    ran = [
        Kernel(event.get("name", ""), event["ts"], event["ts"] + event["dur"])
        for event in events
        if event.get("ph") == "X"
        and event["pid"] in gpus
        and (event["pid"], event["tid"]) in streams
    ]
    return sorted(ran, key=lambda kernel: kernel.begin_us)


def slowest(kernels: Sequence[Kernel]) -> dict[str, float]:
    """Of the kernels that took most in all, the milliseconds of a step."""
    sums: Counter[str] = Counter()
    for kernel in kernels:
        sums[kernel.name] += kernel.end_us - kernel.begin_us  # type: ignore[assignment]
    return {name: round(us / 1e3 / _TRACED_STEPS, 3) for name, us in sums.most_common(_SLOWEST)}


def busy_share(kernels: Sequence[Kernel]) -> float | None:
    """The share of the time from the first one's begin to the last one's end in which one ran."""
    spans = [(kernel.begin_us, kernel.end_us) for kernel in kernels]
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
