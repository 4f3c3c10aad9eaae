"""Threads of one process as ranks: what one does for all devices leaves the others' steps alone."""

import pytest
from device_ranks import on_threads
from rank_pool import RankPool


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


def fails_while_another_waits(rank, size):
    import os

    from torch_xdist import settings
    from torch_xdist.core.torch_side import registration
    from torch_xdist.ranks import rendezvous, replicas

    os.environ["CPU_NUM_DEVICES"] = "2"
    settings.reread()
    registration.register()

    def fail(thread):
        if thread == 0:
            rendezvous.rendezvous("never")
        raise TypeError(f"of rank {thread}")

    try:
        replicas.spawn_threads(fail)
    except TypeError as error:
        return str(error)


def test_the_first_exception_of_a_thread_comes_out_while_others_wait():
    with RankPool(1) as pool:
        assert pool.run(1, fails_while_another_waits, join=False) == ["of rank 1"]


def leaves_a_collective_pending(rank, size):
    """One rank reads what all have recorded; the others end."""
    import torch

    import torch_xla.core.xla_model as xm

    total = xm.all_reduce("sum", torch.ones(1, device="xla"))
    return total.item() if rank == 0 else None


def test_a_thread_that_ends_runs_the_collectives_others_wait_in():
    assert on_threads(3, leaves_a_collective_pending) == [3.0, None, None]


def sets_a_variable(rank, size):
    import os

    import torch

    from torch_xdist import settings

    os.environ["XLA_TRIM_GRAPH_SIZE"] = "1234"
    torch.ones(1, device="xla").cpu()
    return settings.current().trace_limit


def test_variables_hold_that_a_thread_sets_before_its_first_use_of_the_device():
    assert on_threads(2, sets_a_variable) == [1234] * 2
