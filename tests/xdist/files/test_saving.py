"""Checkpoints are written whole, and load anywhere."""

import io
import json
import os
import pickle
import stat
import subprocess
import sys
import threading

import pytest
import torch
from pretend_device import pretend

import torch_xla  # noqa: F401
from torch_xdist.errors import CheckpointError
from torch_xdist.files import saving


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.complex64]
)
def test_streamed_values_load_as_they_were(tmp_path, dtype):
    values = torch.arange(12).reshape(3, 4).to(dtype)
    saving.write({"w": pretend(values), "n": (1, "text")}, tmp_path / "x.pt")
    out = torch.load(tmp_path / "x.pt", weights_only=True)
    assert torch.equal(out["w"], values) and out["n"] == (1, "text")
    assert type(out["w"]) is torch.Tensor


def test_device_and_cpu_tensors_share_one_file(tmp_path):
    cpu = torch.arange(5.0)
    data = [pretend(torch.ones(2)), cpu, cpu[1:3], pretend(torch.empty(0)), pretend(torch.ones(()))]
    saving.write(data, tmp_path / "x.pt")
    out = torch.load(tmp_path / "x.pt", weights_only=True)
    assert [t.tolist() for t in out] == [[1, 1], [0, 1, 2, 3, 4], [1, 2], [], 1.0]


def test_tied_weights_stay_tied(tmp_path):
    weight = pretend(torch.ones(3))
    saving.write({"a": weight, "b": weight.detach()}, tmp_path / "x.pt")
    out = torch.load(tmp_path / "x.pt", weights_only=True)
    assert out["a"].data_ptr() == out["b"].data_ptr()


def test_parameters_stay_parameters(tmp_path):
    parameter = torch.nn.Parameter(pretend(torch.ones(3)))
    saving.write([parameter], tmp_path / "x.pt")
    (out,) = torch.load(tmp_path / "x.pt", weights_only=True)
    assert isinstance(out, torch.nn.Parameter) and out.requires_grad


def test_the_file_loads_in_a_process_without_us(tmp_path):
    saving.write({"w": pretend(torch.ones(3))}, tmp_path / "x.pt")
    code = (
        "import sys, torch; out = torch.load(sys.argv[1]);"
        "assert out['w'].tolist() == [1, 1, 1];"
        "assert not any(m.startswith(('torch_xdist', 'torch_xla')) for m in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path / "x.pt")], check=True, timeout=120)


def test_a_failure_leaves_the_old_file_and_nothing_else(tmp_path):
    path = tmp_path / "x.pt"
    saving.write({"old": 1}, path)
    with pytest.raises(pickle.PicklingError):
        saving.write({"bad": lambda: 0, "w": pretend(torch.ones(2))}, path)
    assert torch.load(path) == {"old": 1}
    assert [p.name for p in tmp_path.iterdir()] == ["x.pt"]


def test_a_pipe_is_written_into_and_not_replaced(tmp_path):
    pipe, received = tmp_path / "pipe", []
    os.mkfifo(pipe)
    reader = threading.Thread(target=lambda: received.append(pipe.read_bytes()), daemon=True)
    reader.start()
    saving.save({"x": torch.arange(5.0, device="xla"), "n": 3}, pipe)
    reader.join(30)
    assert pipe.is_fifo() and [file.name for file in tmp_path.iterdir()] == ["pipe"]
    found = torch.load(io.BytesIO(received[0]))
    assert torch.equal(found["x"], torch.arange(5.0)) and found["n"] == 3


def test_a_device_that_takes_nothing_is_named():
    with pytest.raises(CheckpointError, match=r"save: /dev/full cannot be written .*No space left"):
        saving.save(torch.ones(2, device="xla"), "/dev/full")


def test_a_device_stays_a_device(tmp_path):
    device = tmp_path / "null"
    try:
        os.mknod(device, stat.S_IFCHR | 0o666, os.stat(os.devnull).st_rdev)
    except PermissionError:
        pytest.skip("only who may make devices can have one whose loss harms nobody")
    saving.save(torch.ones(2, device="xla"), device)
    assert device.is_char_device() and [file.name for file in tmp_path.iterdir()] == ["null"]


def test_a_missing_folder_is_named(tmp_path):
    path = tmp_path / "nowhere" / "x.pt"
    with pytest.raises(CheckpointError, match=r"save: .*nowhere/x.pt cannot be written"):
        saving.write({"w": 1}, path)


def test_to_cpu_keeps_types_and_ties():
    weight = pretend(torch.ones(3))
    out = saving.to_cpu({"a": weight, "t": (1, weight)})
    assert type(out["a"]) is torch.Tensor and type(out["t"]) is tuple
    assert out["a"].data_ptr() == out["t"][1].data_ptr()
    torch.save(out, io.BytesIO())
    assert saving.maybe_convert_to_cpu({"a": weight}, convert=False) is None


# In a process of its own, whose freed memory goes back to the system: elsewhere what a heap keeps
# and has in pieces is in what is resident, too.
_SAVES = """
import json, resource, sys, threading, torch, torch_xla
from pathlib import Path
from torch_xdist.files import saving

KINDS = {
    "own": lambda count: torch.rand(count, device="xla"),
    "constant": lambda count: torch.full((count,), 2.0, device="xla"),
    "view": lambda count: torch.rand(count, device="xla").view(64, -1),
    "transposed": lambda count: torch.rand(64, count // 64, device="xla").t(),
    "part": lambda count: torch.rand(2 * count, device="xla")[:count],
}
COUNT, LARGE_BYTES = 5, 32 * 2**20

def resident_bytes():
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()

def saved(kind, folder):
    state = {i: KINDS[kind](LARGE_BYTES // 4) for i in range(COUNT)}
    torch_xla.sync(wait=True)
    # Compiling the program that reads a part needs memory, too, once.
    saving.save({"w": state[0]}, folder / "first.pt")
    before, peak, ended = resident_bytes(), 0, threading.Event()

    def watch():
        nonlocal peak
        while not ended.wait(0.001):
            peak = max(peak, resident_bytes() - before)

    watcher = threading.Thread(target=watch)
    watcher.start()
    saving.save(state, folder / "x.pt")
    ended.set()
    watcher.join()
    loaded = torch.load(folder / "x.pt", mmap=True)
    assert torch.equal(loaded[3], state[3].cpu())
    return peak / LARGE_BYTES

print(json.dumps({kind: saved(kind, Path(sys.argv[1])) for kind in KINDS}))
"""


@pytest.fixture(scope="module")
def peaks(tmp_path_factory):
    """By kind of tensor: what was resident at most while five were saved, in sizes of one."""
    environ = {**os.environ, "XDIST_HEAP_MB": "0"}
    words = [sys.executable, "-c", _SAVES, str(tmp_path_factory.mktemp("saves"))]
    done = subprocess.run(words, env=environ, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("kind", ["own", "constant", "view", "transposed", "part"])
def test_a_save_holds_one_tensor_at_a_time(peaks, kind):
    assert peaks[kind] < 1.3


def test_a_save_writes_what_a_lazily_conjugated_or_negated_tensor_means(tmp_path):
    values = torch.tensor([1 + 2j, 3 - 1j]).to("xla")
    saving.save({"conj": values.conj(), "neg": values.conj().imag}, tmp_path / "x.pt")
    loaded = torch.load(tmp_path / "x.pt")
    assert loaded["conj"].tolist() == [1 - 2j, 3 + 1j]
    assert loaded["neg"].tolist() == [-2, 1]


@pytest.mark.parametrize("to_path", [True, False])
def test_a_sparse_tensor_is_saved_beside_dense_ones(tmp_path, to_path):
    there = torch.eye(3).to_sparse().to("xla")
    data = {"sparse": there, "again": there, "dense": torch.arange(3.0).to("xla")}
    target = tmp_path / "both.pt" if to_path else io.BytesIO()
    saving.save(data, target)
    if not to_path:
        target.seek(0)
    out = torch.load(target)
    assert torch.equal(out["sparse"].to_dense(), torch.eye(3))
    assert out["again"].layout is torch.sparse_coo
    assert out["dense"].tolist() == [0, 1, 2]
    saving.check_view_sharing({"sparse": there, "dense": data["dense"]})
