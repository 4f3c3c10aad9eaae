"""Threads of one process as ranks: what one does for all devices leaves the others' steps alone."""

import pytest
from device_ranks import on_threads


def waits_for_all_devices(rank, size):
    """One rank waits for all devices, or saves, while the other is inside a collective."""
    import time

    import torch

    import torch_xla
    import torch_xla.core.xla_model as xm
    from torch_xdist.checkpoint.state import end_step

    found = []
    for turn in range(4):
        total = xm.all_reduce("sum", torch.ones(2, device="xla") * (rank + 1))
        torch_xla.sync()
        total = xm.all_reduce("sum", total)
        if rank == 0:
            # The other one is in its collective by now, or has it pending.
            time.sleep(0.3 * (turn % 2))
            xm.wait_device_ops() if turn < 2 else end_step()
        else:
            time.sleep(0.3 * (1 - turn % 2))
        found.append(total.tolist()[0])
    return found


@pytest.mark.timeout(150)
def test_a_rank_that_waits_for_all_devices_does_not_wait_for_the_steps_of_other_ranks():
    assert on_threads(2, waits_for_all_devices) == [[6.0] * 4] * 2
