"""dp.DataParallel, the way of 2019: on one device, on none, and on two."""

import subprocess
import sys
import textwrap

import pytest
import torch
import torch.nn.functional as F
from small_model import Net, losses_on_cpu, make_batches
from torch.utils.data import DataLoader

import torch_xla.core.xla_model as xm
import torch_xla.distributed.data_parallel as dp
import torch_xla_py.data_parallel as dp_2019


@pytest.fixture
def batches():
    return make_batches()


def loop(model, loader, device, context):
    """A loop function of data parallel scripts; 2019's get (number, data)."""
    optimizer = context.getattr_or(
        "optimizer", lambda: torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    )
    losses = []
    for data, target in loader:
        optimizer.zero_grad()
        loss = F.nll_loss(model(data), target)
        loss.backward()
        xm.optimizer_step(optimizer)
        losses.append(loss.detach())
    return [value.item() for value in losses]


def test_data_parallel_trains_on_the_devices(batches):
    torch.manual_seed(0)
    parallel = dp.DataParallel(Net, device_ids=xm.get_xla_supported_devices())
    (losses,) = parallel(loop, batches)
    assert losses == pytest.approx(losses_on_cpu(batches), rel=1e-4)
    (again,) = parallel(loop, batches)
    assert again[-1] < losses[-1]
    assert parallel.devices == ["xla:0"] and len(parallel.models) == 1


def test_data_parallel_without_devices_trains_the_module_itself(batches):
    torch.manual_seed(0)
    model = Net()
    before = model.out.weight.clone()
    (losses,) = dp.DataParallel(model, device_ids=[])(loop, batches)
    assert losses == pytest.approx(losses_on_cpu(batches), rel=1e-6)
    assert not torch.equal(before, model.out.weight)


@pytest.mark.parametrize("device_ids", [None, []])
def test_the_module_of_2019_numbers_its_batches(batches, device_ids):
    def numbers(model, loader, device, context):
        return [number for number, (data, target) in loader]

    assert dp_2019.DataParallel(Net, device_ids=device_ids)(numbers, batches) == [[*range(6)]]


def test_a_fixed_batch_size_stops_at_the_first_other_one():
    data = DataLoader(torch.arange(10), batch_size=4)
    parallel = dp.DataParallel(Net, device_ids=[])
    count = lambda model, loader, device, context: len(list(loader))  # noqa: E731
    assert parallel(count, data, fixed_batch_size=True) == [2]
    # By place: (batchdim, fixed_batch_size), and 2019's (fixed_batch_size, batchdim).
    assert parallel(count, data, 0, True) == parallel(count, data, True, 0) == [2]
    assert parallel(count, data, 0) == parallel(count, data, False, 0) == [3]
    assert parallel(count, data) == [3]


def test_data_parallel_refuses_a_module_of_two_devices():
    model = Net()
    model.out.to("xla")
    with pytest.raises(RuntimeError, match="DataParallel: Model uses more than one device"):
        dp.DataParallel(model, device_ids=[])


def test_a_thread_leaves_its_result():
    assert dp.ThreadResult().result is None


def test_a_context_keeps_what_it_made():
    context = dp.Context(torch.device("cpu"))
    assert context.getattr_or("x", lambda: 3) == 3 and context.getattr_or("x", 4) == 3


DATA_PARALLEL = """
    import torch, torch.nn.functional as F, torch_xla
    import torch_xla_py.data_parallel as dp, torch_xla_py.xla_model as xm
    torch.manual_seed(0)
    devices = xm.get_xla_supported_devices()
    assert devices == ["xla:0", "xla:1"]
    data = [(torch.randn(4, 6), torch.randint(3, (4,))) for _ in range(6)]

    def loop(model, loader, device, context):
        optimizer = context.getattr_or("o", lambda: torch.optim.SGD(model.parameters(), lr=0.1))
        for number, (x, y) in loader:
            assert x.device == device
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            xm.optimizer_step(optimizer)
        return number + 1, xm.xrt_world_size(), xm.get_ordinal()

    parallel = dp.DataParallel(torch.nn.Linear(6, 3), device_ids=devices)
    assert parallel(loop, data) == [(3, 2, 0), (3, 2, 1)]
    weights = [model.weight.detach().cpu() for model in parallel.models]
    torch.testing.assert_close(*weights)
    try:
        torch.ones(2, device="xla:0") + torch.ones(2, device="xla:1")
    except RuntimeError as error:
        print(error)
"""

FAILING = """
    import torch, torch_xla.core.xla_model as xm, torch_xla.distributed.data_parallel as dp

    def loop(model, loader, device, context):
        raise KeyError(str(device))

    dp.DataParallel(torch.nn.Linear(1, 1))(loop, [])
"""


def run(code, monkeypatch, devices):
    monkeypatch.setenv("CPU_NUM_DEVICES", str(devices))
    command = [sys.executable, "-c", textwrap.dedent(code)]
    return subprocess.run(command, capture_output=True, text=True, timeout=200)


@pytest.fixture(scope="module")
def two_devices():
    with pytest.MonkeyPatch.context() as monkeypatch:
        yield run(DATA_PARALLEL, monkeypatch, 2)


def test_data_parallel_keeps_its_copies_equal_on_two_devices(two_devices):
    assert two_devices.returncode == 0, two_devices.stderr


def test_tensors_of_two_devices_are_refused_in_one_operator(two_devices):
    words = "expected all tensors to be on the same device, but found xla:0 and xla:1; move one"
    assert words in two_devices.stdout


def test_an_exception_in_a_loop_function_ends_the_process(monkeypatch):
    done = run(FAILING, monkeypatch, 1)
    assert done.returncode == 17
    assert "Exception in model function for device=xla:0: 'xla:0'" in done.stderr
    assert "Traceback" in done.stderr
