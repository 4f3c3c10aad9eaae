"""What a long job keeps: nothing per step, shape, body of control flow, or schedule.

Each case warms up until every table it touches is full (most have 1,024 places), then goes on
many times as long. The cache of programs is small here, so that it is full at once. JAX's own
caches, which it bounds at some thousands of entries each, are emptied before each look: they hold
some 25 MiB more before, which the allocator keeps. So the warm-up has a look as well, as far from
its end as the looks are from each other.
"""

import subprocess
import sys

import pytest

START = """
import gc, jax, psutil, torch, torch_xla
from torch_xdist.core.trace.plans import PLANS
PLANS._sweep_at = PLANS._FIRST_SWEEP = 512
from torch_xdist.core.jax_side.control_flow import scan

def resident():
    jax.clear_caches()
    gc.collect()
    return psutil.Process().memory_info().rss

def measure(turn, warm_up, turns):
    for number in range(warm_up):
        if number == max(warm_up - turns // 4, 0):
            resident()
        turn(number)
    looks = [resident()]
    for quarter in range(4):
        for number in range(turns // 4):
            turn(warm_up + quarter * (turns // 4) + number)
        looks.append(resident())
    print(f"{turns} turns, MiB: " + " ".join(f"{look / 2**20:.1f}" for look in looks))
    print(looks[-1] / looks[0] - 1)
"""
STEPS = """
model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2))
model.to("xla")
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
x = torch.randn(3, 4)
def turn(number):
    optimizer.zero_grad()
    loss = model(x.to("xla")).square().mean()
    loss.backward()
    optimizer.step()
    torch_xla.sync()
    if number % 100 == 0:
        loss.item()
measure(turn, 2000, 20000)
"""
SHAPES = """
w = torch.ones(4, device="xla")
def turn(number):
    x = torch.ones(number + 1, 4).to("xla")
    y = (x * w).sin().sum(0)[1:].repeat(2)
    y.tolist()
measure(turn, 1100, 2000)
"""
BODIES = """
w = torch.full((3,), 0.5, device="xla", requires_grad=True)
def turn(number):
    xs = torch.ones(5, 3, device="xla")
    def body(carry, x):
        for _ in range(number % 3 + 1):
            carry = (carry * w + number).roll(number).sin()
        return carry, carry * x
    carry, ys = scan(body, torch.zeros(3, device="xla"), xs)
    ys.sum().backward()
    w.grad.tolist()
    w.grad = None
measure(turn, 200, 200)
"""
SCHEDULERS = """
def turn(number):
    parameter = torch.nn.Parameter(torch.ones(3, device="xla"))
    optimizer = torch.optim.AdamW([parameter], lr=1e-3)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.1 + number, total_steps=9)
    for _ in range(4):
        parameter.grad = parameter.detach() * 2
        optimizer.step()
        scheduler.step()
        torch_xla.sync()
measure(turn, 100, 500)
"""


@pytest.mark.long
@pytest.mark.timeout(1500)
@pytest.mark.parametrize(
    ("case", "limit"),
    [
        pytest.param(STEPS, 0.02, id="20,000 steps"),
        pytest.param(SHAPES, 0.02, id="2,000 shapes"),
        pytest.param(BODIES, 0.02, id="200 bodies"),
        pytest.param(SCHEDULERS, 0.02, id="500 schedulers"),
    ],
)
def test_memory_stays_flat_in_a_long_job(case, limit, monkeypatch):
    monkeypatch.setenv("XLA_COMPILATION_CACHE_SIZE", "64")
    # glibc gives memory back to the system as soon as it can.
    monkeypatch.setenv("MALLOC_TRIM_THRESHOLD_", "0")
    monkeypatch.setenv("MALLOC_ARENA_MAX", "2")
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", START + case],
        capture_output=True, text=True, timeout=1200,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert float(done.stdout.split()[-1]) < limit, done.stdout
