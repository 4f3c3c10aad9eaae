"""`torch.accelerator` and what torch does with the accelerator: it is xla."""

import json
import os
import subprocess
import sys
import warnings
from typing import Any

import pytest
import torch
from torch.utils import checkpoint
from torch.utils.benchmark import Timer
from torch.utils.data import DataLoader, TensorDataset

import torch_xla  # noqa: F401 it registers the device
from torch_xdist.core.torch_side import accelerator

ACCELERATOR = torch.accelerator
# What launchers are imported by asks for an accelerator before there is a rank.
UNTOUCHED = """
import json, torch, torch_xla
from torch.utils.data import DataLoader, TensorDataset
from torch_xdist.core.devices import device
accelerator = torch.accelerator
data = TensorDataset(torch.ones(4, 2))
loader = DataLoader(data, pin_memory=accelerator.is_available(), num_workers=1)
answers = [
    accelerator.is_available(),
    str(accelerator.current_accelerator(True)),
    accelerator.current_device_index(),
    accelerator.memory_allocated(),
    accelerator.synchronize(),
    torch.get_device_module().__name__.split(".")[0],
    len(list(loader)),
]
print(json.dumps([answers, device.is_started()]))
"""
OF_TWO = """
import json, torch, torch_xla
accelerator = torch.accelerator
answers = [accelerator.device_count(), accelerator.current_device_index()]
with accelerator.device_index(1):
    answers += [accelerator.current_device_index(), torch.ones(2, device="xla").device.index]
answers.append(accelerator.current_device_index())
accelerator.set_device_index("xla:1")
answers.append(torch.xla.current_device())
accelerator.set_device_index(0)
print(json.dumps([*answers, torch.ones(2, device="xla").device.index]))
"""


def run(script: str, **variables: str) -> list[Any]:
    """What a script prints in a process of its own, which warns of nothing."""
    command = [sys.executable, "-W", "error:.*pin_memory", "-c", script]
    environment = {**os.environ, **variables}
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, env=environment)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def is_pending(tensor: Any) -> bool:
    return tensor.value.buffer is None


@pytest.fixture
def another_accelerator(monkeypatch):
    """torch has an accelerator of its own, which is available."""
    monkeypatch.setattr(accelerator, "_ask_torch", lambda: torch.device("cpu"))
    accelerator.is_xla.cache_clear()
    yield
    monkeypatch.undo()
    accelerator.is_xla.cache_clear()


def test_the_accelerator_is_xla_and_no_question_starts_a_device():
    assert run(UNTOUCHED) == [[True, "xla", 0, 0, None, "torch_xdist", 4], False]


def test_a_script_of_today_trains_on_it():
    device = ACCELERATOR.current_accelerator() if ACCELERATOR.is_available() else "cpu"
    model = torch.nn.Linear(3, 2).to(device)
    model(torch.ones(4, 3).to(device, non_blocking=True)).sum().backward()
    assert model.weight.grad.device.type == "xla"
    assert model.weight.grad.cpu().tolist() == [[4.0] * 3] * 2


def test_the_present_device_is_what_it_says_and_sets():
    assert run(OF_TWO, CPU_NUM_DEVICES="2") == [2, 0, 1, 1, 0, 1, 0]


def test_a_device_that_is_not_there_is_refused():
    with pytest.raises(RuntimeError, match="99"):
        ACCELERATOR.set_device_index(99)
    with pytest.raises(ValueError, match="cuda doesn't match the current accelerator xla"):
        ACCELERATOR.synchronize("cuda")


def test_synchronize_runs_what_is_pending():
    tensor = torch.ones(2, device="xla") * 3
    assert is_pending(tensor)
    ACCELERATOR.synchronize()
    assert not is_pending(tensor)


def test_its_stream_is_the_devices():
    stream = ACCELERATOR.current_stream()
    ACCELERATOR.set_stream(stream)
    assert stream is torch.xla.current_stream()
    assert stream.device == torch.device("xla", ACCELERATOR.current_device_index())


def test_the_time_between_two_events_is_the_devices():
    start, end = (torch.xla.Event(enable_timing=True) for _ in range(2))
    with pytest.raises(ValueError, match="both events must be recorded first"):
        start.elapsed_time(end)
    tensor = torch.ones(200, 200, device="xla")
    start.record()
    assert not is_pending(tensor)
    product = tensor @ tensor
    end.record()
    assert not is_pending(product)
    assert start.elapsed_time(end) > 0
    untimed = torch.xla.Event().record()
    with pytest.raises(ValueError, match="created with enable_timing=True"):
        start.elapsed_time(untimed)


def test_memory_is_told_in_bytes():
    kept = torch.ones(1000, 1000, device="xla")
    ACCELERATOR.synchronize()
    used, peak = ACCELERATOR.memory_allocated(), ACCELERATOR.max_memory_allocated()
    assert 4_000_000 < used <= peak
    assert torch.xla.memory_reserved() > 4_000_000
    assert torch.xla.max_memory_allocated() == ACCELERATOR.max_memory_reserved()
    free, total = torch.xla.mem_get_info()
    assert 0 < free < total
    ACCELERATOR.empty_cache()
    ACCELERATOR.reset_accumulated_memory_stats()
    del kept


def test_a_peak_that_cannot_be_reset_is_told():
    with pytest.warns(UserWarning, match="JAX keeps one peak .* from the start of the process"):
        ACCELERATOR.reset_peak_memory_stats()


@pytest.mark.skipif(
    not hasattr(ACCELERATOR, "get_device_capability"), reason="torch 2.9 has no capabilities"
)
def test_its_dtypes_are_what_its_tensors_can_have():
    dtypes = ACCELERATOR.get_device_capability()["supported_dtypes"]
    assert torch.bfloat16 in dtypes
    assert torch.complex32 not in dtypes
    for dtype in dtypes:
        assert torch.zeros(2, device="xla", dtype=dtype).cpu().dtype is dtype


def test_a_pinned_tensor_is_a_copy():
    tensor = torch.ones(3)
    pinned = tensor.pin_memory()
    tensor.zero_()
    assert pinned.tolist() == [1, 1, 1]


def test_a_loader_that_pins_memory_copies_nothing_and_warns_of_nothing():
    loader = DataLoader(TensorDataset(torch.arange(6)), pin_memory=True)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*pin_memory")
        batches = iter(loader)
        assert [batch.tolist() for (batch,) in batches] == [[n] for n in range(6)]
    assert not batches._pin_memory


def test_fork_rng_brings_the_devices_random_numbers_back():
    torch.manual_seed(3)
    with torch.random.fork_rng():
        inside = torch.rand(3, device="xla").tolist(), torch.rand(3).tolist()
    assert (torch.rand(3, device="xla").tolist(), torch.rand(3).tolist()) == inside


def test_a_timer_waits_for_the_device():
    tensor = torch.ones(4, device="xla")
    Timer("tensor.add_(1)", globals={"tensor": tensor}).timeit(3)
    assert not is_pending(tensor)


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_checkpoints_of_cpu_tensors_go_on_as_they_did(use_reentrant):
    layers = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Dropout(0.5))
    tensor = torch.ones(2, 3, requires_grad=True)
    torch.manual_seed(0)
    checkpoint.checkpoint(layers, tensor, use_reentrant=use_reentrant).sum().backward()
    wanted, tensor.grad = tensor.grad, None
    torch.manual_seed(0)
    layers(tensor).sum().backward()
    assert torch.equal(tensor.grad, wanted)


def test_a_compiled_function_may_ask_for_it():
    @torch.compile(backend="eager", fullgraph=True)
    def move(tensor):
        return tensor.to(torch.accelerator.current_accelerator()) + 1

    assert move(torch.ones(2)).device.type == "xla"


def test_an_accelerator_of_torchs_own_comes_first(another_accelerator):
    assert ACCELERATOR.current_accelerator() is None
    with pytest.raises(RuntimeError, match="accelerator"):
        ACCELERATOR.current_device_index()
    with pytest.raises(RuntimeError, match="accelerator"):
        torch.ones(2).pin_memory()
