"""What is here, the first steps, the fast tests of core and the operators."""

import contextlib
import functools
import importlib.metadata
import importlib.util
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
import threading
from collections import Counter, deque
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from gpu_parts.place import LOGS, Place

ROOT = Path(__file__).resolve().parents[2]
_PACKAGES = re.compile(r"(torch|triton|numpy|jax.*|nvidia-(cudnn|nccl|cublas|cuda-runtime).*)\Z")
_SMI = "name,driver_version,memory.total,power.limit,clocks.max.sm"
_VERDICT = re.compile(r"(tests/\S+) (PASSED|FAILED|ERROR|SKIPPED|XFAIL|XPASS)")
_PLUGINS = ("pytest_timeout", "_hypothesis_pytestplugin")
_SWEPT = re.compile(r"(FAIL|ok|none) (\S+) (\d+) samples (\d+) calls")
DTYPES = ("float32", "bfloat16", "float16")
# What a GPU sums in another order than the CPU: 1 of 50 elements by 1.5e-5 of 30, and a gradient
# that is 0 but for rounding.
ROUNDS_OTHERWISE = {"addbmm float32", "corrcoef bfloat16"}
_REHEARSED = "^(add|matmul|softmax|sort)$"
# A shard of the sweep takes some seconds to begin.
_LEAST_S = 10.0


def facts(place: Place) -> None:
    """Versions, the GPU, and whether JAX and torch both see it."""
    installed = {d.metadata["Name"]: d.version for d in importlib.metadata.distributions()}
    place.found(
        "packages", {n: v for n, v in sorted(installed.items()) if _PACKAGES.match(n or "")}
    )
    place.found("python", platform.python_version())
    place.found("cores", len(os.sched_getaffinity(0)))
    if shutil.which("nvidia-smi"):
        command = ["nvidia-smi", f"--query-gpu={_SMI}", "--format=csv,noheader"]
        said = subprocess.run(command, capture_output=True, text=True, timeout=20)
        place.found("nvidia_smi", said.stdout.strip().splitlines())
    import torch_xla
    import torch_xla.core.xla_model as xm

    place.found("torch_cuda", [torch.version.cuda, torch.backends.cudnn.version()])
    place.need_on_gpu("torch has CUDA", torch.cuda.is_available, torch.__version__)
    wanted = "CPU" if place.rehearses else "CUDA"
    device = torch_xla.device()
    place.found("device_kind", xm.xla_device_kind(device))
    place.need("the device is the one asked for", xm.xla_device_hw(device) == wanted, wanted)
    place.need("it computes", (torch.ones(3, device=device) * 2).sum().item() == 6.0)


def quickstart(place: Place) -> None:
    """The digits by their script where what it needs is installed, and a net learns patterns."""
    from models import DigitsNet

    import torch_xla

    torch.manual_seed(0)
    device = torch_xla.device()
    patterns = torch.randn(10, 1, 8, 8)
    labels = torch.randint(10, (256,))
    images = (patterns[labels] + 0.5 * torch.randn(256, 1, 8, 8)).to(device)
    labels = labels.to(device)
    net = DigitsNet().to(device)
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-2)
    for _ in range(10 if place.rehearses else 60):
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(net(images), labels)
        loss.backward()
        optimizer.step()
        torch_xla.sync()
    right = (net(images).argmax(1) == labels).float().mean().item()
    place.found("loss", loss.item())
    place.need("a net learns ten patterns", right > 0.9, f"{right:.3f} of them are told right")
    missing = [n for n in ("sklearn", "matplotlib", "tqdm") if not importlib.util.find_spec(n)]
    if missing:
        place.left_out("scripts/train_digits.py", f"{', '.join(missing)} not installed")
        return
    _train_digits(place)


def _train_digits(place: Place) -> None:
    words = ["--nprocs", "1", "--out", str(LOGS), *(["--epochs", "1"] * place.rehearses)]
    command = [sys.executable, "scripts/train_digits.py", *words]
    try:
        done = subprocess.run(
            command, cwd=ROOT, capture_output=True, text=True, timeout=place.left_s
        )
    except subprocess.TimeoutExpired:
        place.left_out("scripts/train_digits.py", f"not done after {place.limit_s:.0f} s")
        return
    said = (done.stdout + done.stderr).strip().splitlines()[-3:]
    if place.rehearses:
        # One epoch does not reach the accuracy that the script asks for.
        place.found("train_digits", said[-1:])
    else:
        place.need("scripts/train_digits.py", done.returncode == 0, said)


def core_tests(place: Place) -> None:
    """tests/xdist/core as they are, on this device: those that failed by name.

    Some processes share the files. Each leaves what pytest printed in runs/check_gpu.
    """
    if importlib.util.find_spec("pytest") is None:
        place.left_out("the tests of core", "pytest is not installed")
        return
    files = sorted(str(p.relative_to(ROOT)) for p in (ROOT / "tests/xdist/core").rglob("test_*.py"))
    if place.rehearses:
        files = ["tests/xdist/core/devices/test_device_names.py"]
    ways = min(len(files), _ways(place))
    LOGS.mkdir(parents=True, exist_ok=True)
    tested = [Tested(LOGS / f"core_tests-{way}.log") for way in range(ways)]
    in_threads(
        [functools.partial(_test, place, tested[way], files[way::ways]) for way in range(ways)]
    )
    counts = sum((one.counts for one in tested), Counter())
    failed = sorted(name for one in tested for name in one.failed)
    place.found("counts", counts)
    place.found("failed", failed)
    place.found("ended", Counter(one.ended for one in tested))
    place.need("tests ran, and none failed", bool(counts) and not failed, f"{len(failed)} failed")


class Tested:
    """What one pytest process told, and the file that has all it printed."""

    def __init__(self, log: Path) -> None:
        self.log = log
        self.counts: Counter[str] = Counter()
        self.failed: list[str] = []
        self.ended = "did not begin"

    def take(self, line: str) -> None:
        match = _VERDICT.search(line)
        if match:
            self.counts[match[2].lower()] += 1
            if match[2] in ("FAILED", "ERROR"):
                self.failed.append(match[1])


def _test(place: Place, tested: Tested, files: Sequence[str]) -> None:
    """Run these files; at the limit pytest is asked to tell what it has, then ended."""
    # -P: the checkout has a folder xdist, which pytest would take for its plugin of this name.
    # What else is installed besides may warn, which is an error in these tests.
    command = [sys.executable, "-P", "-m", "pytest", "-v", "--tb=short", "-m", "not long"]
    plugins = [name for name in _PLUGINS if importlib.util.find_spec(name)]
    process = subprocess.Popen(
        [*command, *(word for name in plugins for word in ("-p", name)), *files],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
    )
    asking = threading.Timer(max(place.left_s - 8, 1), process.send_signal, [signal.SIGINT])
    killer = threading.Timer(max(place.left_s - 3, 2), process.kill)
    asking.start()
    killer.start()
    assert process.stdout is not None
    with tested.log.open("w") as file:
        for line in process.stdout:
            file.write(line)
            tested.take(line)
    code = process.wait()
    asking.cancel()
    killer.cancel()
    tested.ended = "at the limit" if code in (-signal.SIGKILL, 2) else f"exit code {code}"


def _ways(place: Place) -> int:
    """How many processes work beside each other: half of the cores, the GPU is one."""
    return 1 if place.rehearses else max(1, min(8, len(os.sched_getaffinity(0)) // 2))


def in_threads(works: Sequence[Callable[[], None]]) -> None:
    """Do all of these beside each other."""
    threads = [threading.Thread(target=work) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def sweep(place: Place) -> None:
    """torch's operators against CPU torch by tests/sweep.py: a sample of each, in every form."""
    from sweep_expected import reason

    if importlib.util.find_spec("expecttest") is None:
        # torch.testing, which has the samples, imports it.
        place.left_out("the operators", "expecttest is not installed")
        return
    ways = _ways(place)
    dtypes = DTYPES[:1] if place.rehearses else DTYPES
    waiting = deque((dtype, shard) for dtype in dtypes for shard in range(ways))
    counts: dict[str, Counter[str]] = {dtype: Counter() for dtype in dtypes}
    failed: list[str] = []

    def take(dtype: str, line: str) -> None:
        match = _SWEPT.match(line)
        if match is None:
            return
        word = match[1]
        if word == "FAIL":
            is_expected = f"{match[2]} {dtype}" in ROUNDS_OTHERWISE
            is_expected |= reason(match[2], getattr(torch, dtype)) is not None
            word = "fails as expected" if is_expected else "FAIL"
        counts[dtype][word] += 1
        if word == "FAIL":
            failed.append(f"{match[2]} {dtype}")
            place.found(f"fails: {failed[-1]}", line)

    def work() -> None:
        with contextlib.suppress(IndexError):
            while place.left_s > _LEAST_S:
                dtype, shard = waiting.popleft()
                _swept(place, dtype, f"{shard}/{ways}", functools.partial(take, dtype))

    in_threads([work] * ways)
    place.found("counts", counts)
    for dtype, shard in waiting:
        place.left_out(f"{dtype}, part {shard} of {ways}", "the time was over")
    ran = sum(of.total() for of in counts.values())
    words = f"{ran} ran, {len(failed)} fail"
    place.need("operators agree with CPU torch", bool(ran) and not failed, words)


def _swept(place: Place, dtype: str, shard: str, take: Callable[[str], None]) -> None:
    """Run one shard in a process of its own; it is ended a little before the part's limit."""
    only = ["--match", _REHEARSED] if place.rehearses else []
    LOGS.mkdir(parents=True, exist_ok=True)
    log = LOGS / f"sweep-{dtype}-{shard.replace('/', '-of-')}.log"
    # The flags that make a sweep quick on a CPU change a GPU's numbers.
    words = ["--dtype", dtype, "--samples", "1", "--shard", shard, "--for-users", *only]
    with log.open("w") as errors:
        process = subprocess.Popen(
            [sys.executable, "tests/sweep.py", *words],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        )
    killer = threading.Timer(max(place.left_s - 3, 1), process.kill)
    killer.start()
    assert process.stdout is not None
    with log.with_suffix(".out").open("w") as told:
        for line in process.stdout:
            told.write(line)
            take(line)
    code = process.wait()
    killer.cancel()
    if code == -signal.SIGKILL:
        place.left_out(f"the end of {dtype} {shard}", "the time was over")
    elif code:
        last = [line for line in log.read_text().splitlines() if line.strip()][-1:]
        words = f"exit code {code}: {' '.join(last)[:300]}"
        place.need(f"the sweep of {dtype} {shard} ends by itself", False, words)
