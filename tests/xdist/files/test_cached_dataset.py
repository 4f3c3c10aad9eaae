"""A dataset kept on disk as it is read."""

import json

import pytest
import torch

from torch_xdist.errors import CheckpointError
from torch_xdist.files.cached_dataset import CachedDataset


class Source:
    """Three samples; counts how often it is asked."""

    asked = 0

    def __len__(self):
        return 3

    def __getitem__(self, index):
        self.asked += 1
        return torch.full((2,), index), index


@pytest.mark.parametrize("compress", [True, False])
def test_samples_are_read_once_and_then_from_disk(tmp_path, compress):
    source = Source()
    cached = CachedDataset(source, tmp_path / "c", compress=compress)
    cached.warmup()
    cached.warmup()
    assert source.asked == 3 and len(cached) == 3
    alone = CachedDataset(None, tmp_path / "c")
    assert alone[2][1] == 2 and alone[2][0].tolist() == [2, 2]
    facts = json.loads((tmp_path / "c" / "METADATA").read_text())
    assert facts == {"count": 3, "compress": compress, "max_files_per_folder": 1000}


def test_folders_hold_so_many_files(tmp_path):
    CachedDataset(Source(), tmp_path, max_files_per_folder=2).warmup()
    assert sorted(str(p.relative_to(tmp_path)) for p in tmp_path.rglob("*.pt")) == [
        "0/0.pt",
        "0/1.pt",
        "1/2.pt",
    ]


def test_an_absent_sample_without_a_source_is_named(tmp_path):
    CachedDataset(Source(), tmp_path)
    with pytest.raises(RuntimeError, match="Source dataset not provided and sample 1 is missing"):
        CachedDataset(None, tmp_path)[1]
    with pytest.raises(IndexError, match="sample 3 of 3; counted from 0"):
        CachedDataset(None, tmp_path)[3]


def test_a_folder_without_a_cache_is_named(tmp_path):
    with pytest.raises(CheckpointError, match="holds no cache"):
        CachedDataset(None, tmp_path)


def test_a_cache_of_another_kind_is_not_overwritten(tmp_path):
    CachedDataset(Source(), tmp_path)
    with pytest.raises(CheckpointError, match=r"was made with .* remove the folder"):
        CachedDataset(Source(), tmp_path, compress=False)


def test_a_sample_beyond_the_last_is_refused(tmp_path):
    data = CachedDataset([1, 2], tmp_path)
    with pytest.raises(IndexError, match="CachedDataset: sample 2 of 2; counted from 0"):
        data[2]
