"""Operations compute what XLA says, and tell at once what does not fit."""

import jax
import pytest
import torch

import torch_xla.core.xla_builder as xb
import torch_xla.core.xla_op_registry as xor
from torch_xdist.errors import ArgumentError, NoLoweringError
from torch_xla import _XLAC

A = torch.tensor([[4.0, -1.0, 2.0], [0.5, 3.0, -2.0]])
ONE_DIM = {"dtype": xb.Type.S32}


def run(function, *tensors, **kwargs):
    """What an operator of operations gives for CPU tensors, on the CPU."""
    results = xor.register("tried", function)(*(t.to("xla") for t in tensors), **kwargs)
    return [r.cpu() for r in results] if isinstance(results, list) else results.cpu()


def test_arithmetic_broadcasts_scalars():
    scalar = torch.tensor(2.0)
    both = run(lambda a, s: xb.Op.tuple([a + s, a - s, a * s, a / s, a % s, a.max(s)]), A, scalar)
    expected = [A + 2, A - 2, A * 2, A / 2, torch.fmod(A, 2), A.clamp(min=2)]
    torch.testing.assert_close(both, expected)
    assert run(lambda a: a < a.zeros_like(), A).tolist() == (A < 0).tolist()


def test_arguments_are_told_apart_by_all_their_values():
    def shifted(a, table):
        return a + xb.Op.constant(a.builder(), table[-1])

    operator = xor.register("shifted", shifted)
    table = torch.zeros(2000)
    assert operator(torch.ones(2, device="xla"), table=table).tolist() == [1, 1]
    # Too long a tensor for its text to show every value.
    table[1000:] = 5
    assert operator(torch.ones(2, device="xla"), table=table).tolist() == [6, 6]
    assert len(operator._computations) == 2


def test_functions_of_one_array_are_torchs():
    names = "sin cos tanh exp floor ceil erf sinh cosh tan atan expm1".split()
    found = run(lambda a: xb.Op.tuple([getattr(a, name)() for name in names]), A)
    torch.testing.assert_close(found, [getattr(torch, name)(A) for name in names])


def test_functions_of_a_narrower_domain_are_torchs():
    inside = torch.tensor([-0.9, -0.25, 0.0, 0.5, 0.75])
    found = run(lambda a: xb.Op.tuple([a.acos(), a.asin(), a.erfc(), a.erfinf()]), inside)
    expected = [inside.acos(), inside.asin(), torch.erfc(inside), torch.erfinv(inside)]
    torch.testing.assert_close(found, expected)
    above = inside + 1
    found = run(lambda a: xb.Op.tuple([a.rsqrt(), a.sqrt(), a.log(), a.log1p()]), above)
    torch.testing.assert_close(found, [above.rsqrt(), above.sqrt(), above.log(), above.log1p()])


def test_a_complex_number_has_parts_and_a_conjugate():
    z = torch.tensor([1.0 + 2.0j, -3.0 - 0.5j])
    found = run(lambda a: xb.Op.tuple([a.real(), a.imag(), a.conj()]), z)
    torch.testing.assert_close(found, [z.real, z.imag, z.conj().resolve_conj()])


def test_leading_zeros_are_counted_and_bits_are_read_as_another_type():
    x = torch.tensor([1, 255, 0, -1], dtype=torch.int32)
    assert run(lambda a: a.clz(), x).tolist() == [31, 24, 32, 0]
    found = run(lambda a: a.bitcast(xb.Type.S32), A)
    assert found.dtype == torch.int32 and found.tolist() == A.view(torch.int32).tolist()


def test_a_dim_becomes_the_one_that_is_named():
    x = torch.tensor([1.0, 2.0])
    found = run(lambda a: a.broadcast_in_dim([2, 3], [0]), x)
    assert found.tolist() == [[1, 1, 1], [2, 2, 2]]
    with pytest.raises(ArgumentError, match=r"BroadcastInDim of .*'dimensions'"):
        run(lambda a: a.broadcast_in_dim([3, 3], [0]), x)


def test_one_value_stands_in_every_place_of_a_shape():
    found = run(lambda a: xb.Op.tuple([a.scalar_like(3), a.zeros_like(), a.ones_like()]), A)
    assert [(f.dtype, f.unique().tolist()) for f in found] == [
        (torch.float32, [3]), (torch.float32, [0]), (torch.float32, [1]),
    ]  # fmt: skip
    assert all(f.shape == A.shape for f in found)


def test_integers_have_bits():
    a, b = torch.tensor([6, 5, -8]), torch.tensor([3, 1, 1])
    found = run(lambda a, b: xb.Op.tuple([a & b, a | b, a ^ b, a << b, a >> b, ~a]), a, b)
    assert [f.tolist() for f in found] == [
        x.tolist() for x in (a & b, a | b, a ^ b, a << b, a >> b, ~a)
    ]
    unsigned = torch.tensor([200], dtype=torch.uint8)
    assert run(lambda a: a >> a.ones_like(), unsigned).tolist() == [100]


def test_shapes_change_and_parts_are_taken():
    found = run(
        lambda a: xb.Op.tuple(
            [
                a.reshape([3, 2]),
                a.transpose([1, 0]),
                a.slice([0, 1], [2, 3]),
                a.slice_in_dim(0, 3, 1, stride=2),
                a.rev([1]),
                a.broadcast([2]),
                xb.Op.concat_in_dim([a, a], 0),
                a.pad(a.zeros_like().slice([0, 0], [1, 1]).reshape([]), [(1, 0, 0), (0, 0, 1)]),
                a.cast(xb.Type.S32),
            ]
        ),
        A,
    )
    padded = torch.zeros(3, 5)
    padded[1:, ::2] = A
    expected = [
        A.reshape(3, 2), A.T, A[:, 1:], A[:, ::2], A.flip(1), A.expand(2, 2, 3),
        torch.cat([A, A]), padded, A.int(),
    ]  # fmt: skip
    torch.testing.assert_close(found, expected)


def test_places_may_be_operands():
    place = torch.tensor(1, dtype=torch.int32)
    found = run(
        lambda a, i: xb.Op.tuple(
            [
                a.dynamic_slice([i, i.zeros_like()], [1, 3]),
                a.dynamic_update_slice(a.slice([0, 0], [1, 3]), [i, i.zeros_like()]),
            ]
        ),
        A,
        place,
    )
    torch.testing.assert_close(found, [A[1:], A[:1].expand(2, 3)])


def test_a_loop_and_a_choice_hold_computations():
    def count(a, limit=None):
        def below(i, _):
            return i < xb.Op.scalar(i.builder(), limit, dtype=xb.Type.S32)

        def body(i, total):
            return i + xb.Op.one(i.builder(), xb.Type.S32), total + total

        zero = xb.Op.zero(a.builder(), dtype=xb.Type.S32)
        return xb.Op.mkwhile((zero, a), below, body).get_tuple_element(1)

    assert run(count, torch.ones(2), limit=3).tolist() == [8, 8]

    def choose(a, which):
        return which.mkconditional((a, a), lambda x, y: x + y, lambda x, y: x - y)

    assert run(choose, torch.ones(2), torch.tensor(True)).tolist() == [2, 2]
    assert run(choose, torch.ones(2), torch.tensor(False)).tolist() == [0, 0]


def test_each_side_of_a_choice_has_its_own_operand():
    def choose(a, b, which):
        return which.conditional(a, b, lambda x: x + x, lambda x: x * x)

    a, b = torch.tensor([1.0, 2.0]), torch.tensor([3.0, 4.0, 5.0])
    with pytest.raises(ArgumentError, match="Conditional of"):
        run(choose, a, b, torch.tensor(True))
    assert run(choose, a, b[:2], torch.tensor(True)).tolist() == [2, 4]
    assert run(choose, a, b[:2], torch.tensor(False)).tolist() == [9, 16]


def test_a_loop_over_one_state_runs_while_its_condition_holds():
    def doubled(a):
        return a.while_loop(lambda x: x < x.scalar_like(100), lambda x: x + x)

    assert run(doubled, torch.tensor(3.0)).item() == 192


def test_a_function_takes_the_parts_of_a_tuple_and_may_return_several():
    shape = xb.mkshape(xb.Type.F32, [2])
    both = xb.Shape([shape.shape, shape.shape])
    made = xb.Op.make_computation("pair", lambda a, b: (a + b, a * b), [both])
    assert xb.Op.make_computation("other name", made, []) is made
    a, b = torch.tensor([1.0, 2.0]), torch.tensor([3.0, 4.0])
    found = run(lambda a, b: xb.Op.call(made, [xb.Op.tuple([a, b])]), a, b)
    assert [f.tolist() for f in found] == [[4, 6], [3, 8]]
    wrapped = xb.Op.wrap_function(lambda a, b: [b, a])
    found = run(lambda a, b: wrapped(xb.Op.tuple([a, b])), a, b)
    assert [f.tolist() for f in found] == [[3, 4], [1, 2]]


def test_a_map_with_static_operands_is_refused_as_xla_does():
    def scaled(a, factor):
        return xb.Op.map([a], lambda x: x + x, [0, 1], static_operands=[factor])

    with pytest.raises(
        NoLoweringError, match="Map with static operands is not there, and neither has"
    ):
        run(scaled, A, torch.tensor(2.0))


def test_an_operation_of_another_library_is_made_by_its_name():
    def angle(a):
        builder = a.builder()
        one = xb.mkleaf("Constant", builder, value=torch.tensor(1.0))
        return xb.mkop("Atan2", (a.op, one.broadcast([2, 3]).op))

    torch.testing.assert_close(run(angle, A), torch.atan2(A, torch.ones(2, 3)))
    with pytest.raises(ArgumentError, match="there is no operation 'Leaf'"):
        xb.mkleaf("Leaf", xb.create_builder("x"))


def test_sort_map_call_and_iota():
    x = torch.tensor([3.0, 1.0, 2.0])
    found = run(
        lambda x: xb.Op.tuple(
            [
                xb.Op.sort([x], lambda a, b: a < b),
                xb.Op.sort([x], lambda a, b: a > b),
                xb.Op.map([x, x], lambda a, b: a * b, [0]),
                xb.Op.call(lambda a: a + a, [x]),
                xb.Op.iota(x.builder(), xb.mkshape(xb.Type.S32, [3]), 0),
                x.get_dimension_size(0),
                xb.Op.constant(x.builder(), torch.tensor([7.0])),
            ]
        ),
        x,
    )
    assert [f.tolist() for f in found] == [
        [1, 2, 3], [3, 2, 1], [9, 1, 4], [6, 2, 4], [0, 1, 2], 3, [7],
    ]  # fmt: skip


def test_triangular_systems_are_solved():
    a, b = torch.tensor([[2.0, 1.0], [0.0, 4.0]]), torch.tensor([[2.0], [8.0]])
    found = run(lambda b, a: a.triangualr_solve(b, True, False, False, False), b, a)
    torch.testing.assert_close(a @ found, b)


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (lambda a: xb.mkop("Ad", (a.op,)), "there is no operation 'Ad'; there are Abs, Acos"),
        (lambda a: a.dynamic_reshape([1]), "DynamicReshape is not there: sizes are known when"),
        (lambda a: a + a.cast(xb.Type.S32), "xla_builder: Add of ShapeDtypeStruct.*: "),
        (lambda a: a.cast("f33"), "there is no element type 'f33'; use one of f32, f64"),
        (lambda a: a.to_torch_type("f33"), "there is no element type 'f33'; use one of f32, f64"),
        (lambda a: a.from_torch_type(torch.qint8), "no element type torch.qint8; use one of torch"),
        (
            lambda a: xb.Op.tuple([a]).get_tuple_element(1),
            "GetTupleElement of .*'index': 1}: tuple i",
        ),
        (lambda a: xb.mkop("Iota", ()), "mkop: Iota has no operands, so it is in no builder"),
    ],
)
def test_what_does_not_fit_is_told_where_it_is_written(function, words):
    with pytest.raises((ArgumentError, NoLoweringError), match=words):
        run(function, A)


def test_other_comparators_and_updates_are_refused():
    with pytest.raises(NoLoweringError, match="Sort by another computation than Lt, Gt of its two"):
        run(lambda a: xb.Op.sort([a], lambda x, y: y < x), A)
    scalar = jax.ShapeDtypeStruct((), "float32")
    module = jax.jit(lambda x, y: x < y).lower(scalar, scalar).compiler_ir("hlo")
    less = xb.computation_from_module_proto("less", module.as_serialized_hlo_module_proto())
    with pytest.raises(NoLoweringError, match="Sort by another computation than Lt, Gt of its two"):
        run(lambda a: xb.Op.sort([a], less), A)


def test_parameters_are_numbered_from_0():
    builder = xb.create_builder("gap")
    p = xb.mkparam(builder, 1, xb.mkshape(xb.Type.F32, [2]))
    with pytest.raises(ArgumentError, match=r"'gap' has the parameters \[1\]; number them from 0"):
        p.build("gap")


def test_the_raw_calls_build_what_the_classes_do():
    builder = xb.create_builder("raw")
    assert isinstance(builder, _XLAC.XlaBuilder)
    x = _XLAC._xla_op_param(builder, 0, {"type": "f32", "sizes": (2,)})
    total = _XLAC._xla_op_create(builder, "Add", (x, x), {})
    assert isinstance(total, _XLAC.XlaOp) and _XLAC._xla_op_builder(total) is builder
    assert _XLAC._xla_op_shape(total) == {"type": "f32", "sizes": (2,)}
    made = _XLAC._xla_op_build("raw", total)
    assert isinstance(made, _XLAC.XlaComputation)
    (found,) = _XLAC._xla_user_computation("xla::raw", [torch.ones(2, device="xla")], made)
    assert found.tolist() == [2, 2]
    with pytest.raises(ArgumentError, match="there is no operation 'Plus'; there are Abs"):
        _XLAC._xla_op_create(builder, "Plus", (x, x), {})


def test_the_raw_shape_of_a_tensor_is_a_dictionary():
    x = torch.ones(2, 3, dtype=torch.int8, device="xla")
    assert _XLAC._xla_op_tensor_shape(x, "xla:0") == {"type": "s8", "sizes": (2, 3)}
    assert xb.tensor_shape(x).shape == _XLAC._xla_op_tensor_shape(x)


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        ("F32", torch.float32), ("F64", torch.float64), ("F16", torch.float16),
        ("BF16", torch.bfloat16), ("U8", torch.uint8), ("S8", torch.int8),
        ("U16", torch.uint16), ("S16", torch.int16), ("U32", torch.uint32),
        ("S32", torch.int32), ("U64", torch.uint64), ("S64", torch.int64),
        ("C64", torch.complex64), ("C128", torch.complex128), ("PRED", torch.bool),
    ],
)  # fmt: skip
def test_a_constant_of_each_type_has_the_dtype_of_torch(name, dtype):
    element = getattr(xb.Type, name)
    found = run(lambda a: xb.Op.one(a.builder(), element), A)
    assert found.dtype == dtype and found.item() == 1


def test_shapes_answer_what_they_can():
    shape = xb.mkshape(xb.Type.BF16, (2, 3))
    assert (shape.rank, shape.sizes, shape.dtype) == (2, (2, 3), "bf16")
    assert not shape.is_dynamic() and shape.as_scalar().sizes == ()
    both = xb.Shape([shape.shape, shape.shape])
    assert both.is_tuple() and both.tuple_size() == 2 and both.tuple_shape(1)["type"] == "bf16"
    with pytest.raises(AssertionError, match=r"Shape.tuple_size: .* is no tuple; ask is_tuple"):
        shape.tuple_size()
    with pytest.raises(AssertionError, match=r"Shape.rank: .* is a tuple; take a part with"):
        _ = both.rank
    bounded = xb.mkshape(xb.Type.F32, [4], dynamic_dimensions=[True])
    with pytest.raises(ArgumentError, match="has dims of unknown size, which JAX does not have"):
        xb.mkparam(xb.create_builder("x"), 0, bounded)
    assert xb.tensor_shape(torch.ones(2, dtype=torch.float8_e5m2)).dtype == "f8e5m2"
    for name, dtype in xb._XLA_PT_TYPE_MAP.items():
        assert xb.Op.from_torch_type(dtype) == name and xb.Op.to_torch_type(name) is dtype


def test_an_operator_is_made_by_its_class_too_and_named_in_graphs():
    operator = xor.Op("thrice", lambda a, times=3: a * a.scalar_like(times))
    found = operator(torch.ones(2, device="xla"))
    assert "xla::_op_thrice(" in _XLAC._get_xla_tensors_text([found])
    assert found.tolist() == [3, 3] and operator(found, times=5).tolist() == [15, 15]
    assert len(operator._computations) == 2
