"""Factorizations and what rests on them, with gradients, as CPU torch defines them."""

from collections.abc import Callable, Iterable

import pytest
import torch
from devices_agree import both

A = torch.tensor([[4.0, 1.0, 0.5], [-1.0, 3.0, 2.0], [0.3, -2.0, 5.0]], dtype=torch.float64)
B = torch.tensor([[1.0, 2.0], [0.5, -1.0], [3.0, 0.0]], dtype=torch.float64)
COMPLEX = torch.complex(A, A.flip(0))


def positive(a: torch.Tensor) -> torch.Tensor:
    return a @ a.mH


@pytest.mark.parametrize("a", [A, COMPLEX], ids=["real", "complex"])
def test_gradients_of_solving_hold_for_any_strides(a: torch.Tensor) -> None:
    # torch's formulas take the LU for that of the matrix or of its transpose, by its strides.
    both(torch.linalg.solve, a, B.to(a.dtype))
    both(lambda a, b: torch.linalg.solve(a.mT, b), a, B.to(a.dtype))
    both(lambda a, b: torch.linalg.solve(a, b.mT, left=False), a, B.to(a.dtype))


def test_gradients_of_determinants_hold_for_any_strides() -> None:
    both(lambda a: (torch.linalg.det(a), torch.linalg.slogdet(a)[1]), A)
    both(lambda a: (torch.linalg.det(a.mT), torch.linalg.slogdet(a.mT)[1]), A)


def test_inverses_equal_eager() -> None:
    both(torch.linalg.inv, torch.stack([A, A.T]))
    both(lambda a: torch.linalg.pinv(a[:, :2]), A)


@pytest.mark.parametrize("size", [1, 3, 40])
def test_a_nan_anywhere_in_a_matrix_is_passed_over_by_nothing_that_rests_on_its_factors(
    size: int,
) -> None:
    a, b = torch.randn(4, size, size), torch.randn(4, size, 2)
    for matrix, (row, column) in enumerate([(0, 0), (-1, 0), (size // 2, size // 2)]):
        a[matrix, row, column] = float("nan")

    def found(a: torch.Tensor, b: torch.Tensor) -> list[torch.Tensor]:
        parts = [torch.linalg.inv(a), torch.linalg.solve(a, b), torch.linalg.det(a)]
        return [part.isnan() for part in parts]

    for expected, other in zip(found(a, b), found(a.to("xla"), b.to("xla")), strict=True):
        assert torch.equal(other.cpu(), expected)


def test_cholesky_reads_only_the_named_triangle() -> None:
    for upper in (False, True):
        spoiled = positive(A) + 100 * torch.ones(3, 3).triu(1).to(A) * (-1 if upper else 1)
        mine = spoiled.mT if upper else spoiled
        both(lambda a, upper=upper: torch.linalg.cholesky_ex(a, upper=upper).L.detach(), mine)


def test_a_failure_shows_in_info_and_as_nan() -> None:
    bad = torch.diag(torch.tensor([2.0, 1.0, -1.0, 1.0])).to("xla")
    factor, info = torch.linalg.cholesky_ex(bad)
    assert info.item() == 3 and factor.isnan().any().item()
    assert torch.linalg.lu_factor_ex(torch.zeros(2, 2, device="xla")).info.item() == 1


@pytest.mark.parametrize(
    "factor",
    [
        lambda a: torch.linalg.cholesky_ex(a, check_errors=True),
        lambda a: torch.linalg.inv_ex(a, check_errors=True),
        lambda a: torch.linalg.lu_factor_ex(a, check_errors=True),
        lambda a: torch.linalg.solve_ex(a, a, check_errors=True),
    ],
    ids=["cholesky", "inverse", "LU", "solution"],
)
def test_a_failure_raises_where_that_is_asked_for(factor: Callable[..., object]) -> None:
    bad = torch.stack([torch.eye(2), torch.zeros(2, 2)])
    for given in (bad[1], bad):
        with pytest.raises(RuntimeError) as expected:
            factor(given)
        with pytest.raises(type(expected.value)) as error:
            factor(given.to("xla"))
        assert str(error.value) == str(expected.value)
    factor(torch.eye(2, device="xla"))


def test_cholesky_and_its_solutions() -> None:
    both(lambda a: torch.linalg.cholesky(positive(a)), COMPLEX)
    factor = torch.linalg.cholesky(positive(A))
    both(lambda f, b: (torch.cholesky_solve(b, f), torch.cholesky_inverse(f)), factor, B)
    both(lambda f, b: torch.cholesky_solve(b, f, upper=True), factor.mT.contiguous(), B)


@pytest.mark.parametrize("mode", ["reduced", "complete", "r"])
def test_qr_gives_torchs_factors(mode: str) -> None:
    both(lambda a: torch.linalg.qr(a.detach(), mode), B)


def test_gradients_of_values_of_matrices() -> None:
    both(lambda a: torch.linalg.svdvals(a), B)
    both(lambda a: (torch.linalg.eigvalsh(a, "L"), torch.linalg.eigvalsh(a, "U")), A)
    both(lambda a: torch.linalg.eigvals(a).abs().sort().values, A)
    both(lambda a: torch.linalg.svd(a, full_matrices=False).U.abs(), B)


def test_lu_in_parts_and_its_solutions() -> None:
    both(lambda a: torch.linalg.lu(a), torch.cat([A, A[:1] * 2]))
    both(lambda a: torch.lu_unpack(*torch.linalg.lu_factor(a)), A)
    for adjoint in (False, True):
        both(
            lambda a, b, adjoint=adjoint: torch.linalg.lu_solve(
                *torch.linalg.lu_factor(a), b, adjoint=adjoint
            ),
            COMPLEX,
            B.to(COMPLEX.dtype),
        )


def test_triangular_systems_are_solved_from_both_sides() -> None:
    both(lambda a, b: torch.linalg.solve_triangular(a.triu(), b, upper=True), A, B)
    both(lambda a, b: torch.linalg.solve_triangular(a.mH, b.mH, upper=False, left=False), A, B)


def test_reflectors_multiply() -> None:
    both(lambda b: torch.geqrf(b.detach()), B)
    both(lambda b: torch.linalg.householder_product(*torch.geqrf(b.detach())), B)
    both(lambda b, a: torch.ormqr(*torch.geqrf(b.detach()), a.detach(), True, True), B, A)


def test_exponentials_and_least_squares() -> None:
    both(torch.linalg.matrix_exp, torch.stack([A / 5, 3 * A]))
    both(lambda a: torch.linalg.matrix_exp(a).detach(), torch.stack([A / 5, 3 * A]).float())
    both(lambda a, b: torch.linalg.lstsq(a, b[:, :1]).solution, B, A)


DEPENDENT = torch.cat([A, A[:, :1] + A[:, 1:2]], 1)


@pytest.mark.parametrize("driver", ["gelsd", "gelss"])
def test_least_squares_of_dependent_columns_are_the_shortest(driver: str) -> None:
    def solved(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, ...]:
        found = torch.linalg.lstsq(a.detach(), b.detach(), driver=driver)
        return found.solution, found.rank, found.singular_values

    both(solved, DEPENDENT, B)
    both(solved, torch.stack([DEPENDENT.mT, DEPENDENT.mT * 2]), torch.ones(2, 4, 1).double())


def test_least_squares_by_pivoted_qr_are_the_shortest_too() -> None:
    # Eager's gelsy reads an uninitialised array of pivots and, in a batch, the previous matrix's
    # (pytorch/pytorch#187411), so another driver of eager's says what is right.
    cases = [
        (DEPENDENT, B),
        (torch.stack([DEPENDENT, DEPENDENT[:, [0, 1, 3, 2]]]), torch.stack([B, B])),
        (torch.stack([DEPENDENT.mT, DEPENDENT.mT * 2]), torch.ones(2, 4, 1).double()),
    ]
    for a, b in cases:
        want = torch.linalg.lstsq(a, b, driver="gelsd")
        have = torch.linalg.lstsq(a.to("xla"), b.to("xla"), driver="gelsy")
        torch.testing.assert_close(have.solution.cpu(), want.solution)
        assert have.rank.tolist() == want.rank.tolist()
        assert have.singular_values.shape == (0,)


def _squares(function: Callable[..., torch.Tensor], inputs: Iterable[torch.Tensor]) -> list[float]:
    """The squared distances from double precision: of CPU torch, and of the device."""
    sums = [0.0, 0.0]
    for x in inputs:
        exact = function(x.to(torch.complex128 if x.is_complex() else torch.float64))
        for side, device in enumerate(("cpu", "xla")):
            sums[side] += (function(x.to(device)).cpu() - exact).abs().max().item() ** 2
    return sums


def _pseudoinverse(a: torch.Tensor) -> torch.Tensor:
    return torch.linalg.pinv(a)


def _least_squares(a: torch.Tensor) -> torch.Tensor:
    return torch.linalg.lstsq(a[..., 1:], a[..., :1]).solution


@pytest.mark.parametrize("dtype", [torch.float32, torch.complex64])
@pytest.mark.parametrize(
    "function",
    [
        _pseudoinverse,
        lambda a: torch.linalg.pinv(a + a.mH, hermitian=True),
        _least_squares,
    ],
    ids=["pinv", "pinv of hermitian", "lstsq"],
)
def test_pseudoinverses_round_less_than_in_eager(
    function: Callable[..., torch.Tensor], dtype: torch.dtype
) -> None:
    generator = torch.Generator().manual_seed(0)
    draws = [torch.randn(5, 5, 5, dtype=dtype, generator=generator) for _ in range(3)]
    eager, device = _squares(function, draws)
    # Eager's of least squares and of hermitian matrices of complex numbers depend on the processor,
    # whose kernels MKL chooses, on where memory begins and on the release: squares of 7.7e-13 to
    # 2.9e-12 for least squares, of which the device's were 8.6e-13 wherever it was measured.
    varies = dtype.is_complex and function is not _pseudoinverse
    assert 0 < device < eager * (1.25 if varies else 0.5)


@pytest.mark.parametrize("p", [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, float("inf")])
def test_distances_between_rows_equal_eager(p: float) -> None:
    both(lambda a, b: torch.cdist(a, b, p), A, A.flip(0) + 0.25)
    both(lambda a: torch.pdist(a, p), A)


def test_distances_of_an_empty_batch_have_gradients_of_the_inputs_shapes() -> None:
    both(lambda a, b: torch.cdist(a, b, 1.0), torch.zeros(0, 4, 5), torch.ones(3, 5))


def test_empty_matrices_have_factors() -> None:
    empty = torch.zeros(2, 0, 0)
    both(lambda a: (torch.linalg.cholesky(a), torch.linalg.det(a), torch.linalg.inv(a)), empty)


def test_cross_products_broadcast() -> None:
    both(lambda a, b: torch.linalg.cross(a, b, dim=0), A, B[:, :1])
