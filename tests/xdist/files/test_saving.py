"""Checkpoints are written whole, and load anywhere."""

import io
import pickle
import resource
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch
from pretend_device import pretend

import torch_xla
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


def test_the_host_holds_one_tensor_at_a_time(tmp_path):
    count, large_bytes = 5, 32 * 2**20
    state = {i: torch.rand(large_bytes // 4, device="xla") for i in range(count)}
    torch_xla.sync(wait=True)
    saving.write({"w": torch.ones(4, device="xla")}, tmp_path / "first.pt")
    before, peak, ended = _resident_bytes(), [0], threading.Event()

    def watch():
        while not ended.wait(0.001):
            peak[0] = max(peak[0], _resident_bytes() - before)

    watcher = threading.Thread(target=watch)
    watcher.start()
    saving.write(state, tmp_path / "x.pt")
    ended.set()
    watcher.join()
    assert peak[0] / large_bytes < 1.3
    assert (tmp_path / "x.pt").stat().st_size > count * large_bytes


def _resident_bytes():
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
