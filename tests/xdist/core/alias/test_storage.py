"""Storages as Python sees them: which tensors share one, and for how long it is there."""

import pytest
import torch

import torch_xla


def test_tensors_that_share_memory_have_one_storage_object():
    x, y = torch.ones(2, 3, device="xla"), torch.ones(2, 3, device="xla")
    assert x.untyped_storage() is x[1].untyped_storage() is x.detach().storage()
    # Neither has a name here: an object that ends at once would lend its id to the next one.
    assert id(x.untyped_storage()) != id(y.untyped_storage())
    assert x.untyped_storage() != y.untyped_storage()
    assert {x.untyped_storage(): 1}[x.T.untyped_storage()] == 1


def test_a_storage_keeps_no_memory():
    x = torch.ones(2, 3, device="xla")
    storage = x.untyped_storage()
    address = x.data_ptr()
    assert (storage.nbytes(), storage.data_ptr()) == (24, address)
    assert storage.resize_(0).nbytes() == 0 and storage.resize_(24).nbytes() == 24
    torch_xla.sync()
    del x
    assert (storage.nbytes(), storage.data_ptr()) == (0, address)
    assert storage.resize_(24).nbytes() == 0


@pytest.mark.parametrize(
    "share",
    [
        lambda: torch.ones(2, device="xla").share_memory_(),
        lambda: torch.ones(2, device="xla").untyped_storage().share_memory_(),
        lambda: torch.nn.Linear(2, 2).to("xla").share_memory(),
    ],
)
def test_memory_of_the_device_cannot_be_shared_and_the_error_says_what_can(share):
    with pytest.raises(RuntimeError, match=r"share_memory_: a tensor on xla:0 .* share it on the"):
        share()
    assert not torch.ones(2, device="xla").untyped_storage().is_shared()
