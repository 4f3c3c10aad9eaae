"""Checkpoints with one file per tensor."""

import pytest
import torch
from pretend_device import pretend

import torch_xla.utils.serialization as xser
from torch_xdist.errors import CheckpointError
from torch_xdist.files import serialization


def test_data_comes_back_with_cpu_tensors(tmp_path):
    data = {"w": pretend(torch.ones(3)), "n": [1, ("a", pretend(torch.zeros(2)))]}
    serialization.write(data, tmp_path / "x.pt")
    out = serialization.read(tmp_path / "x.pt")
    assert out["w"].tolist() == [1, 1, 1] and out["n"][1][1].tolist() == [0, 0]
    assert sorted(p.name for p in (tmp_path / "x.pt.tensors").iterdir()) == [
        "tensor_0.pt",
        "tensor_1.pt",
    ]


def test_tied_tensors_are_one_file(tmp_path):
    weight = pretend(torch.ones(3))
    serialization.write([weight, weight.detach()], tmp_path / "x.pt")
    left, right = serialization.read(tmp_path / "x.pt")
    assert left is right


def test_a_smaller_checkpoint_leaves_no_stale_tensors(tmp_path):
    serialization.write([pretend(torch.ones(1)), pretend(torch.ones(2))], tmp_path / "x.pt")
    serialization.write([pretend(torch.ones(3))], tmp_path / "x.pt")
    assert [p.name for p in (tmp_path / "x.pt.tensors").iterdir()] == ["tensor_0.pt"]


def test_the_reference_is_found_under_its_old_name():
    assert xser.TensorReference is serialization.TensorReference


def test_a_missing_tensor_file_is_named(tmp_path):
    serialization.write([pretend(torch.ones(1))], tmp_path / "x.pt")
    serialization.tensor_file(tmp_path / "x.pt", 0).unlink()
    with pytest.raises(CheckpointError, match=r"x.pt needs .*tensor_0.pt, which cannot be read"):
        serialization.read(tmp_path / "x.pt")


def test_a_folder_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(CheckpointError, match="cannot be made"):
        serialization.write([1], tmp_path / "file" / "x.pt")
