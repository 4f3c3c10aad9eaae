"""`torch.load` onto the device, and `torch.compile` with its backend, beside other wrappers."""

import functools
import io

import pytest
import torch

from torch_xdist.core.torch_side import loading
from torch_xdist.releases import patches
from torch_xdist.training import dynamo


def test_a_file_is_loaded_onto_the_device():
    file = io.BytesIO()
    torch.save({"weight": torch.ones(2)}, file)
    file.seek(0)
    assert loading.load(file, map_location="xla")["weight"].device.type == "xla"


@pytest.mark.parametrize(("part", "name"), [(loading, "load"), (dynamo, "compile")])
def test_another_librarys_wrapper_does_not_keep_ours_out(monkeypatch, part, name):
    monkeypatch.setattr(torch, name, functools.wraps(getattr(torch, name))(lambda *_: None))
    monkeypatch.setattr(patches, "_made", [])  # as before the first registration
    part.register()
    assert getattr(torch, name) is getattr(part, name)
