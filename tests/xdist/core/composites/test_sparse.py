"""Sparse COO tensors: the operators torch has on them, and what trains with them."""

import copy

import pytest
import torch

import torch_xdist.core.torch_side.registration  # noqa: F401
from torch_xdist import metrics
from torch_xdist.core.devices import steps
from torch_xdist.core.run.device_trace import buffer_of
from torch_xdist.errors import NoLoweringError

INDICES = [[0, 2, 0, 1], [1, 0, 1, 2]]


def plain(device):
    """[3, 4] with an index that stands twice."""
    values = torch.tensor([1.0, 2.0, 3.0, -4.0]).to(device)
    return torch.sparse_coo_tensor(
        torch.tensor(INDICES).to(device), values, (3, 4), check_invariants=False
    )


def hybrid(device):
    """[3, 4] of which one dim is sparse."""
    values = torch.arange(12.0).reshape(3, 4).to(device)
    places = torch.tensor([[2, 0, 2]]).to(device)
    return torch.sparse_coo_tensor(places, values, (3, 4), check_invariants=False)


def dense(device):
    return torch.arange(12.0).reshape(3, 4).to(device) - 5


def in_place(change):
    def run(x, d):
        change(x)
        return x

    return run


OPERATORS = {
    "to_dense": lambda x, d: x.to_dense(),
    "coalesce": lambda x, d: x.coalesce(),
    "coalesce twice": lambda x, d: x.coalesce().coalesce(),
    "indices": lambda x, d: x.coalesce().indices(),
    "values": lambda x, d: x.coalesce().values(),
    "neg": lambda x, d: -x,
    "clone": lambda x, d: x.clone(),
    "detach": lambda x, d: x.detach(),
    "double": lambda x, d: x.double(),
    "times a number": lambda x, d: x * 3,
    "a number times": lambda x, d: 3 * x,
    "times a 0-d tensor": lambda x, d: x * d[0, 0],
    "times a strided tensor": lambda x, d: x.coalesce() * d,
    "times a sparse tensor": lambda x, d: x * x,
    "by a number": lambda x, d: x / 2,
    "plus sparse": lambda x, d: torch.add(x, x * 2, alpha=0.5),
    "minus sparse": lambda x, d: x - x.coalesce() * 3,
    "strided plus sparse": lambda x, d: torch.add(d, x, alpha=2),
    "square root": lambda x, d: (x * x).sqrt(),
    "abs": lambda x, d: x.abs(),
    "power": lambda x, d: x.pow(2),
    "sum": lambda x, d: x.sum(),
    "zeros_like": lambda x, d: torch.zeros_like(x),
    "sparse_mask": lambda x, d: d.sparse_mask(x.coalesce()),
    "times number in place": in_place(lambda x: x.mul_(3)),
    "by a number in place": in_place(lambda x: x.div_(3)),
    "plus sparse in place": in_place(lambda x: x.add_(x.clone(), alpha=2)),
    "neg in place": in_place(lambda x: x.neg_()),
    "zero in place": in_place(lambda x: x.zero_()),
    "times a strided tensor in place": lambda x, d: x.mul_(d),
    "new values in place": in_place(lambda x: x.detach().mul_(3)),
    "shared values in place": in_place(lambda x: x.detach().neg_()),
    "norm": lambda x, d: x.norm(),
    "data in place": in_place(lambda x: x.data.div_(2)),
    "values in place": in_place(lambda x: x._values().add_(1)),
    "deepcopy": lambda x, d: copy.deepcopy(x),
    "copy in place": in_place(lambda x: x.copy_(x * 2)),
    "strided plus sparse in place": lambda x, d: d.add_(x, alpha=-2),
    "to_sparse": lambda x, d: d.to_sparse(),
    "to_sparse of one dim": lambda x, d: d.to_sparse(1),
    "to_sparse with a dense dim": lambda x, d: d.to_sparse(dense_dim=1),
    "a number to_sparse": lambda x, d: d[1, 1].to_sparse(),
    "a number there and back": lambda x, d: d[1, 1].to_sparse().coalesce().to_dense(),
}
OF_MATRICES = {
    "transposed": lambda x, d: x.t().coalesce(),
    "mm": lambda x, d: torch.mm(x, d.t()),
    "sparse.mm": lambda x, d: torch.sparse.mm(x, d.t()),
    "matmul": lambda x, d: x @ d.t(),
    "strided mm sparse": lambda x, d: d.t() @ x,
    "addmm": lambda x, d: torch.sparse.addmm(torch.ones_like(d[:, :3]), x, d.t(), beta=2, alpha=3),
}
CASES = [
    *[(make, name) for make in (plain, hybrid) for name in OPERATORS],
    *[(plain, name) for name in OF_MATRICES],
]


@pytest.mark.filterwarnings("ignore:Sparse invariant checks")
@pytest.mark.parametrize(("make", "name"), CASES, ids=lambda x: getattr(x, "__name__", x))
def test_an_operator_gives_what_the_cpu_gives(make, name):
    run = (OPERATORS | OF_MATRICES)[name]
    want, got = (run(make(device), dense(device)) for device in ("cpu", "xla"))
    assert got.device.type == "xla" and got.dtype is want.dtype and got.shape == want.shape
    assert got.layout is want.layout
    if want.is_sparse:
        assert got.is_coalesced() == want.is_coalesced()
        assert (got.sparse_dim(), got.dense_dim()) == (want.sparse_dim(), want.dense_dim())
        want, got = want.coalesce(), got.coalesce()
        assert got._nnz() == want._nnz()
        assert torch.equal(got.indices().cpu(), want.indices())
        want, got = want.values(), got.values()
    torch.testing.assert_close(got.cpu(), want)


def test_a_sparse_tensor_goes_to_the_device_and_back():
    there = plain("cpu").to("xla")
    assert there.is_sparse and there.device == torch.device("xla", 0)
    back = there.cpu()
    assert back.device.type == "cpu" and not back.is_coalesced()
    assert torch.equal(back._indices(), torch.tensor(INDICES))
    assert torch.equal(back.to_dense(), plain("cpu").to_dense())
    assert plain("cpu").coalesce().to("xla").cpu().is_coalesced()


def test_it_is_shown_with_its_entries():
    text = repr(plain("xla").coalesce())
    assert "indices=tensor([[0, 1, 2]" in text and text.endswith("device='xla:0')")


@pytest.mark.filterwarnings("ignore:Sparse invariant checks")
@pytest.mark.parametrize(
    "optimizer",
    [
        lambda p: torch.optim.SGD(p, lr=0.1),
        lambda p: torch.optim.SGD(p, lr=0.1, maximize=True),
        lambda p: torch.optim.Adagrad(p, lr=0.1),
        lambda p: torch.optim.SparseAdam(p, lr=0.1),
    ],
    ids=["SGD", "ascent", "Adagrad", "SparseAdam"],
)
def test_a_sparse_embedding_trains_as_on_the_cpu(optimizer):
    def weights(device):
        torch.manual_seed(0)
        embedding = torch.nn.Embedding(10, 3, sparse=True, padding_idx=0).to(device)
        stepper = optimizer(embedding.parameters())
        for step in range(4):
            stepper.zero_grad()
            for words in ([1, 2, 2, 0], [3, step, 1, 1]):
                (embedding(torch.tensor(words).to(device)) ** 2).sum().backward()
            assert embedding.weight.grad.is_sparse
            stepper.step()
        return embedding.weight.detach().cpu()

    torch.testing.assert_close(weights("xla"), weights("cpu"))


@pytest.mark.parametrize("mode", ["sum", "mean"])
def test_a_sparse_bag_has_the_gradient_of_the_cpu(mode):
    def gradient(device):
        torch.manual_seed(0)
        bag = torch.nn.EmbeddingBag(10, 3, sparse=True, mode=mode).to(device)
        (bag(torch.tensor([[1, 2, 2], [3, 4, 1]]).to(device)) ** 2).sum().backward()
        assert bag.weight.grad.is_sparse
        return bag.weight.grad.to_dense().cpu()

    torch.testing.assert_close(gradient("xla"), gradient("cpu"))


def test_sgd_on_a_sparse_gradient_neither_cuts_nor_compiles_again():
    embedding = torch.nn.Embedding(10, 3, sparse=True).to("xla")
    optimizer = torch.optim.SGD(embedding.parameters(), lr=0.1)
    for words in ([1, 2], [3, 3], [5, 6], [7, 7]):
        if words == [5, 6]:
            before = metrics.counter_value("UncachedCompile")
        optimizer.zero_grad()
        embedding(torch.tensor(words).to("xla")).sum().backward()
        optimizer.step()
        steps.sync()
    assert metrics.counter_value("UncachedCompile") == before


def test_gradients_pass_through_sparse_products():
    def gradients(device):
        weight = dense("cpu").t().to(device).requires_grad_()
        matrix = plain(device).coalesce().requires_grad_()
        (torch.sparse.mm(matrix, weight) ** 2).sum().backward()
        return weight.grad.cpu(), matrix.grad.to_dense().cpu()

    for got, want in zip(gradients("xla"), gradients("cpu")):
        torch.testing.assert_close(got, want)


def test_gradients_pass_through_to_sparse_and_to_dense():
    x = dense("xla").requires_grad_()
    (x.to_sparse() * 2).to_dense().pow(2).sum().backward()
    torch.testing.assert_close(x.grad.cpu(), 8 * dense("cpu"))


def test_what_has_no_kernel_says_so():
    with pytest.raises(NoLoweringError, match=r"aten\.exp\.default takes no sparse tensor .*dense"):
        plain("xla").exp()
    with pytest.raises(NoLoweringError, match=r"stands where an xla device needs a strided one"):
        buffer_of(plain("xla").value)
    with pytest.raises(NoLoweringError, match=r"is that of the whole tensor; call \.to_dense\(\)"):
        plain("xla").norm(dim=0)
    with pytest.raises(NoLoweringError, match=r"copy_: a strided tensor .*\.to_sparse\(\) first"):
        plain("xla").copy_(dense("xla"))


@pytest.mark.parametrize("part", ["indices", "values"])
def test_parts_of_what_is_not_coalesced_are_refused_as_on_the_cpu(part):
    for device in ("cpu", "xla"):
        with pytest.raises(RuntimeError, match=f"Cannot get {part} on an uncoalesced tensor"):
            getattr(plain(device), part)()


def test_the_zeroth_power_is_refused_as_on_the_cpu():
    for device in ("cpu", "xla"):
        with pytest.raises(RuntimeError, match="cannot raise to zeroth power on sparse tensor"):
            plain(device) ** 0


def test_a_copy_shares_nothing_with_its_source():
    x = plain("xla")
    copied = x.to(torch.float32, copy=True)
    x.mul_(2)
    assert torch.equal(copied.cpu().to_dense(), plain("cpu").to_dense())
    x.copy_(plain("cpu"))
    assert torch.equal(x.cpu().to_dense(), plain("cpu").to_dense())


@pytest.mark.filterwarnings("ignore:Sparse invariant checks")
@pytest.mark.parametrize("dims", [0, 1])
def test_bools_at_one_place_are_one_bool(dims):
    values, shape = torch.tensor([True, False, True]), (2,) * dims
    sparse = torch.sparse_coo_tensor(torch.zeros(dims, 3, dtype=torch.long), values, shape)
    assert torch.equal(sparse.to("xla").to_dense().cpu(), sparse.to_dense())
    there = sparse.to("xla").coalesce()
    assert torch.equal(there.values().cpu(), sparse.coalesce().values())
