"""Buffers that users give away."""

import numpy as np
import pytest
import torch

import torch_xla
from torch_xdist import metrics
from torch_xdist.core.trace import donation
from torch_xdist.core.trace.placeholders import Placeholder
from torch_xla import _XLAC
from torch_xla.utils.buffer_donor_context import alias_with_buffer_donor_config


def donations():
    return metrics.metric_data("InputOutputAliasCount")[1]


def given_away(*shape):
    tensor = torch.randn(*shape).to("xla")
    torch_xla.sync()
    metrics.clear_all()
    assert _XLAC._set_buffer_donation(tensor, True) and _XLAC._get_buffer_donation(tensor)
    assert metrics.counter_value("XlaSetBufferDonation") == 1
    return tensor


def test_what_is_given_away_goes_to_the_next_program():
    x = given_away(3, 1, 2)
    torch_xla.sync()
    assert _XLAC._get_buffer_donation(x) and not _XLAC._is_placecholder(x)
    y = x + 1
    torch_xla.sync(wait=True)
    assert donations() == 1 and _XLAC._is_placecholder(x) and y.shape == x.shape
    with pytest.raises(RuntimeError, match="its buffer is deleted: it was donated to a program"):
        _XLAC._get_tensors_handle([x])


def test_it_can_be_taken_back_and_pending_tensors_have_none():
    x = given_away(3, 1, 3)
    assert _XLAC._set_buffer_donation(x, False) and not _XLAC._get_buffer_donation(x)
    assert not _XLAC._set_buffer_donation(x + 1, True)


@pytest.mark.parametrize("enabled", [True, False])
def test_a_run_may_take_nothing_but_what_was_given_away(enabled):
    x, y = given_away(3, 1, 4 + enabled), torch.randn(3, 1, 4 + enabled).to("xla")
    with alias_with_buffer_donor_config(enabled):
        assert _XLAC._xla_get_enable_alias_with_buffer_donor_config() is enabled
        total = x + y
        y += 2
        _XLAC._xla_sync_multi([x, y, total], ["xla:0"], True, False)
    assert not _XLAC._xla_get_enable_alias_with_buffer_donor_config()
    assert _XLAC._is_placecholder(x) is enabled and donations() == enabled


def test_programs_may_be_forbidden():
    x = torch.ones(2, device="xla") + 1
    assert _XLAC._set_allow_execution(False)
    try:
        assert not _XLAC._get_allow_execution()
        with pytest.raises(RuntimeError, match=r"Unexpected execution happens inside the compiled"):
            x.tolist()
    finally:
        _XLAC._set_allow_execution(True)
    assert x.tolist() == [2, 2]


def test_a_copy_has_memory_of_its_own_and_compiles_nothing():
    buffer = torch.arange(3.0).to("xla").value.buffer
    before = metrics.counter_value("UncachedCompile")
    copy = donation.copy_of(buffer, buffer.device)
    assert copy.unsafe_buffer_pointer() != buffer.unsafe_buffer_pointer()
    assert copy.tolist() == [0, 1, 2] and metrics.counter_value("UncachedCompile") == before


def test_what_only_stands_for_a_buffer_has_no_copy():
    assert donation.copy_of(Placeholder((3,), np.dtype("float32")), None) is None


def test_a_buffer_is_shared_from_a_copy_between_tensors_on():
    one, other, apart = (torch.ones(3).to("xla") for _ in range(3))
    other.copy_(one)
    assert donation.is_shared(one.value.buffer) and not donation.is_shared(apart.value.buffer)
