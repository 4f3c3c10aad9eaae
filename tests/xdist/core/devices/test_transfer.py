"""Values from the device to the host: what is copied, and how often."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

import torch_xla.debug.metrics as met
from torch_xdist import metrics
from torch_xdist.core.devices import transfer


class Remote:
    """A buffer of another device: what is read of it is a copy that only the reader has."""

    def __init__(self, values):
        self._values = np.asarray(values)
        self.shape = self._values.shape

    def _single_device_array_to_np_array_did_copy(self):
        self.read = self._values.copy(order="K")
        self.read.flags.writeable = False
        return self.read, True


def test_reading_gives_memory_of_its_own():
    buffer = jnp.ones(4)
    transfer.to_host(buffer, torch.float32).zero_()
    assert jnp.all(buffer == 1)


def test_the_copy_that_came_from_another_device_is_not_copied_again():
    remote = Remote(jnp.arange(4, dtype=jnp.float32))
    host = transfer.to_host(remote, torch.float32)
    assert host.tolist() == [0, 1, 2, 3]
    assert host.data_ptr() == remote.read.ctypes.data
    # JAX's memory is only to be read, so torch would warn; here nobody else has it.
    host += 1
    del remote
    assert host.tolist() == [1, 2, 3, 4]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float8_e4m3fn, torch.bool, torch.int64])
def test_every_dtype_comes_from_another_device(dtype):
    values = torch.tensor([0.0, 1.0, 1.0]).to(dtype)
    host = transfer.to_host(Remote(transfer.as_numpy(values)), dtype)
    assert host.dtype is dtype and torch.equal(host.float(), values.float())


def test_a_buffer_keeps_no_copy_of_what_was_read():
    buffer = jax.device_put(jnp.arange(6.0).reshape(2, 3).T)
    transfer.to_host(buffer, torch.float32)
    assert getattr(buffer, "_npy_value", None) is None


def test_the_bytes_of_a_buffer_are_those_of_its_values_in_row_major_order():
    values = torch.arange(6, dtype=torch.bfloat16).reshape(2, 3)
    read = transfer.host_bytes(jnp.asarray(transfer.as_numpy(values)), torch.bfloat16)
    assert read.tobytes() == values.view(torch.uint8).numpy().tobytes()


def test_the_bytes_of_what_is_stored_narrower_are_those_of_the_reported_dtype():
    read = transfer.host_bytes(jnp.asarray([1.5, 2.0], jnp.bfloat16), torch.float32)
    assert read.tobytes() == np.asarray([1.5, 2.0], np.float32).tobytes()


def test_the_bytes_on_the_cpu_are_not_a_copy():
    buffer = jnp.arange(8, dtype=jnp.float32)
    one, other = (transfer.host_bytes(buffer, torch.float32) for _ in range(2))
    assert one.ctypes.data == other.ctypes.data


def test_what_comes_in_another_order_is_put_in_rows():
    remote = Remote(np.arange(6, dtype=np.float32).reshape(2, 3).T)
    assert transfer.to_host(remote, torch.float32).is_contiguous()


@pytest.mark.on_cpu
def test_tensors_that_are_owned_become_the_devices_memory_and_others_are_copied():
    for owned in (True, False):
        tensor = torch.arange(64.0)
        [moved] = transfer.all_to_device([tensor], "xla:0", owned=owned)
        there = transfer.host_bytes(moved.value.buffer, torch.float32).ctypes.data
        assert (there == tensor.data_ptr()) is owned


HOSTS = {
    "plain": lambda: torch.arange(12.0).reshape(3, 4),
    "number": lambda: torch.tensor(3),
    "empty": lambda: torch.empty(0, 3),
    "transposed": lambda: torch.arange(12).reshape(3, 4).t(),
    "part": lambda: torch.arange(12.0, dtype=torch.float64)[1::2],
    "repeated": lambda: torch.arange(3, dtype=torch.int16).expand(2, 3),
    "bfloat16": lambda: torch.arange(6.0).bfloat16().reshape(2, 3).t(),
    "bool": lambda: torch.tensor([True, False]),
    "conjugated": lambda: torch.tensor([1 + 2j, 3 - 1j]).conj(),
    "negated": lambda: torch.tensor([1 + 2j, 3 - 1j]).conj().imag,
    "with gradients": lambda: torch.ones(2, requires_grad=True),
    "parameter": lambda: torch.nn.Parameter(torch.ones(2), requires_grad=False),
    "large": lambda: torch.arange(20000.0),
    "large part": lambda: torch.arange(40000.0)[::2],
}


@pytest.mark.parametrize("owned", [True, False])
def test_a_batch_of_every_kind_of_tensor_arrives_as_it_is(owned):
    hosts = [make() for make in HOSTS.values()]
    for host, there in zip(hosts, transfer.all_to_device(hosts, "xla:0", owned=owned), strict=True):
        assert there.dtype is host.dtype and there.shape == host.shape
        assert torch.equal(there.cpu(), host.detach()) and there.is_contiguous()
        assert not there.requires_grad


@pytest.mark.parametrize("size", [1, 100, 8 << 10, (8 << 10) + 1, 1 << 20])
@pytest.mark.parametrize("move", [transfer.to_device, lambda x: transfer.all_to_device([x])[0]])
def test_what_is_written_to_the_host_tensor_later_is_not_on_the_device(move, size):
    # At and between the places where JAX would take memory as it is.
    room = torch.ones(size + 16)
    for offset in (0, 1, 16):
        host = room[offset : offset + size]
        device = move(host)
        room.fill_(2)
        assert bool((device.cpu() == 1).all())
        room.fill_(1)


def test_tensors_of_one_batch_have_memory_of_their_own():
    same = torch.zeros(4)
    one, other, sum_ = transfer.all_to_device([same, same, torch.zeros(4)])
    one.add_(1)
    sum_.add_(other)
    assert [t.sum().item() for t in (one, other, sum_)] == [4, 0, 0]


def test_one_number_is_read_as_torch_gives_it():
    dtypes = "bool uint8 int64 float16 bfloat16 float32 float64 complex64 float8_e4m3fn".split()
    for name in dtypes:
        host = torch.tensor([3]).to(getattr(torch, name))
        number = host.to("xla").item()
        assert number == host.item() and type(number) is type(host.item())
    with pytest.raises(RuntimeError) as theirs:
        torch.zeros(2).item()
    with pytest.raises(RuntimeError) as ours:
        torch.zeros(2).to("xla").item()
    assert str(ours.value) == str(theirs.value)


def test_reading_one_number_is_one_transfer_to_the_host():
    number = torch.ones(1, device="xla") + 1
    names = "TransferFromDeviceTime", "InboundData"
    before = [met.metric_data(name)[:2] for name in names]
    assert number.item() == 2
    (times, _), (count, sizes) = [met.metric_data(name)[:2] for name in names]
    assert times == before[0][0] + 1 and (count, sizes) == (before[1][0] + 1, before[1][1] + 4)


PARTS = {
    "element": lambda x: x[1, 2, 3],
    "row": lambda x: x[:, 1],
    "transposed": lambda x: x.transpose(0, 2)[1:, 2],
    "repeated": lambda x: x[None].expand(3, 2, 3, 4),
    "permuted": lambda x: x.permute(2, 0, 1)[::2],
    "diagonal": lambda x: x.diagonal(0, 0, 1),
    "windows": lambda x: x.unfold(2, 2, 1),
    "by strides": lambda x: x.as_strided((2, 2), (3, 5), 4),
    "flat": lambda x: x.view(6, 4)[2],
    "nothing": lambda x: x[2:],
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.bool, torch.complex64])
@pytest.mark.parametrize("part", PARTS.values(), ids=PARTS)
def test_a_part_of_memory_that_has_its_values_is_read_without_a_program(part, dtype):
    whole = torch.arange(24).reshape(2, 3, 4).to(dtype)
    device = whole.to("xla")
    programs = metrics.counter_value("UncachedCompile")
    found = part(device).cpu()
    assert metrics.counter_value("UncachedCompile") == programs
    assert torch.equal(found, part(whole)) and found.is_contiguous()


def test_what_was_written_through_a_view_is_read_through_another():
    device = torch.zeros(3, 4, device="xla")
    part = device[1]
    assert part[2].item() == 0
    device.t()[2].add_(5)
    assert part[2].item() == 5 and device[:, 2].tolist() == [5, 5, 5]
    part.fill_(7)
    assert device[1, 0].item() == 7 and device[0, 2].item() == 5


@pytest.mark.parametrize(
    "part",
    [
        lambda x: x.conj()[0],
        lambda x: x.real[1],
        lambda x: torch.view_as_real(x)[0],
        lambda x: x.view(torch.float32)[:2],
        lambda x: x.t().clone()[1],
    ],
)
def test_a_view_that_changes_values_or_their_order_is_computed(part):
    whole = torch.complex(torch.arange(6.0), -torch.arange(6.0)).reshape(2, 3)
    assert torch.equal(part(whole.to("xla")).cpu(), part(whole).resolve_conj())


def test_what_is_read_of_a_part_is_memory_of_its_own():
    device = torch.zeros(3, 4).to("xla")
    device[1].cpu().fill_(1)
    assert device.sum().item() == 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.bool, torch.complex64])
@pytest.mark.parametrize("stride", [1, 2])
def test_large_tensors_go_and_come_whole(dtype, stride, monkeypatch, recwarn):
    """Torch's threads copy these; what is not in rows goes the other way."""
    monkeypatch.setattr(transfer, "_LARGE_BYTES", 1 << 10)
    host = torch.arange(6000).reshape(60, 100).to(dtype)[:, ::stride]
    device = host.to("xla")
    assert torch.equal(device.cpu(), host)
    host.zero_()
    assert not torch.equal(device.cpu(), host)
    device.cpu().zero_()
    assert not torch.equal(device.cpu(), host) and not recwarn.list


def test_sixty_four_small_tensors_are_one_transfer_to_the_device():
    tensors = [torch.full((10,), float(number)) for number in range(64)]
    before = met.metric_data("TransferToDeviceTime")[0]
    moved = transfer.all_to_device(tensors, "xla:0")
    assert met.metric_data("TransferToDeviceTime")[0] == before + 1
    assert [t.cpu()[3].item() for t in moved] == [*range(64)]


def test_many_pending_tensors_are_read_after_one_run():
    tensors = [torch.full((3,), float(number), device="xla") + number for number in range(64)]
    before = [metrics.counter_value(name) or 0 for name in ("ExecuteComputation", "Cut.read")]
    assert [t.cpu()[0].item() for t in tensors] == [2.0 * number for number in range(64)]
    after = [metrics.counter_value(name) for name in ("ExecuteComputation", "Cut.read")]
    assert after == [count + 1 for count in before]
