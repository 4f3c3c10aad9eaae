"""Sizes that stay open: one artifact serves every size, as the model does."""

import pytest
import torch
from torch.export import Dim

from torch_xdist.core.programs import jax_internals
from torch_xdist.errors import ArgumentError, ReleaseError
from torch_xdist.export.bundle import VariableSignature
from torch_xdist.export.dynamic import mark_dynamic
from torch_xdist.export.pending import get_stablehlo
from torch_xdist.export.programs import exported_program_to_stablehlo


class OfOne(torch.nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x)


class OfTwo(OfOne):
    # torch 2.9 loses the guards of `*args` that share a size.
    def forward(self, x, y):
        return self.function(x, y)


def export_of(function, args, dynamic_shapes):
    model = (OfOne, OfTwo)[len(args) - 1](function).eval()
    return exported_program_to_stablehlo(
        torch.export.export(model, args, dynamic_shapes=dynamic_shapes)
    )


def rand(*shape):
    return torch.rand(*shape)


BATCH = {0: Dim("batch")}
weight, bias = torch.rand(5), torch.rand(5)
CASES = {
    "add": (lambda x, y: x + y, (5,), (5,)),
    "broadcast": (lambda x, y: x * y, (5,), (1,)),
    "where": (lambda x: torch.where(x > 0.5, x, -x), (5,)),
    "matmul": (lambda x: x @ weight, (5,)),
    "cat": (lambda x, y: torch.cat([x, y], 1), (2,), (3,)),
    "conv": (lambda x: torch.conv1d(x, torch.ones(2, 3, 2)), (3, 8)),
    "cumsum": (lambda x: x.cumsum(1), (5,)),
    "gelu": (torch.nn.functional.gelu, (5,)),
    "layer_norm": (lambda x: torch.layer_norm(x, [5], weight, bias), (5,)),
    "mean": (lambda x: x.mean(-1), (5,)),
    "permute": (lambda x: x.permute(2, 0, 1), (2, 3)),
    "select": (lambda x: x[:, 1], (3, 4)),
    "the last": (lambda x: x[:, -1], (3,)),
    "slice": (lambda x: x[:, 1:3], (4,)),
    "softmax": (lambda x: x.softmax(-1), (5,)),
    "softmax over it": (lambda x: x.softmax(0), (5,)),
    "split": (lambda x: torch.split(x, [1, 3], 1), (4,)),
    "unsqueeze": (lambda x: x.unsqueeze(1), (4,)),
    "var": (lambda x: x.var(-1), (5,)),
    "flatten": (lambda x: x.view(x.shape[0], -1), (2, 3)),
    "into it": (lambda x: x.view(x.shape[0] * 3, -1), (3, 4)),
    "expand": (lambda x: torch.ones(1, 3).expand(x.shape[0], 3), (3,)),
}


@pytest.mark.parametrize("name", CASES)
def test_one_artifact_serves_every_size(name):
    function, *shapes = CASES[name]
    made = export_of(function, tuple(rand(4, *shape) for shape in shapes), (BATCH,) * len(shapes))
    assert "tensor<?x" in made.get_stablehlo_text()
    for size in (2, 7):
        args = [rand(size, *shape) for shape in shapes]
        results, expected = made(*args), function(*args)
        if not isinstance(expected, tuple):
            results, expected = [results], [expected]
        for result, wanted in zip(results, expected, strict=True):
            torch.testing.assert_close(result.cpu(), wanted, rtol=1e-5, atol=1e-6)


def test_a_network_with_an_embedding_serves_every_batch():
    model = torch.nn.Sequential(
        torch.nn.Embedding(7, 4), torch.nn.LayerNorm(4), torch.nn.Linear(4, 3), torch.nn.ReLU()
    )
    words = torch.arange(6).reshape(2, 3)
    program = torch.export.export(model.eval(), (words,), dynamic_shapes=(BATCH,))
    made = exported_program_to_stablehlo(program)
    many = torch.arange(15).reshape(5, 3) % 7
    torch.testing.assert_close(made(many).cpu(), model(many).detach())


def test_the_meta_names_the_open_dims():
    made = export_of(torch.sin, (rand(4, 5),), (BATCH,))
    meta = made._bundle.stablehlo_funcs[0].meta
    assert meta.input_signature == [VariableSignature([-1, 5], "float32", [0])]
    assert meta.output_signature == [VariableSignature([-1, 5], "float32", [0])]


def test_another_size_where_none_is_open_is_refused():
    made = export_of(torch.sin, (rand(4, 5),), (BATCH,))
    with pytest.raises(
        ArgumentError, match=r"called with float32\[2, 6\]; it takes float32\[\?, 5"
    ):
        made(rand(2, 6))


def test_a_release_of_jax_without_open_sizes_is_told(monkeypatch):
    made = export_of(torch.sin, (rand(4, 5),), (BATCH,))
    a = rand(10, 5).to("xla")
    mark_dynamic(a, 0)
    monkeypatch.setattr(jax_internals, "mlir", None)
    with pytest.raises(ReleaseError, match="no way to run an artifact with open sizes; install j"):
        made(rand(2, 5))
    with pytest.raises(ReleaseError, match="has no sizes that are open in a program; install jax"):
        get_stablehlo([a * a])


def test_a_marked_dim_of_a_tensor_is_open_in_the_text():
    a, b = rand(10, 5).to("xla"), rand(1, 5).to("xla")
    mark_dynamic(a, 0)
    mark_dynamic(b, -1)
    text = get_stablehlo([a * b])
    assert "(tensor<?x5xf32>, tensor<2xi32>) -> tensor<?x5xf32>" in text
    assert "(tensor<1x?xf32>, tensor<2xi32>) -> tensor<?x5xf32>" in text
    assert "tensor<?" not in get_stablehlo([rand(10, 5).to("xla") * 2])


def test_only_dims_that_tensors_of_the_device_have_can_be_marked():
    with pytest.raises(ArgumentError, match="the tensor is on cpu; give one on xla"):
        mark_dynamic(rand(2), 0)
    with pytest.raises(
        ArgumentError, match=r"dim 2 of a tensor of shape \(2,\); it has dims 0 to 0"
    ):
        mark_dynamic(rand(2).to("xla"), 2)
