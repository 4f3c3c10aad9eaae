"""Every collective in every dtype on worlds of 1 to 8 ranks, as `collective_cases` lists them, and
ranks that come 40 s late."""

import time

import collective_cases
import pytest
from collective_cases import FAMILIES, differences, messages
from device_ranks import DeviceRanks, on_threads


def check(outcomes):
    for rank, (count, wrong) in enumerate(outcomes):
        assert not wrong, f"rank {rank}: {len(wrong)} of {count}: " + "\n".join(wrong[:5])
        assert count > 100


@pytest.mark.timeout(600)  # eight ranks on two cores that others use too
@pytest.mark.parametrize(
    "size",
    [1, 2, *(pytest.param(n, marks=pytest.mark.long) for n in (3, 4, 8))],
)
def test_every_dtype_on_processes(size):
    with DeviceRanks(size) as ranks:
        check(ranks.run(differences, timeout_s=580))


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("size", [2, 3, 4, 8])
def test_every_dtype_on_threads(size):
    check(on_threads(size, differences, timeout_s=580))


@pytest.mark.long
@pytest.mark.parametrize("size", [2, 3])
def test_every_dtype_over_the_mesh(size):
    with DeviceRanks(size, XDIST_TRANSPORT="gloo") as ranks:
        check(ranks.run(differences, timeout_s=580))


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "per_host",
    [
        (1, 1),
        pytest.param((2, 1), marks=pytest.mark.long),
        pytest.param((2, 2), marks=pytest.mark.long),
    ],
)
def test_every_dtype_between_hosts(per_host):
    with DeviceRanks(sum(per_host), per_host) as ranks:
        check(ranks.run(differences, timeout_s=580))


def first_of_each_dtype(rank, size):
    return differences(rank, size, [collective_cases.all_reduces, messages])


def test_sums_and_messages_of_every_dtype_between_three_ranks(three):
    for _, wrong in three.run(first_of_each_dtype):
        assert not wrong


def test_a_wrong_value_is_found():
    def wrong(rank, size):
        import torch

        one = torch.ones(1)
        yield collective_cases.Case("one is two", [one], [one + 1])
        yield collective_cases.Case("one is none", [one], [])

    found = differences(0, 1, [wrong])[1]
    assert len(FAMILIES) == 8
    assert [text.partition(":")[0] for text in found] == ["one is two", "one is none"]


def forty_seconds_late(rank, size):
    """The last rank sleeps. Each other one waits for it in something else."""
    import contextlib
    import io

    import torch

    import torch_xla.core.xla_model as xm
    from torch_xdist.collectives import wait_report

    wait_report.REPORT_EVERY_S = 10
    late, told = size - 1, io.StringIO()
    x = torch.arange(2.0 * size).to("xla") + rank

    def scatter(groups=None, count=size):
        return xm.reduce_scatter("sum", x[: 2 * count], 1.0, 0, count, groups).cpu()

    expected = sum(torch.arange(2.0 * size) + r for r in range(size)).chunk(size)[rank]
    assert torch.equal(scatter(), expected)
    if rank == late:
        time.sleep(40)
    start_s = time.monotonic()
    with contextlib.redirect_stderr(told):
        assert torch.equal(scatter(), expected)
    return time.monotonic() - start_s, told.getvalue()


@pytest.mark.long
@pytest.mark.parametrize("transport", ["host", "gloo"])
def test_a_reduce_scatter_waits_for_a_rank_forty_seconds_late(transport):
    with DeviceRanks(3, XDIST_TRANSPORT=transport) as ranks:
        *others, last = ranks.run(forty_seconds_late)
    for rank, (waited_s, told) in enumerate(others):
        assert waited_s > 38
        assert f"torch-xdist: rank {rank} has waited" in told
        assert "reduce_scatter" in told and "rank 2" in told
    assert last[0] < 10


def other_waits(rank, size):
    """Rank 3 is late: rank 0 receives from it, rank 1 waits in a rendezvous, rank 2 gathers."""
    import contextlib
    import io

    import torch

    import torch_xla.core.xla_model as xm
    from torch_xdist.collectives import wait_report
    from torch_xdist.collectives.messages import communicator

    wait_report.REPORT_EVERY_S = 10
    xm.rendezvous("all are here")
    if rank == 3:
        time.sleep(40)
    told, x = io.StringIO(), torch.tensor([float(rank)]).to("xla")
    groups = [[0], [1], [2, 3]]
    with contextlib.redirect_stderr(told):
        found = {}
        if rank in (0, 3):
            found["message"] = (xm.recv(x, 1) if rank == 0 else xm.send(x, 1)).item()
        if rank in (1, 3):
            found["rendezvous"] = xm.rendezvous("late", bytes([rank]), [1, 3])
            communicator.current().send(4 - rank, "message", bytes([rank]))
            found["bytes"] = communicator.current().receive(4 - rank, "message")
        if rank in (2, 3):
            found["sum"] = xm.all_reduce("sum", torch.ones(1).to("xla"), groups=groups).item()
    return found, told.getvalue()


@pytest.mark.long
def test_messages_and_rendezvous_wait_for_a_rank_forty_seconds_late(four):
    outcomes = four.run(other_waits)
    found = [found for found, _ in outcomes]
    assert found[0]["message"] == found[3]["message"] == 3.0
    assert found[1]["rendezvous"] == found[3]["rendezvous"] == [b"\x01", b"\x03"]
    assert (found[1]["bytes"], found[3]["bytes"]) == ((3, b"\x03"), (1, b"\x01"))
    assert found[2]["sum"] == found[3]["sum"] == 2.0
    # The rendezvous are kept by rank 0's, and so is the line about those who wait at it.
    told = [told for _, told in outcomes]
    assert "rank 0 has waited 10 s in recv(channel 1) of float32[1] for a rank to send" in told[0]
    assert "rank 1 has waited" in told[0] and "in rendezvous 'late' for rank 3" in told[0]
    assert "rank 2 has waited" in told[2] and "in groups [[0], [1], [2, 3]]" in told[2]
