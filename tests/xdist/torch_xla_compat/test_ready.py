"""Callbacks when a tensor is computed."""

import threading

import pytest
import torch

from torch_xdist.torch_xla_compat.ready import on_ready_callback, on_ready_event


def test_a_callback_gets_the_tensor_once_it_is_computed():
    tensor = torch.ones(3, device="xla") * 2
    got = []
    on_ready_callback(tensor, lambda t: got.append((t, threading.current_thread()))).join(30)
    ((same, thread),) = got
    assert same is tensor
    assert thread is not threading.current_thread()
    assert tensor.value.buffer is not None


def test_an_event_is_set_once_the_tensor_is_computed():
    assert on_ready_event(torch.ones(3, device="xla").exp()).wait(30)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_what_a_callback_raises_is_printed(monkeypatch):
    told = []
    monkeypatch.setattr(threading, "excepthook", lambda failure: told.append(failure.exc_value))

    def fail(_):
        raise ValueError("in the callback")

    on_ready_callback(torch.ones(3, device="xla"), fail).join(30)
    assert [str(error) for error in told] == ["in the callback"]
