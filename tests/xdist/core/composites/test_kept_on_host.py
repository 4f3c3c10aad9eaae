"""Tensors that no program can hold are kept on the host, and do there what CPU torch does."""

import copy
import io

import pytest
import torch

from torch_xdist import metrics
from torch_xdist.core.composites.kept_on_host import KeptTensor
from torch_xdist.core.devices import device
from torch_xdist.core.devices.tensor import XlaTensor
from torch_xdist.core.trace.plans import PLANS
from torch_xdist.errors import FallbackError, NoLoweringError
from torch_xdist.platforms import CHOICES

pytestmark = [
    pytest.mark.filterwarnings("ignore:Sparse"),
    pytest.mark.filterwarnings("ignore:ComplexHalf support"),
]
LAYOUTS = {
    "csr": lambda x: x.to_sparse_csr(),
    "csc": lambda x: x.to_sparse_csc(),
    "bsr": lambda x: x.to_sparse_bsr((2, 2)),
    "bsc": lambda x: x.to_sparse_bsc((2, 2)),
}


def dense(seed: int = 0) -> torch.Tensor:
    x = torch.randn(4, 4, generator=torch.Generator().manual_seed(seed))
    return x * (x > 0)


@pytest.fixture
def on_tpu(monkeypatch):
    """Programs are for a TPU, whose compiler refuses complex128."""
    monkeypatch.setattr(device.device_at(0), "choices", CHOICES["tpu"])
    # Plans hold what was chosen.
    PLANS.clear()
    yield
    PLANS.clear()


@pytest.mark.parametrize("made", LAYOUTS.values(), ids=LAYOUTS)
def test_compressed_layouts_are_made_and_copied_as_on_the_cpu(made):
    x = dense()
    for kept in (made(x.to("xla")), made(x).to("xla"), made(x.to("xla").to_sparse())):
        assert kept.__class__ is KeptTensor and kept.layout is made(x).layout
        assert kept.device == torch.device("xla:0") and kept.shape == (4, 4)
        back = kept.cpu()
        assert back.layout is kept.layout and torch.equal(back.to_dense(), x)
        assert kept.to_dense().__class__ is XlaTensor
        assert torch.equal(kept.to_dense().cpu(), x)


@pytest.mark.parametrize("layout", ["csr", "csc", "bsr"])
def test_what_they_are_multiplied_with_is_on_the_device(layout):
    made, y = LAYOUTS[layout], dense(1)
    product = made(dense().to("xla")) @ y.to("xla")
    assert product.__class__ is XlaTensor
    torch.testing.assert_close(product.cpu(), made(dense()) @ y)


@pytest.mark.parametrize("reduce", ["sum", "mean", "amax"])
def test_the_gradients_of_a_product_are_torchs(reduce):
    found = []
    for place in ("cpu", "xla"):
        rows, y = dense().to_sparse_csr().to(place), dense(1).to(place).requires_grad_()
        rows.requires_grad_()
        torch.sparse.mm(rows, y, reduce).sum().backward()
        assert rows.grad.layout is torch.sparse_csr and rows.grad.device.type == place
        found.append([rows.grad.cpu().to_dense(), y.grad.cpu()])
    torch.testing.assert_close(found[1], found[0])


def test_a_tensor_is_made_of_its_parts_and_shares_memory_with_them():
    parts = [torch.tensor([0, 1, 2]), torch.tensor([1, 0]), torch.tensor([2.0, 3.0])]
    rows = torch.sparse_csr_tensor(*(part.to("xla") for part in parts), size=(2, 2))
    rows.values().mul_(2)
    assert rows.to_dense().tolist() == [[0, 4], [6, 0]]
    assert rows.crow_indices().tolist() == [0, 1, 2]
    sum_of = torch.ones(2, 2, device="xla")
    sum_of += rows
    assert sum_of.tolist() == [[1, 5], [7, 1]]


def test_halves_of_complex_numbers_have_their_gradients():
    found = []
    for place in ("cpu", "xla"):
        x = torch.tensor([1.0, -2.0, 3.0], device=place, requires_grad=True)
        halves = x.chalf()
        assert halves.dtype is torch.complex32 and halves.device.type == place
        (halves.cfloat() * (1 + 2j)).abs().sum().backward()
        found.append([halves.tolist(), x.grad.tolist()])
    assert found[0] == found[1]
    part = torch.ones(2, dtype=torch.float16, device="xla")
    assert torch.complex(part, part).tolist() == [1 + 1j] * 2


def test_they_are_made_written_and_viewed():
    x = torch.zeros(3, dtype=torch.complex32, device="xla")
    x[1] = 2 + 1j
    view = torch.view_as_real(x)
    view[2] = 5
    assert view.__class__ is KeptTensor and x.tolist() == [0, 2 + 1j, 5 + 5j]
    assert x.to("xla") is x and x.to("cpu").device.type == "cpu"
    assert x.data.tolist() == x.tolist() and "device='xla:0'" in repr(x)
    twin = copy.deepcopy(x)
    x.zero_()
    assert twin.tolist() == [0, 2 + 1j, 5 + 5j]
    file = io.BytesIO()
    torch.save({"twin": twin}, file)
    file.seek(0)
    assert torch.load(file)["twin"].tolist() == twin.tolist()


def test_they_are_made_of_numbers_and_copied_both_ways():
    x = torch.tensor([5.5, 2 + 1j], dtype=torch.complex32, device="xla")
    assert x.__class__ is KeptTensor and x.device.type == "xla" and x.tolist() == [5.5, 2 + 1j]
    here = torch.zeros(2, dtype=torch.complex32)
    assert here.copy_(x) is here and here.tolist() == x.tolist()
    assert x.copy_(torch.ones(2)) is x and x.tolist() == [1, 1]


def test_complex128_is_kept_where_the_compiler_refuses_it(on_tpu):
    x = torch.tensor([3.0, -4.0], device="xla", requires_grad=True)
    wide = x.cdouble()
    assert wide.__class__ is KeptTensor
    wide.abs().sum().backward()
    assert x.grad.tolist() == [1, -1]
    part = torch.ones(2, dtype=torch.float64, device="xla")
    made = [torch.complex(part, part), torch.ones(2, dtype=torch.complex128, device="xla")]
    assert [one.__class__ for one in made] == [KeptTensor] * 2
    assert made[0].real.clone().__class__ is XlaTensor


def test_a_conjugate_and_its_imaginary_part_are_read_and_written_as_torch_does():
    def of(device: str) -> list[torch.Tensor]:
        parts = torch.tensor([[1.0, -2.0, 3.0], [0.5, 4.0, -1.0]], dtype=torch.float16)
        x = torch.complex(*parts).to(device)
        conjugate, other = x.conj(), torch.complex(*parts.flip(0)).to(device)
        read = [conjugate * other, other * conjugate, conjugate + 1, conjugate.imag + 0]
        read += [conjugate.imag * 2, conjugate.abs(), conjugate.conj() * 1]
        conjugate.add_(1).mul_(other)
        read += [conjugate.clone(), x.clone()]
        x.conj().imag.mul_(3)
        return [part.cpu() for part in (*read, x)]

    for expected, found in zip(of("cpu"), of("xla"), strict=True):
        torch.testing.assert_close(found, expected, rtol=0, atol=0)


def test_gradients_pass_through_half_complex_numbers():
    def of(device: str) -> tuple[torch.Tensor, ...]:
        parts = torch.tensor([[1.0, -2.0, 3.0], [0.5, 4.0, -1.0]], dtype=torch.float16)
        a, b = (part.clone().to(device).requires_grad_() for part in parts)
        product = torch.complex(a, b) * torch.complex(b, a)
        return torch.autograd.grad(product.abs().sum(), [a, b])

    for expected, found in zip(of("cpu"), of("xla"), strict=True):
        torch.testing.assert_close(found.cpu(), expected, rtol=0, atol=0)


def test_complex128_is_an_array_where_it_can_be():
    assert torch.ones(2, device="xla").cdouble().__class__ is XlaTensor


def test_what_runs_there_is_counted_and_what_only_tells_is_not(monkeypatch):
    rows = dense().to("xla").to_sparse_csr()
    before = {name: metrics.counter_value(name) or 0 for name in ("aten::mm", "aten::_nnz")}
    rows @ dense().to("xla")
    assert rows._nnz() == int((dense() != 0).sum())
    assert metrics.counter_value("aten::mm") == before["aten::mm"] + 1
    assert (metrics.counter_value("aten::_nnz") or 0) == before["aten::_nnz"]
    monkeypatch.setenv("XDIST_FALLBACK", "error")
    from torch_xdist import settings

    settings.reread()
    try:
        with pytest.raises(
            FallbackError, match=r"mm\.default takes or makes a tensor that is kept"
        ):
            rows @ dense().to("xla")
    finally:
        monkeypatch.undo()
        settings.reread()


def test_it_has_no_place_in_a_program():
    with pytest.raises(
        NoLoweringError, match=r"torch.complex32 and layout torch.strided, so it is"
    ):
        torch.zeros(2, dtype=torch.complex32, device="xla").value  # noqa: B018
