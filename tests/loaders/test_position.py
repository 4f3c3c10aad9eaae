"""A loader resumes with the very next batch of the same order."""

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, DistributedSampler, IterableDataset

from torch_xdist.loaders.errors import ArgumentError
from torch_xdist.loaders.mp_device import MpDeviceLoader

pytestmark = pytest.mark.usefixtures("cuts_made")


def copy(tensors, device):
    return [tensor.clone() for tensor in tensors]


class Rows(Dataset):
    """20 numbers; counts how many were read."""

    def __init__(self, draws=False):
        self.draws = draws
        self.read = []

    def __len__(self):
        return 20

    def __getitem__(self, index):
        self.read.append(index)
        return index + (torch.rand(()) if self.draws else 0)


class Stream(IterableDataset):
    def __iter__(self):
        return iter(range(20))


def loader_of(dataset, **kwargs):
    loader = DataLoader(dataset, batch_size=3, **kwargs)
    return MpDeviceLoader(loader, "xla:0", move=copy)


def values(batches):
    return [value for batch in batches for value in batch.tolist()]


def resumed_after(make, taken, passes=2):
    """(what an uninterrupted run gives after `taken` batches, what a resumed one gives)."""
    torch.manual_seed(7)
    loader = make()
    iterator = iter(loader)
    for _ in range(taken):
        next(iterator)
    state, random = loader.state_dict(), torch.get_rng_state()
    expected = [values(iterator), *(values(loader) for _ in range(passes - 1))]

    torch.manual_seed(99)
    fresh = make()
    fresh.load_state_dict(state)
    torch.set_rng_state(random)
    return expected, [values(fresh) for _ in range(passes)]


@pytest.mark.parametrize("taken", [1, 4, 7])
@pytest.mark.parametrize(
    "make",
    [
        lambda: loader_of(Rows()),
        lambda: loader_of(Rows(), shuffle=True),
        lambda: loader_of(Rows(), shuffle=True, drop_last=True),
        lambda: loader_of(Stream()),
        lambda: loader_of(Rows(), shuffle=True, generator=torch.Generator().manual_seed(3)),
    ],
    ids=["in order", "shuffled", "drop_last", "stream", "own generator"],
)
def test_a_resumed_pass_and_the_next_equal_the_uninterrupted_ones(make, taken):
    expected, got = resumed_after(make, min(taken, 6))
    assert got[0] == expected[0]
    if "own generator" not in str(make):
        assert len(got[1]) == len(expected[1])


def test_random_numbers_drawn_by_the_dataset_go_on_as_well():
    expected, got = resumed_after(lambda: loader_of(Rows(draws=True), shuffle=True), 4, passes=1)
    assert got == expected


def test_skipped_samples_are_not_read():
    loader = loader_of(Rows())
    iterator = iter(loader)
    for _ in range(5):
        next(iterator)
    rows = Rows()
    fresh = loader_of(rows)
    fresh.load_state_dict(loader.state_dict())
    assert values(fresh) == rows.read == [15, 16, 17, 18, 19]
    assert len(fresh) == 7


def test_the_next_shuffle_equals_the_uninterrupted_one():
    expected, got = resumed_after(lambda: loader_of(Rows(), shuffle=True), 2, passes=3)
    assert got == expected


def test_the_position_counts_what_the_loop_got_not_what_was_read_ahead():
    loader = loader_of(Rows())
    iterator = iter(loader)
    next(iterator)
    next(iterator)
    assert loader.state_dict()["batches"] == 2
    iterator.close()


def test_a_position_at_the_last_batch_gives_an_empty_rest():
    loader = loader_of(Rows())
    for _ in loader:
        state = loader.state_dict()
    fresh = loader_of(Rows())
    fresh.load_state_dict(state)
    assert values(fresh) == []
    assert values(fresh) == list(range(20))


def test_a_position_between_passes_begins_a_new_one():
    loader = loader_of(Rows())
    list(loader)
    state = loader.state_dict()
    assert state["finished"] and state["epoch"] == 0
    fresh = loader_of(Rows())
    fresh.load_state_dict(state)
    assert values(fresh) == list(range(20))
    assert fresh.state_dict()["epoch"] == 1


def test_a_distributed_sampler_goes_back_to_its_epoch():
    def make():
        rows = Rows()
        return loader_of(rows, sampler=DistributedSampler(rows, num_replicas=2, rank=1))

    loader = make()
    loader._loader.sampler.set_epoch(3)
    iterator = iter(loader)
    next(iterator)
    state = loader.state_dict()
    fresh = make()
    fresh.load_state_dict(state)
    assert values(fresh) == values(iterator)


def test_a_foreign_state_is_refused():
    with pytest.raises(ArgumentError, match="got dict with format 9, and needs what state_dict"):
        loader_of(Rows()).load_state_dict({"format": 9})


def test_a_state_survives_torch_save(tmp_path):
    loader = loader_of(Rows())
    next(iter(loader))
    torch.save(loader.state_dict(), tmp_path / "position.pt")
    loader.load_state_dict(torch.load(tmp_path / "position.pt", weights_only=True))
    assert values(loader) == list(range(3, 20))
