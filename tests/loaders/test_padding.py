"""Batches of variable length get one of a few shapes."""

import pytest
import torch

from torch_xdist.loaders.errors import ArgumentError, BatchError
from torch_xdist.loaders.padding import padding


def test_a_number_pads_dim_1_and_leaves_tensors_without_it():
    ids, labels = padding(5, None, 0.0)([torch.ones(2, 3), torch.ones(2)])
    assert ids.tolist() == [[1, 1, 1, 0, 0]] * 2 and labels.shape == (2,)


def test_buckets_choose_the_smallest_size_that_fits():
    pad = padding(None, [8, 4, 16], 0.0)
    assert [pad(torch.ones(1, n)).shape[1] for n in (3, 4, 5, 16)] == [4, 4, 8, 16]


def test_the_value_can_be_given_by_key():
    pad = padding({1: 3}, None, {"labels": -100})
    batch = pad({"ids": torch.ones(1, 2), "labels": torch.ones(1, 2, dtype=torch.long)})
    assert batch["ids"].tolist() == [[1, 1, 0]] and batch["labels"].tolist() == [[1, 1, -100]]


def test_several_dims_and_negative_ones_are_padded_at_the_end():
    padded = padding({0: 4}, {-1: [6]}, 7.0)(torch.zeros(3, 2, 5))
    assert padded.shape == (4, 2, 6)
    assert padded[3].eq(7).all() and padded[..., 5].eq(7).all() and padded[:3, :, :5].eq(0).all()


def test_booleans_are_padded_with_false():
    assert padding(3, None, 0.0)(torch.ones(1, 2, dtype=torch.bool)).tolist() == [[1, 1, 0]]


def test_no_parameters_mean_no_padding():
    assert padding(None, None, 0.0) is None


def test_a_sample_longer_than_every_bucket_is_named():
    with pytest.raises(BatchError, match=r"dim 1 of batch\['ids'\].*size 9.*to, 8; add a bucket"):
        padding(None, [4, 8], 0.0)({"ids": torch.ones(1, 9)})


def test_sizes_that_cannot_work_are_refused():
    with pytest.raises(ArgumentError, match=r"sizes \[0\] for dim 1; give whole numbers above 0"):
        padding(0, None, 0.0)
    with pytest.raises(ArgumentError, match="pad_to and buckets both give sizes for dim 1"):
        padding({1: 4}, [4, 8], 0.0)
