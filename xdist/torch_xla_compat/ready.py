"""To be told when the device has computed a tensor, without waiting for it."""

import threading
from collections.abc import Callable

import jax
import torch

from torch_xdist.core.run.device_trace import buffer_of


def on_ready_callback(
    tensor: torch.Tensor, callback: Callable[[torch.Tensor], object]
) -> threading.Thread:
    """Call `callback(tensor)` on a thread of its own, once the device has computed the tensor.

    What is pending for the tensor is started at once. Returns the thread. What the callback raises
    is printed, as of any thread.
    """
    buffer = buffer_of(tensor.value)  # type: ignore[attr-defined]

    def wait() -> None:
        jax.block_until_ready(buffer)
        callback(tensor)

    thread = threading.Thread(target=wait, name="on_ready_callback", daemon=True)
    thread.start()
    return thread


def on_ready_event(tensor: torch.Tensor) -> threading.Event:
    """An event that is set once the device has computed the tensor."""
    event = threading.Event()
    on_ready_callback(tensor, lambda _: event.set())
    return event
