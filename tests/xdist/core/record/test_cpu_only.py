"""Wrong calls of torch's operator database raise what CPU torch raises, on their line."""

import re
import warnings

import pytest
import torch
import torch.nn.functional as F
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils import _pytree as pytree

import torch_xla
from torch_xdist.core.run.device_trace import HERE
from torch_xla.distributed.parallel_loader import MpDeviceLoader

# By the start of CPU torch's words: why the device says nothing, or something else.
ELSEWHERE = {
    # Values, which a device that records does not read.
    "probability tensor contains": "values",
    "invalid multinomial distribution": "values",
    # Memory, which a functional program does not write.
    "unsupported operation: more than one element": "out=",
    "unsupported operation: some elements": "out=",
    "Trying to resize storage": "out=",
    "setStorage:": "strides of the operand",
    # What out= holds is cast where torch casts it for most operators.
    "Expected out tensor to have dtype": "out=",
    "Expected object of scalar type ComplexDouble": "out=",
    "Expected the dtype for input and out to match": "out=",
    "multinomial expects Long tensor out": "out=",
    "value cannot be converted to type": "asked with a mask of zeros, the CPU does not say so",
    # Limits of a kernel of the CPU's.
    "number of categories cannot exceed": "a limit",
    "masked_scatter_ only supports boolean masks": "torch_xla took bytes",
    "histogramdd: The size of bins": "asked by a composite",
}
CHECKED = [op for op in op_db if op.error_inputs_func is not None]


def first_line(error):
    return str(error).splitlines()[0] if str(error) else ""


def error_of(function, args, kwargs):
    """What a call raises, also where its result is read."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            pytree.tree_map_only(torch.Tensor, torch.Tensor.cpu, function(*args, **kwargs))
    except Exception as error:
        return error
    return None


def on_device(values):
    return pytree.tree_map_only(torch.Tensor, lambda x: x.detach().to("xla"), values)


@pytest.mark.parametrize("op", CHECKED, ids=[f"{op.name}-{op.variant_test_name}" for op in CHECKED])
def test_a_wrong_call_is_torchs_error(op):
    for wrong in op.error_inputs("cpu"):
        sample = wrong.sample_input
        values = ([sample.input, *sample.args], sample.kwargs)
        expected = error_of(op.op, *values)
        words = first_line(expected)
        leaves = [x for x in pytree.tree_leaves(values) if isinstance(x, torch.Tensor)]
        elsewhere = any(words.startswith(start) for start in ELSEWHERE)
        # numpy, through which tensors come here, has 64 dims.
        is_here = all(
            x.layout == torch.strided and x.dim() <= 64 and x.device.type == "cpu" for x in leaves
        )
        if expected is None or elsewhere or not is_here:
            continue
        error = error_of(op.op, *on_device(values))
        assert error is not None, words
        assert isinstance(error, type(expected)), (error, words)
        assert first_line(error) == words or re.search(wrong.error_regex, str(error))


def embedding(index, device, weight_rows=4):
    return F.embedding(index.to(device), torch.ones(weight_rows, 2, device=device))


def test_an_index_is_looked_at_where_it_is_used_not_where_it_is_made():
    index = torch.tensor([0, 4]).to("xla")
    torch_xla.sync()
    with pytest.raises(IndexError, match=r"^index out of range in self$"):
        embedding(index, "xla")
    assert embedding(index, "xla", weight_rows=5).shape == (2, 2)


def test_a_part_of_memory_is_refused_for_its_own_numbers_alone():
    all_of_it = torch.tensor([0, 1, 9]).to("xla")
    assert embedding(all_of_it[:2], "xla").shape == (2, 2)
    with pytest.raises(IndexError, match="index out of range in self"):
        embedding(all_of_it[1:], "xla")
    with pytest.raises(IndexError, match="index out of range in self"):
        embedding(all_of_it.reshape(3, 1), "xla")


def test_what_was_written_to_is_not_known():
    index = torch.tensor([0, 9]).to("xla")
    index[1] = 3
    assert embedding(index, "xla").shape == (2, 2)
    other = torch.tensor([0, 9]).to("xla")
    other.clamp_(max=3)
    torch_xla.sync()
    assert embedding(other, "xla").shape == (2, 2)


def test_what_the_device_computed_is_not_known():
    index = torch.tensor([0, 3]).to("xla") + 6
    torch_xla.sync()
    assert embedding(index, "xla").shape == (2, 2)


def test_the_hosts_tensor_may_change_after_it_was_moved():
    on_host = torch.tensor([0, 9])
    index = on_host.to("xla")
    on_host[1] = 0
    with pytest.raises(IndexError, match="index out of range in self"):
        embedding(index, "xla")


def test_a_refused_call_records_nothing():
    index, weight = torch.tensor([0, 9]).to("xla"), torch.ones(4, 2, device="xla")
    torch_xla.sync()
    before = len(HERE.trace.tape.entries)
    with pytest.raises(IndexError, match="index out of range in self"):
        F.embedding(index, weight)
    assert len(HERE.trace.tape.entries) == before


def test_indices_are_not_looked_at_where_a_setting_says_so(ask):
    ask(XDIST_CHECK_INDICES="0")
    assert embedding(torch.tensor([0, 9]), "xla").shape == (2, 2)


def test_batches_of_a_loader_are_looked_at():
    labels = torch.tensor([0, 1, 2, 7])
    batches = [(torch.randn(4, 3), labels)]
    ((scores, target),) = MpDeviceLoader(batches, "xla")
    with pytest.raises(IndexError, match=r"^Target 7 is out of bounds\.$"):
        F.cross_entropy(scores, target)


def test_a_mask_beside_an_index_stands_for_its_dims():
    x = torch.zeros(3, 4, device="xla")
    mask, index = torch.tensor([True, False, True]).to("xla"), torch.tensor([0, 9]).to("xla")
    with pytest.raises(IndexError, match="index 9 is out of bounds for dimension 1 with size 4"):
        x[mask, index]


def test_one_of_several_indices_may_be_unknown():
    x, computed = torch.zeros(3, 4, device="xla"), torch.tensor([0, 1]).to("xla") * 1
    with pytest.raises(IndexError, match="index 9 is out of bounds for dimension 1 with size 4"):
        x[computed, torch.tensor([0, 9]).to("xla")]


@pytest.mark.parametrize(
    ("name", "good", "bad"),
    [
        ("uniform_", (0, 1.5), (2.5, 1.5)),
        ("uniform_", (), (2,)),
        ("random_", (3, 15), (25, 15)),
        ("random_", (15,), (-3,)),
        ("bernoulli_", (0.3,), (2.5,)),
        ("bernoulli_", (), (-0.5,)),
    ],
)
def test_numbers_to_draw_between_are_looked_at_in_every_call(name, good, bad):
    getattr(torch.zeros(3, device="xla"), name)(*good)
    with pytest.raises(RuntimeError) as expected:
        getattr(torch.zeros(3), name)(*bad)
    with pytest.raises(RuntimeError, match=f"^{re.escape(str(expected.value))}$"):
        getattr(torch.zeros(3, device="xla"), name)(*bad)


def test_random_integers_may_have_no_end():
    assert torch.zeros(3, dtype=torch.int64, device="xla").random_(3, None).min() >= 3


@pytest.mark.parametrize(
    "make",
    [
        lambda device: torch.empty(2, -1, device=device),
        lambda device: torch.zeros(-1, device=device),
        lambda device: torch.randperm(-1, device=device),
    ],
    ids=["empty", "zeros", "randperm"],
)
def test_a_negative_size_is_refused_before_there_is_a_row(make):
    torch_xla.sync()
    with pytest.raises(RuntimeError) as expected:
        make("cpu")
    with pytest.raises(RuntimeError, match=f"^{re.escape(str(expected.value))}$"):
        make("xla")
    assert not HERE.trace.tape.entries
