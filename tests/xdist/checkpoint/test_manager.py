"""Checkpoints hold all of a job, survive any kill, and say which file is corrupt."""

import random
import re
import subprocess
import sys
import textwrap

import numpy as np
import pytest
import torch
from safetensors import safe_open
from torch import nn

import torch_xla
from torch_xdist import metrics
from torch_xdist.checkpoint import CheckpointManager, CorruptCheckpointWarning
from torch_xdist.checkpoint import folder as folders
from torch_xdist.checkpoint.file import File, entry, write
from torch_xdist.core.devices import transfer
from torch_xdist.errors import CheckpointError
from torch_xdist.loaders.mp_device import MpDeviceLoader

assert torch_xla  # operators on device tensors


class Holder:
    """A state to save: whatever it is given."""

    def __init__(self, state=None):
        self.state = state

    def state_dict(self):
        return self.state

    def load_state_dict(self, state):
        self.state = state


def job(seed=0):
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2)
    return model, optimizer, scheduler


def train(model, optimizer, scheduler, steps):
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = model(torch.randn(8, 3)).square().mean()
        loss.backward()
        optimizer.step()
        scheduler.step()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize("asynchronous", [True, False])
def test_a_resumed_job_gives_the_losses_of_an_uninterrupted_one(tmp_path, asynchronous):
    model, optimizer, scheduler = job()
    train(model, optimizer, scheduler, 3)
    with CheckpointManager(tmp_path, asynchronous=asynchronous) as manager:
        manager.save(3, model=model, optimizer=optimizer, scheduler=scheduler, epoch=5)
        # The save may still be under way: it must not see these steps.
        expected = train(model, optimizer, scheduler, 4)
    model, optimizer, scheduler = job(seed=9)
    manager = CheckpointManager(tmp_path)
    restored = manager.restore(model=model, optimizer=optimizer, scheduler=scheduler)
    assert (restored.step, restored.values) == (3, {"epoch": 5})
    assert train(model, optimizer, scheduler, 4) == expected


def device_job(seed):
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Dropout(0.1), nn.Linear(16, 2))
    model = model.to("xla")
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    rows = torch.utils.data.TensorDataset(torch.linspace(-1, 1, 256).reshape(32, 8))
    loader = torch.utils.data.DataLoader(rows, batch_size=8, shuffle=True)
    return model, optimizer, MpDeviceLoader(loader, "xla")


def device_losses(model, optimizer, loader, epochs, after_step=lambda step: None):
    losses = []
    for _ in range(epochs):
        for (x,) in loader:
            optimizer.zero_grad()
            loss = model(x).square().mean()
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
            after_step(len(losses))
    return [loss.item() for loss in losses]


def test_a_job_on_the_device_resumes_bit_by_bit_in_the_middle_of_an_epoch(tmp_path):
    model, optimizer, loader = device_job(1)
    manager = CheckpointManager(tmp_path)

    def save(step):
        if step == 6:
            before = metrics.counter_value("UncachedCompile")
            manager.save(step, model=model, optimizer=optimizer, loader=loader)
            assert metrics.counter_value("UncachedCompile") == before

    expected = device_losses(model, optimizer, loader, 3, save)[6:]
    model, optimizer, loader = device_job(2)
    assert manager.restore(model=model, optimizer=optimizer, loader=loader).step == 6
    assert device_losses(model, optimizer, loader, 2) == expected


def test_all_random_states_come_back(tmp_path):
    manager = CheckpointManager(tmp_path)
    torch.manual_seed(1)
    manager.save(1)
    expected = (torch.rand(2).tolist(), random.random(), np.random.rand())
    manager.restore()
    assert (torch.rand(2).tolist(), random.random(), np.random.rand()) == expected


@pytest.mark.parametrize(
    "dtype",
    [
        torch.float32,
        torch.bfloat16,
        torch.float16,
        torch.float64,
        torch.int64,
        torch.uint8,
        torch.bool,
        torch.complex64,
        torch.float8_e4m3fn,
    ],
)
def test_every_dtype_and_shape_comes_back(tmp_path, dtype):
    tensors = {shape: torch.ones(shape).to(dtype) for shape in [(), (3,), (2, 0), (2, 3)]}
    tensors["turned"] = torch.arange(6.0).reshape(2, 3).to(dtype).t()
    manager = CheckpointManager(tmp_path)
    manager.save(1, it=Holder({str(k): v for k, v in tensors.items()}))
    holder = Holder()
    manager.restore(it=holder)
    for key, tensor in tensors.items():
        found = holder.state[str(key)]
        assert found.dtype == dtype and found.shape == tensor.shape
        assert found.tolist() == tensor.tolist()


def test_device_tensors_come_back_as_they_were_at_the_save(tmp_path):
    tensor = transfer.to_device(torch.arange(4.0), "xla:0")
    manager = CheckpointManager(tmp_path)
    manager.save(1, it=Holder([tensor]), number=tensor)
    holder = Holder()
    assert manager.restore(it=holder).values["number"].tolist() == [0, 1, 2, 3]
    assert holder.state[0].tolist() == [0, 1, 2, 3]


def test_structures_keep_their_form_and_shared_tensors_are_written_once(tmp_path):
    tensor = torch.arange(3)
    state = {"a.b": tensor, "a": {"b": torch.ones(1)}, 1: (tensor, None, "x", 2.5), "n": np.ones(2)}
    manager = CheckpointManager(tmp_path)
    manager.save(1, it=Holder(state))
    holder = Holder()
    manager.restore(it=holder)
    got = holder.state
    assert got["a.b"].tolist() == got[1][0].tolist() == [0, 1, 2]
    assert got["a"]["b"].tolist() == [1] and got[1][1:] == (None, "x", 2.5)
    names = list(File(folders.rank_file(tmp_path, 1, 0, 1)).names())
    assert sorted(n for n in names if n.startswith("it")) == ["it.a.b", "it.a.b'", "it.n"]


def test_the_versions_of_modules_come_back(tmp_path):
    class Seen(nn.BatchNorm1d):
        def _load_from_state_dict(self, state, prefix, local_metadata, *args):
            self.seen = local_metadata
            super()._load_from_state_dict(state, prefix, local_metadata, *args)

    model = nn.Sequential(Seen(2))
    manager = CheckpointManager(tmp_path)
    manager.save(1, model=model)
    manager.restore(model=model)
    assert model[0].seen["version"] == 2


def test_safetensors_reads_the_files(tmp_path):
    model, *_ = job()
    manager = CheckpointManager(tmp_path)
    manager.save(7, model=model)
    manager.wait()
    with safe_open(folders.rank_file(tmp_path, 7, 0, 1), "pt") as file:
        assert torch.equal(file.get_tensor("model.0.weight"), model[0].weight)
        assert file.metadata()["step"] == "7"
        # The word that marks a tensor in the structure: files of earlier releases have it.
        assert b"torch_xdist.tensor" in bytes(file.get_tensor("__state__").numpy())


def test_a_loader_resumes_with_the_next_batch(tmp_path, monkeypatch):
    monkeypatch.setattr("torch_xdist.core.devices.steps.end_step", lambda *_, **__: None)

    def make():
        rows = torch.utils.data.DataLoader(range(10), batch_size=1, shuffle=True)
        return MpDeviceLoader(rows, "xla:0", move=lambda tensors, _: tensors)

    loader, manager = make(), CheckpointManager(tmp_path)
    iterator = iter(loader)
    for _ in range(4):
        next(iterator)
    manager.save(4, loader=loader)
    expected = [int(b) for b in iterator] + [int(b) for b in loader]
    resumed = make()
    manager.restore(loader=resumed)
    assert [int(b) for b in resumed] + [int(b) for b in resumed] == expected


def test_only_the_newest_steps_are_kept(tmp_path):
    manager = CheckpointManager(tmp_path, keep=2)
    for step in (1, 5, 10, 20):
        manager.save(step)
    manager.wait()
    assert manager.steps() == [10, 20] and manager.latest() == 20
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-00000010", "step-00000020"]


def test_an_empty_folder_has_nothing_to_restore(tmp_path):
    manager = CheckpointManager(tmp_path / "new")
    assert manager.restore() is None and manager.latest() is None and manager.steps() == []


def test_ranks_share_the_bytes_of_replicated_states(tmp_path):
    def manager(rank, ranks=2):
        return CheckpointManager(tmp_path, replicated=("model",), rank=rank, world_size=ranks)

    state = {name: torch.full((50,), float(i)) for i, name in enumerate("abcd")}
    for rank in range(2):
        with manager(rank) as one:
            assert one.latest() is None
            one.save(1, model=Holder(state), own=Holder(rank))
    files = [File(folders.rank_file(tmp_path, 1, rank, 2)) for rank in range(2)]
    held = [[n for n in file.names() if n.startswith("model")] for file in files]
    assert [len(names) for names in held] == [2, 2]
    for rank in range(2):
        model, own = Holder(), Holder()
        assert manager(rank).restore(model=model, own=own).step == 1
        assert own.state == rank
        assert {k: v.tolist() for k, v in model.state.items()} == {
            k: v.tolist() for k, v in state.items()
        }
    model = Holder()
    manager(5, 8).restore(model=model)
    assert model.state["d"].tolist() == [3.0] * 50
    with pytest.raises(
        CheckpointError, match=r"saved by 2 ranks, 'own' for each, and this is rank 5"
    ):
        manager(5, 8).restore(own=Holder())


@pytest.mark.parametrize("damage", ["value", "header", "cut", "empty"])
def test_a_corrupt_file_is_named_and_skipped(tmp_path, damage):
    manager = CheckpointManager(tmp_path)
    for step in (1, 2):
        manager.save(step, it=Holder({"w": torch.full((1000,), float(step))}))
    manager.wait()
    path = folders.rank_file(tmp_path, 2, 0, 1)
    content = bytearray(path.read_bytes())
    if damage == "value":
        content[content.index(torch.full((1,), 2.0).numpy().tobytes() * 4)] ^= 1
    elif damage == "header":
        content[12] ^= 1
    else:
        del content[0 if damage == "empty" else -5 :]
    path.write_bytes(content)
    holder = Holder()
    with pytest.warns(CorruptCheckpointWarning, match=re.escape(f"{path} is corrupt")):
        restored = manager.restore(it=holder)
    assert restored.step == 1 and holder.state["w"][0] == 1
    with pytest.raises(CheckpointError, match=r"is corrupt: .*; restore an earlier step"):
        manager.restore(2, it=holder)


def test_a_missing_step_or_name_is_said(tmp_path):
    manager = CheckpointManager(tmp_path)
    manager.save(1, it=Holder(1))
    with pytest.raises(CheckpointError, match=r"step 4 is not complete in .*; complete are \[1\]"):
        manager.restore(4)
    with pytest.raises(CheckpointError, match=r"step 1 has no 'model'; it has it"):
        manager.restore(model=Holder())
    with pytest.raises(CheckpointError, match="it is a int, which has no load_state_dict"):
        manager.restore(it=3)


def test_what_cannot_be_saved_is_refused(tmp_path):
    manager = CheckpointManager(tmp_path)
    manager.save(1)
    with pytest.raises(CheckpointError, match="step 1 is complete in"):
        manager.save(1)
    with pytest.raises(CheckpointError, match="the name 'rng' is taken"):
        manager.save(2, rng=1)
    with pytest.raises(CheckpointError, match="a value cannot be saved"):
        manager.save(2, it=lambda: 0)
        manager.wait()
    with pytest.raises(CheckpointError, match="keep is -1; give 0"):
        CheckpointManager(tmp_path, keep=-1)
    (tmp_path / "file").touch()
    with pytest.raises(CheckpointError, match="cannot be made"):
        CheckpointManager(tmp_path / "file", asynchronous=False).save(1)


@pytest.mark.parametrize("device", ["cpu", "xla"])
def test_tied_parameters_are_written_once(tmp_path, device):
    model = nn.Sequential(nn.Linear(3, 3, bias=False), nn.Linear(3, 3, bias=False)).to(device)
    model[1].weight = model[0].weight
    with CheckpointManager(tmp_path) as manager:
        manager.save(1, model=model)
    names = File(folders.rank_file(tmp_path, 1, 0, 1)).names()
    assert [name for name in names if name.startswith("model")] == ["model.0.weight"]
    twin = nn.Sequential(nn.Linear(3, 3, bias=False), nn.Linear(3, 3, bias=False)).to(device)
    CheckpointManager(tmp_path).restore(model=twin)
    for layer in range(2):
        assert torch.equal(twin[layer].weight.cpu(), model[0].weight.cpu())


def test_views_of_one_memory_that_differ_are_all_written(tmp_path):
    whole = torch.arange(4.0)
    parts = {"whole": whole, "head": whole[:2], "tail": whole[2:], "grid": whole.view(2, 2)}
    with CheckpointManager(tmp_path) as manager:
        manager.save(1, it=Holder({**parts, "same": whole.detach()}))
    names = File(folders.rank_file(tmp_path, 1, 0, 1)).names()
    assert {name for name in names if name.startswith("it")} == {f"it.{name}" for name in parts}
    holder = Holder()
    CheckpointManager(tmp_path).restore(it=holder)
    assert {name: t.tolist() for name, t in holder.state.items()} == {
        name: t.tolist() for name, t in {**parts, "same": whole}.items()
    }


def test_an_error_of_the_writing_thread_is_raised_by_the_next_call(tmp_path):
    (tmp_path / "file").touch()
    manager = CheckpointManager(tmp_path / "file")
    manager.save(1)
    with pytest.raises(CheckpointError, match="cannot be made"):
        manager.wait()
    manager.wait()


def test_a_tensor_that_is_resized_meanwhile_is_refused(tmp_path):
    tensor = torch.ones(4)
    item = entry(tensor)
    tensor.resize_(2)
    with pytest.raises(CheckpointError, match="'t' has 8 bytes, and 16 were announced"):
        write(tmp_path / "x", {}, {"t": item}, {})


def test_leftovers_of_a_killed_job_are_removed_with_the_next_save(tmp_path):
    folder = folders.step_folder(tmp_path, 3)
    folder.mkdir(parents=True)
    (folder / ".rank-00000-of-00001.safetensors.ab12.partial").touch()
    with CheckpointManager(tmp_path) as manager:
        manager.save(4)
    assert not folder.exists() and manager.steps() == [4]


def test_a_streamed_save_holds_one_tensor_on_the_host(tmp_path):
    size = 2_000_000
    tensors = {str(i): transfer.to_device(torch.ones(size), "xla:0") for i in range(6)}
    manager = CheckpointManager(tmp_path, asynchronous=False)
    assert _peak_bytes(lambda: manager.save(1, it=Holder(tensors))) < 1.3 * size * 4


def _peak_bytes(call):
    """The most host memory that torch's CPU tensors held at once in a call."""
    held, peak = 0, 0
    with torch.profiler.profile(profile_memory=True) as profile:
        call()
    for event in profile.profiler.kineto_results.events():
        if event.name() == "[memory]":
            held += event.nbytes()
            peak = max(peak, held)
    return peak


KILLING = """
    import os, signal, sys, time, traceback
    import torch
    from torch_xdist.checkpoint import CheckpointManager

    class Holder:
        def __init__(self, state=None): self.state = state
        def state_dict(self): return self.state
        def load_state_dict(self, state): self.state = state

    def save_for_ever(folder, started):
        manager = CheckpointManager(folder, keep=2)
        step = (manager.latest() or 0) + 1
        while True:
            manager.save(step, it=Holder([torch.full((40_000,), float(step)) for _ in range(5)]))
            if manager.latest() is not None:
                os.write(started, b".")
            step += 1

    def verify(folder):
        holder = Holder()
        restored = CheckpointManager(folder).restore(it=holder)
        assert all(tensor.eq(restored.step).all() for tensor in holder.state)
        return restored.step

    def forked(call, *args):
        # This process has started no thread yet: it imported, that is all.
        child = os.fork()
        if child == 0:
            try:
                print(call(*args), flush=True)
                os._exit(0)
            except BaseException:
                traceback.print_exc()
                os._exit(1)
        return child

    folder, *delays_ms = sys.argv[1:]
    for delay_ms in delays_ms:
        started, starting = os.pipe()
        child = forked(save_for_ever, folder, starting)
        os.read(started, 1)
        time.sleep(float(delay_ms) / 1e3)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(started), os.close(starting)
        assert os.waitpid(forked(verify, folder), 0)[1] == 0
"""


def steps_after_kills(folder, delays_ms):
    """The step restored after each kill of a job that saves all the time."""
    done = subprocess.run(
        [
            *(sys.executable, "-W", "error::UserWarning", "-c", textwrap.dedent(KILLING)),
            *(str(folder), *map(str, delays_ms)),
        ],
        capture_output=True,
        text=True,
        timeout=60 + 10 * len(delays_ms),
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return [int(step) for step in done.stdout.split()]


def check_kills(folder, delays_ms):
    steps = steps_after_kills(folder, delays_ms)
    assert len(steps) == len(delays_ms) and steps == sorted(steps)


def test_a_kill_at_any_moment_leaves_the_last_checkpoint(tmp_path):
    check_kills(tmp_path, [20, 23, 31, 38, 47])


@pytest.mark.long
@pytest.mark.timeout(1500)
def test_a_hundred_kills_leave_the_last_checkpoint(tmp_path):
    check_kills(tmp_path, [10 + 0.7 * i for i in range(100)])


@pytest.mark.parametrize(
    ("present", "complete", "keep", "gone"),
    [
        ([1, 2, 3], [1, 2, 3], 2, [1]),
        ([1, 2, 3], [1, 3], 1, [1, 2]),
        ([1, 2, 3], [1, 2], 2, []),
        ([1, 2, 3], [2], 5, [1]),
        ([1, 2, 3], [], 1, []),
        ([1, 2, 3], [1, 2, 3], 0, []),
    ],
)
def test_steps_older_than_the_kept_ones_go_complete_or_not(present, complete, keep, gone):
    assert folders.surplus(present, complete, keep) == gone
