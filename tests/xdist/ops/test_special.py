"""Special functions beside CPU torch, over their domain and at its edges."""

import pytest
import torch

import torch_xla  # noqa: F401

X = torch.cat([torch.linspace(-30, 30, 241, dtype=torch.float64), torch.tensor([0.0, 1e-8, 200.0])])
NAMES = [
    "airy_ai",
    "bessel_j0",
    "bessel_j1",
    "bessel_y0",
    "bessel_y1",
    "modified_bessel_k0",
    "modified_bessel_k1",
    "scaled_modified_bessel_k0",
    "scaled_modified_bessel_k1",
    "i0e",
    "i1e",
    "spherical_bessel_j0",
    "erfcx",
    "log_ndtr",
    "digamma",
    "entr",
]


def assert_same(function, x: torch.Tensor, rtol: float = 1e-7) -> None:
    found = function(x.to("xla")).cpu()
    torch.testing.assert_close(found, function(x), equal_nan=True, rtol=rtol, atol=1e-9)


@pytest.mark.parametrize("name", NAMES)
def test_functions_of_one_number_equal_eager(name: str) -> None:
    assert_same(getattr(torch.special, name), X)


@pytest.mark.parametrize("n", [0, 1, 2, 4])
def test_polygamma_equals_eager_on_both_sides_of_zero(n: int) -> None:
    inside = torch.linspace(-3.9, 20, 100, dtype=torch.float64)
    assert_same(lambda x: torch.special.polygamma(n, x), inside)


def test_zeta_equals_eager_below_zero_and_at_its_poles() -> None:
    q = torch.tensor([-3.5, -2.0, -0.5, 0.0, 0.3, 1.0, 8.0], dtype=torch.float64)
    for s in (0.5, 1.0, 2.0, 3.0, 2.5):
        assert_same(lambda q, s=s: torch.special.zeta(torch.full_like(q, s), q), q)


@pytest.mark.parametrize(
    "name",
    [
        *(f"{shift}chebyshev_polynomial_{kind}" for shift in ("", "shifted_") for kind in "tuvw"),
        "hermite_polynomial_h",
        "hermite_polynomial_he",
        "laguerre_polynomial_l",
        "legendre_polynomial_p",
    ],
)
def test_orthogonal_polynomials_equal_eager_for_every_degree(name: str) -> None:
    x = torch.tensor([-1.0, -0.3, 0.0, 0.5, 1.0, 1.7], dtype=torch.float64)
    n = torch.tensor([-1, 0, 1, 2, 5, 12], dtype=torch.float64)
    assert_same(lambda x: getattr(torch.special, name)(x[:, None], n.to(x.device)), x)


def test_gradients_of_dirichlet_samples_equal_eager_in_every_region() -> None:
    torch.manual_seed(0)
    alpha = torch.cat([torch.empty(20, 4).uniform_(*ends) for ends in ((0.1, 3), (5, 90))]).double()
    total = alpha.sum(-1, True).expand_as(alpha).contiguous()
    sample = torch._sample_dirichlet(alpha).clamp(1e-6, 1 - 1e-6)
    expected = torch._dirichlet_grad(sample, alpha, total)
    found = torch._dirichlet_grad(*(t.to("xla") for t in (sample, alpha, total)))
    torch.testing.assert_close(found.cpu(), expected)


@pytest.mark.parametrize("name", ["gammainc", "gammaincc"])
def test_incomplete_gamma_functions_equal_eager_from_zero_to_infinity(name: str) -> None:
    function = getattr(torch.special, name)
    ends = torch.tensor([0, 1e-6, 0.5, 1, 7, 50, 1e3, 1e6, 1e10, 1e30, float("inf")])
    a, x = (of.reshape(-1) for of in torch.meshgrid(ends, ends, indexing="ij"))
    torch.testing.assert_close(
        function(a.to("xla"), x.to("xla")).cpu(), function(a, x), equal_nan=True
    )


def test_incomplete_gamma_functions_of_large_numbers_are_as_exact_as_their_dtype() -> None:
    a = torch.logspace(-1, 9, 201, dtype=torch.float64)
    for far in (-3, -0.001, 0, 0.001, 2):
        x = a + far * a.sqrt()
        exact = torch.special.gammainc(a, x.clamp(min=0))
        found = torch.special.gammainc(a.to("xla"), x.clamp(min=0).to("xla")).cpu()
        torch.testing.assert_close(found, exact, rtol=1e-8, atol=1e-9)
