"""Operations over windows, over dims and by indices, beside torch's on the CPU."""

import pytest
import torch
import torch.nn.functional as F

import torch_xla.core.xla_builder as xb
import torch_xla.core.xla_op_registry as xor
from torch_xdist.errors import NoLoweringError

X = torch.randn(2, 4, 8, 8, generator=torch.Generator().manual_seed(0))
KERNEL = torch.randn(6, 4, 3, 3, generator=torch.Generator().manual_seed(1))
PLACES = {
    "input_batch_dimension": 0, "input_feature_dimension": 1, "kernel_input_feature_dimension": 1,
    "kernel_output_feature_dimension": 0, "output_batch_dimension": 0,
    "output_feature_dimension": 1, "input_spatial_dimensions": [2, 3],
    "kernel_spatial_dimensions": [2, 3], "output_spatial_dimensions": [2, 3],
}  # fmt: skip


def run(function, *tensors):
    results = xor.register("tried", function)(*(t.to("xla") for t in tensors))
    return [r.cpu() for r in results] if isinstance(results, list) else results.cpu()


def add(a, b):
    return a + b


def test_convolutions_are_torchs():
    around = [(1, 1), (1, 1)]
    found = run(
        lambda x, k: xb.Op.tuple(
            [
                x.conv(k, [1, 1]),
                x.conv_with_general_padding(k, [2, 2], around),
                x.conv_with_general_dimensions(k, [1, 1], **PLACES),
                x.conv_general(k, [1, 1], around, **PLACES, precision_config="highest"),
                x.conv_general_dilated(k, [1, 1], around, [1, 1], [2, 2], **PLACES),
            ]
        ),
        X,
        KERNEL,
    )
    expected = [
        F.conv2d(X, KERNEL),
        F.conv2d(X, KERNEL, stride=2, padding=1),
        F.conv2d(X, KERNEL),
        F.conv2d(X, KERNEL, padding=1),
        F.conv2d(X, KERNEL, padding=1, dilation=2),
    ]
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)


def test_reductions_and_pools():
    found = run(
        lambda x: xb.Op.tuple(
            [
                x.reduce(xb.Op.zero(x.builder()), add, [1]),
                x.reduce_all(xb.Op.zero(x.builder()), add),
                x.reduce_window(xb.Op.zero(x.builder()), add, [1, 1, 2, 2], [1, 1, 2, 2]),
                x.max_pool([2, 2], [2, 2], 0, 1, [2, 3]),
            ]
        ),
        X,
    )
    expected = [X.sum(1), X.sum(), F.avg_pool2d(X, 2) * 4, F.max_pool2d(X, 2)]
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)


def test_select_and_scatter_is_the_gradient_of_a_pool():
    x = X.clone().requires_grad_()
    F.max_pool2d(x, 2).sum().backward()
    ones = torch.ones(2, 4, 4, 4)
    windows = [1, 1, 2, 2]

    def both(x, s):
        zero = xb.Op.zero(x.builder())
        given = s, zero, windows, windows, lambda a, b: a >= b, add
        none = [(0, 0)] * 4
        return xb.Op.tuple(
            [
                x.select_and_scatter(*given),
                x.select_and_scatter_with_general_padding(*given, none),
            ]
        )

    for found in run(both, X, ones):
        torch.testing.assert_close(found, x.grad)


def test_rows_are_gathered_and_scattered():
    table, rows = torch.arange(12.0).reshape(4, 3), torch.tensor([2, 0])

    def both(t, i):
        updates = t.slice([0, 0], [2, 3])
        places = {
            "update_window_dims": [1], "inserted_window_dims": [0],
            "scatter_dims_to_operand_dims": [0], "index_vector_dim": 1,
        }  # fmt: skip
        return xb.Op.tuple(
            [
                t.gather(i, [1], [0], [0], 1),
                t.scatter(i, updates, add, **places),
                t.scatter(i, updates, lambda old, new: new, **places),
            ]
        )

    gathered, added, put = run(both, table, rows)
    assert gathered.tolist() == table[rows].tolist()
    assert added.tolist() == table.index_add(0, rows, table[:2]).tolist()
    assert put.tolist() == table.index_copy(0, rows, table[:2]).tolist()
    with pytest.raises(NoLoweringError, match="Scatter by another computation than Add, Mul, Min"):
        run(lambda t, i: t.scatter(i, t, lambda a, b: a - b, [1], [0], [0], 1), table, rows)
