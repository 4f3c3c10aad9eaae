"""`Tensor.to` of the device a tensor is on: the tensor itself, exactly where torch says so."""

import pytest
import torch

FORMS = {
    "device": lambda x: x.to(x.device),
    "device of no number": lambda x: x.to(x.device.type),
    "named": lambda x: x.to(device=x.device),
    "same dtype": lambda x: x.to(x.device, torch.float32),
    "other dtype": lambda x: x.to(x.device, torch.float64),
    "dtype alone": lambda x: x.to(torch.float32),
    "dtype named": lambda x: x.to(dtype=torch.float64),
    "not blocking": lambda x: x.to(x.device, non_blocking=True),
    "copy": lambda x: x.to(x.device, copy=True),
    "copy by place": lambda x: x.to(x.device, torch.float32, False, True),
    "no copy by place": lambda x: x.to(x.device, torch.float32, False, False),
    "other tensor": lambda x: x.to(torch.ones(1, device=x.device)),
    "other tensor of another dtype": lambda x: x.to(torch.ones(1, device=x.device).double()),
    "dtype and copy": lambda x: x.to(torch.float32, copy=True),
    "memory format": lambda x: x.to(x.device, memory_format=torch.channels_last),
    "same memory format": lambda x: x.to(x.device, memory_format=torch.contiguous_format),
}


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_it_is_the_tensor_itself_where_torch_says_so(form):
    here, there = torch.ones(1, 2, 3, 4), torch.ones(1, 2, 3, 4, device="xla")
    expected, found = form(here), form(there)
    assert (found is there) == (expected is here)
    assert (found.dtype, found.stride()) == (expected.dtype, expected.stride())
    assert found.device == torch.device("xla:0")


def test_writing_to_the_result_writes_to_the_tensor():
    x = torch.zeros(3, device="xla")
    x.to("xla").add_(1)
    assert x.tolist() == [1, 1, 1]


def test_a_parameter_stays_itself():
    layer = torch.nn.Linear(2, 2).to("xla")
    weight = layer.weight
    assert weight.to("xla") is weight
    assert layer.to("xla").weight is weight


def test_to_the_host_is_a_copy():
    x = torch.ones(2, device="xla")
    assert x.to("cpu").device.type == "cpu"
    assert x.to(device="cpu", dtype=torch.float64).dtype == torch.float64
