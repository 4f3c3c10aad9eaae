"""Tensors of two runs side by side."""

import pytest
import torch

import torch_xla  # noqa: F401
from torch_xdist.debug import model_compare
from torch_xdist.errors import CheckpointError
from torch_xla.debug import model_comparator


@pytest.fixture
def folders(tmp_path):
    for name, value in (("a", 1.0), ("b", 1.5)):
        model_compare.configure(tmp_path / name)
        model_compare.save("same", torch.ones(2, device="xla"))
        model_compare.save("weight", torch.tensor([1.0, value]), step=3)
    model_compare.save("more", torch.ones(1))
    yield tmp_path / "a", tmp_path / "b"
    model_compare._folder = None


def test_a_tensor_without_a_name_has_that_of_its_line(folders):
    model_compare.save(None, torch.ones(2))
    assert [file.name for file in folders[1].glob("test_model_compare.py.l*.0")]


def test_the_first_difference_is_told(folders):
    report = model_compare.compare(*folders)
    assert report.splitlines() == [
        f"more.0: only in {folders[1]}",
        "step-3/weight.0:",
        "(1,): 1.0 vs. 1.5",
    ]
    assert model_compare.compare(folders[0], folders[0]) == ""


def test_shapes_and_types_are_compared_first():
    one = torch.ones(2)
    assert model_compare.compare_tensors(one, torch.ones(3)) == "Shape: (2,) vs. (3,)"
    assert model_compare.compare_tensors(one, one.int()) == "Type: torch.float32 vs. torch.int32"


def test_a_folder_must_be_known(monkeypatch):
    monkeypatch.delenv("MODELCMP_SAVEDIR", raising=False)
    with pytest.raises(CheckpointError, match="no folder is known; call configure"):
        model_compare.save("x", torch.ones(1))


def test_two_files_are_compared_by_their_tensors(tmp_path):
    x = torch.arange(4.0).reshape(2, 2)
    paths = [tmp_path / "a.pt", tmp_path / "b.pt"]
    for path, value in zip(paths, (x, x + torch.tensor([[0.0, 0.0], [0.5, 0.0]]))):
        torch.save(value, path)
    tell = model_comparator.tensor_file_compare
    assert tell(paths[0], paths[0]) == ""
    assert "2.5" in tell(*paths) and tell(*paths, atol=1.0) == ""
