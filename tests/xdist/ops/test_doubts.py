"""Calls that torch refuses for their dtypes or shapes raise its own error, on their line."""

import warnings

import pytest
import torch
import torch.nn.functional as F

from torch_xdist.ops import doubts

F32, F64, BF16 = torch.float32, torch.float64, torch.bfloat16


def number(*shape, dtype=F32):
    return torch.ones(shape, dtype=dtype)


def long(*values, dtype=torch.int64):
    return torch.tensor(values, dtype=dtype)


def batch_norm(x, weight, mean):
    return F.batch_norm(x, mean, torch.ones(3, device=x.device), weight, weight, True)


def backward(in_place, x, slope):
    x.requires_grad_()
    in_place(x.clone(), slope).sum().backward()


def put_at(x, index, values):
    return x.index_put((index,), values)


# What torch_xla 2.9 refuses as well, or computes nonsense of.
REFUSED = {
    "addmm": (torch.addmm, number(4), number(2, 3, dtype=F64), number(3, 4)),
    "baddbmm": (torch.baddbmm, number(2, 2, 2, dtype=F64), number(2, 2, 3), number(2, 3, 2)),
    "addbmm": (torch.addbmm, number(2, 2, dtype=F64), number(2, 2, 3), number(2, 3, 2)),
    "addmv": (torch.addmv, number(2), number(2, 3, dtype=F64), number(3)),
    "linear with a bias": (F.linear, number(2, 3, dtype=F64), number(4, 3), number(4)),
    "linear, another bias": (F.linear, number(2, 5, 3), number(4, 3), number(4, dtype=F64)),
    "batch norm, statistics": (batch_norm, number(4, 3, 5), number(3), number(3, dtype=F64)),
    "batch norm, weight": (batch_norm, number(4, 3, 5), number(3, dtype=F64), number(3)),
    "elu in place, falling": (lambda x: backward(F.elu_, x, -2.0), number(3)),
    "celu in place, falling": (lambda x: backward(F.celu_, x, -2.0), number(3)),
    "leaky ReLU in place, falling": (lambda x: backward(F.leaky_relu_, x, -2.0), number(3)),
    "RReLU in place, falling": (lambda x: backward(F.rrelu_, x, -2.0), number(3)),
    "bools plus 1.5 times bools": (
        lambda x: torch.add(x, x, alpha=1.5),
        number(3, dtype=torch.bool),
    ),
    "bools in a list minus one": (
        lambda x: torch._foreach_sub([x, x], 1)[0],
        number(3, dtype=torch.bool),
    ),
    "integers to the power of -1": (lambda x: x**-1, long(1, 2)),
    "integers to the power of -3, in place": (lambda x: x.pow_(-3), long(1, 2)),
    "random bools up to 5": (lambda x: x.random_(0, 5), number(3, dtype=torch.bool)),
    "random bytes up to 500": (lambda x: x.random_(500), number(3, dtype=torch.uint8)),
    "random halves up to 100,000": (lambda x: x.random_(0, 100_000), number(3, dtype=torch.half)),
    "uniform from beyond": (lambda x: x.uniform_(-1e39, 1), number(3)),
    "offsets in a matrix": (torch.embedding_bag, number(4, 3), long(0, 1), long([0])),
    "a probability of 2": (lambda x: torch.bernoulli(x, 2.0), number(3)),
    "index_put": (
        lambda x, i, v: x.index_put((i,), v),
        number(3),
        long(0, 2),
        number(2, dtype=F64),
    ),
    "index_put_": (lambda x, i, v: x.index_put_((i,), v), number(3), long(0), number(1, dtype=F64)),
    "put by a mask": (
        lambda x, v: torch.where(x > 2, x, x).index_put_((x > 0,), v),
        number(3),
        number(3, dtype=F64),
    ),
    "values that do not fit": (put_at, number(3, 5), long(0, 1), number(3, 5)),
    "no values": (put_at, number(3, 5), long(0, 1), number(0)),
    "a mask of another shape": (
        lambda x, v: x.index_put((x[None] > 0,), v),
        number(3, 5),
        number(2),
    ),
    "a mask of more dims": (lambda x, v: x.sum().index_put((x > 0,), v), number(3), number(3)),
    "batch norm, statistics in a matrix": (
        lambda x, w: torch.native_batch_norm(x, None, None, w, w, True, 0.1, 1e-5),
        number(4, 3, 5),
        number(1, 3),
    ),
    "floating indices": (put_at, number(3), number(2), number(2)),
    "put_": (torch.Tensor.put_, number(3), long(0, 2), number(2, dtype=F64)),
    "put_ by int32": (
        lambda x, i, v: x.put_(i, v),
        number(3),
        long(0, dtype=torch.int32),
        number(1),
    ),
    "cross": (lambda a, b: torch.cross(a, b, dim=0), number(3), number(3, dtype=F64)),
    "cdist": (torch.cdist, number(3, 3), number(3, 3, dtype=F64)),
    "grid_sample": (
        lambda x, grid: F.grid_sample(x, grid, align_corners=False),
        number(1, 1, 3, 3),
        number(1, 2, 2, 2, dtype=F64),
    ),
    "weights of classes": (F.cross_entropy, number(3, 4), long(0, 1, 2), number(4, dtype=F64)),
    "heaviside": (torch.heaviside, number(3), number(3, dtype=F64)),
    "complex": (torch.complex, number(3), number(3, dtype=F64)),
    "polar": (torch.polar, number(3), number(3, dtype=F64)),
    "binary_cross_entropy": (F.binary_cross_entropy, number(3), number(3, dtype=F64)),
    "one minus a mask": (lambda x: 1 - (x > 0), number(3)),
    "a number minus a mask": (lambda x: x - (x > 0), number(3)),
    "maximum": (torch.maximum, number(3, dtype=torch.complex64), number(3)),
    "max along a dim": (lambda x: x.max(0), number(3, dtype=torch.complex64)),
    "std of integers": (torch.std, long(0, 1)),
    "top-k of a mask": (lambda x: (x > 0).topk(1), number(3)),
    "index_copy by int32": (
        lambda x, i, v: x.index_copy(0, i, v),
        number(3),
        long(0, 2, dtype=torch.int32),
        number(2),
    ),
    "index_fill by int32": (
        lambda x, i: x.index_fill(0, i, 1.0),
        number(3),
        long(0, dtype=torch.int32),
    ),
    "index_select by a matrix": (lambda x, i: x.index_select(0, i[None]), number(3, 2), long(0, 2)),
    "index_add of rows of another shape": (
        lambda x, i, v: x.index_add(0, i, v),
        number(3, 2),
        long(0, 2),
        number(2),
    ),
    "index_add of fewer rows": (
        lambda x, i, v: x.index_add(0, i, v),
        number(3, 2),
        long(0, 2),
        number(1, 2),
    ),
    "index_add along a dim that is not there": (
        lambda x, i, v: x.index_add(5, i, v),
        number(3, 2),
        long(0),
        number(1, 2),
    ),
    "index_copy along a dim that is not there": (
        lambda x, i, v: x.index_copy(-7, i, v),
        number(3, 2),
        long(0),
        number(1, 2),
    ),
    "select_scatter": (lambda x, v: x.select_scatter(v, 0, 1), number(3, 4), number(3)),
    "slice_scatter": (lambda x, v: x.slice_scatter(v, 0, 1, 3), number(6, 4), number(3, 4)),
    "diagonal_scatter": (lambda x, v: x.diagonal_scatter(v), number(3, 3), number(2)),
    "cummax of a number": (lambda x: x.sum().cummax(1), number(3)),
    "sort": (lambda x: x.sort(1), number(3)),
    "argsort": (lambda x: x.argsort(1), number(3)),
    "soft_margin_loss": (F.soft_margin_loss, number(3), number(1, 3)),
    "multinomial of integers": (lambda x: x.multinomial(1), long(1, 2)),
    "multinomial of none": (lambda x: x.multinomial(0), number(3)),
    "negative padding": (
        lambda x, w: F.conv3d(x, w, padding=-1),
        number(1, 1, 4, 4, 4),
        number(1, 1, 2, 2, 2),
    ),
    "a bias of another size": (F.conv2d, number(1, 3, 5, 5), number(4, 3, 3, 3), number(1)),
    "a bias of another size, transposed": (
        lambda x, w, b: F.conv_transpose2d(x, w, b, groups=2),
        number(1, 4, 5, 5),
        number(4, 3, 3, 3),
        number(3),
    ),
    "batch norm, weights that broadcast": (
        lambda x, w: F.batch_norm(x, None, None, w, w, True),
        number(4, 3, 5),
        number(1),
    ),
    "lengths of another batch": (
        F.ctc_loss,
        number(5, 2, 4),
        number(2, 2, dtype=torch.int64),
        long(5),
        long(2, 2),
    ),
    "output padding as large as the stride": (
        lambda x, w: F.conv_transpose2d(x, w, stride=2, output_padding=2),
        number(1, 4, 5, 5),
        number(4, 3, 3, 3),
    ),
    "index_select along a dim that is not there": (
        lambda x, i: x.index_select(1, i),
        number(3),
        long(0),
    ),
    "mvlgamma": (lambda x: x.mvlgamma(0), number(3)),
    "a histogram of no bins": (lambda x: x.histogram(0), number(3)),
    "index_select of a number": (
        lambda x, i: x.sum().index_select(0, i),
        number(3),
        long(0, 0),
    ),
    "multi_margin_loss": (F.multi_margin_loss, number(2, 3), long(0, 1, dtype=torch.int32)),
}


def error_of(function, *operands):
    with pytest.raises((RuntimeError, IndexError)) as caught:
        function(*operands)
    return type(caught.value), str(caught.value).splitlines()[0]


@pytest.mark.parametrize("case", REFUSED.values(), ids=REFUSED)
def test_what_torch_refuses_is_its_error_where_it_is_called(case):
    function, *operands = case
    expected = error_of(function, *operands)
    assert error_of(function, *(x.to("xla") for x in operands)) == expected


# What torch_xla 2.9 computes in the dtype of the first operand, and torch refuses elsewhere.
TAKEN = {
    "mm": (torch.mm, (2, 3), (3, 4)),
    "bmm": (torch.bmm, (2, 2, 3), (2, 3, 4)),
    "mv": (torch.mv, (2, 3), (3,)),
    "linear": (F.linear, (2, 3), (4, 3)),
    "linear with a bias": (lambda x, w: F.linear(x, w, w[:, 0].clone()), (2, 5, 3), (4, 3)),
    "conv3d": (F.conv3d, (1, 2, 4, 4, 4), (3, 2, 3, 3, 3)),
    "layer_norm": (lambda x, w: F.layer_norm(x, (3,), w, w), (4, 3), (3,)),
    "group_norm": (lambda x, w: F.group_norm(x, 3, w, w), (4, 6, 3), (6,)),
}


@pytest.mark.parametrize("second", [F64, BF16])
@pytest.mark.parametrize(("function", "x", "weight"), TAKEN.values(), ids=TAKEN)
def test_what_torch_xla_took_is_computed_in_the_first_dtype_with_a_warning(
    function, x, weight, second
):
    torch.manual_seed(0)
    x, weight = torch.randn(x), torch.randn(weight).to(second)
    expected = error_of(function, x, weight)[1]
    operands = [x.to("xla").requires_grad_(), weight.to("xla").requires_grad_()]
    with pytest.warns(UserWarning, match="test_doubts.py.*computed as torch_xla did it") as told:
        result = function(*operands)
    said = str(told[0].message)
    assert expected in said or "must have the same dtype" in said
    assert result.dtype == F32
    torch.testing.assert_close(result.cpu(), function(x, weight.float()), rtol=1e-2, atol=1e-2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        gradients = torch.autograd.grad(result.sum(), operands)
    assert [g.dtype for g in gradients] == [F32, second]


def test_rows_of_another_dtype_are_added_and_copied_with_a_warning():
    rows = torch.full((2,), 2.0, dtype=F64, device="xla")
    for write in (torch.Tensor.index_add, torch.Tensor.index_copy):
        with pytest.warns(UserWarning, match="computed as torch_xla did it"):
            result = write(torch.zeros(3, device="xla"), 0, long(0, 2).to("xla"), rows)
        assert result.tolist() == [2, 0, 2]


def test_classes_of_int32_and_maxima_of_masks_are_taken_with_a_warning():
    x = torch.arange(12.0).reshape(3, 4)
    with pytest.warns(UserWarning, match="expected target dtype to be Long or Byte"):
        loss = F.cross_entropy(x.to("xla"), long(0, 1, 2, dtype=torch.int32).to("xla"))
    torch.testing.assert_close(loss.cpu(), F.cross_entropy(x, long(0, 1, 2)))
    with pytest.warns(UserWarning, match="does not support bool input"):
        assert int((torch.arange(3, device="xla") > 1).argmax()) == 2


def test_a_norm_in_low_precision_takes_parameters_of_float32_as_torch_does():
    x, weight = torch.randn(4, 3).bfloat16(), torch.randn(3)
    expected = F.layer_norm(x, (3,), weight, weight)
    result = F.layer_norm(x.to("xla"), (3,), weight.to("xla"), weight.to("xla"))
    torch.testing.assert_close(result.cpu(), expected)


def test_losses_of_two_dtypes_have_the_dtype_of_the_first():
    for loss in (F.huber_loss, F.soft_margin_loss):
        for first, second in ((F32, BF16), (BF16, F32), (F32, F64)):
            x, target = number(3, dtype=first), number(3, dtype=second)
            expected = loss(x, target)
            result = loss(x.to("xla"), target.to("xla"))
            torch.testing.assert_close(result.cpu(), expected, rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("name", ["qr", "svdvals", "cholesky", "det", "eigvalsh"])
def test_a_factorization_in_low_precision_is_torchs_error_where_it_is_called(name):
    factor = getattr(torch.linalg, name)
    matrix = torch.eye(3, dtype=BF16)
    with pytest.raises((NotImplementedError, RuntimeError)) as expected:
        factor(matrix)
    with pytest.raises(type(expected.value), match="not implemented for 'BFloat16'"):
        factor(matrix.to("xla"))


def test_a_wrong_call_of_any_size_is_refused_without_its_memory():
    x = torch.zeros(1, device="xla").expand(50_000, 50_000)
    with pytest.raises(RuntimeError, match="must have the same dtype"):
        torch.addmm(x[0], x, x.double())


def test_what_a_meta_kernel_refuses_by_mistake_is_computed():
    x = torch.zeros(0, 1, 2, 2, device="xla")
    assert F.interpolate(x, scale_factor=2).cpu().shape == (0, 1, 4, 4)


@pytest.mark.parametrize(
    ("name", "args"),
    [
        ("index_add", (number(3, 2), 0, long(0, 2), number(2, 2))),
        ("index_copy", (number(3, 2), 0, long(0, 2), number(2, 2))),
        ("index_put", (number(3, 2), [long(0, 2)], number(2, 2))),
        ("index_put", (number(3, 2), [None, long(0)], number(3, 1))),
        ("linear", (number(3, 2), number(4, 2), number(4))),
        ("mm", (number(3, 2), number(2, 4))),
        ("native_layer_norm", (number(3, 2, dtype=BF16), [2], number(2), number(2), 1e-5)),
        ("native_batch_norm", (number(3, 2, dtype=BF16), *[number(2)] * 4, True, 0.1, 1e-5)),
        ("native_batch_norm", (
            number(3, 2, dtype=BF16), *[number(2, dtype=BF16)] * 2, *[number(2)] * 2,
            True, 0.1, 1e-5,
        )),
        ("native_batch_norm", (number(3, 2), None, None, None, None, True, 0.1, 1e-5)),
        ("convolution", (
            number(1, 3, 5), number(4, 3, 3), number(4), [1], [0], [1], False, [0], 1,
        )),
        ("slice_scatter", (number(3, 2), number(1, 2), 0, 1, 2)),
        ("sort", (number(3, 2), 1)),
    ],
)  # fmt: skip
def test_usual_calls_are_in_no_doubt(name, args):
    """So that the CPU is not asked about them, which would compute them on zeros."""
    for rules in (doubts.RULES, doubts.TAKEN):
        rule = rules.get(f"{name}.default")
        assert rule is None or not rule(*args)


def test_each_rule_names_an_operator():
    for name in (*doubts.RULES, *doubts.TAKEN, *doubts.LOW_PRECISION):
        operator, _, overload = name.partition(".")
        assert overload in getattr(torch.ops.aten, operator).overloads(), name
