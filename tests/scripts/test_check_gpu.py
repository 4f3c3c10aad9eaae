"""The check of a GPU: rehearsed here on a CPU, and what it does about parts that fail."""

import functools
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import large_models
import pytest
import torch
from scripts_as_modules import SCRIPTS, loaded

ROOT = Path(__file__).resolve().parents[2]
PARAMETERS = {
    "gpt2": 124_439_808,
    "resnet50": 25_557_032,
    "vit_b": 86_567_656,
    "bert_large": 335_174_458,
}
# Stands for check_gpu.py: tells one fact, then does what its part is called.
FAKE = """
import json, os, sys, time, subprocess, signal
tell, part = int(sys.argv[sys.argv.index("--tell") + 1]), sys.argv[sys.argv.index("--part") + 1]
def say(**message):
    os.write(tell, json.dumps(message).encode() + b"\\n")
say(found="began", value=part)
if part == "quickstart":
    os.write(tell, b"no json\\n[1]\\n3\\n")
    print("the last word", file=sys.stderr, flush=True)
    os.kill(os.getpid(), signal.SIGSEGV)
if part == "attention":
    held = subprocess.Popen(["sleep", "600"])
    say(found="child", value=held.pid)
    time.sleep(600)
if part == "tf32":
    say(check="it holds", ok=False, words="4 instead of 5")
"""


@pytest.fixture(scope="module")
def check():
    return loaded("check_gpu")


@pytest.fixture
def scripts_on_path(monkeypatch):
    monkeypatch.syspath_prepend(str(SCRIPTS))


def parts_named(check, *names):
    return [part for part in check.PARTS if part.name in names]


def rehearsed(run, limit_s=60.0):
    """What a part tells in this process, as its own one's parent keeps it."""
    outcome = _check_gpu().Outcome()
    from gpu_parts.place import Place

    run(Place(lambda message: outcome.take(json.dumps(message, default=str)), True, limit_s))
    return outcome.document("", 0.0, limit_s)


@functools.cache
def _check_gpu():
    return loaded("check_gpu")


@pytest.mark.parametrize("name", PARAMETERS)
def test_a_measured_model_has_as_many_parameters_as_published(name):
    with torch.device("meta"):
        model = large_models.PUBLISHED[name].model()
    assert sum(p.numel() for p in model.parameters()) == PARAMETERS[name]


LONG = pytest.mark.long


@pytest.mark.parametrize(
    "name",
    [
        pytest.param("attention", marks=LONG),
        pytest.param("convolutions", marks=LONG),
        pytest.param("compiling", marks=LONG),
        pytest.param("grouped", marks=LONG),
        *("tf32", "amp", "dlpack", "transfers", "memory", "full"),
    ],
)
def test_a_part_holds_on_a_cpu(name, check, scripts_on_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", check.environment(True)["PYTHONPATH"])
    (part,) = parts_named(check, name)
    told = rehearsed(part.run)
    assert told["status"] == "ok", told
    assert told.get("held") or told.get("left_out"), told


@pytest.mark.long
def test_each_peer_of_a_model_tells_its_step(check, scripts_on_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", check.environment(True)["PYTHONPATH"])
    from gpu_parts import models

    told = rehearsed(functools.partial(models.models, names=["vit_b"]), 200.0)
    assert told["status"] == "ok", told
    found = [f"vit_b, {peer}" for peer in ("xdist", "jax", "eager", "inductor")]
    assert {*found} <= told["found"].keys(), told


@pytest.mark.parametrize("name", [pytest.param(name, marks=LONG) for name in PARAMETERS])
def test_a_model_by_hand_in_jax_computes_what_eager_torch_does(name, scripts_on_path, monkeypatch):
    import jax_models

    monkeypatch.setattr(jax_models, "HALF", jax_models.jnp.float32)
    measured = large_models.TINY[name]
    step, read = jax_models.step_of(name, measured, measured.make())
    ours = [read(step()) for _ in range(3)]
    model, inputs, target = measured.make()
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=jax_models.LR, weight_decay=jax_models.DECAY
    )
    for loss in ours:
        optimizer.zero_grad()
        expected = measured.loss(model(inputs), target)
        expected.backward()
        optimizer.step()
        assert loss == pytest.approx(expected.item(), rel=1e-3)


def test_a_part_that_crashes_or_hangs_costs_itself_alone(check, tmp_path, monkeypatch):
    monkeypatch.setattr(check, "GRACE_S", 0.5)
    (tmp_path / "fake.py").write_text(FAKE)
    parts = parts_named(check, "facts", "quickstart", "attention", "tf32", "amp")
    started = time.monotonic()
    command = [sys.executable, "-S", str(tmp_path / "fake.py")]
    told = check.run_all(parts, 0.1, command, os.environ)
    assert time.monotonic() - started < 30
    assert told["facts"]["status"] == told["amp"]["status"] == "ok"
    assert told["quickstart"]["why"] == "its process ended with SIGSEGV: the last word"
    assert told["attention"]["why"].startswith("it was not done after ")
    assert told["tf32"]["failed"] == {"it holds": "4 instead of 5"}
    assert all(told[part.name]["found"]["began"] == part.name for part in parts)
    left = Path(f"/proc/{told['attention']['found']['child']}/stat")
    deadline = time.monotonic() + 5
    while left.exists() and left.read_text().split()[2] != "Z" and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not left.exists() or left.read_text().split()[2] == "Z"


def test_time_that_a_part_does_not_need_goes_to_those_after_it(check):
    assert check.share_s([3, 5], 85.0) == pytest.approx(80 * 3 / 8)
    assert check.share_s([5], 84.0) == pytest.approx(79)
    assert check.share_s([5], 3.0) == 0


def test_what_measures_no_time_runs_beside_each_other_and_the_rest_alone(check):
    stages = check.stages_of(parts_named(check, "facts", "models", "amp", "sweep", "full"))
    names = [[part.name for part in stage] for stage in stages]
    assert names == [["facts"], ["sweep", "amp"], ["full"], ["models"]]
    assert [check.weight_of(stages[1], lanes) for lanes in (1, 2, 4)] == [27, 24, 24]


@pytest.mark.parametrize(("lanes", "first"), [(1, 24), (2, 27)])
def test_parts_of_a_stage_share_its_time_by_weight_and_lanes(check, lanes, first):
    parts = sorted(parts_named(check, "sweep", "amp"), key=lambda part: -part.weight)
    told = check.run_stage(parts, 27.0, lanes, lambda part, limit_s: {"limit_s": limit_s})
    found = [told[part.name]["limit_s"] for part in parts]
    # What the first one leaves goes to the second.
    assert found[0] == pytest.approx(first, abs=1)
    assert found[1] == pytest.approx(27, abs=1)


@pytest.mark.long
def test_where_no_gpu_is_every_other_part_says_that_it_did_not_run():
    done = subprocess.run(
        [SCRIPTS / "check_gpu", "--only", "facts,models,sweep", "--minutes", "2"],
        capture_output=True,
        text=True,
        timeout=100,
        env={**os.environ, "PYTHON": sys.executable},
    )
    assert done.returncode == 1, done.stderr
    told = json.loads(done.stdout)
    assert told["rehearsed_on_a_cpu"] is False and told["parts"]["facts"]["status"] == "failed"
    for name in ("models", "sweep"):
        why = {"status": "did not run", "why": "facts: the device is not there"}
        assert told["parts"][name] == why


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--only", "gpt3"], "no such part: gpt3; they are facts, quickstart, attention"),
        (["--minutes", "0"], "--minutes 0: a number above 0 is needed"),
    ],
)
def test_a_wrong_word_is_named(words, said):
    command = [sys.executable, SCRIPTS / "check_gpu.py", *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2 and said in done.stderr


def test_the_share_of_busy_time_counts_overlapping_kernels_once(scripts_on_path):
    from gpu_parts.models import busy_share, kernels_of

    names = [
        {"name": "process_name", "ph": "M", "pid": 1, "args": {"name": "/device:GPU:0"}},
        {"name": "process_name", "ph": "M", "pid": 2, "args": {"name": "/host:CPU"}},
        {"name": "thread_name", "ph": "M", "pid": 1, "tid": 7, "args": {"name": "Stream #7"}},
        {"name": "thread_name", "ph": "M", "pid": 1, "tid": 8, "args": {"name": "Steps"}},
    ]
    spans = [(1, 7, 0, 4), (1, 7, 2, 4), (1, 7, 8, 2), (2, 7, 0, 100), (1, 8, 0, 100)]
    kernels = [
        {"ph": "X", "pid": p, "tid": t, "ts": at, "dur": d, "name": "k"} for p, t, at, d in spans
    ]
    assert busy_share(kernels_of([*names, *kernels])) == 0.8
    assert busy_share(kernels_of(names)) is None


def test_kernels_are_told_by_name_the_slowest_first(scripts_on_path):
    from gpu_parts.models import Kernel, slowest

    ran = [Kernel("add", 0, 1000), Kernel("product", 1000, 6000), Kernel("add", 6000, 7000)]
    assert list(slowest(ran).items()) == [("product", 1.0), ("add", 0.4)]


@pytest.mark.long
@pytest.mark.timeout(1600)
def test_the_whole_check_is_rehearsed_on_a_cpu():
    done = subprocess.run(
        # Shares of more than the usual time: a busy machine is no failure of a part.
        [SCRIPTS / "check_gpu", "--rehearse", "--minutes", "25"],
        capture_output=True,
        text=True,
        timeout=1550,
        env={**os.environ, "PYTHON": sys.executable},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    told = json.loads(done.stdout)
    assert [*told["parts"]] == [part.name for part in _check_gpu().PARTS]
    assert {part["status"] for part in told["parts"].values()} == {"ok"}
