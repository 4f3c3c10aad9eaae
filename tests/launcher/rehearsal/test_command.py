"""`xla-run compile` as it is typed: real scripts through the real TPU compiler."""

import importlib.util
import json
import os
import subprocess
import sys
import time

import pytest
from click.testing import CliRunner

from torch_xdist.launcher.facts.errors import PreflightError, UsageError
from torch_xdist.launcher.ways_in.cli import cli

needs_compiler = pytest.mark.skipif(
    importlib.util.find_spec("libtpu") is None, reason="libtpu, the TPU compiler, is not installed"
)
DIGITS = """
import torch, torch_xla, torch_xla.core.xla_model as xm
import torch_xla.distributed.xla_multiprocessing as xmp

def train(index):
    device = torch_xla.device()
    model = torch.nn.Sequential(
        torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 10)
    ).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for step in range(1000):
        images = torch.randn(256, 64).to(device)
        target = torch.zeros(256, dtype=torch.long).to(device)
        loss = torch.nn.functional.cross_entropy(model(images), target)
        optimizer.zero_grad()
        loss.backward()
        xm.optimizer_step(optimizer)
        torch_xla.sync()
        print("step", step, "loss", loss.item(), "of", xm.xla_device_hw(device))

if __name__ == "__main__":
    xmp.spawn(train)
"""
TALKATIVE = """
import torch, torch_xla, torch_xla.core.xla_model as xm, torch_xla.runtime as xr
import torch.distributed as dist
import torch_xla.distributed.xla_backend
import torch_xla.distributed.xla_multiprocessing as xmp
from torch_xla.distributed.fsdp import XlaFullyShardedDataParallel

def train(index, kind):
    dist.init_process_group("xla", init_method="xla://" if kind == "ddp" else None)
    device = torch_xla.device()
    model = xmp.MpModelWrapper(torch.nn.Linear(64, 64)).to(device)
    if kind == "ddp":
        model = torch.nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=True)
    else:
        model = XlaFullyShardedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters())
    xm.rendezvous("made")
    for _ in range(3):
        optimizer.zero_grad()
        loss = model(torch.ones(8, 64, device=device)).square().mean()
        loss.backward()
        optimizer.step()
        xm.wait_device_ops()
    torch_xla.sync()
    everyone = [None] * xr.world_size()
    dist.all_gather_object(everyone, {"rank": index})
    dist.barrier()
    info = xm.get_memory_info(device)
    print("sum", xm.mesh_reduce("loss", 2, sum), "of", everyone[-1], info["bytes_limit"] >> 30)
    xm.save(model.state_dict(), FILE)
    dist.destroy_process_group()

if __name__ == "__main__":
    import sys
    FILE = sys.argv[0] + ".pt"
    xmp.spawn(train, args=(sys.argv[1],))
"""
TOO_MUCH = """
import torch, torch_xla
weight = torch.ones(8192, 8192, device="xla", requires_grad=True)
rows = torch.ones(65536, 8192, device="xla")
for _ in range(12):
    rows = torch.tanh(rows @ weight)
rows.sum().backward()
torch_xla.sync()
"""


def compiled(tmp_path, script, *options, args=()):
    path = tmp_path / "train.py"
    path.write_text(script)
    command = [sys.executable, "-m", "torch_xdist.launcher", "compile", *options, "--"]
    return subprocess.run(
        [*command, sys.executable, str(path), *args], capture_output=True, text=True, timeout=120
    )


@needs_compiler
def test_an_unchanged_script_is_compiled_as_a_rank_of_a_pod(tmp_path):
    kept = str(tmp_path / "kept")
    words = "--topology", "v5e-256", "--steps", "2", "--json", "--save", kept
    found = compiled(tmp_path, DIGITS, *words)
    assert found.returncode == 0, found.stderr
    [pod] = json.loads(found.stdout)
    assert pod["ranks"] == 256 and pod["kind"] == "TPU v5 lite" and pod["steps"] == 2
    [step] = [pod["programs"][number] for number, _ in pod["job"]["step"]]
    [summed] = step["collectives"]
    parameters = 64 * 128 + 128 + 128 * 10 + 10
    assert summed["kind"] == "all-reduce" and summed["ranks"] == 256
    assert summed["axes"] == ["x", "y"]
    assert summed["bytes"] >= 4 * parameters
    assert pod["kept"] == len(pod["programs"])
    assert f"{pod['kept']} programs for v5e-256 are kept in {kept}" in found.stderr
    assert sum(path.stat().st_size for path in (tmp_path / "kept").rglob("*")) > 10_000
    # stdout is the object alone.
    assert "step 0 loss 0.0 of TPU" in found.stderr
    assert found.stderr.count("what is read from the device is zeros") == 1
    assert "compiling program 1 for v5e-256: step 1, " in found.stderr


@needs_compiler
@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
def test_what_ranks_say_to_each_other_is_what_this_one_says(tmp_path, kind):
    words = "--topology", "v5e-8", "--steps", "9", "--json"
    found = compiled(tmp_path, TALKATIVE, *words, args=[kind])
    assert found.returncode == 0, found.stderr
    assert "sum 16 of {'rank': 0} 15" in found.stderr
    [pod] = json.loads(found.stdout)
    kinds = {one["kind"] for program in pod["programs"] for one in program["collectives"]}
    assert kinds >= ({"all-reduce"} if kind == "ddp" else {"all-gather"}), kinds
    assert (tmp_path / "train.py.pt").exists()


@needs_compiler
@pytest.mark.long
def test_several_topologies_are_compiled_for_one_after_the_other(tmp_path):
    found = compiled(tmp_path, DIGITS, "--topology", "v5e-4,v6e-1", "--json")
    assert found.returncode == 0, found.stderr
    few, chip = json.loads(found.stdout)
    assert few["ranks"] == 4 and chip["ranks"] == 1 and chip["steps"] == 3
    # Forward, and twice that back but for the images' own gradient.
    flops = 2 * 256 * (2 * 64 * 128 + 3 * 128 * 10)
    [alone] = [chip["programs"][number] for number, _ in chip["job"]["step"]]
    assert flops < alone["flops"] < 1.1 * flops
    assert alone["collectives"] == [] and chip["job"]["fits"]


@needs_compiler
@pytest.mark.long
def test_what_does_not_fit_ends_with_1_and_says_where(tmp_path):
    found = compiled(tmp_path, TOO_MUCH, "--topology", "v5e-1")
    assert found.returncode == 1, found.stderr
    assert "v5e-1: does not fit: " in found.stdout and " of 15.75 GiB" in found.stdout
    assert f"12 x 2 GiB float32[65536, 8192] aten::tanh ({tmp_path / 'train.py'}:6)" in found.stdout
    assert "a batch of 1/2: about " in found.stdout and "fits" in found.stdout
    assert "torch_xla.utils.checkpoint around each of 12 alike layers: about" in found.stdout


@needs_compiler
@pytest.mark.long
def test_the_code_of_a_script_that_fails_is_passed_on(tmp_path):
    script = DIGITS.replace("loss = ", "assert step < 1, 'no more'; loss = ")
    found = compiled(tmp_path, script, "--topology", "v5e-1")
    assert found.returncode == 1
    assert "the script ended with exit code 1" in found.stderr and "no more" in found.stderr
    assert "1 a step" in found.stdout


@needs_compiler
@pytest.mark.long
def test_a_script_that_ends_no_step_is_ended(tmp_path):
    script = (
        "import torch, torch_xla\nx = torch.ones(4, device='xla')\nwhile True: (x * 2).tolist()"
    )
    found = compiled(tmp_path, script, "--topology", "v5e-1", "--steps", "2")
    assert found.returncode == 0, found.stderr
    assert "the script was ended: program 2 has run 100 times in one step" in found.stderr


def test_a_script_without_a_program_is_told(tmp_path):
    (tmp_path / "train.py").write_text("print('nothing'); raise SystemExit(3)")
    words = ["compile", "--topology", "v5e-1", "--", sys.executable, str(tmp_path / "train.py")]
    found = CliRunner().invoke(cli, words)
    assert isinstance(found.exception, PreflightError)
    assert "it ended with exit code 3 before it ran a program" in str(found.exception)


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--topology", "v5e-1"], "xla-run compile: no command; write it after --"),
        (["--topology", "v5e-1", "--", "no-such-program"], "'no-such-program' cannot be started"),
        (["--topology", "v5e-3", "--", "python"], "'v5e-3': there is no such slice"),
    ],
)
def test_what_cannot_be_right_is_said_before_anything_starts(words, text):
    found = CliRunner().invoke(cli, ["compile", *words])
    assert isinstance(found.exception, UsageError) and text in str(found.exception)


def test_the_script_ends_with_who_started_it_and_nothing_stays(tmp_path):
    (folder := tmp_path / "tmp").mkdir()
    script = tmp_path / "train.py"
    script.write_text(
        "import os, sys, time, torch_xla\n"
        f"open({str(tmp_path / 'pid')!r}, 'w').write(str(os.getpid()))\n"
        "time.sleep(300)\n"
    )
    command = [sys.executable, "-m", "torch_xdist.launcher", "compile", "--topology", "v5e-1"]
    environ = {**os.environ, "TMPDIR": str(folder)}
    started = subprocess.Popen([*command, "--", sys.executable, str(script)], env=environ)
    try:
        pid = waited_for(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text())
    finally:
        started.kill()
        started.wait()
    assert waited_for(lambda: not os.path.exists(f"/proc/{pid}"))
    assert [*folder.iterdir()] == []


def waited_for(what, limit_s=60.0):
    deadline = time.monotonic() + limit_s
    while time.monotonic() < deadline:
        found = what()
        if found:
            return found
        time.sleep(0.02)
    raise AssertionError(f"not within {limit_s} s")


OVER_A_MESH = """
import numpy as np, torch, torch_xla, torch_xla.runtime as xr
import torch_xla.distributed.spmd as xs
xr.use_spmd()
count = xr.global_runtime_device_count()
mesh = xs.Mesh(np.arange(count), (count // 2, 2), ("data", "model"))
up = torch.nn.Linear(128, 512, bias=False).to("xla")
down = torch.nn.Linear(512, 128, bias=False).to("xla")
xs.mark_sharding(up.weight, mesh, ("model", None))
xs.mark_sharding(down.weight, mesh, (None, "model"))
optimizer = torch.optim.SGD([up.weight, down.weight], lr=0.1, momentum=0.9)
for step in range(1000):
    rows = torch.ones(64, 128).to("xla")
    xs.mark_sharding(rows, mesh, ("data", None))
    loss = down(up(rows).relu()).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    torch_xla.sync()
print("never here")
"""


@needs_compiler
@pytest.mark.long
def test_a_script_over_a_mesh_drives_all_chips(tmp_path):
    found = compiled(tmp_path, OVER_A_MESH, "--topology", "v5e-8", "--steps", "2", "--json")
    assert found.returncode == 0, found.stderr
    [on] = json.loads(found.stdout)
    step = on["programs"][-1]
    # Of each weight a chip has half, and as much of its momentum; of the rows a quarter.
    weights, rows = 2 * 128 * 512 * 4 // 2, 64 * 128 * 4 // 4
    assert 2 * weights + rows <= step["bytes"]["arguments"] < 1.05 * (2 * weights + rows)
    groups = {(one["ranks"], *one["axes"]) for one in step["collectives"]}
    assert groups == {(2, "x"), (4, "y")}
    assert "never here" not in found.stderr
