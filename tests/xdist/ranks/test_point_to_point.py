"""`xm.send` and `xm.recv` between real ranks: rings, several messages at once, ranks that take no
part, and what is said when a message cannot come."""

import pytest
import torch
from device_ranks import DeviceRanks, on_threads

import torch_xla.core.xla_model as xm
from torch_xdist.core.torch_side import registration
from torch_xdist.errors import DeviceError, WorldError

registration.register()


def passes_on(rank, size):
    import time

    import torch_xla.core.xla_model as xm
    from torch_xdist.core.run import cuts

    # A ring: everybody sends first. The value goes all the way round in one program.
    x = torch.full((2, 3), float(rank)).to("xla")
    for _ in range(size):
        xm.send(x, channel_id=(rank + 1) % size)
        received = torch.zeros(2, 3).to("xla")
        assert xm.recv(received, channel_id=rank) is received
        x = received + 1
    before = len(cuts.LOG)
    ring = x.cpu().tolist(), len(cuts.LOG) - before
    # Five messages in flight on each of two channels, the second of which is read first.
    if rank == 0:
        for count in range(5):
            xm.send(torch.tensor(10 + count).to("xla"), 7)
            xm.send(torch.tensor([20 + count, 0]).to("xla"), 8)
    several = []
    if rank == size - 1:
        for channel, shape in ((8, (2,)), (7, ())):
            several += [
                xm.recv(torch.zeros(shape, dtype=torch.long).to("xla"), channel) for _ in range(5)
            ]
    # Only the last two ranks take part; the others meanwhile do nothing at all.
    ping = torch.tensor([1.5]).to("xla")
    if rank == size - 2:
        xm.send(ping, 9)
        xm.recv(ping, 9)
        assert ping.item() == 3.0
    elif rank == size - 1:
        xm.send(xm.recv(ping, 9) * 2, 9)
        assert ping.item() == 1.5
    else:
        time.sleep(1)
    # A message is on its way when the program that sends it ran, whoever receives it, and when.
    big = torch.arange(3_000_000, dtype=torch.float32).to("xla")
    if rank == 1:
        xm.send(big, 11)
    xm.rendezvous("sent")
    if rank == 0:
        assert torch.equal(xm.recv(big * 0, 11).cpu(), big.cpu())
    return ring, [x.cpu().flatten()[0].item() for x in several]


LONG = pytest.mark.long


@pytest.mark.parametrize(
    "world", ["three", pytest.param("two", marks=LONG), pytest.param("four", marks=LONG)]
)
def test_messages_go_round_a_ring_and_between_any_two(world, request):
    ranks = request.getfixturevalue(world)
    outcomes = ranks.run(passes_on)
    for rank, ((value, programs), _) in enumerate(outcomes):
        assert value == [[rank + float(ranks.size)] * 3] * 2
        assert programs == 1
    assert outcomes[-1][1] == [*range(20, 25), *range(10, 15)]


@pytest.mark.long
def test_messages_go_between_threads():
    found = on_threads(3, passes_on)
    for rank, ((value, _), _) in enumerate(found):
        assert value == [[rank + 3.0] * 3] * 2
    assert found[2][1] == [*range(20, 25), *range(10, 15)]


def goes_wrong(rank, size):
    import torch_xla.core.xla_model as xm
    from torch_xdist.collectives.errors import MismatchError

    def told(read):
        try:
            return f"no error: {read().cpu()}"
        except MismatchError as error:
            return str(error)

    found = {}
    if rank == 0:
        xm.send(torch.ones(2, 3).to("xla"), 3).cpu()
    elif rank == 1:
        found["shape"] = told(lambda: xm.recv(torch.ones(6).to("xla"), 3))
    xm.rendezvous("next")
    # Rank 1 waits for a message, all others for rank 1.
    x = torch.ones(2).to("xla")
    if rank == 1:
        found["nobody"] = told(lambda: xm.recv(x, 4))
    else:
        found["elsewhere"] = told(lambda: xm.all_reduce("sum", x))
    xm.rendezvous("next")
    x = torch.ones(2).to("xla")
    found["circle"] = told(lambda: xm.recv(x, 100 + rank))
    xm.rendezvous("next")
    found["again"] = told(lambda: xm.all_reduce("sum", torch.ones(()).to("xla")))
    return found


@pytest.mark.parametrize("world", ["three", pytest.param("two", marks=LONG)])
def test_a_message_that_cannot_come_is_an_error_that_says_why(world, request):
    outcomes = request.getfixturevalue(world).run(goes_wrong)
    found = outcomes[1]
    assert "channel 3: rank 0 sent float32[2, 3] (" in found["shape"]
    assert "test_point_to_point.py" in found["shape"]
    assert "and rank 1 called recv(channel 3) of float32[6]; give recv a tensor" in found["shape"]
    assert "rank 1 called recv(channel 4) of float32[2], and nobody is left to" in found["nobody"]
    assert "rank 0 called all_reduce(sum)" in found["nobody"]
    for rank, found in enumerate(outcomes):
        assert "has failed in this group: rank" in found["again"]
        if rank != 1:
            assert f"rank {rank} called all_reduce(sum) of float32[2]" in found["elsewhere"]
            assert "rank 1 called recv(channel 4)" in found["elsewhere"]
        assert f"rank {rank} called recv(channel 10{rank}) of float32[2], and" in found["circle"]
        assert "called recv(channel 10" in found["circle"].partition("is left")[2]


def ends(rank, size):
    import os

    import torch_xla.core.xla_model as xm
    from torch_xdist.collectives.errors import MismatchError

    # A rank that came when the other had ended already would look for it in vain.
    xm.rendezvous("both are there")
    x = torch.tensor(4.0).to("xla")
    if rank == 0:
        xm.send(x, 1).cpu()
        os._exit(0)
    first = xm.recv(x * 0, 1).item()
    try:
        xm.recv(x, 1).cpu()
    except MismatchError as error:
        return first, str(error)
    return first, ""


def test_what_a_rank_sent_before_it_ended_arrives_and_nothing_more_does():
    with DeviceRanks(2) as own:
        (_, died), (good, (first, message)) = own.outcomes(ends)
    assert "died with exit code 0" in died
    assert good and first == 4.0
    assert "nobody is left to send on channel 1: rank 0 has ended; every recv needs" in message


def over_the_mesh(rank, size):
    import torch_xla.core.xla_model as xm
    from torch_xdist.collectives.errors import CollectiveError, MismatchError

    after = (rank + 1) % size
    sums = xm.all_reduce("sum", torch.tensor([1.0, rank]).to("xla"))
    xm.send(sums + rank, after)
    xm.send(torch.tensor(rank == 0).to("xla"), 10 + after)
    flag = xm.recv(torch.tensor(False).to("xla"), 10 + rank).item()
    x = xm.recv(torch.zeros(2).to("xla"), rank).cpu().tolist()
    message = ""
    if rank == 0:
        xm.send(sums, 20)
    elif rank == 1:
        with pytest.raises(MismatchError) as caught:
            xm.recv(torch.zeros(3).to("xla"), 20)
        message = str(caught.value)
    xm.send(sums, 21)
    xm.rendezvous("next")
    two_senders = ""
    if rank == 0:
        with pytest.raises(CollectiveError) as refused:
            xm.recv(sums, 21)
        two_senders = str(refused.value)
    return x, flag, message, two_senders


@pytest.mark.long
@pytest.mark.parametrize("size", [2, 3])
def test_over_the_mesh_messages_go_through_the_coordination_service(size):
    with DeviceRanks(size, XDIST_TRANSPORT="gloo") as ranks:
        outcomes = ranks.run(over_the_mesh)
    for rank, (x, flag, _, _) in enumerate(outcomes):
        before = (rank - 1) % size
        assert x == [size + before, sum(range(size)) + before]
        assert flag == (before == 0)
    assert "channel 20: rank 0 sent float32[2], and rank 1 called recv(" in outcomes[1][2]
    refused = outcomes[0][3]
    assert "recv on 'channel 21': ranks 0" in refused and "only one rank may send" in refused


def test_a_message_needs_two_ranks_and_a_device_tensor():
    with pytest.raises(WorldError, match=r"xm.send\(channel_id=3\): the world has one rank, and"):
        xm.send(torch.ones(2).to("xla"), 3)
    with pytest.raises(DeviceError, match=r"xm.recv.*not an XLA tensor: torch.FloatTensor"):
        xm.recv(torch.ones(2), 3)


def test_fakes_are_neither_sent_nor_kept_apart():
    from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

    with FakeTensorMode():
        x = torch.ones(4, 3, device="xla")
        results = [xm.send(x, 1), xm.recv(x, 1)]
        xm.optimization_barrier_([x])
    assert all(isinstance(r, FakeTensor) and r.shape == (4, 3) for r in results)
