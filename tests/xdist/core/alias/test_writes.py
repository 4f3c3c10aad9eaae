"""out= and in-place forms: what is written, where, and what becomes of the given tensor."""

import pytest
import torch
from devices_agree import served_by_cpu

import torch_xdist.core.torch_side.registration  # noqa: F401


def on_both(function):
    return function("cpu"), function("xla").cpu()


@pytest.mark.parametrize("name", ["mean", "sum", "nansum", "softmax", "log_softmax", "cumsum"])
def test_an_out_tensor_without_elements_is_resized_and_returned(name):
    x = torch.randn(3, 4)
    out = torch.empty(0, device="xla")
    assert getattr(torch, name)(x.to("xla"), 1, out=out) is out
    torch.testing.assert_close(out.cpu(), getattr(torch, name)(x, 1))


def test_a_computed_tensor_can_grow():
    x = torch.ones(2, device="xla") * 3
    x.resize_(10)
    assert x.shape == (10,)
    assert x[:2].tolist() == [3, 3]


@pytest.mark.filterwarnings("ignore:An output with one or more elements was resized")
def test_an_out_tensor_that_is_a_view_writes_the_memory_it_looks_at():
    def written(device):
        memory = torch.zeros(3, device=device)
        torch.matmul(torch.ones(5, device=device), torch.ones(5, 3, device=device), out=memory[:])
        return memory

    expected, got = on_both(written)
    assert got.tolist() == expected.tolist() == [5, 5, 5]


def test_kron_writes_its_out_tensor():
    a, b = torch.randn(2, 3), torch.randn(3, 2)
    out = torch.empty(0, device="xla")
    torch.kron(a.to("xla"), b.to("xla"), out=out)
    torch.testing.assert_close(out.cpu(), torch.kron(a, b))


def test_a_list_of_out_tensors_is_written():
    x = torch.arange(6.0).reshape(2, 3)
    outs = [torch.empty(0, device="xla") for _ in range(2)]
    torch.unbind_copy(x.to("xla"), 0, out=outs)
    assert [out.tolist() for out in outs] == x.tolist()


def test_resize_as_takes_the_shape_of_another_tensor():
    x = torch.empty(0, device="xla")
    assert x.resize_as_(torch.ones(2, 3, device="xla")) is x
    assert x.shape == (2, 3)


def test_an_out_tensor_is_resized_on_the_cpu_too():
    x = torch.tensor([1.0, -1.0, 2.0])
    out = torch.empty(0, device="xla")
    assert torch.masked_select(x.to("xla"), (x > 0).to("xla"), out=out) is out
    assert out.tolist() == [1, 2]


def test_an_out_form_computes_halves_as_precisely_as_the_plain_form():
    x = torch.randn(100).to(torch.bfloat16).to("xla")
    out = torch.empty(0, dtype=torch.bfloat16, device="xla")
    torch._C._nn.gelu(x, approximate="tanh", out=out)
    assert torch.equal(out, torch.nn.functional.gelu(x, approximate="tanh"))


def test_matrix_rank_writes_its_out_tensor():
    out = torch.empty(0, dtype=torch.int64, device="xla")
    assert torch.linalg.matrix_rank(torch.eye(3).to("xla"), out=out) is out
    assert out.item() == 3


MATRIX = torch.tensor([[4.0, 1.0], [1.0, 3.0]])
_LAID_OUT = {
    "inv": lambda a, out: torch.linalg.inv(a, out=out),
    "rfft": lambda a, out: torch.fft.rfft(a, dim=0, out=out),
    "mul": lambda a, out: torch.mul(a.mT, 2, out=out),
    "eigvals": lambda a, out: torch.linalg.eigvals(a, out=out),
    "cholesky_inverse": lambda a, out: torch.cholesky_inverse(a, out=out),
}
if torch.__version__ < "2.15":
    _LAID_OUT["cholesky"] = lambda a, out: torch.cholesky(a, out=out)


@pytest.mark.filterwarnings("ignore:torch.cholesky is deprecated")
@pytest.mark.parametrize(
    ("name", "batch"),
    [*((name, 3) for name in _LAID_OUT), ("inv", 0), ("eigvals", 0), ("cholesky_inverse", 0)],
)
def test_an_out_tensor_has_the_strides_torch_gives_it(name, batch):
    def strides(device):
        a = MATRIX.expand(batch, 2, 2).contiguous().to(device)
        kind = a if name not in ("rfft", "eigvals") else a + 0j
        shape = _LAID_OUT[name](a, None).shape
        outs = [torch.empty(0, dtype=kind.dtype, device=device)]
        outs.append(
            torch.empty(shape[::-1], dtype=kind.dtype, device=device).permute(*_flip(shape))
        )
        for out in outs:
            assert _LAID_OUT[name](a, out) is out
        return [out.stride() for out in outs]

    assert strides("xla") == strides("cpu")


def _flip(shape):
    return reversed(range(len(shape)))


def test_matmul_refuses_an_out_tensor_where_a_gradient_is_wanted():
    a = torch.ones(2, 2, device="xla", requires_grad=True)
    with pytest.raises(RuntimeError, match=r"matmul\(\): functions with out=... arguments don't"):
        torch.matmul(a, a, out=torch.empty(0, device="xla"))


def test_polygamma_is_written_in_place_on_the_device():
    def written(device):
        memory = torch.tensor([[0.5, 1.5], [2.5, 3.5]], device=device)
        assert memory[1].polygamma_(2) is not None
        return memory

    assert served_by_cpu(lambda: written("xla")) == []
    torch.testing.assert_close(*on_both(written))
    with pytest.raises(
        RuntimeError, match="result type Float can't be cast to the desired output type Long"
    ):
        torch.ones(2, dtype=torch.int64, device="xla").polygamma_(1)
