"""Reading and writing by an index, where JAX alone would do something else."""

import math

import pytest
import torch
from devices_agree import both, served_by_cpu

X = torch.arange(24.0).reshape(2, 3, 4)


def test_negative_indices_count_from_the_end() -> None:
    both(lambda x, i: x[i], X, torch.tensor([-1, 0, -2]))
    both(lambda x, i: x.take(i), X, torch.tensor([-1, 5, -24]))


@pytest.mark.parametrize(
    "index",
    [
        (torch.tensor([0, 7]),),
        (slice(None), torch.tensor([0, -4])),
        (torch.tensor([0, 1]), torch.tensor([3, 0])),
        (X[:, :, 0] > 1, torch.tensor([0, 4, 1, 2, 3])),
    ],
)
def test_indices_on_the_cpu_are_checked_as_the_cpu_checks_them(index) -> None:
    with pytest.raises(IndexError, match="is out of bounds") as expected:
        X[index]
    device = X.to("xla")
    with pytest.raises(IndexError) as error:
        device[index]
    assert str(error.value) == str(expected.value)
    with pytest.raises(IndexError, match="is out of bounds"):
        device[index] = 0


def test_separated_index_tensors_move_to_the_front() -> None:
    both(lambda x, i: x[i, :, i], X, torch.tensor([0, 1]))
    both(lambda x, i: x[:, i, i], X, torch.tensor([0, 2]))


def test_gather_reads_a_part_of_the_other_dims() -> None:
    both(lambda x, i: x.gather(2, i), X, torch.tensor([[[3, 0]], [[1, 1]]]))


def test_gather_of_a_number_keeps_the_shape_of_the_index() -> None:
    both(lambda x, i: x.gather(0, i), torch.tensor(2.0), torch.tensor(0))


def test_rows_are_selected_along_any_dim() -> None:
    for dim in (0, -1):
        both(lambda x, i, dim=dim: x.index_select(dim, i), X, torch.tensor([1, 0, 1]))


def test_an_index_out_of_range_does_not_crash_the_device() -> None:
    x = torch.zeros(3, device="xla")
    # What came from the host would be refused.
    index = torch.tensor([5], device="xla") + 2
    assert x[index].cpu().shape == (1,)
    assert x.index_put((index,), torch.ones(1, device="xla")).cpu().tolist() == [0, 0, 0]


def test_index_put_adds_up_repeated_places() -> None:
    def put(x: torch.Tensor, i: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return x.index_put((i, i), v, accumulate=True)

    both(put, torch.ones(3, 3), torch.tensor([0, -1, 0]), torch.tensor([1.0, 2.0, 3.0]))


def test_index_put_writes_between_other_dims() -> None:
    def put(x: torch.Tensor, i: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        x = x.clone()
        x[:, i, 1:3] = v
        return x

    both(put, X, torch.tensor([2, 0]), torch.tensor([[5.0, 6.0], [7.0, 8.0]]))


def test_writing_through_a_mask_stays_on_the_device() -> None:
    def write(x: torch.Tensor) -> torch.Tensor:
        x = x.clone()
        x[x > 20] = torch.tensor([1.0, 2.0, 3.0], device=x.device)
        x[x[:, 0, 0] == 0] = -1.0
        x[:, x[0, :, 0] == -1] += 1
        return x.detach()

    assert served_by_cpu(write, X) == ["aten::index"]  # the read of the last line


@pytest.mark.parametrize("reduce", ["sum", "prod", "mean", "amax", "amin"])
@pytest.mark.parametrize("include_self", [True, False])
def test_scatter_reduce_folds_what_falls_together(reduce: str, include_self: bool) -> None:
    index = torch.tensor([[0, 0, 2], [1, 1, 1]])
    x = torch.tensor([[1, 7, 3, 4], [5, 6, 7, 8]])
    src = torch.tensor([[4, 3, 2], [9, 9, 1]])

    def run(x: torch.Tensor, index: torch.Tensor, src: torch.Tensor) -> torch.Tensor:
        return x.scatter_reduce(1, index, src, reduce, include_self=include_self)

    both(run, x, index, src)


@pytest.mark.parametrize("reduce", ["sum", "prod", "amax", "amin"])
@pytest.mark.parametrize("include_self", [True, False])
def test_bools_that_fall_together_stay_bools(reduce: str, include_self: bool) -> None:
    both(
        lambda x, i, src: x.scatter_reduce(0, i, src, reduce, include_self=include_self),
        torch.tensor([True, False, True, False]),
        torch.tensor([0, 0, 1, 1, 2, 2]),
        torch.tensor([False, False, True, True, True, False]),
    )


def test_bools_are_added_by_an_index() -> None:
    x, i = torch.tensor([True, False, False]), torch.tensor([2, 2, 1])
    both(lambda x, i: x.index_add(0, i, x), x, i)
    both(lambda x, i: x.index_put((i,), x, accumulate=True), x, i)
    both(lambda x, i: x.put(i, x, accumulate=True), x, i)
    both(lambda x, i: x.scatter_add(0, i, x), x, i)


def test_scatter_takes_values_and_a_part_of_the_source() -> None:
    index = torch.tensor([[0, 2]])
    both(lambda x, i: x.scatter(1, i, 9.0), X[0], index)
    both(lambda x, i, s: x.scatter(1, i, s).detach(), X[0], index, X[1])
    both(lambda x, i, s: x.scatter_add(0, i, s).detach(), X[0], index, X[1])


def test_rows_are_added_copied_and_filled_along_inner_dims() -> None:
    index, source = torch.tensor([0, 3, 0]), torch.ones(2, 3, 3)
    both(lambda x, i, s: x.index_add(2, i, s, alpha=2), X, index, source)
    both(lambda x, i, s: x.index_copy(2, i[:2], s[..., :2]), X, index, source)
    both(lambda x, i: x.index_fill(-1, i, 5), X, index)


def test_half_precision_sums_keep_small_terms() -> None:
    ones = torch.ones(4096, dtype=torch.bfloat16)
    index = torch.zeros(4096, dtype=torch.int64)
    total = torch.zeros(1, dtype=torch.bfloat16, device="xla")
    assert total.index_add(0, index.to("xla"), ones.to("xla")).item() == 4096


def test_embedding_gradients_skip_the_padding_row() -> None:
    indices = torch.tensor([[1, 2], [2, 0]])
    for by_frequency in (False, True):
        both(
            lambda w, i, by=by_frequency: torch.nn.functional.embedding(
                i, w, padding_idx=0, scale_grad_by_freq=by
            ),
            torch.arange(8.0).reshape(4, 2),
            indices,
        )


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
def test_embedding_bags_skip_the_padding(mode: str) -> None:
    def bags(w: torch.Tensor, i: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.embedding_bag(i, w, offsets, mode=mode, padding_idx=3)

    weight = torch.tensor([[1.0, 5.0], [2.0, 4.0], [3.0, 3.0], [9.0, 9.0]])
    both(bags, weight, torch.tensor([0, 3, 2, 1, 1, 2]), torch.tensor([0, 2, 2, 5]))


def test_embedding_bags_weigh_their_samples() -> None:
    def bags(w: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        indices = torch.tensor([[0, 2], [2, 1]], device=w.device)
        return torch.nn.functional.embedding_bag(indices, w, mode="sum", per_sample_weights=weights)

    both(bags, X[0], torch.tensor([[1.0, 2.0], [3.0, 4.0]]))


@pytest.mark.parametrize("shape", [(), (4,), (2, 3), (5, 0, 5)], ids=str)
def test_a_fixed_number_of_nonzero_places_is_filled_up(shape: tuple[int, ...]) -> None:
    x = torch.arange(math.prod(shape)).reshape(shape) % 2
    both(lambda x: torch.nonzero_static(x, size=3, fill_value=-7), x)
