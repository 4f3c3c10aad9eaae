"""torch's own DataLoader behind ours: workers, streams, cuts, and the end of the process."""

import subprocess
import sys
import textwrap
import warnings

import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset, TensorDataset, get_worker_info

import torch_xla
from torch_xdist import metrics, world
from torch_xdist.loaders.mp_device import MpDeviceLoader
from torch_xdist.loaders.sharing import SameDataWarning, warn_if_shared

assert torch_xla  # the device "xla"
ROWS = TensorDataset(torch.arange(24.0).reshape(12, 2), torch.arange(12))


def copy(tensors, device):
    return [tensor.clone() for tensor in tensors]


class Stream(IterableDataset):
    """0 to 19, shared out between the workers."""

    def __iter__(self):
        info = get_worker_info()
        return iter(range(20)[info.id :: info.num_workers] if info else range(20))


class Failing(TensorDataset):
    def __getitem__(self, index):
        if index == 7:
            raise ValueError("row 7 is broken")
        return super().__getitem__(index)


def test_batches_arrive_on_the_device():
    (x, y), *_ = MpDeviceLoader(DataLoader(ROWS, batch_size=4), "xla:0")
    assert x.device == y.device == torch.device("xla:0")
    assert x.shape == (4, 2) and y.dtype == torch.int64


def test_a_pass_of_n_batches_makes_n_plus_2_cuts():
    before = metrics.counter_value("MarkStep") or 0
    assert len(list(MpDeviceLoader(DataLoader(ROWS, batch_size=4), "xla:0"))) == 3
    assert metrics.counter_value("MarkStep") == before + 5


def test_several_batches_can_be_one_execution(cuts_made):
    loader = MpDeviceLoader(
        DataLoader(ROWS, batch_size=2), "xla:0", batches_per_execution=3, move=copy
    )
    after = []
    for _ in loader:
        after.append(len(cuts_made))
    assert after == [1, 1, 1, 2, 2, 2] and len(cuts_made) == 4


@pytest.mark.usefixtures("cuts_made")
@pytest.mark.parametrize("persistent", [False, True])
def test_workers_are_forked_without_noise_and_again_in_each_pass(persistent):
    torch.ones(2).sum()
    loader = DataLoader(ROWS, batch_size=4, num_workers=2, persistent_workers=persistent)
    device_loader = MpDeviceLoader(loader, "xla:0")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(2):
            assert [x.shape for x, _ in device_loader] == [(4, 2)] * 3


@pytest.mark.usefixtures("cuts_made")
def test_an_error_in_a_worker_comes_after_the_good_batches():
    loader = DataLoader(Failing(*ROWS.tensors), batch_size=2, num_workers=1)
    got = []
    with pytest.raises(ValueError, match="row 7 is broken"):
        for _, y in MpDeviceLoader(loader, "xla:0", move=copy):
            got += y.tolist()
    assert got == [0, 1, 2, 3, 4, 5]


@pytest.mark.usefixtures("cuts_made")
def test_batches_keep_their_values_where_the_loader_writes_over_them():
    room = torch.zeros(2, 4)

    def collate(samples):
        return [torch.stack([sample[0] for sample in samples], out=room)]

    data = TensorDataset(torch.arange(24.0).reshape(6, 4))
    for loader in (DataLoader(data, 2), DataLoader(data, 2, collate_fn=collate)):
        batches = [batch for [batch] in MpDeviceLoader(loader, "xla:0")]
        assert torch.equal(torch.cat(batches).cpu(), data.tensors[0])


def test_what_a_dataset_hands_out_whole_is_copied():
    samples = [torch.ones(16) for _ in range(3)]
    batches = list(MpDeviceLoader(DataLoader(samples, batch_size=None), "xla:0"))
    for sample in samples:
        sample.zero_()
    assert [batch.sum().item() for batch in batches] == [16, 16, 16]


def test_a_break_ends_the_workers_too():
    loader = DataLoader(ROWS, batch_size=1, num_workers=1)
    for _ in MpDeviceLoader(loader, "xla:0", move=copy):
        break
    for _ in range(2):
        assert len(list(MpDeviceLoader(loader, "xla:0", move=copy))) == 12


@pytest.mark.usefixtures("cuts_made")
@pytest.mark.parametrize("workers", [0, 2])
def test_streams_are_read_to_their_end(workers):
    loader = MpDeviceLoader(
        DataLoader(Stream(), batch_size=5, num_workers=workers), "xla:0", move=copy
    )
    for _ in range(2):
        assert sorted(v for batch in loader for v in batch.tolist()) == list(range(20))


def test_the_reading_of_the_same_data_by_every_rank_is_warned_of(monkeypatch):
    monkeypatch.setattr(world, "rank", lambda: 1)
    shuffled = DataLoader(ROWS, batch_size=2, shuffle=True)
    with pytest.warns(SameDataWarning, match=r"rank 1 of 4 reads all 12 samples.*rank=1\)"):
        warn_if_shared(shuffled, 4)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_if_shared(shuffled, 1)
        warn_if_shared(DataLoader(ROWS, batch_size=2), 4)
        sampler = torch.utils.data.DistributedSampler(ROWS, num_replicas=4, rank=1)
        warn_if_shared(DataLoader(ROWS, sampler=sampler), 4)


def run_script(text, timeout_s=90):
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(text)],
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )


SCRIPT = """
    import sys, torch
    from torch.utils.data import DataLoader, TensorDataset
    from torch_xdist.loaders.parallel import ParallelLoader
    rows = TensorDataset(torch.ones(4000, 64))
    loader = DataLoader(rows, batch_size=1, num_workers={workers})
    iterator = ParallelLoader(loader, ["xla:0"]).per_device_loader("xla:0")
    for _ in range(3):
        next(iterator)
    {end}
"""


@pytest.mark.parametrize(("workers", "end", "code"), [(0, "sys.exit(3)", 3), (1, "pass", 0)])
def test_a_process_ends_cleanly_in_the_middle_of_a_pass(workers, end, code):
    done = run_script(SCRIPT.format(workers=workers, end=end))
    assert (done.returncode, done.stderr) == (code, "")


@pytest.mark.long
@pytest.mark.timeout(1500)
def test_twenty_processes_end_cleanly_in_the_middle_of_a_pass():
    for _ in range(20):
        done = run_script(SCRIPT.format(workers=0, end="pass"))
        assert done.returncode == 0 and done.stderr == ""


@pytest.mark.long
def test_workers_can_be_forked_while_the_device_is_busy():
    weight = torch.ones(512, 512, device="xla")
    loader = DataLoader(ROWS, batch_size=2, num_workers=2)
    for number in range(40):
        product = weight
        for taken, _ in enumerate(MpDeviceLoader(loader, "xla")):
            product = product @ weight / 512
            if number % 4 == 3 and taken == 2:
                break
    assert product[0, 0].item() == 1
