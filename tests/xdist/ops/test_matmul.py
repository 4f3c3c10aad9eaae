"""Matrix products as BLAS and torch define them."""

import functools
import math
import re
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from devices_agree import both

import torch_xla
from torch_xdist import platforms
from torch_xdist.ahead import step
from torch_xdist.core.devices import aim
from torch_xdist.ops import exactness

A, B = torch.linspace(-1, 1, 12).reshape(3, 4), torch.linspace(0, 2, 8).reshape(4, 2)


def test_a_beta_of_zero_ignores_nan() -> None:
    both(lambda x, a, b: torch.addmm(x, a, b, beta=0), torch.full((3, 2), torch.nan), A, B)


def test_beta_and_alpha_weigh_both_parts() -> None:
    both(lambda x, a, b: torch.addmm(x, a, b, beta=0.5, alpha=3), torch.ones(2), A, B)
    both(lambda x, a, v: torch.addmv(x, a, v, alpha=2.5), torch.ones(3), A, torch.ones(4))
    both(lambda x, a, v: torch.addr(x, a, v, beta=2), torch.ones(3, 4), A[:, 0], A[0])


def test_batches_of_products_may_be_summed() -> None:
    a, b = A.expand(2, 3, 4).clone(), B.expand(2, 4, 2).clone()
    both(lambda x, a, b: torch.baddbmm(x, a, b, beta=2), torch.ones(1, 1, 2), a, b)
    both(lambda x, a, b: torch.addbmm(x, a, b, beta=2), torch.ones(3, 2), a, b)


def test_complex_factors_are_rounded_once() -> None:
    generator = torch.Generator().manual_seed(0)
    x, a = (torch.randn(9, 9, dtype=torch.complex64, generator=generator) for _ in range(2))

    def mix(x: torch.Tensor, a: torch.Tensor) -> torch.Tensor:
        return torch.addmm(x, a, torch.eye(9).to(a), beta=1 + 2j, alpha=2 + 3j)

    exact = mix(x.to(torch.complex128), a.to(torch.complex128))
    got = torch.view_as_real(mix(x.to("xla"), a.to("xla")).cpu())
    # Half of the distance between neighbours in float32: nothing is nearer.
    assert got.equal(torch.view_as_real(exact).float())
    nan = torch.full((3, 2), torch.nan, dtype=torch.complex64)
    both(lambda x, a, b: torch.addmm(x, a, b, beta=0, alpha=2j), nan, A + 1j, B + 0j)


def test_integer_products_are_exact() -> None:
    big = torch.tensor([[2**40 + 1, 3]])
    both(torch.mm, big, torch.tensor([[2**20 + 1], [7]]))
    both(torch.mm, torch.tensor([[200]], dtype=torch.uint8), torch.tensor([[2]], dtype=torch.uint8))


def test_half_precision_accumulates_in_float32() -> None:
    ones = torch.ones(1, 4096, dtype=torch.bfloat16)
    assert (ones.to("xla") @ ones.T.to("xla")).item() == 4096


def test_outer_products_of_halves_are_rounded_once() -> None:
    torch.manual_seed(0)
    self, a, b = torch.randn(4, 9).half(), torch.randn(4).half(), torch.randn(9).half()
    exact = torch.addr(self.double(), a.double(), b.double(), beta=0.6, alpha=0.2).half()
    found = torch.addr(self.to("xla"), a.to("xla"), b.to("xla"), beta=0.6, alpha=0.2).cpu()
    torch.testing.assert_close(found, exact, rtol=0, atol=0)


def test_complex_products_conjugate_only_where_asked() -> None:
    z = torch.tensor([1 + 2j, 3 - 1j])
    both(torch.dot, z, z)
    both(torch.vdot, z, z)
    both(lambda a: a.mH @ a, torch.tensor([[1 + 2j, 3 - 1j]]))


def test_einsum_bilinear_and_linear() -> None:
    both(lambda a, b: torch.einsum("ij,kj->ik", a, b), A, A)
    both(torch.nn.functional.bilinear, A, A, torch.linspace(0, 1, 32).reshape(2, 4, 4))
    both(torch.nn.functional.linear, A, B.T.contiguous(), torch.ones(2))


def test_linear_works_under_inference_mode() -> None:
    with torch.inference_mode():
        out = torch.nn.functional.linear(A.to("xla"), B.T.contiguous().to("xla"))
        torch.testing.assert_close(out.cpu(), A @ B)


def test_an_empty_contraction_gives_zeros() -> None:
    both(torch.mm, torch.ones(2, 0), torch.ones(0, 3))


def test_addmm_with_an_activation() -> None:
    for gelu in (False, True):
        both(
            lambda x, a, b, gelu=gelu: torch._addmm_activation(x, a, b, use_gelu=gelu).detach(),
            torch.zeros(2),
            A,
            B,
        )


@pytest.mark.skipif(
    torch.__version__ < "2.13",
    reason=f"torch {torch.__version__} has no gradient of a whole linear layer of complex numbers",
)
def test_a_complex_linear_layer_has_conjugated_gradients():
    values = [torch.randn(2, 3, dtype=torch.complex64), torch.randn(4, 3, dtype=torch.complex64)]

    def gradients(device):
        leaves = [v.to(device).detach().requires_grad_() for v in values]
        torch.nn.functional.linear(*leaves).abs().sum().backward()
        return [leaf.grad.cpu() for leaf in leaves]

    torch.testing.assert_close(gradients("xla"), gradients("cpu"))


def test_products_of_every_rank_are_written_into_an_empty_out() -> None:
    def written(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.matmul(x.detach(), y.detach(), out=torch.empty(0, device=x.device))

    for a, b in (((2, 3, 4), (4,)), ((2, 3, 4), (4, 5)), ((3, 4), (2, 4, 5)), ((4,), (4,))):
        x, y = (torch.arange(math.prod(size)).float().view(size) for size in (a, b))
        both(written, x, y)


HALVES = [torch.bfloat16, torch.float16]


class Gpu:
    """Of a device that is not here, what is looked at."""

    platform = "gpu"


def programs(call: Callable[..., torch.Tensor], *tensors: torch.Tensor) -> str:
    """What a GPU would be given of a call, and of its gradients."""
    leaves = [t.to("xla").requires_grad_() for t in tensors]
    with aim.at([Gpu()]):
        found = call(*leaves)
        found.backward(torch.ones_like(found))
        pending = [found, *(leaf.grad for leaf in leaves if leaf.grad is not None)]
        text = str(torch_xla._XLAC._get_xla_tensors_hlo(pending))
    step.forget()
    return text


def products_in(text: str) -> list[str]:
    """The dtypes of the products of a program in HLO."""
    return re.findall(r"= (\w+)\[[^ ]* dot\(", text)


@pytest.mark.parametrize("dtype", HALVES)
def test_gpus_are_asked_for_products_of_halves_as_halves(dtype: torch.dtype) -> None:
    name = "bf16" if dtype is torch.bfloat16 else "f16"
    a, b = torch.ones(32, 16, dtype=dtype), torch.ones(16, 48, dtype=dtype)
    assert products_in(programs(torch.mm, a, b)) == [name] * 3
    assert products_in(programs(torch.bmm, a.expand(2, 32, 16), b.expand(2, 16, 48))) == [name] * 3
    given = a.reshape(2, 16, 16), b.T.contiguous()
    assert products_in(programs(F.linear, *given)) == [name] * 3
    # Its kernels add a bias before they round.
    bias = torch.ones(48, dtype=dtype)
    assert products_in(programs(F.linear, *given, bias)) == [name] * 3
    assert products_in(programs(torch.addmm, bias, a, b)) == [name] * 3
    # More than a bias is added in float32.
    assert products_in(programs(torch.addmm, torch.ones(32, 48, dtype=dtype), a, b))[0] == "f32"
    scaled = functools.partial(torch.addmm, alpha=2)
    assert products_in(programs(scaled, bias, a, b))[0] == "f32"


def test_small_products_and_other_dtypes_are_as_elsewhere() -> None:
    a, b = torch.ones(32, 16), torch.ones(16, 48)
    assert products_in(programs(torch.mm, a, b)) == ["f32"] * 3
    assert products_in(programs(torch.mm, a[:15].bfloat16(), b.bfloat16())) == ["f32"] * 3
    assert products_in(programs(torch.mm, a[:, :15].bfloat16(), b[:15].bfloat16())) == ["f32"] * 3
    assert set(products_in(programs(torch.mm, a[:0].bfloat16(), b.bfloat16()))) <= {"f32"}


def test_torchs_flags_keep_the_parts_of_sums_in_float32() -> None:
    flags = torch.backends.cuda.matmul
    a, b = torch.ones(32, 16), torch.ones(16, 48)
    flags.allow_bf16_reduced_precision_reduction = False
    try:
        assert products_in(programs(torch.mm, a.bfloat16(), b.bfloat16())) == ["f32"] * 3
        assert products_in(programs(torch.mm, a.half(), b.half())) == ["f16"] * 3
    finally:
        flags.allow_bf16_reduced_precision_reduction = True


def test_here_they_are_summed_and_rounded_as_before() -> None:
    a, b = (torch.ones(32, 32, dtype=torch.bfloat16, device="xla") for _ in range(2))
    assert products_in(str(torch_xla._XLAC._get_xla_tensors_hlo([a @ b]))) == ["f32"]
    assert [name for name, x in platforms.CHOICES.items() if x.rounds_products] == ["cuda"]


@pytest.mark.parametrize("dtype", HALVES)
def test_their_values_are_torchs(
    dtype: torch.dtype, choose: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    choose(rounds_products=True)
    generator = torch.Generator().manual_seed(0)
    a, b = (torch.randn(2, 32, 32, generator=generator).to(dtype) for _ in range(2))
    both(torch.bmm, a, b)
    both(torch.mm, a[0], b[0])
    both(F.linear, a, b[0])
    assert exactness.rounded_products()
    monkeypatch.undo()
    both(torch.mm, a[0], b[0])
    assert not exactness.rounded_products()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_contrastive_loss_in_halves_has_its_gradients(dtype):
    """Its products turn what two losses gave around; XLA:CPU made one of them that it lacks."""

    def loss_of(texts, images):
        texts, images = (x / x.norm(dim=-1, keepdim=True) for x in (texts, images))
        scores = texts @ images.t() * 4
        classes = torch.arange(len(scores), device=scores.device)
        return F.cross_entropy(scores, classes) + F.cross_entropy(scores.t(), classes)

    torch.manual_seed(0)
    hosts = [torch.randn(4, 512, dtype=dtype).requires_grad_() for _ in range(2)]
    devices = [x.detach().to("xla").requires_grad_() for x in hosts]
    for operands in (hosts, devices):
        loss_of(*operands).backward()
    for host, device in zip(hosts, devices, strict=True):
        torch.testing.assert_close(device.grad.cpu(), host.grad, rtol=0.1, atol=2e-3)
