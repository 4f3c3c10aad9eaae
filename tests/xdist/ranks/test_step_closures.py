"""Asynchronous step closures of ranks that are threads of one process."""

from device_ranks import on_threads


def what_a_closure_sees(rank, size):
    """The rank, device and loss in an asynchronous closure, and what the ranks' closures bring."""
    import torch

    import torch_xla
    import torch_xla.core.xla_model as xm
    from torch_xdist import world
    from torch_xdist.core.devices import closures

    loss = torch.full((2,), float(rank), device="xla").sum()
    found = []

    def closure(value):
        new = torch.ones(1, device="xla") + value
        brought = xm.rendezvous("closures", bytes([world.rank()]))
        found.append((world.rank(), new.device.index, new.item(), brought))

    xm.add_step_closure(closure, args=(loss,), run_async=True)
    torch_xla.sync()
    closures.wait_step_closures()
    return found


def test_an_asynchronous_step_closure_works_as_the_rank_that_added_it():
    brought = [b"\0", b"\1", b"\2"]
    for rank, found in enumerate(on_threads(3, what_a_closure_sees)):
        assert found == [(rank, rank, 2.0 * rank + 1, brought)]
