"""Attention over pages on the device equals that of each sequence in plain torch."""

import pytest
import torch
from devices_agree import served_by_cpu
from torch._subclasses.fake_tensor import FakeTensorMode

import torch_xla.experimental.custom_kernel as kernels
from torch_xdist.errors import ArgumentError

LENGTHS = torch.tensor([5, 12, 1], dtype=torch.int32)
QUERIES = torch.tensor([3, 2, 1], dtype=torch.int32)
ENDS = torch.tensor([0, 3, 5, 6], dtype=torch.int32)
COUNT = torch.tensor([3], dtype=torch.int32)


def pages() -> list[torch.Tensor]:
    """Keys and values of 2 heads in 12 pages of 4, and the pages of each of 3 sequences."""
    torch.manual_seed(0)
    order = torch.randperm(12).reshape(3, 4)[:, :3].int()
    return [torch.randn(2, 12, 4, 8), torch.randn(2, 12, 4, 8), LENGTHS, order]


def without_gradients(kernel, *args):
    return kernel(*(x.detach() if torch.is_tensor(x) else x for x in args))


@pytest.mark.parametrize("cap", [None, 5.0])
def test_one_query_attends_to_the_pages_of_its_sequence(cap) -> None:
    def run(q, *of_pages):
        return without_gradients(torch.ops.xla.paged_attention, q, *of_pages, 2, None, cap)

    assert served_by_cpu(run, torch.randn(3, 4, 8), *pages()) == []


def test_attention_over_pages_is_attention_to_their_keys() -> None:
    keys, values, _, order = pages()
    q = torch.randn(3, 4, 8)
    found = kernels.paged_attention(q, keys, values, LENGTHS, order, 1)
    for n, length in enumerate(LENGTHS.tolist()):
        k, v = (x[:, order[n].long()].reshape(2, 12, 8)[:, :length] for x in (keys, values))
        grouped = q[n].reshape(2, 2, 8)
        alone = torch.nn.functional.scaled_dot_product_attention(grouped, k, v, scale=1.0)
        torch.testing.assert_close(found[n], alone.reshape(4, 8))


@pytest.mark.parametrize("cap", [None, 5.0])
def test_several_queries_are_the_last_of_their_sequence(cap) -> None:
    def run(q, *rest):
        op = torch.ops.xla.multi_queries_paged_attention
        return without_gradients(op, q, *rest, 2, 2, True, cap)

    assert served_by_cpu(run, torch.randn(3, 3, 4, 8), *pages(), QUERIES) == []
    q, rest = torch.randn(3, 3, 4, 8), (*pages(), QUERIES)
    there = [t.to("xla") for t in (q, *rest)]
    plain = kernels.multi_queries_paged_attention(*there, 2, 2, use_kernel=False)
    torch.testing.assert_close(
        plain.cpu(), kernels.multi_queries_paged_attention(*there, 2, 2).cpu()
    )


def ragged() -> list[torch.Tensor]:
    torch.manual_seed(0)
    return [torch.randn(8, 4, 8), torch.randn(12, 4, 4, 8), LENGTHS, pages()[3], ENDS, COUNT]


@pytest.mark.parametrize(
    "options",
    [(), (0.3, 2), (0.3, None, 4.0), (1.0, None, None, None, 0.5, 2.0)],
    ids=["plain", "window", "soft-cap", "scales"],
)
def test_sequences_of_every_length_attend_to_their_own_pages(options) -> None:
    def run(*tensors):
        return without_gradients(torch.ops.xla.ragged_paged_attention, *tensors, *options)

    assert served_by_cpu(run, *ragged()) == []


def test_a_sequence_that_is_alone_in_pages_is_causal_attention() -> None:
    q, kv = torch.randn(6, 2, 8), torch.randn(2, 4, 4, 8)
    one, order = torch.tensor([6], dtype=torch.int32), torch.tensor([[1, 0]], dtype=torch.int32)
    ends = torch.tensor([0, 6], dtype=torch.int32)
    there = [t.to("xla") for t in (q, kv, one, order, ends, COUNT // 3)]
    found = kernels.ragged_paged_attention(*there, sm_scale=0.5).cpu()
    keys = kv[order[0].long()].reshape(8, 2, 2, 8)[:6]
    heads = [t.transpose(0, 1) for t in (q, keys[:, :, 0], keys[:, :, 1])]
    attention = torch.nn.functional.scaled_dot_product_attention
    expected = attention(*heads, is_causal=True, scale=0.5).transpose(0, 1)
    torch.testing.assert_close(found, expected)
    plain = kernels.ragged_paged_attention(*there, sm_scale=0.5, use_kernel=False).cpu()
    torch.testing.assert_close(plain, expected)


def test_fake_tensors_have_the_shape_of_the_queries() -> None:
    with FakeTensorMode() as mode:
        fakes = [mode.from_tensor(t) for t in ragged()]
        assert torch.ops.xla.ragged_paged_attention(*fakes).shape == (8, 4, 8)
        q, *rest = (mode.from_tensor(t) for t in (torch.randn(3, 4, 8), *pages()))
        assert torch.ops.xla.paged_attention(q, *rest, 2).shape == (3, 4, 8)
        several = mode.from_tensor(torch.randn(3, 3, 4, 8))
        op = torch.ops.xla.multi_queries_paged_attention
        assert op(several, *rest, mode.from_tensor(QUERIES), 2, 2, True).shape == (3, 3, 4, 8)


WRONG = {
    r"num_seqs\[0\]=4 must be less or equal to max_num_seqs=3": (5, COUNT + 1),
    "pages_per_seq=3 must be greater or equal to 5: the longest sequence has 17 keys": (
        2,
        LENGTHS + 5,
    ),
    "Total q tokens 9 must be less or equal to max_num_batched_tokens=8": (4, ENDS + 3),
    "q_len=3 must be less or equal to kv_len=2 at sequence 0": (2, LENGTHS // 2),
}


@pytest.mark.parametrize("message", WRONG)
def test_lengths_that_do_not_fit_are_refused_where_they_are_read(message) -> None:
    given, (place, value) = ragged(), WRONG[message]
    given[place] = value
    with pytest.raises(ValueError, match=message):
        kernels._ragged_paged_attention_runtime_check(*given)


def test_wrong_arguments_are_refused() -> None:
    q = torch.randn(3, 4, 8)
    with pytest.raises(ArgumentError, match="megacore_mode 'both'; megacore_mode must be one of"):
        kernels.paged_attention(q, *pages(), 2, "both")
    with pytest.raises(ArgumentError, match=r"q has shape \[3, 4, 8\]; 4 dimensions are needed"):
        kernels.multi_queries_paged_attention(q, *pages(), QUERIES, 2, 2)
