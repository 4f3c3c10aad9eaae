"""Storages as Python sees them: which tensors share one, and for how long it is there."""

import pytest
import torch

import torch_xla
from torch_xdist.errors import DeviceError


def test_tensors_that_share_memory_have_one_storage_object():
    x, y = torch.ones(2, 3, device="xla"), torch.ones(2, 3, device="xla")
    assert x.untyped_storage() is x[1].untyped_storage() is x.detach().storage().untyped()
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


@pytest.mark.filterwarnings("ignore:TypedStorage is deprecated")
def test_a_typed_storage_has_elements_that_are_read_and_written():
    x = torch.arange(4.0, device="xla")
    storage = x[2:].storage()
    assert (len(storage), storage.size(), storage.nbytes(), storage.element_size()) == (4, 4, 16, 4)
    assert storage[3] == 3 and storage.tolist() == storage.cpu().tolist() == [0, 1, 2, 3]
    storage[0] = 7
    assert x.tolist() == [7, 1, 2, 3] and storage.dtype is torch.float32
    assert storage == x.storage() and storage != torch.ones(1, device="xla").storage()
    assert storage.data_ptr() == x.data_ptr() and {storage: 1}[x.storage()] == 1
    storage.fill_(2)
    del x
    assert storage.tolist() == [2, 2, 2, 2]


@pytest.mark.filterwarnings("ignore:TypedStorage is deprecated")
@pytest.mark.parametrize("kind", ["untyped", "typed", "tensor"])
def test_a_tensor_is_set_to_another_ones_storage(kind):
    def lists(device):
        x = torch.arange(6.0, device=device)
        y = torch.empty(0, device=device)
        source = {"untyped": x.untyped_storage(), "typed": x.storage(), "tensor": x}[kind]
        assert y.set_(source, 1, (2, 2), (2, 1)) is y
        y.mul_(10)
        z = torch.empty(0, device=device).set_(source, storage_offset=4, size=(2,))
        return x.tolist(), y.tolist(), y.stride(), z.tolist()

    assert lists("xla") == lists("cpu")


def test_a_storage_is_looked_at_in_another_dtype():
    def lists(device):
        x = torch.arange(4.0, device=device)
        y = torch.empty(0, dtype=torch.int32, device=device)
        y.set_(x.untyped_storage()).bitwise_or_(1)
        return x.tolist(), y.tolist()

    assert lists("xla") == lists("cpu")


def test_the_storage_of_a_tensor_that_is_gone_says_so():
    x = torch.ones(2, device="xla")
    torch_xla.sync()
    storage = x.untyped_storage()
    del x
    with pytest.raises(DeviceError, match=r"set_: the tensor whose storage this is, .* is gone"):
        torch.empty(0, device="xla").set_(storage)


def test_what_lies_past_the_end_of_a_storage_is_refused_in_torchs_words():
    x = torch.arange(8.0, device="xla")
    for run in (
        lambda: x.as_strided((4, 3), (3, 1)),
        lambda: x[2:].set_(x.untyped_storage(), 1, (3, 3), (3, 1)),
    ):
        with pytest.raises(
            RuntimeError, match=r"setStorage: sizes \[.*out of bounds for storage of"
        ):
            run()


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
