"""`torch.load` onto the device, beside other wrappers."""

import functools
import io

import torch

from torch_xdist.core.devices import steps, transfer
from torch_xdist.core.torch_side import loading
from torch_xdist.releases import patches


def test_a_file_is_loaded_onto_the_device():
    file = io.BytesIO()
    torch.save({"weight": torch.ones(2)}, file)
    file.seek(0)
    assert loading.load(file, map_location="xla")["weight"].device.type == "xla"


def loaded(data, monkeypatch, **options):
    """What comes of a file of that data, and the bytes that were copied on the host for it."""
    copied = []
    copy = transfer._private_copy
    monkeypatch.setattr(
        transfer, "_private_copy", lambda array: copied.append(array.nbytes) or copy(array)
    )
    torch.save(data, file := io.BytesIO())
    file.seek(0)
    return loading.load(file, map_location="xla", **options), sum(copied)


def test_what_was_read_becomes_the_devices_memory_without_a_copy(monkeypatch):
    model = torch.nn.Linear(300, 200)
    found, copied_bytes = loaded(model.state_dict(), monkeypatch)
    assert copied_bytes == 0
    for name, value in model.state_dict().items():
        assert torch.equal(found[name].cpu(), value)


def test_tensors_that_share_memory_in_the_file_get_memory_of_their_own(monkeypatch):
    whole = torch.arange(1000.0)
    found, copied_bytes = loaded([whole, whole[10:20], torch.ones(1000)], monkeypatch)
    assert copied_bytes == 4000 + 40
    found[1].add_(1)
    assert torch.equal(found[0].cpu(), whole) and found[1].tolist() == (whole[10:20] + 1).tolist()


def test_a_parameter_that_was_loaded_is_trained_like_any_other(monkeypatch):
    found, _ = loaded({"w": torch.nn.Parameter(torch.ones(2000))}, monkeypatch, weights_only=False)
    weight = found["w"]
    optimizer = torch.optim.SGD([weight], lr=0.5)
    for _ in range(3):
        (weight.sum()).backward()
        optimizer.step()
        optimizer.zero_grad()
        steps.sync()
    assert weight.tolist() == [-0.5] * 2000


def test_another_librarys_wrapper_does_not_keep_ours_out(monkeypatch):
    monkeypatch.setattr(torch, "load", functools.wraps(torch.load)(lambda *_: None))
    monkeypatch.setattr(patches, "_made", [])  # as before the first registration
    loading.register()
    assert torch.load is loading.load
