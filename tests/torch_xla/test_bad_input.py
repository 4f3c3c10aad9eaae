"""Input that the device cannot take, as a script meets it: each error names what was found."""

import pytest
import torch
import torch.nn.functional as F

import torch_xla.core.xla_model as xm
import torch_xla.distributed.parallel_loader as pl
from torch_xdist.errors import DeviceError, UnsupportedDtypeError
from torch_xdist.loaders.errors import BatchError

NO_COMPLEX32 = r"dtype torch\.complex32 does not exist on xla devices; use complex64"


def half_complex():
    return torch.view_as_complex(torch.zeros(2, 2, dtype=torch.float16))


@pytest.mark.filterwarnings("ignore:ComplexHalf support")
def test_a_dtype_the_device_lacks_is_refused_with_what_to_use():
    halves = torch.zeros(2, 2, dtype=torch.float16, device="xla")
    with pytest.raises(UnsupportedDtypeError, match=NO_COMPLEX32):
        torch.view_as_complex(halves)
    with pytest.raises(TypeError, match=r"torch\.uint4 does not exist on xla devices; use a dtype"):
        torch.zeros(2, dtype=torch.uint8).view(torch.uint4).to("xla")


@pytest.mark.filterwarnings("ignore:ComplexHalf support")
def test_a_batch_the_loader_cannot_move_is_named_by_its_path():
    batches = [{"wave": [torch.ones(1), half_complex()]}]
    words = rf"batch\['wave'\]\[1\], a torch\.complex32 tensor .* cannot be moved .*{NO_COMPLEX32}"
    with pytest.raises(BatchError, match=words):
        list(pl.MpDeviceLoader(batches, xm.xla_device()))


def test_a_device_that_is_not_there_is_named_with_those_that_are():
    words = r"xla:5: this process has 1 xla device\(s\), xla:0 to xla:0; use one of them"
    with pytest.raises(DeviceError, match=words):
        torch.ones(2, device="xla:5")
    with pytest.raises(IndexError, match=words):
        torch.ones(2).to("xla:5")


def test_a_tensor_of_the_cpu_is_named_in_torch_xlas_words():
    words = r"Input tensor is not an XLA tensor: torch\.FloatTensor of shape \(2,\) on cpu; move it"
    with pytest.raises(DeviceError, match=words):
        torch.ones(2, device="xla").dot(torch.ones(2))


def test_an_index_out_of_range_is_checked_where_python_knows_it():
    x = torch.arange(4.0, device="xla")
    with pytest.raises(IndexError, match="index 7 is out of bounds for dimension 0 with size 4"):
        x[7]
    # As docs/operators.md says: what the device computed is not looked at.
    far = torch.tensor([5], device="xla") + 2
    assert x[far].item() == 3
    x[far] = 9
    assert x.tolist() == [0, 1, 2, 3]
    assert F.cross_entropy(torch.ones(1, 3, device="xla"), far).isnan().item()
