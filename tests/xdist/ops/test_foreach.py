"""The foreach operators: every overload, and torch's promotion of each element."""

import pytest
import torch

import torch_xla  # noqa: F401

MIXED = [
    torch.tensor([1.5, -2.0, 3.0]),
    torch.tensor([[1, 2], [3, 4]], dtype=torch.int32),
    torch.tensor([0.1, 7.0], dtype=torch.bfloat16),
    torch.tensor(2.5, dtype=torch.float64),
]


def assert_same(function) -> None:
    """`function` of the mixed list, on both devices."""
    expected = function([x.clone() for x in MIXED])
    found = function([x.to("xla") for x in MIXED])
    assert len(found) == len(expected)
    for one, other in zip(expected, found):
        assert other.dtype == one.dtype
        torch.testing.assert_close(other.cpu(), one)


@pytest.mark.parametrize("name", ["add", "sub", "mul", "div", "maximum", "minimum", "pow"])
def test_binary_operators_take_a_number_numbers_and_a_list(name: str) -> None:
    operator = getattr(torch, f"_foreach_{name}")
    assert_same(lambda xs: operator(xs, 2))
    if name != "pow":
        # Of these, eager has no wider results than the operand's for maximum and minimum.
        numbers = [2, 3, 4, 5] if name in ("maximum", "minimum") else [2, 1.5, 4, 0.5]
        assert_same(lambda xs: operator(xs, numbers))
    assert_same(lambda xs: operator(xs, [x + 1 for x in xs]))


def test_a_tensor_operand_and_alpha_reach_every_element() -> None:
    assert_same(lambda xs: torch._foreach_add(xs, [x * 2 for x in xs], alpha=3))
    assert_same(lambda xs: torch._foreach_mul(xs, torch.tensor(2.0, device=xs[0].device)))


@pytest.mark.parametrize("name", ["sqrt", "exp", "neg", "sign", "reciprocal", "sigmoid"])
def test_unary_operators_promote_integers_as_eager_does(name: str) -> None:
    assert_same(lambda xs: getattr(torch, f"_foreach_{name}")([x.abs() for x in xs]))


@pytest.mark.parametrize("name", ["addcmul", "addcdiv"])
def test_fused_products_and_quotients_take_all_overloads(name: str) -> None:
    operator = getattr(torch, f"_foreach_{name}")

    def floats(xs):
        return [xs[0], xs[2]]

    assert_same(lambda xs: operator(floats(xs), floats(xs), floats(xs), 0.5))
    assert_same(lambda xs: operator(floats(xs), floats(xs), floats(xs), [0.5, 2.0]))
    assert_same(lambda xs: operator(floats(xs), floats(xs), floats(xs), torch.tensor([0.5, 2.0])))


def test_lerp_norm_and_max_equal_eager() -> None:
    assert_same(lambda xs: torch._foreach_lerp([xs[0], xs[3]], [xs[0] * 2, xs[3] + 1], 0.25))
    assert_same(lambda xs: torch._foreach_norm([xs[0], xs[2]], 2))
    assert_same(lambda xs: torch._foreach_max(xs[:3]))


def test_in_place_forms_write_every_element() -> None:
    xs = [x.to("xla") for x in (MIXED[0], MIXED[3])]
    torch._foreach_mul_(xs, 2.0)
    torch._foreach_zero_([xs[1]])
    assert xs[0].tolist() == [3.0, -4.0, 6.0]
    assert xs[1].item() == 0.0


def test_unscaling_finds_infinities_and_the_scale_follows() -> None:
    results = []
    for device in ("cpu", "xla"):
        grads = [
            torch.tensor([2.0, 4.0], device=device),
            torch.tensor([1.0, float("inf")], device=device),
        ]
        found, scale = torch.zeros(1, device=device), torch.tensor(8.0, device=device)
        tracker = torch.tensor(3, dtype=torch.int32, device=device)
        torch._amp_foreach_non_finite_check_and_unscale_(
            grads[:1], found, torch.tensor(0.5, device=device)
        )
        torch._amp_update_scale_(scale, tracker, found, 2.0, 0.5, 4)
        grown = scale.item(), tracker.item(), found.item()
        torch._amp_foreach_non_finite_check_and_unscale_(
            grads, found, torch.tensor(0.5, device=device)
        )
        torch._amp_update_scale_(scale, tracker, found, 2.0, 0.5, 4)
        results.append((grown, scale.item(), tracker.item(), found.item(), grads[0].tolist()))
    assert results[0] == results[1]


def test_each_tensor_of_a_list_takes_a_number_in_its_own_precision():
    mixed = [torch.tensor([1.0, 3.0]), torch.tensor([1.0, 3.0], dtype=torch.float64)]
    found = torch._foreach_mul([x.to("xla") for x in mixed], 0.1)
    for one, other in zip(found, torch._foreach_mul(mixed, 0.1)):
        assert one.cpu().equal(other)
    whole = [torch.tensor([1, 2], dtype=torch.int32), torch.tensor([1, 2])]
    found = torch._foreach_add([x.to("xla") for x in whole], 2**33 + 1)
    for one, other in zip(found, torch._foreach_add(whole, 2**33 + 1)):
        assert one.cpu().equal(other)
