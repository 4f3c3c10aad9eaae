"""torch's operators that take functions, called alone and in graphs that torch.compile captures."""

import pytest
import torch
from torch import fx
from torch._higher_order_ops import foreach_map, out_dtype, scan, while_loop
from torch._higher_order_ops.invoke_subgraph import mark_compile_region
from torch._higher_order_ops.map import map as map_rows

import torch_xdist.core.torch_side.registration  # noqa: F401
import torch_xla.debug.metrics as met
from torch_xdist.core.devices import steps
from torch_xdist.core.run import cuts

BACKENDS = ("eager", "aot_eager", "openxla")


@mark_compile_region
def region(x):
    return x.sin() * 2


def chosen(x):
    return torch.cond(x.sum() > 0, lambda x: x.sin(), lambda x: x * 3, (x,))


def repeated(x):
    start = torch.zeros((), dtype=torch.int64, device=x.device)
    factor = x.exp()
    return while_loop(lambda n, y: n < 3, lambda n, y: (n + 1, y * factor), (start, x.sin()))[1]


def carried(x):
    factor, start = x.exp().sum(0), x.sum(0)
    return scan(lambda carry, row: (carry + row * factor, carry * row), start, x)[1]


def in_regions(x):
    return region(region(x))


def mapped_each(x):
    return foreach_map(torch.lerp, [x, x], [x * 2, x.exp()], 0.25)[1]


def mapped(x):
    return map_rows(lambda row, y: row * y.sum(), x, x * 2)


FUNCTIONS = (chosen, repeated, carried, in_regions, mapped_each, mapped)


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()
    steps.sync()


def values_and_gradients(function, x):
    x = x.detach().clone().requires_grad_()
    found = function(x)
    # torch has no gradient of a loop whose turns nobody counted.
    grads = [] if function is repeated else torch.autograd.grad(found.square().sum(), x)
    return [value.detach().cpu() for value in (found, *grads)]


def of(device):
    return torch.tensor([[0.5, -1.0], [2.0, 0.25], [1.5, 0.75]], device=device)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda function: function.__name__)
def test_a_compiled_function_computes_what_it_does_on_the_cpu(function, backend):
    compiled = torch.compile(function, backend=backend, fullgraph=True)
    # CPU torch has no region with a gradient where nothing is compiled ahead.
    of_cpu = torch.compile(function, backend="aot_eager", fullgraph=True)
    if function is repeated:
        with torch.no_grad():
            found, wanted = [f(of(d)).cpu() for f, d in ((compiled, "xla"), (of_cpu, "cpu"))]
    else:
        found = values_and_gradients(compiled, of("xla"))
        wanted = values_and_gradients(of_cpu, of("cpu"))
    torch.testing.assert_close(found, wanted)


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda function: function.__name__)
def test_tensors_of_the_cpu_are_compiled_as_without_us(function):
    compiled = torch.compile(function, backend="eager", fullgraph=True)
    found = compiled(of("cpu"))
    assert found.device.type == "cpu"
    torch.testing.assert_close(found, torch.compile(function, backend="aot_eager")(of("cpu")))


def test_captured_control_flow_is_one_program_whatever_it_chooses():
    compiled = torch.compile(lambda x: (chosen(x), carried(x)), backend="openxla", fullgraph=True)
    compiled(of("xla"))
    before, compilations = cuts.REASONS.copy(), met.metric_data("CompileTime")[0]
    inputs = [of("xla"), -of("xla")]
    steps.sync()
    compilations_of_inputs = met.metric_data("CompileTime")[0] - compilations
    before = cuts.REASONS.copy()
    found = [compiled(x)[0] for x in inputs]
    assert cuts.REASONS["read"] == before["read"]
    assert met.metric_data("CompileTime")[0] == compilations + compilations_of_inputs
    torch.testing.assert_close(found[0].cpu(), of("cpu").sin())
    torch.testing.assert_close(found[1].cpu(), of("cpu") * -3)


def test_operators_are_served_without_a_compiler():
    graph = fx.symbolic_trace(lambda a, b: (a * b,))
    a = of("xla").requires_grad_()
    (found,) = torch.ops.higher_order.foreach_map(graph, a, a)
    (grad,) = torch.autograd.grad(found.sum(), a)
    assert torch.equal(found.cpu(), of("cpu") * of("cpu"))
    assert torch.equal(grad.cpu(), of("cpu") * 2)
    with torch.inference_mode():
        assert torch.equal(foreach_map(torch.add, [a], [a])[0].cpu(), of("cpu") * 2)


def test_a_product_of_small_integers_is_of_larger_ones():
    small = torch.full((2, 2), 100, dtype=torch.int8, device="xla")
    product = out_dtype(torch.ops.aten.mm.default, torch.int32, small, small)
    assert product.dtype is torch.int32 and product.tolist() == [[20000, 20000]] * 2


def test_operands_that_are_not_all_ours_are_chosen_by_torch():
    x, graphs = of("xla"), [fx.symbolic_trace(lambda x, n, k=k: (x * n + k,)) for k in (0, 1)]
    for flag in (True, False):
        (found,) = torch.ops.higher_order.cond(torch.tensor(flag), *graphs, (x, 2))
        assert torch.equal(found.cpu(), of("cpu") * 2 + (not flag))


def test_a_mode_sees_the_operator():
    class Seeing(torch.utils._python_dispatch.TorchDispatchMode):
        supports_higher_order_operators = True

        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            seen.append(str(function))
            return function(*args, **(kwargs or {}))

    seen: list[str] = []
    graph = fx.symbolic_trace(lambda a: (a + 1,))
    with Seeing(), torch.no_grad():
        torch.ops.higher_order.foreach_map(graph, of("xla"))
    assert "foreach_map" in seen
