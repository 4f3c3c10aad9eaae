"""`gmm` and `tgmm` on the device equal the products of each group in plain torch."""

import pytest
import torch
from devices_agree import served_by_cpu
from torch._subclasses.fake_tensor import FakeTensorMode

import torch_xla.experimental.custom_kernel as kernels
from torch_xdist.errors import ArgumentError
from torch_xla.experimental.custom_kernel import GMM, gmm, gmm_backward, tgmm

SIZES = torch.tensor([10, 0, 25], dtype=torch.int32)
SECOND = torch.tensor([1], dtype=torch.int32)


def operands() -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    return torch.randn(40, 8), torch.randn(3, 8, 6)


@pytest.mark.parametrize("transpose_rhs", [False, True])
def test_each_group_is_multiplied_by_its_own_matrix_with_gradients(transpose_rhs) -> None:
    lhs, rhs = operands()
    given = rhs.transpose(1, 2).contiguous() if transpose_rhs else rhs

    def run(lhs, rhs, sizes):
        return torch.ops.xla.gmm(lhs, rhs, sizes, transpose_rhs=transpose_rhs)

    assert served_by_cpu(run, lhs, given, SIZES) == []
    parts = [lhs[:10] @ rhs[0], lhs[10:35] @ rhs[2], torch.zeros(5, 6)]
    torch.testing.assert_close(run(lhs, given, SIZES), torch.cat(parts))


def test_with_an_offset_rhs_holds_the_later_groups() -> None:
    lhs, rhs = operands()
    here, there = (
        gmm(*(t.to(d) for t in (lhs, rhs[1:], SIZES)), None, SECOND.to(d)).cpu()
        for d in ("cpu", "xla")
    )
    torch.testing.assert_close(there, here)
    assert not here[:10].any() and here[10:35].all()


@pytest.mark.parametrize("offset", [None, SECOND])
def test_the_transposed_product_sums_over_the_rows_of_each_group(offset) -> None:
    lhs, _ = operands()
    rhs, count = torch.randn(40, 5), None if offset is None else 2

    def run(lhs, rhs, sizes, offset):
        return tgmm(lhs.detach().t(), rhs.detach(), sizes, (512,) * 3, offset, count)

    assert served_by_cpu(run, lhs, rhs, SIZES, offset) == []
    assert run(lhs, rhs, SIZES, offset).shape == (count or 3, 8, 5)


@pytest.mark.parametrize("product", [GMM.apply, torch.ops.xla.gmm])
def test_its_gradients_have_gradients(product) -> None:
    def second(lhs, rhs, sizes):
        out = product(lhs, rhs, sizes)
        first = torch.autograd.grad(out.square().sum(), (lhs, rhs), create_graph=True)
        return torch.autograd.grad(sum(g.sin().sum() for g in first), (lhs, rhs))

    there = [t.double().requires_grad_() for t in operands()]
    small = torch.rand(2, 2, dtype=torch.float64, requires_grad=True)
    sizes = torch.tensor([2], dtype=torch.int32)
    assert torch.autograd.gradgradcheck(lambda x: product(x, (x * x)[None], sizes), small)
    here = [t.detach().to("xla").requires_grad_() for t in there]
    found = second(*here, SIZES.to("xla"))
    torch.testing.assert_close([grad.cpu() for grad in found], [*second(*there, SIZES)])


def test_the_gradient_by_hand_is_that_of_autograd() -> None:
    lhs, rhs, sizes = (t.to("xla") for t in (*operands(), SIZES))
    lhs.requires_grad_(), rhs.requires_grad_()
    out = GMM.apply(lhs, rhs, sizes)
    expected = torch.autograd.grad(out.sum(), (lhs, rhs))
    found = gmm_backward(torch.ones_like(out), lhs, rhs, sizes)
    torch.testing.assert_close([g.cpu() for g in found], [g.cpu() for g in expected])


def test_fake_tensors_have_the_shape_of_the_product() -> None:
    with FakeTensorMode() as mode:
        lhs, rhs, sizes = (mode.from_tensor(t) for t in (*operands(), SIZES))
        assert torch.ops.xla.gmm(lhs, rhs, sizes).shape == (40, 6)
        assert torch.ops.xla.gmm(lhs, rhs[:, :8], sizes, transpose_rhs=True).shape == (40, 8)


def test_tiles_are_multiples_of_128_within_a_limit() -> None:
    tile = kernels._round_up_to_multiple_of_128_within_limit
    assert [tile(x, 2048) for x in (1, 128, 129, 2047, 4096, 2560)] == [
        128,
        128,
        256,
        2048,
        2048,
        1280,
    ]
    assert tile(514, 512) == 512
    assert kernels._get_tiling_size_for_gmm_kernel(64, 2048, 300, 8) == (64, 2048, 384)
    with pytest.raises(ArgumentError, match="a limit of 100 for tiles: it must be a multiple of 1"):
        tile(1, 100)


def test_wrong_operands_are_refused() -> None:
    lhs, rhs = operands()
    with pytest.raises(
        ArgumentError, match=r"gmm: lhs has shape \[40, 8\] and rhs \[8, 6\]; 2 dims"
    ):
        gmm(lhs, rhs[0], SIZES)
    with pytest.raises(ArgumentError, match="gmm: with a group_offset it has no gradient"):
        found = torch.ops.xla.gmm(lhs.requires_grad_(), rhs[1:], SIZES, None, SECOND)
        found.sum().backward()
