"""Two real ranks: they agree on uneven loaders, and restore the same step."""

import torch
from device_ranks import on_threads

import torch_xla.distributed.parallel_loader as pl
import torch_xla.distributed.xla_multiprocessing as xmp
from torch_xdist import world
from torch_xdist.checkpoint import CheckpointManager
from torch_xdist.checkpoint import folder as checkpoint_folder
from torch_xdist.loaders.errors import UnevenBatchesError


class Holder:
    def __init__(self, state=None):
        self.state = state

    def state_dict(self):
        return self.state

    def load_state_dict(self, state):
        self.state = state


def run(rank, folder):
    batches = [torch.tensor(i) for i in range(3 + 4 * rank)]
    for mode, count in [("drop", 3), ("pad", 7)]:
        for _ in range(2):
            got = [int(b) for b in pl.MpDeviceLoader(batches, "xla", uneven=mode)]
            assert len(got) == count, (mode, got)
    try:
        list(pl.MpDeviceLoader(batches, "xla", uneven="error"))
        raise AssertionError("no error")
    except UnevenBatchesError as error:
        assert "rank 0 has 3 batches, rank 1 more" in str(error)

    manager = CheckpointManager(folder, replicated=["model"])
    for step in (1, 2):
        model = {"w": torch.full((100,), float(step)), "b": torch.ones(50)}
        manager.save(step, model=Holder(model), own=Holder(rank))
    manager.wait()
    restored_both_complete(manager)
    if rank == 1:
        path = checkpoint_folder.rank_file(manager._folder, 2, 1, 2)
        path.write_bytes(path.read_bytes()[:-1])
    world_meets("damaged")
    model, own = Holder(), Holder()
    restored = manager.restore(model=model, own=own)
    assert (restored.step, own.state) == (1, rank)
    assert model.state["w"].eq(1).all()


def restored_both_complete(manager):
    world_meets("saved")
    assert manager.steps() == [1, 2]


def world_meets(tag):
    from torch_xdist.ranks.rendezvous import rendezvous

    rendezvous(tag)
    assert world.world_size() == 2


def test_ranks_agree_on_uneven_loaders_and_on_the_step_to_restore(tmp_path):
    xmp.spawn(run, args=(str(tmp_path),), nprocs=2)


def asks_for_its_rank(rank, size):
    """What the dataset of a rank that is a thread says of itself, on the thread that reads."""
    import threading

    import torch_xla.core.xla_model as xm
    import torch_xla.runtime as xr

    class Data(torch.utils.data.Dataset):
        def __len__(self):
            return 20

        def __getitem__(self, index):
            readers.add(threading.get_ident())
            return torch.tensor([xm.get_ordinal(), xr.world_size(), xm.xla_device().index])

    readers: set[int] = set()
    device = xm.xla_device()
    loader = pl.ParallelLoader(torch.utils.data.DataLoader(Data(), batch_size=2), [device])
    found = {tuple(row) for batch in loader.per_device_loader(device) for row in batch.tolist()}
    return found, threading.get_ident() not in readers


def test_a_dataset_is_asked_as_the_rank_it_is_loaded_for_also_where_ranks_are_threads():
    for rank, (found, is_read_ahead) in enumerate(on_threads(3, asks_for_its_rank)):
        assert is_read_ahead
        assert found == {(rank, 3, rank)}
