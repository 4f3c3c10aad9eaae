"""Computations as rows, as text, and from HLO modules; tensors without values."""

import json
import math
import time
from concurrent.futures import ThreadPoolExecutor

import jax
import pytest
import torch

import torch_xla
import torch_xla.core.xla_builder as xb
from torch_xdist import metrics
from torch_xdist.core.programs import jax_internals
from torch_xdist.errors import ArgumentError, DeviceError, ReleaseError, ValueLostError
from torch_xla import _XLAC


def difference(a, b):
    return xb.Op.tuple([a.max(b) - a.min(b)])


def test_equal_computations_are_one_program():
    x = torch.tensor([1.0, 5.0]).to("xla")
    torch_xla.sync()
    metrics.clear_all()
    for _ in range(2):
        inputs = [torch.sin(x), torch.cos(x)]
        made = xb.create_computation("c", difference, xb.tensor_shape(inputs))
        (found,) = _XLAC._xla_user_computation("xla::mine", inputs, made)
        assert "xla::mine(" in _XLAC._get_xla_tensors_text([found])
        torch_xla.sync()
    torch.testing.assert_close(found.cpu(), (x.cpu().sin() - x.cpu().cos()).abs())
    assert metrics.counter_value("UncachedCompile") == 1
    assert metrics.counter_value("CachedCompile") == 1


def test_a_computation_prints_as_hlo():
    made = xb.create_computation("my comp", difference, [xb.mkshape("f32", [2])] * 2)
    text = xb.get_computation_hlo(made)
    assert "HloModule jit_my_comp" in text and "maximum(f32[2]{0} %p0.1, f32[2]{0} %p1.1)" in text


def test_tensors_of_another_form_are_refused():
    made = xb.create_computation("c", difference, [xb.mkshape("f32", [2])] * 2)
    run = xb.xla_computation_as_func(made, "mine")
    x = torch.ones(2, device="xla")
    with pytest.raises(ArgumentError, match="xla::mine: 1 tensors for a computation of 2 param"):
        run([x])
    with pytest.raises(ArgumentError, match=r"tensor 1 is torch.int64 \(2,\), and the computation"):
        run([x, x.long()])


def test_a_jax_program_comes_as_a_module():
    lowered = jax.jit(lambda a, b: (a @ b, b * 2)).lower(*[jax.ShapeDtypeStruct((2, 2), "f4")] * 2)
    proto = lowered.compiler_ir("hlo").as_serialized_hlo_module_proto()
    made = xb.computation_from_module_proto("outer", proto)
    a, b = torch.rand(2, 2).to("xla"), torch.rand(2, 2).to("xla")
    product, double = xb.xla_computation_as_func(made)([a, b])
    torch.testing.assert_close(product.cpu(), a.cpu() @ b.cpu())
    torch.testing.assert_close(double.cpu(), b.cpu() * 2)


def test_a_pending_graph_becomes_a_module():
    a, b = torch.rand(3).to("xla"), torch.rand(3).to("xla")
    ctx = _XLAC.lowering.LoweringContext("Named")
    with pytest.raises(ArgumentError, match=r"LoweringContext.hlo: nothing was lowered yet; call"):
        ctx.hlo()
    with pytest.raises(ArgumentError, match="0 tensors of 0 devices; give one or more"):
        ctx.build([])
    result = torch.sin(a) + b * 2
    ctx.build([result, a])
    ctx.set_name_string("body")
    assert ctx.get_name_string() == ctx.GetNameString() == "body"
    assert sorted(ctx.parameter_id_tensor_mapping()) == [0, 1]
    assert ctx.tensor_parameter_id(result) == -1
    held = ctx.device_parameter_id_tensor_mapping()
    assert held[ctx.tensor_parameter_id(a)].tolist() == a.tolist()
    text = ctx.hlo_text()
    assert 'name: "jit_Named"' in text and 'opcode: "sine"' in text
    module = json.loads(ctx.hlo_json())
    opcodes = {i["opcode"] for i in module["computations"][0]["instructions"]}
    assert {"parameter", "sine", "add", "tuple"} <= opcodes
    made = xb.computation_from_module_proto("again", ctx.hlo())
    again, same = _XLAC._xla_user_computation("xla::again", [held[0], held[1]], made)
    assert again.tolist() == result.tolist() and same.tolist() == a.tolist()


def test_a_placeholder_stands_in_a_graph_and_has_no_value():
    p = xb.create_placeholder_tensor((2, 3), torch.bfloat16)
    assert _XLAC._is_placecholder(p) and p.dtype == torch.bfloat16 and p.device.type == "xla"
    graph = torch.sin(p) @ xb.create_placeholder_tensor((3, 4), torch.bfloat16)
    assert _XLAC._get_xla_tensors_text([graph]).count("xla::device_data()") == 2
    other = torch.ones(2, device="xla") + 1
    # What does not read it runs, whatever waits for it.
    torch_xla.sync()
    assert other.tolist() == [2, 2]
    with pytest.raises(ValueLostError, match=r"placeholder tensor of shape \(2, 3\) .*: a read of"):
        p.cpu()
    with pytest.raises(ValueLostError, match="a program that shall run reads it, but it has none"):
        graph.cpu()
    raw = _XLAC._xla_create_placeholder_tensor({"type": "s8", "sizes": (4,)})
    assert _XLAC._is_placecholder(raw) and raw.dtype == torch.int8 and raw.shape == (4,)
    handles = _XLAC._get_tensors_handle([p, xb.create_placeholder_tensor((1,), torch.int8)])
    assert len(set(handles)) == 2
    with pytest.raises(ValueLostError, match="its buffer is pending; ask for that of a tensor"):
        _XLAC._get_tensors_handle([other + 1])


@pytest.mark.parametrize(
    ("name", "call"),
    [
        ("LoweringContext.build", lambda x: _XLAC.lowering.LoweringContext().build([x])),
        ("_is_placecholder", _XLAC._is_placecholder),
        ("_get_tensors_handle", lambda x: _XLAC._get_tensors_handle([x])),
    ],
)
def test_a_tensor_of_the_cpu_is_refused(name, call):
    with pytest.raises(DeviceError, match=f"{name}: Input tensor is not an XLA tensor: .* on cpu"):
        call(torch.ones(2))


def test_a_release_of_jax_without_hlo_is_told(monkeypatch):
    monkeypatch.setattr(jax_internals, "_jax", None)
    with pytest.raises(ReleaseError, match="has no HLO in a program; install jax 0"):
        xb.computation_from_module_proto("x", b"")


def test_functions_of_operations_take_nests():
    def weighted(pair, factor):
        return {"sum": pair["a"] + pair["b"] * xb.Op.scalar(pair["a"].builder(), factor)}

    called = xb.XlaCallable(weighted)
    a, b = torch.rand(2).to("xla"), torch.rand(2).to("xla")
    for factor in (2.0, 3.0, 2.0):
        found = called({"a": a, "b": b}, factor)["sum"]
        torch.testing.assert_close(found.cpu(), a.cpu() + b.cpu() * factor)
    assert len(called._cache) == 2


def test_a_function_of_nests_is_called_in_three_steps():
    def weighted(pair, factor, *, dtype):
        return {"sum": (pair["a"] + pair["b"] * factor).to(dtype), "factor": factor}

    flat = xb.FlattenedInputFunc(weighted)
    with pytest.raises(ArgumentError, match="flat_call: no arguments are known yet; call preproc"):
        flat.flat_call([torch.ones(2)])
    with pytest.raises(ArgumentError, match="postprocess: no result is known yet; call flat_call"):
        flat.postprocess([torch.ones(2)])
    a, b = torch.tensor([1.0]), torch.tensor([2.0])
    given = flat.preprocess(({"a": a, "b": b}, 3), {"dtype": torch.int64})
    assert given[0] is a and given[1] is b and len(given) == 2
    found = flat.postprocess(flat.flat_call([a, b * 10]))
    assert found["sum"].tolist() == [61] and found["sum"].dtype == torch.int64
    assert found["factor"] == 3
    form = flat.flatten({"x": [a, 1]})[1]
    assert flat.unflatten([b, 2], form) == {"x": [b, 2]}


def test_a_jax_function_of_nests_gets_jaxs_dtypes():
    def cast(nest, dtype):
        return (nest["x"].astype(dtype), [dtype])

    flat = xb.JaxFlattenedInputFunc(cast)
    (x,) = flat.preprocess(({"x": torch.tensor([1.5])}, torch.int32))
    whole, (dtype,) = flat.postprocess(flat.flat_call([jax.numpy.array(x.numpy())]))
    assert whole.tolist() == [1] and dtype == jax.numpy.int32
    leaves, form = flat.flatten({"b": 2, "a": (1, None)})
    # As JAX orders them: by key, and None is no leaf.
    assert leaves == [1, 2] and flat.unflatten([3, 4], form) == {"a": (3, None), "b": 4}


def test_a_jax_callable_is_specialized_once_for_each_form():
    traced = []

    def shifted(x, by):
        traced.append((x.shape, by))
        return x + by

    called = xb.JaxCallable(shifted)
    for size, by in ((2, 1), (2, 1), (3, 1), (2, 5)):
        x = torch.zeros(size, device="xla", requires_grad=True)
        found = called(x, by)
        assert found.tolist() == [by] * size
        found.sum().backward()
        assert x.grad.tolist() == [1.0] * size
    assert set(traced) == {((2,), 1), ((3,), 1), ((2,), 5)} and len(called._cache) == 3
    run = called.specialize((torch.ones(2, device="xla"),))
    assert run((torch.ones(2, device="xla"),))[0].tolist() == [6, 6]
    with pytest.raises(ArgumentError, match=r"from_jax\.shifted: no device tensor among the argu"):
        xb.JaxCallable(shifted)(1, 2)


def test_a_class_of_ones_own_says_how_a_form_is_specialized():
    made = []

    class Counted(xb.CompiledCallableWithCache):
        def specialize(self, sample_flat_args):
            made.append([tuple(t.shape) for t in sample_flat_args])
            flat = self._flat_input_func
            return lambda tensors: flat.flat_call(tensors)

    called = Counted(xb.FlattenedInputFunc(lambda x, y=0: [x + y]))
    assert called(torch.ones(2), y=3)[0].tolist() == [4, 4]
    assert called(torch.zeros(2), y=3)[0].tolist() == [3, 3]
    assert called(torch.zeros(1), y=3)[0].tolist() == [3]
    assert made == [[(2,)], [(1,)]]
    with pytest.raises(TypeError, match="abstract"):
        xb.CompiledCallableWithCache(xb.FlattenedInputFunc(len))


def test_an_operator_function_is_specialized_for_tensors_like_the_samples():
    called = xb.XlaCallable(lambda x, y: [x - y])
    a, b = torch.tensor([5.0, 6.0]).to("xla"), torch.tensor([1.0, 2.0]).to("xla")
    called._flat_input_func.preprocess((a, b))
    run = called.specialize((a, b))
    assert run([a, b])[0].tolist() == [4, 4] and run([b, a])[0].tolist() == [-4, -4]


def test_threads_may_call_a_function_with_forms_of_their_own(monkeypatch):
    def slowly(self, value):
        time.sleep(0.05)
        return value

    monkeypatch.setattr(xb.FlattenedInputFunc, "kept", slowly)

    def scaled(a, factors):
        return [a * xb.Op.scalar(a.builder(), float(math.prod(factors)))]

    called = xb.XlaCallable(scaled)

    def call(factors):
        return called(torch.ones(2, device="xla"), factors)[0].tolist()

    with ThreadPoolExecutor(2) as threads:
        assert [*threads.map(call, [(2.0,), (3.0, 5.0)])] == [[2, 2], [15, 15]]


def test_the_loops_own_helpers_number_and_slice():
    from torch_xla.experimental.scan import Builder, dynamic_slice, dynamic_update_slice, split

    builder = Builder("loop")
    assert [builder.add_param(torch.ones(2, 3, device="xla")) for _ in range(2)] == [0, 1]
    assert builder.num_params() == 2 and len(builder.param_tensors()) == 2
    assert [p.shape().sizes for p in builder.params()] == [(2, 3)] * 2

    def swap(x, i):
        return dynamic_update_slice(x, dynamic_slice(x, i), i.zeros_like())

    x, i = torch.arange(6.0).reshape(2, 3).to("xla"), torch.tensor(1).to("xla")
    made = xb.create_computation("swap", swap, xb.tensor_shape([x, i]))
    (found,) = _XLAC._xla_user_computation("xla::swap", [x, i], made)
    assert found.tolist() == [[3, 4, 5], [3, 4, 5]]
    assert split((1, 2, 3, 4, 5), 2, 2) == ((1, 2), (3, 4), (5,))
