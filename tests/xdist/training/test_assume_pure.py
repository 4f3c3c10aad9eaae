"""Pure functions are traced once, and are what they are without."""

import copy

import pytest
import torch
from torch import nn

import torch_xla.core.xla_builder as xb
from torch_xdist.errors import ArgumentError, ImpureError
from torch_xdist.training import assume_pure as training
from torch_xla import _XLAC
from torch_xla.experimental import assume_pure as ap


def test_a_function_runs_once_and_its_gradients_are_torchs():
    runs = []

    @ap.assume_pure
    def function(pair, *, factor):
        runs.append(factor)
        product = torch.sin(pair["a"] @ pair["b"])
        return {"product": product * factor, "none": None, "plain": pair["b"].detach() * 2}

    before = xb._jax_to_xla_computation_cache_elements()
    for _ in range(3):
        a = torch.rand(3, 3).to("xla").requires_grad_()
        b = torch.rand(3, 3).to("xla").requires_grad_()
        found = function({"a": a, "b": b}, factor=2.0)
        found["product"].sum().backward()
        x, y = (t.detach().cpu().requires_grad_() for t in (a, b))
        (torch.sin(x @ y) * 2.0).sum().backward()
        torch.testing.assert_close(a.grad.cpu(), x.grad)
        torch.testing.assert_close(b.grad.cpu(), y.grad)
        assert found["none"] is None and not found["plain"].requires_grad
    assert runs == [2.0] and xb._jax_to_xla_computation_cache_elements() == before + 2
    function({"a": a, "b": b}, factor=2)
    assert runs == [2.0, 2]


def test_a_module_is_what_it_is_without():
    torch.manual_seed(0)
    layers = nn.Conv1d(3, 3, 3, padding=1), nn.LayerNorm(9), nn.ReLU(), nn.Flatten()
    plain = nn.Sequential(*layers, nn.Linear(27, 3)).to("xla")
    pure = ap.PureModule(copy.deepcopy(plain))
    x = torch.randn(5, 3, 9).to("xla").requires_grad_()
    y = x.detach().clone().requires_grad_()
    plain(x).square().sum().backward()
    pure(y).square().sum().backward()
    torch.testing.assert_close(y.grad.cpu(), x.grad.cpu())
    for one, other in zip(plain.parameters(), pure.parameters(), strict=True):
        torch.testing.assert_close(other.grad.cpu(), one.grad.cpu())


def test_gradients_have_gradients():
    cube = ap.assume_pure(lambda a: torch.tanh(a) * a)
    a = torch.rand(3).to("xla").requires_grad_()
    (first,) = torch.autograd.grad(cube(a).sum(), a, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), a)
    x = a.detach().cpu().requires_grad_()
    (first,) = torch.autograd.grad((torch.tanh(x) * x).sum(), x, create_graph=True)
    torch.testing.assert_close(second.cpu(), torch.autograd.grad(first.sum(), x)[0])


def test_what_is_read_from_outside_is_read_at_each_call_and_has_gradients():
    weight = torch.ones(2, device="xla", requires_grad=True)
    pure = ap.assume_pure(lambda a: a * weight)
    a = torch.full((2,), 3.0, device="xla")
    pure(a).sum().backward()
    assert weight.grad.tolist() == [3, 3]
    with torch.no_grad():
        weight.fill_(5.0)
    assert pure(a).tolist() == [15, 15]


def test_pure_functions_may_call_each_other_and_jax():
    inner = ap.assume_pure(lambda a, b: a @ b)
    outer = ap.assume_pure(lambda a, b: inner(a, b) + xb.call_jax(abs, (b,)))
    a, b = torch.randn(2, 2).to("xla"), torch.randn(2, 2).to("xla")
    torch.testing.assert_close(outer(a, b).cpu(), a.cpu() @ b.cpu() + b.cpu().abs())
    jax_side = ap.j2t_autograd(lambda a: a * 2)
    assert jax_side(a).tolist() == (a * 2).tolist()


def test_random_numbers_follow_the_seed():
    noisy = ap.assume_pure(lambda a: a + torch.rand_like(a), add_rng_seed_argument=True)
    zeros = torch.zeros(4, device="xla")
    one, other, again = (noisy(zeros, rng_seed=seed).tolist() for seed in (5, 6, 5))
    assert one == again != other
    assert noisy(zeros, rng_seed=torch.tensor(6, device="xla")).tolist() == other
    with pytest.raises(ArgumentError, match="Missing keyword argument rng_seed: give an int"):
        noisy(zeros)
    fixed = ap.assume_pure(torch.rand_like)
    assert fixed(zeros).tolist() == fixed(zeros).tolist()


def test_what_is_not_pure_is_refused():
    total = torch.zeros(2, device="xla")
    writes = ap.assume_pure(lambda a: total.add_(1) + a)
    with pytest.raises(ImpureError, match=r"<lambda> writes to 1 tensor\(s\) from outside"):
        writes(total)
    with pytest.raises(ArgumentError, match="is called with a tensor on cpu; give it tensors of"):
        ap.assume_pure(torch.neg)(torch.ones(2))
    with pytest.raises(ArgumentError, match="is called with no tensor; give it tensors of one"):
        ap.assume_pure(abs)(2)


def test_a_forward_pass_is_lowered_once():
    with pytest.raises(ImpureError, match="is made pure while gradients are recorded"):
        ap.assume_pure_torch(torch.sin)
    runs = []
    shift = torch.full((2,), 10.0, device="xla")

    def function(a, b):
        runs.append(1)
        return [torch.sin(a @ b) + shift, a]

    ap._XLA_COMPUTATION_CACHE.clear()
    with torch.no_grad():
        pure = ap.assume_pure_torch(function, use_cache=True)
        for scale in (1, 2):
            a = torch.full((2, 2), float(scale), device="xla")
            found, same = pure(a, b=a)
            torch.testing.assert_close(found.cpu(), torch.sin(a.cpu() @ a.cpu()) + 10)
            assert same.tolist() == a.tolist()
        assert runs == [1] and list(ap._XLA_COMPUTATION_CACHE) == [function]
        ap.assume_pure_torch(function)(a, a)
        assert runs == [1, 1]


def test_functions_of_one_name_are_two():
    def scaled_by(factor):
        def scaled(a):
            return a * factor

        return ap.assume_pure_torch(scaled, use_cache=True)

    x = torch.ones(2, device="xla")
    with torch.no_grad():
        held = len(ap._XLA_COMPUTATION_CACHE)
        twice, thrice = scaled_by(2), scaled_by(3)
        assert twice(x).tolist() == [2, 2] and thrice(x).tolist() == [3, 3]
        assert len(ap._XLA_COMPUTATION_CACHE) == held + 2
        # What was lowered goes with the function.
        del twice, thrice
        assert len(ap._XLA_COMPUTATION_CACHE) == held


def test_the_oldest_forms_of_arguments_are_forgotten(monkeypatch):
    monkeypatch.setattr(training, "KEPT", 3)
    pure = training.PureFunction(lambda a, factor: a * factor, is_seeded=False)
    x = torch.ones(2, device="xla")
    for factor in (2, 3, 4, 5, 2):
        assert pure(x, factor).tolist() == [factor] * 2
    assert len(pure._cache) == 3


def test_stand_ins_have_types_and_no_values():
    x = torch.ones(2, 3, dtype=torch.bfloat16, requires_grad=True)
    fake = ap.make_fake_inputs(x)
    assert fake.device.type == "xla" and (fake.shape, fake.dtype) == (x.shape, x.dtype)
    assert fake.requires_grad and _XLAC._is_placecholder(fake)
    assert ap.make_fake_inputs("text") == "text" and ap.make_fake_inputs(None) is None


def test_the_parameters_of_a_lowered_function_are_its_inputs_and_what_it_holds():
    held, x, y = (torch.full((2,), n).to("xla") for n in (1.0, 2.0, 3.0))
    fakes = [ap.make_fake_inputs(x), "text", ap.make_fake_inputs(y)]
    lowered = _XLAC.lowering.LoweringContext("held")
    lowered.build([fakes[2] * 2 + fakes[0] + held])
    inputs, hoisted, places = ap.prepare_computation_inputs(lowered, fakes, [x, "text", y])
    assert sorted(places.values()) == [0, 2] and [t.tolist() for t in hoisted.values()] == [[1, 1]]
    assert sorted(t.tolist()[0] for t in inputs) == [1, 2, 3]
    for number, place in places.items():
        assert inputs[number] is [x, "text", y][place]
