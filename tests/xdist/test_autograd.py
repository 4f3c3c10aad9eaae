"""Autograd, hooks, checkpointing, functorch and control flow over device tensors."""

import pytest
import torch
from torch import nn
from torch.autograd import forward_ad
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import torch_xdist.core.torch_side.registration  # noqa: F401
from torch_xdist import metrics
from torch_xdist.core.devices import steps
from torch_xdist.core.run import cuts


def on_both(run, *inputs):
    """The same function on CPU and device tensors; returns both results on the CPU."""
    expected = run(*[x.detach().clone().requires_grad_(x.requires_grad) for x in inputs])
    got = run(*[x.detach().to("xla").requires_grad_(x.requires_grad) for x in inputs])
    torch.testing.assert_close(
        torch.utils._pytree.tree_map(lambda t: t.detach().cpu(), got), expected
    )


@pytest.fixture
def x():
    torch.manual_seed(0)
    return torch.randn(3, 4, requires_grad=True)


def test_gradients_of_views_and_writes_are_those_of_the_cpu(x):
    def run(x):
        y = x * 2
        y[0].mul_(3)
        y[:, 1:3] = y[:, :2] + 1
        (y.t().reshape(-1) ** 2).sum().backward()
        return x.grad

    on_both(run, x)


def test_hooks_run_on_the_gradient(x):
    def run(x):
        x.register_hook(lambda g: g * 10)
        seen = []
        x.register_post_accumulate_grad_hook(lambda p: seen.append(p.grad.clone()))
        (x**3).sum().backward()
        return x.grad, seen[0]

    on_both(run, x)


def test_double_backward_runs(x):
    def run(x):
        (first,) = torch.autograd.grad((x**3).sum(), x, create_graph=True)
        return torch.autograd.grad((first**2).sum(), x)

    on_both(run, x)


def test_a_custom_function_runs(x):
    class Cube(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x**3

        @staticmethod
        def backward(ctx, g):
            return 3 * ctx.saved_tensors[0] ** 2 * g

    def run(x):
        Cube.apply(x).sum().backward()
        return x.grad

    on_both(run, x)


@pytest.mark.parametrize("reentrant", [True, False])
def test_activation_checkpointing_gives_the_same_gradients_and_dropout(reentrant):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 1)).to("xla")
    x = torch.ones(5, 4, device="xla", requires_grad=True)

    def gradient(run):
        torch.manual_seed(7)
        model.zero_grad()
        run(x).sum().backward()
        return model[0].weight.grad.cpu()

    plain = gradient(model)
    again = gradient(lambda x: checkpoint(model, x, use_reentrant=reentrant))
    torch.testing.assert_close(again, plain)


def test_functional_transforms_run(x):
    def f(x):
        return (x.sin() ** 2).sum()

    on_both(lambda x: torch.func.grad(f)(x), x.detach())
    on_both(lambda x: torch.func.vmap(lambda r: r * r.sum())(x), x.detach())
    on_both(lambda x: torch.func.jacrev(lambda r: r.cumsum(0))(x[0]), x.detach())
    on_both(lambda x: torch.func.hessian(lambda r: (r**3).sum())(x[0]), x.detach())


def test_forward_mode_differentiation_runs(x):
    on_both(
        lambda x: torch.func.jvp(lambda v: v.exp() * v, (x,), (torch.ones_like(x),)), x.detach()
    )


def test_functional_calls_transform_modules(x):
    def run(x):
        torch.manual_seed(0)
        model = nn.Linear(4, 2).to(x.device)
        params = dict(model.named_parameters())

        def loss(params, row):
            return torch.func.functional_call(model, params, (row,)).pow(2).sum()

        per_row = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0))(params, x)
        return {name: g.detach() for name, g in per_row.items()}

    on_both(run, x.detach())


def test_jacobians_of_both_modes_and_vjp_agree(x):
    def f(r):
        return r.cumsum(0) * r.sin()

    on_both(lambda x: torch.func.jacfwd(f)(x[0]), x.detach())
    on_both(lambda x: torch.func.vjp(f, x[0])[1](torch.ones_like(x[0]))[0], x.detach())
    on_both(lambda x: torch.autograd.functional.hessian(lambda r: (r**3).prod(), x[0]), x.detach())


def test_dual_tensors_carry_tangents(x):
    def run(x):
        with torch.autograd.forward_ad.dual_level():
            dual = torch.autograd.forward_ad.make_dual(x, x.cos())
            return torch.autograd.forward_ad.unpack_dual(dual.tanh() @ dual.t()).tangent

    on_both(run, x.detach())


# Those that are one operator on the device and several on the CPU.
FORWARD = {
    "linear": (lambda x, w, b: F.linear(x, w, b), (3, 4), (2, 4), (2,)),
    "linear without a bias": (lambda x, w: F.linear(x, w), (2, 3, 4), (2, 4)),
    "GRU cell": (torch.gru_cell, (2, 3), (2, 4), (12, 3), (12, 4)),
    "GRU": (lambda *a: torch.gru(*a[:2], a[2:], True, 1, 0.0, False, False, False)[0],
            (3, 2, 3), (1, 2, 4), (12, 3), (12, 4), (12,), (12,)),
}  # fmt: skip


def tangent_and_its_slopes(compute, shapes):
    """What a result changes with its inputs, and the slopes of that of the first of them."""

    def run(*inputs):
        with forward_ad.dual_level():
            duals = [forward_ad.make_dual(x.requires_grad_(), x.detach().cos()) for x in inputs]
            result = compute(*duals)
            (slope,) = torch.autograd.grad(result.pow(2).sum(), duals[0], create_graph=True)
            return [forward_ad.unpack_dual(x).tangent for x in (result, slope)]

    generator = torch.Generator().manual_seed(0)
    return run, [torch.randn(shape, generator=generator) for shape in shapes]


@pytest.mark.parametrize("name", FORWARD)
def test_what_is_one_operator_on_the_device_has_forward_derivatives(name):
    compute, *shapes = FORWARD[name]
    run, inputs = tangent_and_its_slopes(compute, shapes)
    on_both(run, *inputs)


def test_a_linear_layer_is_one_operator_again_after_the_last_dual_level():
    def made_by():
        x = torch.ones(2, 3, device="xla")
        return F.linear(x, torch.ones(4, 3, device="xla", requires_grad=True)).grad_fn.name()

    before = made_by()
    with forward_ad.dual_level():
        assert made_by() != before
    with pytest.raises(KeyError), forward_ad.dual_level():
        raise KeyError
    assert made_by() == before == "LinearBackward0"


class Scale(torch.autograd.Function):
    """With a context made apart, a rule for vmap and one for tangents."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x, factor):
        return x * factor

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.factor = inputs[1]

    @staticmethod
    def backward(ctx, g):
        return g * ctx.factor, None

    @staticmethod
    def jvp(ctx, tangent, _):
        return tangent * ctx.factor


def test_a_custom_function_with_setup_context_transforms(x):
    def total(x):
        return (Scale.apply(x, 3.0) ** 2).sum()

    on_both(lambda x: torch.autograd.grad(total(x), x)[0], x)
    on_both(lambda x: torch.func.grad(total)(x), x.detach())
    on_both(lambda x: torch.func.vmap(torch.func.grad(total))(x), x.detach())
    on_both(lambda x: torch.func.jvp(total, (x,), (x.cos(),)), x.detach())


def test_a_function_differentiable_once_refuses_a_second_time(x):
    class Square(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x**2

        @staticmethod
        @torch.autograd.function.once_differentiable
        def backward(ctx, g):
            return 2 * ctx.saved_tensors[0] * g

    there = x.detach().to("xla").requires_grad_()
    total = (Square.apply(there) * there).sum()
    (first,) = torch.autograd.grad(total, there, create_graph=True)
    torch.testing.assert_close(first.detach().cpu(), 3 * x.detach() ** 2)
    with pytest.raises(RuntimeError, match="marked with @once_differentiable"):
        first.sum().backward()


def test_clipping_gradients_reads_nothing_from_the_device(x):
    model = nn.Linear(4, 4).to("xla")
    model(x.detach().to("xla")).sum().backward()
    steps.sync()
    before = cuts.REASONS.copy()
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
    assert before == cuts.REASONS
    assert norm.item() > 0.5
    total = sum(p.grad.cpu().pow(2).sum() for p in model.parameters()) ** 0.5
    assert total.item() == pytest.approx(0.5, rel=1e-4)


OPTIMIZERS = {
    "nesterov": lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, nesterov=True, weight_decay=0.01),
    "sgd foreach": lambda p: torch.optim.SGD(p, 0.1, foreach=True),
    "amsgrad": lambda p: torch.optim.Adam(p, 0.01, amsgrad=True),
    "adam single": lambda p: torch.optim.Adam(p, 0.01, foreach=False, weight_decay=0.1),
    "adamw": lambda p: torch.optim.AdamW(p, 0.01),
    "fused": lambda p: torch.optim.AdamW(p, 0.01, fused=True),
    "capturable": lambda p: torch.optim.AdamW(p, 0.01, capturable=p[0].is_xla),
    "maximize": lambda p: torch.optim.AdamW(p, 0.01, maximize=True),
    "rmsprop": lambda p: torch.optim.RMSprop(p, 0.01, centered=True),
    "adagrad": lambda p: torch.optim.Adagrad(p, 0.1),
}


@pytest.mark.parametrize("make", OPTIMIZERS.values(), ids=OPTIMIZERS.keys())
def test_optimizers_take_the_steps_they_take_on_the_cpu(make):
    def train(device):
        torch.manual_seed(0)
        model = nn.Linear(4, 3).to(device)
        optimizer = make(list(model.parameters()))
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)
        x = torch.linspace(-1, 1, 20).reshape(5, 4).to(device)
        for _ in range(5):
            optimizer.zero_grad()
            model(x).pow(2).sum().backward()
            optimizer.step()
            schedule.step()
            if device == "xla":
                steps.sync()
        return model.weight.detach().cpu()

    torch.testing.assert_close(train("xla"), train("cpu"), rtol=1e-5, atol=1e-6)


def test_parametrizations_and_weight_norm_train():
    def train(device):
        torch.manual_seed(0)
        model = nn.utils.parametrizations.weight_norm(nn.Linear(4, 3)).to(device)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.ones(2, 4, device=device)).pow(2).sum().backward()
            optimizer.step()
        return model.weight.detach().cpu()

    torch.testing.assert_close(train("xla"), train("cpu"))


def test_lbfgs_with_a_closure_converges_as_on_the_cpu():
    def train(device):
        x = torch.tensor([3.0, -2.0]).to(device).requires_grad_()
        optimizer = torch.optim.LBFGS([x], max_iter=10)

        def closure():
            optimizer.zero_grad()
            loss = ((x - 1) ** 2).sum()
            loss.backward()
            return loss

        optimizer.step(closure)
        return x.detach().cpu()

    torch.testing.assert_close(train("xla"), train("cpu"))


def test_autocast_computes_in_the_lower_precision_and_keeps_float32_where_torch_does():
    model = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 2)).to("xla")
    x = torch.ones(3, 4, device="xla")
    with torch.autocast("xla", dtype=torch.bfloat16):
        y = model(x)
        assert y.dtype is torch.bfloat16
        assert torch.nn.functional.mse_loss(y, torch.zeros_like(y)).dtype is torch.float32
        with torch.autocast("xla", enabled=False):
            assert model(x).dtype is torch.float32
    y.float().sum().backward()
    assert model[0].weight.grad.dtype is torch.float32


def test_no_grad_and_inference_mode_record_no_graph():
    x = torch.ones(2, device="xla", requires_grad=True)
    with torch.no_grad():
        assert not (x * 2).requires_grad
    with torch.inference_mode():
        assert (x * 2).tolist() == [2.0, 2.0]


def test_no_operator_of_a_training_step_ran_on_the_cpu():
    before = metrics.missing_lowerings()
    model = nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.GELU(), nn.Linear(8, 2)).to("xla")
    nn.functional.cross_entropy(
        model(torch.ones(3, 4, device="xla")), torch.tensor([0, 1, 1]).to("xla")
    ).backward()
    steps.sync()
    assert metrics.missing_lowerings() == before
