"""The device tensor as a user meets it: creating, printing, copying, saving, moving modules."""

import copy
import io
import pickle
import subprocess
import sys

import pytest
import torch
from torch import nn

import torch_xdist.core.torch_side.registration  # noqa: F401
from torch_xdist.core.devices import device
from torch_xdist.errors import DeviceError, UnsupportedDtypeError

DTYPES = [
    torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.complex64, torch.int64,
    torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool,
]  # fmt: skip


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_values_come_back_from_the_device_in_their_dtype(dtype):
    x = (torch.arange(6).reshape(2, 3) - 1).to(dtype)
    there = x.to("xla")
    assert there.dtype is dtype
    assert torch.equal(there.cpu(), x)


@pytest.mark.parametrize(
    "name", ["xla", "xla:0", torch.device("xla"), torch.device("xla:0")], ids=str
)
def test_every_way_to_say_the_device_means_the_first_one(name):
    for made in (
        torch.zeros(2, device=name),
        torch.tensor([1.0], device=name),
        torch.ones(2).to(name),
        torch.arange(3, device=name),
    ):
        assert made.device == torch.device("xla:0")
        assert made.is_xla


def test_factories_give_what_cpu_torch_gives():
    for make in (
        lambda d: torch.full((2, 2), 3, device=d),
        lambda d: torch.eye(3, device=d),
        lambda d: torch.linspace(0, 1, 5, device=d),
        lambda d: torch.arange(1, 10, 2, device=d),
        lambda d: torch.tril_indices(3, 3, device=d),
        lambda d: torch.ones(2, 3, dtype=torch.int32, device=d),
        lambda d: torch.zeros_like(torch.ones(2, device=d)),
        lambda d: torch.scalar_tensor(2.5, device=d),
        lambda d: torch.logspace(0, 2, 3, device=d),
    ):
        expected, got = make("cpu"), make("xla")
        assert got.dtype is expected.dtype
        torch.testing.assert_close(got.cpu(), expected)


def test_printing_shows_the_values_and_the_device():
    assert repr(torch.tensor([1.0, 2.0]).to("xla")) == "tensor([1., 2.], device='xla:0')"
    leaf = torch.ones(1, device="xla", requires_grad=True)
    assert repr(leaf) == "tensor([1.], device='xla:0', requires_grad=True)"
    assert "grad_fn=<MulBackward0>" in repr(leaf * 2)


def test_the_host_copy_does_not_follow_later_writes():
    host = torch.ones(3)
    there = host.to("xla")
    host.zero_()
    assert there.tolist() == [1.0, 1.0, 1.0]
    back = there.cpu()
    there.add_(1)
    assert back.tolist() == [1.0, 1.0, 1.0]


def test_numpy_asks_for_a_copy_to_the_host_first():
    with pytest.raises(TypeError, match="can't convert xla:0 device type tensor to numpy"):
        torch.ones(1, device="xla").numpy()


@pytest.mark.parametrize(
    "of",
    [
        lambda x, y: x + y,
        lambda x, y: y - x,
        lambda x, y: torch.rsub(y, x),
        lambda x, y: torch.div(x, y, rounding_mode="floor"),
        lambda x, y: y**x,
        lambda x, y: x.clone().mul_(y),
        lambda x, y: x.long() & y.long(),
        lambda x, y: torch.add(x, y, alpha=2),
    ],
)
def test_one_operand_of_arithmetic_may_be_on_the_cpu(of):
    x, y = torch.tensor([3.0, 5.0]), torch.tensor([2.0, 7.0])
    found = of(x.to("xla"), y)
    assert found.device.type == "xla" and torch.equal(found.cpu(), of(x, y))


def test_an_operand_on_the_cpu_needs_no_gradient():
    x, y = torch.ones(2, device="xla", requires_grad=True), torch.ones(2, requires_grad=True)
    (x * y.detach() * 3).sum().backward()
    assert x.grad.tolist() == [3, 3]
    with pytest.raises(DeviceError, match=r"not an XLA tensor: torch.FloatTensor of shape \(2,\)"):
        x * y


def test_a_cpu_tensor_among_device_tensors_is_named():
    with pytest.raises(DeviceError, match=r"not an XLA tensor: torch.FloatTensor of shape \(2,\)"):
        torch.ones(2, device="xla").dot(torch.ones(2))


def test_a_0d_cpu_tensor_may_take_part():
    result = torch.ones(2, device="xla") * torch.tensor(3.0)
    assert result.tolist() == [3.0, 3.0]


def test_shape_errors_are_torchs_own():
    with pytest.raises(RuntimeError, match="must match the size of tensor b"):
        torch.ones(2, device="xla") + torch.ones(3, device="xla")


def test_a_device_that_is_not_there_is_named():
    with pytest.raises(DeviceError, match=r"xla:7: this process has 1 xla device"):
        torch.zeros(1, device="xla:7")
    with pytest.raises(DeviceError, match=r"xla:9: this process has"):
        device.device(9)


def test_an_unsupported_dtype_is_named_with_what_to_use():
    with pytest.raises(UnsupportedDtypeError, match=r"torch.uint4 .* such as float32 or int8"):
        torch.zeros(2, dtype=torch.uint8).view(torch.uint4).to("xla")


def test_deepcopy_copies_values_and_gradients():
    x = torch.ones(2, device="xla", requires_grad=True)
    (x * 3).sum().backward()
    twin = copy.deepcopy(x)
    with torch.no_grad():
        x.add_(1)
    assert twin.tolist() == [1.0, 1.0]
    assert twin.grad.tolist() == [3.0, 3.0]
    assert twin.requires_grad


def test_pickle_brings_a_tensor_back_to_the_device():
    x = torch.arange(3.0, device="xla")
    back = pickle.loads(pickle.dumps(x))
    assert back.device.type == "xla"
    assert torch.equal(back.cpu(), x.cpu())


def test_a_saved_state_loads_as_cpu_tensors_with_weights_only():
    model = nn.Linear(2, 2).to("xla")
    file = io.BytesIO()
    torch.save(model.state_dict(), file)
    file.seek(0)
    loaded = torch.load(file, map_location="cpu", weights_only=True)
    for name, value in model.state_dict().items():
        assert torch.equal(loaded[name].cpu(), value.cpu())


def test_a_saved_tensor_loads_in_a_process_without_us(tmp_path):
    path = tmp_path / "state.pt"
    model = nn.Linear(2, 2).to("xla")
    torch.save({"model": model.state_dict(), "weight": model.weight, "x": model.weight * 1}, path)
    code = f"import torch; s = torch.load({str(path)!r}); print(s['weight'].device, s['x'].shape)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.stdout.strip() == "cpu torch.Size([2, 2])", done.stderr


def test_moving_a_module_keeps_parameters_and_ties():
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    model[1].weight = model[0].weight
    before = model[0].weight
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    model.to("xla")
    assert model[0].weight is before
    assert model[1].weight is before
    assert isinstance(before, nn.Parameter)
    model(torch.ones(1, 3, device="xla")).sum().backward()
    old = before.detach().cpu()
    optimizer.step()
    assert not torch.equal(before.detach().cpu(), old)


def test_storages_tell_which_tensors_share_memory():
    x = torch.ones(4, device="xla")
    assert x.untyped_storage().data_ptr() == x[1:].untyped_storage().data_ptr() != 0
    assert x.untyped_storage().data_ptr() != x.clone().untyped_storage().data_ptr()
    assert x.untyped_storage().nbytes() == 16


def test_data_ptr_counts_the_offset_as_torchs_does():
    x = torch.ones(4, 3, device="xla")
    assert x[1].data_ptr() == x.data_ptr() + 3 * x.element_size()
    assert x[1:, 2].data_ptr() == x.data_ptr() + 5 * x.element_size()
    # How safetensors and transformers tell disjoint views from shared ones.
    ends = [t.data_ptr() + t.numel() * t.element_size() for t in (x[0], x)]
    assert ends[0] == x[1].data_ptr() and ends[1] > x[3].data_ptr()
    assert x.data_ptr() != torch.ones(4, 3, device="xla").data_ptr()


def test_data_can_be_read_and_set():
    x = torch.ones(2, device="xla", requires_grad=True)
    x.data.mul_(4)
    assert x.tolist() == [4.0, 4.0]
    x.data = torch.zeros(3, device="xla")
    assert x.tolist() == [0.0, 0.0, 0.0]
    with pytest.raises(DeviceError, match=r"cannot set \.data of a device tensor to a torch.Float"):
        x.data = torch.zeros(3)


def test_data_of_another_dtype_changes_the_tensors_own():
    x = torch.nn.Parameter(torch.ones(2, device="xla"))
    x.data = x.data.bfloat16()
    x.grad = torch.ones(2, dtype=torch.bfloat16, device="xla")
    (x * 2).sum().backward()
    assert x.dtype == x.grad.dtype == torch.bfloat16 and x.grad.tolist() == [3.0, 3.0]


def test_a_typed_storage_is_freed_and_filled_by_elements():
    x = torch.arange(4.0, device="xla")
    storage = x._typed_storage()
    assert storage._size() == 4 and storage._cdata == x[1:]._typed_storage()._cdata
    storage._resize_(0)
    assert x._typed_storage()._size() == 0
    storage._resize_(4)
    assert x.fill_(2).tolist() == [2.0] * 4


def test_type_names_say_xla():
    assert torch.ones(1, device="xla").type() == "torch.xla.FloatTensor"
    assert torch.ones(1, device="xla").type(torch.int64).dtype is torch.int64


def test_swapping_two_tensors_swaps_their_values():
    a, b = torch.zeros(2, device="xla"), torch.ones(2, device="xla")
    torch.utils.swap_tensors(a, b)
    assert a.tolist() == [1.0, 1.0]


def test_out_is_filled_and_resized():
    out = torch.empty(0, device="xla")
    result = torch.add(torch.ones(2, device="xla"), 1, out=out)
    assert result is out
    assert out.tolist() == [2.0, 2.0]
    values, indices = torch.empty(2, device="xla"), torch.empty(2, dtype=torch.int64, device="xla")
    torch.max(torch.tensor([[1.0, 5.0], [7.0, 2.0]]).to("xla"), 1, out=(values, indices))
    assert values.tolist() == [5.0, 7.0]
    assert indices.tolist() == [1, 0]


def test_writing_a_device_result_into_a_cpu_tensor_is_refused_by_name():
    with pytest.raises(DeviceError, match="cannot write a result of an xla device into"):
        torch.add(torch.ones(2, device="xla"), 1, out=torch.empty(2))


def test_a_matrix_that_cannot_be_factorized_raises_torchs_error():
    with pytest.raises(torch.linalg.LinAlgError, match="not positive-definite"):
        torch.linalg.cholesky(-torch.eye(2, device="xla"))
    with pytest.raises(torch.linalg.LinAlgError, match="singular"):
        torch.linalg.solve(torch.zeros(2, 2, device="xla"), torch.ones(2, device="xla"))


def test_only_leaves_of_the_graph_can_be_copied_deeply():
    weight = torch.ones(2, device="xla", requires_grad=True)
    assert copy.deepcopy(weight).requires_grad
    with pytest.raises(RuntimeError, match="Only Tensors created explicitly by the user"):
        copy.deepcopy(weight * 2)
