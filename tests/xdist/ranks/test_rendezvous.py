"""Rendezvous of the ranks, and what is built on them, on one rank and between real processes."""

import subprocess
import sys

import pytest
import torch

from torch_xdist.collectives.messages import communicator
from torch_xdist.core.torch_side import registration
from torch_xdist.errors import WorldError
from torch_xdist.ranks import rendezvous

registration.register()


def calls(rank, size):
    from torch_xdist.ranks import collective_ops, rendezvous

    # Pending on all ranks; rank 0 reads it, the others go to the rendezvous.
    total = collective_ops.all_reduce("sum", torch.ones(1).to("xla"))
    read = total.item() if rank == 0 else None
    mean = rendezvous.mesh_reduce(
        "mean",
        {"right": torch.tensor(rank * 2).to("xla"), "of": 4},
        lambda parts: sum(int(p["right"]) for p in parts) / sum(p["of"] for p in parts),
    )
    written = []
    result = rendezvous.do_on_ordinals(
        lambda x: written.append(x.device.type) or x.item(), (total,), ordinals=(1,)
    )
    return {
        "read": read,
        "payloads": rendezvous.rendezvous("tag", str(rank).encode()),
        "some": rendezvous.rendezvous("some", b"%d" % rank, [0, 2]) if rank != 1 else None,
        "xla": rendezvous.xla_rendezvous(b"x" * rank),
        "mean": mean,
        "did": (result, written),
    }


def test_ranks_meet_and_share_what_they_bring(three):
    for rank, found in enumerate(three.run(calls)):
        assert found == {
            "read": 3.0 if rank == 0 else None,
            "payloads": [b"0", b"1", b"2"],
            "some": None if rank == 1 else [b"0", b"2"],
            "xla": [b"", b"x", b"xx"],
            "mean": 0.5,
            "did": (3.0, ["cpu"]) if rank == 1 else (None, []),
        }


def test_one_rank_meets_itself():
    assert rendezvous.rendezvous("tag") == [b""]
    assert rendezvous.xla_rendezvous(b"a", ordinals=[0]) == [b"a"]
    value = torch.ones(2).to("xla")
    assert rendezvous.mesh_reduce("tag", value, lambda parts: parts[0].device.type) == "cpu"
    assert rendezvous.do_on_ordinals(lambda a, b: a + b, (1, 2)) == 3
    assert rendezvous.do_on_ordinals(lambda: 1, ordinals=(1,)) is None


def arrive_with_a_long_step(rank, size):
    """Whether the device is done when the ranks hear that this one has arrived, and its cost."""
    import torch

    import torch_xla
    import torch_xla.debug.metrics as met
    from torch_xdist.collectives.messages import communicator
    from torch_xdist.ranks import rendezvous

    # The first run of a program is waited for.
    for _ in range(2):
        x = torch.ones(400, 400, device="xla")
        for _ in range(10):
            x = x @ x * 1e-3
        torch_xla.sync()
    y = x + rank
    before = met.counter_value("xla::_to_cpu") or 0
    found = []
    here, real = communicator.current(), communicator.current().exchange

    def exchange(*arguments):
        found.append([t.value.buffer is not None and t.value.buffer.is_ready() for t in (x, y)])
        return real(*arguments)

    here.exchange = exchange
    try:
        rendezvous.rendezvous("done")
    finally:
        del here.exchange
    return found, met.counter_value("xla::_to_cpu") - before


def test_a_rank_arrives_when_its_device_is_done(three):
    assert three.run(arrive_with_a_long_step) == [([[True, True]], 1)] * 3


ALONE = """
import torch_xla.core.xla_model as xm, torch_xla.debug.metrics as met
from torch_xdist.core.devices import device
assert xm.rendezvous("tag", b"a") == [b"a"]
print(device.is_started(), met.counter_value("xla::_to_cpu"))
"""


@pytest.mark.parametrize(
    ("variables", "told"),
    [({}, "False None"), ({"RANK": "0", "WORLD_SIZE": "1"}, "True 1")],
    ids=["no launcher", "a launcher"],
)
def test_only_a_rank_starts_its_device_to_meet_itself(variables, told, monkeypatch):
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    done = subprocess.run([sys.executable, "-c", ALONE], capture_output=True, text=True, timeout=90)
    assert done.stdout.strip() == told, done.stderr


FORKED = """
import multiprocessing, torch, torch_xla
import torch_xla.core.xla_model as xm
torch.ones(2, device="xla").cpu()
def child():
    print(xm.rendezvous("tag", b"a"), flush=True)
process = multiprocessing.get_context("fork").Process(target=child)
process.start()
process.join(60)
"""


def test_a_worker_forked_from_a_rank_that_is_alone_still_meets_itself(monkeypatch):
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "1")
    command = [sys.executable, "-W", "ignore", "-c", FORKED]
    done = subprocess.run(command, capture_output=True, text=True, timeout=90)
    assert done.stdout.strip() == "[b'a']", done.stderr


def test_payloads_must_be_bytes():
    with pytest.raises(TypeError, match="payload is a str; it must be bytes"):
        rendezvous.rendezvous("tag", "text")
    with pytest.raises(TypeError, match="`payload` must be bytes, not str"):
        rendezvous.xla_rendezvous("text")
    with pytest.raises(ValueError, match="Only global rendezvous is supported"):
        rendezvous.xla_rendezvous(b"", ordinals=[1])


class Payload:
    """What is brought to a mesh_reduce; unpickling it is seen."""

    opened = 0

    def __init__(self, number):
        self.number = number

    def __reduce__(self):
        return _opened, (self.number,)


def _opened(number):
    Payload.opened += 1
    return Payload(number)


class Others:
    """A communicator of two ranks that bring the same; `is_authenticated` as told."""

    rank, world_size = 0, 2

    def __init__(self, is_authenticated):
        self.is_authenticated = is_authenticated

    def exchange(self, tag, payload, ranks):
        return [payload, payload]


@pytest.fixture
def among_two(monkeypatch):
    monkeypatch.setattr(rendezvous.world, "process_count", lambda: 2)

    def become(is_authenticated):
        communicator.use(Others(is_authenticated), thread_only=True)

    yield become
    communicator.use(None, thread_only=True)


def numbers(parts):
    return [part["is"].number for part in parts]


def test_a_pickle_that_anybody_may_have_written_is_not_opened(among_two):
    among_two(is_authenticated=False)
    before = Payload.opened
    with pytest.raises(
        WorldError, match=r"mesh_reduce\('tag'\): rank 0 brought what only a pickle"
    ):
        rendezvous.mesh_reduce("tag", {"is": Payload(3)}, numbers)
    assert Payload.opened == before
    # Tensors and plain data need no pickle.
    plain = {"x": torch.ones(2), "n": [1, 2.5, "a", None, True, b"b"], "c": 1 + 2j, "s": {3}}
    found = rendezvous.mesh_reduce("tag", plain, lambda parts: parts[1])
    assert torch.equal(found.pop("x"), torch.ones(2))
    assert found == {"n": [1, 2.5, "a", None, True, b"b"], "c": 1 + 2j, "s": {3}}


def test_any_object_goes_between_ranks_that_know_each_other(among_two):
    among_two(is_authenticated=True)
    assert rendezvous.mesh_reduce("tag", {"is": Payload(3)}, numbers) == [3, 3]


def test_bytes_that_are_neither_are_an_error(among_two):
    among_two(is_authenticated=False)
    communicator.current().exchange = lambda *_: [b"cos\nsystem\n(S'true'\ntR.", b""]
    with pytest.raises(WorldError, match=r"mesh_reduce\('tag'\): rank 0 brought"):
        rendezvous.mesh_reduce("tag", 1, list)
