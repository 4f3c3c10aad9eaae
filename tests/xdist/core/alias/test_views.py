"""Aliasing: random programs of views and writes, run on both devices, compare everything alive."""

import os
import re
from dataclasses import dataclass, field

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import torch_xla
from torch_xdist.core.devices import steps
from torch_xdist.core.devices.tensor import wrap
from torch_xdist.core.run import cuts
from torch_xdist.core.trace.trace import Value
from torch_xdist.errors import NoLoweringError, UnsupportedDtypeError, ValueLostError
from torch_xdist.ops.table import LOWERINGS

EXAMPLES = int(os.environ.get("VIEW_EXAMPLES", 8))


def view_of(t, choice, a, b):
    """One of many views of a tensor; None where it does not apply to this shape."""
    d = t.dim()
    if choice == "select" and d:
        return t.select(a % d, b % t.shape[a % d]) if t.shape[a % d] else None
    if choice == "slice" and d:
        return t.narrow(a % d, 0, max(1, t.shape[a % d] // 2)) if t.shape[a % d] else None
    if choice == "stride" and d:
        index = [slice(None)] * d
        index[a % d] = slice(b % 2, None, 2)
        return t[tuple(index)]
    if choice == "transpose" and d > 1:
        return t.transpose(a % d, b % d)
    if choice == "permute" and d > 1:
        return t.permute(*range(1, d), 0)
    if choice == "unsqueeze":
        return t.unsqueeze(a % (d + 1))
    if choice == "squeeze":
        return t.squeeze()
    if choice == "flat":
        return t.view(-1) if t.is_contiguous() else t.reshape(-1)
    if choice == "diagonal" and d > 1:
        return t.diagonal(0, 0, 1)
    if choice == "unfold" and d and t.shape[0] >= 2:
        return t.unfold(0, 2, 2)
    if choice == "chunk" and d and t.shape[0] >= 2:
        return t.chunk(2)[b % 2]
    if choice == "unbind" and d and t.shape[0]:
        return t.unbind()[b % t.shape[0]]
    if choice == "strided" and t.is_contiguous() and t.numel() >= 4:
        return t.as_strided((2, 2), (2, 1), t.storage_offset())
    if choice == "detach":
        return t.detach()
    return view_at_shared_places(t, choice, a, b)


def view_at_shared_places(t, choice, a, b):
    """A view whose elements share places with others of it, or one of another dtype."""
    d = t.dim()
    if choice == "windows" and d and t.shape[a % d] >= 2:
        return t.unfold(a % d, 2, 1)
    if choice == "expand" and t.numel() < 50:
        return t.unsqueeze(a % (d + 1)).expand(*t.shape[: a % (d + 1)], 2, *t.shape[a % (d + 1) :])
    if choice == "overlapping" and t.is_contiguous() and t.numel() >= 5:
        return t.as_strided((3, 3), (1, 1 + b % 2 if t.numel() > 6 else 1))
    if choice == "parts" and t.is_complex():
        return (t.real, t.imag, torch.view_as_real(t))[b % 3]
    if choice == "pairs" and t.is_contiguous() and d and t.shape[-1] % 2 == 0:
        is_float = t.dtype is torch.float32 and t.storage_offset() % 2 == 0
        return torch.view_as_complex(t.unflatten(-1, (-1, 2))) if is_float else None
    if choice == "halves" and t.is_contiguous() and d and not t.is_complex():
        return t.view(torch.int32 if t.dtype is torch.float32 else torch.float32)
    return None


SEPARATE_VIEWS = [
    "select", "slice", "stride", "transpose", "permute", "unsqueeze", "squeeze", "flat",
    "diagonal", "unfold", "chunk", "unbind",
]  # fmt: skip
VIEWS = [
    *SEPARATE_VIEWS,
    *("strided", "detach", "windows", "expand", "overlapping", "parts", "pairs", "halves"),
]


def has_windows(t):
    """Whether elements lie at one place: what is added there in place, torch leaves open."""
    reach = 0
    for stride, size in sorted(zip(t.stride(), t.shape)):
        if size > 1 and stride <= reach:
            return True
        reach += (size - 1) * stride
    return False


def write_to(t, choice, other, value):
    """One of many writes; the same on both devices."""
    if has_windows(t) and choice in ("add_", "mul_", "mask"):
        choice = "fill_"
    if choice == "add_":
        t.add_(value)
    elif choice == "mul_":
        t.mul_(1.5)
    elif choice == "fill_":
        t.fill_(value)
    elif choice == "copy_":
        t.copy_(other.expand_as(t) if other.dim() == 0 else other.sum().expand_as(t))
    elif choice == "zero_":
        t.zero_()
    elif choice == "setitem" and t.dim() and t.shape[0]:
        t[0] = value
    elif choice == "mask" and t.dim() and not t.is_complex():
        t[t > value] = value
    elif choice == "accumulate" and t.dim() == 1 and t.numel():
        index = torch.zeros(3, dtype=torch.int64, device=t.device)
        t.index_put_((index,), torch.ones(3, dtype=t.dtype, device=t.device), accumulate=True)


WRITES = ["add_", "mul_", "fill_", "copy_", "zero_", "setitem", "mask", "accumulate"]
STEP = st.tuples(
    st.sampled_from(["view"] * 3 + ["write"] * 2 + ["sync", "new"]),
    st.sampled_from(VIEWS),
    st.sampled_from(WRITES),
    st.integers(0, 7),
    st.integers(0, 7),
)


@dataclass
class Run:
    """The living tensors of one device."""

    device: str
    alive: list = field(default_factory=list)
    refusals: list = field(default_factory=list)

    def play(self, program):
        self.alive.append(torch.arange(24.0).reshape(2, 3, 4).to(self.device))
        for step in program:
            try:
                self.one(*step)
            except RuntimeError as refusal:
                self.refusals.append(str(refusal).split("\n")[0][:40])
        return [t.detach().cpu() for t in self.alive]

    def one(self, kind, view, write, a, b):
        target = self.alive[a % len(self.alive)]
        if kind == "view":
            made = view_of(target, view, a, b)
            if made is not None:
                self.alive.append(made)
        elif kind == "write":
            write_to(target, write, self.alive[b % len(self.alive)], float(b))
        elif kind == "new":
            self.alive.append(target * 2 + b)
        elif self.device == "xla":
            steps.sync()


@settings(max_examples=EXAMPLES, deadline=None, derandomize=EXAMPLES < 50)
@given(st.lists(STEP, min_size=3, max_size=10))
def test_every_living_tensor_has_the_values_it_has_on_the_cpu(program):
    here, there = Run("cpu"), Run("xla")
    pairs = zip(here.play(program), there.play(program), strict=True)
    assert there.refusals == here.refusals
    for index, (e, g) in enumerate(pairs):
        torch.testing.assert_close(g, e, msg=lambda m, i=index: f"tensor {i}: {m}", equal_nan=True)


@settings(max_examples=EXAMPLES, deadline=None, derandomize=EXAMPLES < 50)
@given(st.lists(st.tuples(st.sampled_from(SEPARATE_VIEWS), st.sampled_from(WRITES[:6]), st.integers(0, 7), st.integers(0, 7)), min_size=1, max_size=5))  # noqa: E501  # fmt: skip
def test_gradients_through_views_and_writes_are_those_of_the_cpu(program):
    def run(device):
        leaf = torch.linspace(-1, 1, 24).reshape(2, 3, 4).to(device).requires_grad_()
        base = leaf * 2
        t = base
        for view, write, a, b in program:
            made = view_of(t, view, a, b)
            t = t if made is None else made
            write_to(t, write, base.detach().clone(), float(b))
        (base.sum() + (t * 3).sum()).backward()
        return leaf.grad.cpu()

    try:
        expected = run("cpu")
    except RuntimeError as refusal:
        # torch refuses some programs, such as writing to one output of a split.
        with pytest.raises(RuntimeError, match=re.escape(str(refusal)[:60])):
            run("xla")
    else:
        torch.testing.assert_close(run("xla"), expected)


def test_writing_through_overlapping_memory_is_refused_in_torchs_words():
    x = torch.ones(1, 3, device="xla").expand(2, 3)
    with pytest.raises(RuntimeError, match="more than one element of the written-to tensor refers"):
        x.add_(1)


def test_in_place_view_operators_change_the_tensor_itself():
    x = torch.arange(6.0, device="xla").reshape(2, 3)
    base = x[:]
    x.t_()
    assert x.shape == (3, 2)
    x.unsqueeze_(0).squeeze_(0)
    x.add_(1)
    assert base.tolist() == [[1, 2, 3], [4, 5, 6]]


def test_an_in_place_view_operator_is_the_same_program_at_every_step():
    programs = set()
    for _ in range(3):
        x = torch.ones(2, 3, device="xla")
        x.transpose_(0, 1)
        x += 1
        steps.sync()
        programs.add(cuts.LOG[-1].fingerprint)
        is_new = cuts.LOG[-1].compiled
    assert not is_new and len(programs) == 1 and x.shape == (3, 2)


def test_a_result_that_does_not_fit_in_place_is_refused_in_torchs_words():
    with pytest.raises(RuntimeError, match="doesn't match the broadcast shape"):
        torch.ones(3, device="xla").add_(torch.ones(2, 3, device="xla"))
    with pytest.raises(RuntimeError, match="result type Float can't be cast to"):
        torch.ones(3, dtype=torch.int64, device="xla").add_(1.5)


def test_bits_can_be_viewed_as_another_dtype_and_written():
    for dtype in (torch.int32, torch.uint8, torch.int64):
        host = torch.arange(4.0)
        there = host.to("xla")
        assert torch.equal(there.view(dtype).cpu(), host.view(dtype))
        there.view(dtype).zero_()
        assert there.tolist() == [0.0] * 4


@pytest.mark.filterwarnings("ignore:ComplexHalf support:UserWarning")
def test_a_view_in_a_dtype_that_jax_lacks_is_refused_and_harms_no_other_tensor():
    pairs, other = torch.ones(3, 2).half().to("xla"), torch.ones(3).to("xla") + 1
    with pytest.raises(UnsupportedDtypeError, match=r"torch\.complex32 does not exist on xla"):
        torch.view_as_complex(pairs)
    assert other.tolist() == [2, 2, 2]


def test_complex_parts_are_views():
    host = torch.tensor([1 + 2j, 3 - 4j])
    there = host.to("xla")
    there.real.mul_(10)
    there.imag.zero_()
    host.real.mul_(10)
    host.imag.zero_()
    assert torch.equal(there.cpu(), host)
    assert torch.equal(there.conj().cpu(), host.conj())
    assert torch.equal(torch.view_as_real(there).cpu(), torch.view_as_real(host))


def test_a_tensor_whose_program_failed_says_that_its_value_is_lost():
    value = torch.ones(2, device="xla").value
    with pytest.raises(ValueLostError, match=r"tensor float32\[2\] has lost its value"):
        wrap(Value(value.type, value.trace)) + 1


def test_resizing_keeps_the_first_elements():
    x = torch.arange(6.0, device="xla")
    assert x.clone().resize_(2, 2).tolist() == [[0, 1], [2, 3]]
    y = torch.empty(2, device="xla").copy_(x[:2]).resize_(4)
    assert y.tolist()[:2] == [0, 1]


@pytest.mark.parametrize("order", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("numel", [16, 24, 60])
def test_resizing_goes_by_memory_order_and_shares_what_it_can(numel, order):
    def lists(device):
        base = torch.arange(40.0, device=device)
        x = base[4 : 4 + numel] if numel < 40 else base
        x.resize_(1, 2, 3, 4, memory_format=order)
        x.add_(100)
        as_other = torch.empty(0, device=device).resize_as_(x, memory_format=torch.preserve_format)
        return x.tolist(), x.stride(), x.storage_offset(), base.tolist(), as_other.stride()

    assert lists("xla") == lists("cpu")


@pytest.mark.parametrize("shape", [(2, 16), (0, 16), (2, 0)])
@pytest.mark.parametrize("wide", [torch.int64, torch.float64, torch.complex128])
@pytest.mark.parametrize("narrow", [torch.int8, torch.int16, torch.float32, torch.complex64])
def test_bits_are_viewed_as_numbers_of_any_size_and_written(shape, wide, narrow):
    def lists(device):
        x = torch.ones(shape).to(wide).to(device)
        parts = x.view(narrow)
        bits = parts.view(torch.uint8)
        seen = bits.tolist(), parts.view(wide).tolist(), tuple(parts.shape)
        parts.zero_()
        return seen, x.tolist()

    assert lists("xla") == lists("cpu")


def test_a_strided_view_of_another_dtype_counts_in_its_own_elements():
    def lists(device):
        x = torch.arange(6.0, device=device)
        x.view(torch.int32).as_strided((2,), (2,), 1).bitwise_or_(1)
        z = torch.arange(4.0, device=device).to(torch.complex64)
        z.imag.as_strided((3,), (2,), 1).add_(5)
        torch.view_as_real(z).as_strided((2, 2), (2, 1), 2).mul_(2)
        return x.view(torch.int32).tolist(), z.tolist()

    assert lists("xla") == lists("cpu")


def test_a_write_through_windows_that_overlap_stays():
    def lists(device):
        x = torch.arange(8.0, device=device)
        windows = x.unfold(0, 3, 2)
        windows[0] = 7
        windows.t()[1].mul_(2)
        rows = x.unsqueeze(0).expand(3, 8)
        rows[1, 4:].add_(1)
        return x.tolist(), windows.tolist(), rows.tolist()

    assert lists("xla") == lists("cpu")


def test_a_threshold_writes_alike_to_all_that_share_a_place():
    x = torch.arange(3.0, device="xla")
    torch.nn.functional.threshold_(x.expand(2, 3), 0.5, 7.0)
    assert x.tolist() == [7.0, 1.0, 2.0]


def test_one_number_may_be_written_to_all_of_an_expanded_tensor():
    x = torch.ones(1, 3, device="xla")
    x.expand(2, 3).fill_(4)
    assert x.tolist() == [[4, 4, 4]]
    x.expand(2, 3).zero_()
    assert x.tolist() == [[0, 0, 0]]


def test_set_shares_the_storage_of_another_tensor():
    x, y = torch.zeros(1, device="xla"), torch.arange(4.0, device="xla")
    x.set_(y)
    x.mul_(2)
    assert y.tolist() == [0, 2, 4, 6]


def test_the_imaginary_part_of_a_conjugate_is_read_through_a_negated_view():
    x = torch.tensor([1 + 2j, 3 - 4j])
    there = x.to("xla")
    assert there.conj().imag.tolist() == x.conj().imag.tolist() == [-2, 4]
    assert torch._neg_view(there.real).tolist() == [-1, -3]
    assert torch.ops.aten._reshape_alias(there.real, [2, 1], [1, 1]).tolist() == [[1], [3]]


def test_the_program_of_a_write_through_strides_does_not_grow_with_the_tensor():
    sizes = []
    for size in (20, 400):
        x = torch.zeros(size, size, device="xla")
        x.fill_diagonal_(1.0)
        x.t()[::2, 1:].add_(1)
        x.as_strided((size, 2), (2, 1)).mul_(3)
        sizes.append(len(torch_xla._XLAC._get_xla_tensors_hlo([x])))
    assert sizes[1] < 1.1 * sizes[0] + 200


def test_a_view_that_has_no_row_is_refused_by_name(monkeypatch):
    monkeypatch.delitem(LOWERINGS, "aten.unfold.default")
    x = torch.ones(17, device="xla")
    with pytest.raises(
        NoLoweringError, match=r"aten.unfold.default: views of this kind do not exist"
    ):
        x.unfold(0, 2, 1)
