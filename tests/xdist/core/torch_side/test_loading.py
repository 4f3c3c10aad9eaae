"""`torch.load` onto the device, beside other wrappers."""

import functools
import io

import torch

from torch_xdist.core.torch_side import loading
from torch_xdist.releases import patches


def test_a_file_is_loaded_onto_the_device():
    file = io.BytesIO()
    torch.save({"weight": torch.ones(2)}, file)
    file.seek(0)
    assert loading.load(file, map_location="xla")["weight"].device.type == "xla"


def test_another_librarys_wrapper_does_not_keep_ours_out(monkeypatch):
    monkeypatch.setattr(torch, "load", functools.wraps(torch.load)(lambda *_: None))
    monkeypatch.setattr(patches, "_made", [])  # as before the first registration
    loading.register()
    assert torch.load is loading.load
