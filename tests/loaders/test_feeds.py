"""Batches reach the loop in order, from threads that end whatever happens."""

import sqlite3
import time
import traceback

import pytest
import torch

from torch_xdist.loaders import threads
from torch_xdist.loaders.errors import ArgumentError, BatchError
from torch_xdist.loaders.mp_device import MpDeviceLoader
from torch_xdist.loaders.pace import Pace
from torch_xdist.loaders.parallel import ParallelLoader, PerDeviceLoader

pytestmark = pytest.mark.usefixtures("cuts_made")

DEVICE = "xla:0"


def copy(tensors, device):
    return [tensor.clone() for tensor in tensors]


def numbers(count, pause_s=0.0):
    for number in range(count):
        time.sleep(pause_s)
        yield torch.tensor(number)


class Numbers:
    """A loader of `count` batches that can be iterated again."""

    def __init__(self, count, pause_s=0.0):
        self.count = count
        self.pause_s = pause_s

    def __iter__(self):
        return numbers(self.count, self.pause_s)

    def __len__(self):
        return self.count


def ints(batches):
    return [int(batch) for batch in batches]


def test_every_batch_comes_in_order_and_again_in_the_next_pass():
    loader = MpDeviceLoader(Numbers(30), DEVICE, move=copy)
    for _ in range(3):
        assert ints(loader) == list(range(30))
    assert len(loader) == 30


@pytest.mark.parametrize("movers", [1, 3])
def test_several_transfer_threads_keep_the_order(movers):
    def slow_first(tensors, device):
        time.sleep(0.003 if int(tensors[0]) % movers == 0 else 0)
        return copy(tensors, device)

    loader = MpDeviceLoader(
        Numbers(20),
        DEVICE,
        move=slow_first,
        host_to_device_transfer_threads=movers,
        device_prefetch_size=2,
        loader_prefetch_size=2,
    )
    assert ints(loader) == list(range(20))


def test_batches_go_round_the_devices_and_an_incomplete_round_is_dropped():
    loader = ParallelLoader(Numbers(8), ["xla:0", "xla:1", "xla:2"], move=copy)
    parts = [loader.per_device_loader(device) for device in ("xla:0", "xla:1", "xla:2")]
    assert [len(part) for part in parts] == [2, 2, 2] and loader.per_device_samples() == 2
    assert [ints(part) for part in parts] == [[0, 3], [1, 4], [2, 5]]


def test_more_devices_than_batches_make_an_empty_pass():
    loader = ParallelLoader(Numbers(1), ["xla:0", "xla:1"], move=copy)
    assert ints(loader.per_device_loader("xla:1")) == []


def test_a_device_has_one_iterator_by_its_class_too():
    loader = ParallelLoader(Numbers(4), ["xla:0", "xla:1"], move=copy)
    part = PerDeviceLoader(loader, torch.device("xla:1"))
    assert ints(part) == [1, 3] and ints(part) == []
    with pytest.raises(ArgumentError, match="no device xla:3 here; it was made for xla:0, xla:1"):
        PerDeviceLoader(loader, torch.device("xla:3"))


def test_the_old_form_numbers_the_batches_of_each_device():
    loader = ParallelLoader(Numbers(4), ["xla:0", "xla:1"], numbered=True, move=copy)
    assert [(i, int(b)) for i, b in loader.per_device_loader("xla:1")] == [(0, 1), (1, 3)]


def test_next_item_gives_none_at_the_end():
    loader = ParallelLoader(loader=Numbers(1), devices=[DEVICE], move=copy)
    assert int(loader.next_item(DEVICE)) == 0
    assert loader.next_item(DEVICE) is None
    assert loader.next_item(DEVICE) is None


def test_a_device_without_an_index_is_the_only_one():
    loader = ParallelLoader(Numbers(2), ["xla:0"], move=copy)
    assert ints(loader.per_device_loader("xla")) == [0, 1]


def test_reading_ahead_is_bounded():
    made = []

    def counted():
        for batch in numbers(100):
            made.append(batch)
            yield batch

    loader = ParallelLoader(
        counted(), [DEVICE], loader_prefetch_size=2, device_prefetch_size=3, move=copy
    )
    iterator = loader.per_device_loader(DEVICE)
    next(iterator)
    time.sleep(0.3)
    # Handed out, waiting on the device, in the mover's hand, on the host, in the reader's hand.
    assert len(made) <= 1 + 3 + 1 + 2 + 1
    iterator.close()


def test_reading_ahead_overlaps_with_the_step():
    begun = []

    def announced():
        for number in range(20):
            begun.append(number)
            time.sleep(0.02)
            yield torch.tensor(number)

    ahead = 0
    for number in map(int, MpDeviceLoader(announced(), DEVICE, move=copy)):
        time.sleep(0.02)
        deadline_s = time.monotonic() + 1
        while len(begun) < min(number + 2, 20) and time.monotonic() < deadline_s:
            time.sleep(0.002)
        ahead += len(begun) >= number + 2
    # The first few are made by the loop itself, until they were timed.
    assert ahead >= 10


def test_an_exception_comes_after_the_good_batches_with_its_traceback():
    def failing():
        yield from numbers(3)
        raise KeyError("sample 17")

    got = []
    with pytest.raises(KeyError, match="sample 17") as caught:
        for batch in MpDeviceLoader(failing(), DEVICE, move=copy):
            got.append(int(batch))
    assert got == [0, 1, 2]
    assert "failing" in [frame.name for frame in traceback.extract_tb(caught.value.__traceback__)]


def test_after_an_exception_the_pass_is_over():
    def failing():
        yield from numbers(1)
        raise ValueError("no")

    iterator = iter(MpDeviceLoader(failing(), DEVICE, move=copy))
    next(iterator)
    with pytest.raises(ValueError, match="no"):
        next(iterator)
    assert next(iterator, "ended") == "ended"


def test_a_tensor_that_cannot_be_moved_is_named():
    def refusing(tensors, device):
        if all(tensor.dtype is torch.int64 for tensor in tensors):
            return tensors
        raise TypeError("no such dtype there")

    batches = [{"x": [torch.tensor(1)]}, {"x": [torch.tensor(1), torch.ones(2, dtype=torch.half)]}]
    iterator = iter(MpDeviceLoader(batches, DEVICE, move=refusing))
    next(iterator)
    with pytest.raises(
        BatchError,
        match=r"batch\['x'\]\[1\], a torch.float16 tensor of shape \(2,\).*no such dtype",
    ):
        next(iterator)


def test_a_tensor_of_another_device_is_refused():
    with pytest.raises(BatchError, match="it lies on meta; give dense CPU tensors"):
        list(MpDeviceLoader([torch.ones(1, device="meta")], DEVICE, move=copy))


def test_a_break_ends_the_threads():
    for batch in MpDeviceLoader(Numbers(10**9), DEVICE, move=copy):
        if batch == 5:
            break
    assert _ended()


def test_an_error_in_the_loop_ends_the_threads():
    def train():
        for _ in MpDeviceLoader(Numbers(10**9), DEVICE, move=copy):
            raise RuntimeError("loss is nan")

    with pytest.raises(RuntimeError, match="loss is nan"):
        train()
    assert _ended()


def test_a_loader_that_is_let_go_ends_its_threads():
    loader = ParallelLoader(Numbers(10**9), [DEVICE], move=copy)
    assert threads.live()
    del loader
    assert _ended()


def test_a_new_pass_ends_the_one_under_way():
    loader = MpDeviceLoader(Numbers(1000), DEVICE, move=copy)
    first = iter(loader)
    next(first)
    assert ints(loader) == list(range(1000))
    assert next(first, "ended") == "ended"


def test_the_users_generator_is_closed_when_the_pass_ends_early():
    closed = []

    def generator():
        try:
            yield from numbers(10**9)
        finally:
            closed.append(True)

    for _ in MpDeviceLoader(generator(), DEVICE, move=copy):
        break
    assert _ended() and closed == [True]


def test_quick_batches_are_made_on_the_spot(monkeypatch):
    monkeypatch.setattr(Pace, "is_quick", lambda self: True)
    loader = MpDeviceLoader(Numbers(50), DEVICE, move=copy)
    for _ in range(2):
        for got, batch in enumerate(loader):
            assert int(batch) == got
            assert threads.live() == []


def test_batches_that_become_slow_are_read_ahead_from_there_on(monkeypatch):
    paces = []
    monkeypatch.setattr(Pace, "is_quick", lambda self: paces.append(self) or len(paces) <= 20)
    loader = MpDeviceLoader(Numbers(10**9), DEVICE, move=copy)
    for got, batch in enumerate(loader):
        assert int(batch) == got
        assert bool(threads.live()) == (got >= 19)
        if got == 40:
            break


def test_slow_batches_are_read_ahead_in_every_pass():
    # So many that the reader is still at it when it is looked for, however slow this thread is.
    loader = MpDeviceLoader(Numbers(40, pause_s=0.006), DEVICE, move=copy)
    for looked_for_at in (2, 0):
        for number, batch in enumerate(loader):
            assert int(batch) == number
            time.sleep(0.01)
            assert number != looked_for_at or threads.live()
        assert number == 39


def test_an_exception_on_the_spot_comes_after_the_good_batches_too(monkeypatch):
    class Failing(Numbers):
        fails = False

        def __iter__(self):
            yield from numbers(self.count)
            if self.fails:
                raise OSError("disk gone")

    monkeypatch.setattr(Pace, "is_quick", lambda self: True)
    source = Failing(10)
    loader = MpDeviceLoader(source, DEVICE, move=copy)
    list(loader)
    source.fails = True
    iterator = iter(loader)
    assert [int(next(iterator)) for _ in range(10)] == list(range(10))
    with pytest.raises(OSError, match="disk gone"):
        next(iterator)


def test_fixed_batch_size_stops_before_the_first_other_size():
    batches = [torch.ones(4, 2), torch.ones(4, 2), torch.ones(3, 2)]
    assert len(list(MpDeviceLoader(batches, DEVICE, fixed_batch_size=True, move=copy))) == 2
    # torch_xla 1.7 had the parameter in the fourth place.
    old = ParallelLoader(batches, [DEVICE], 0, True, move=copy)
    assert len(list(old.per_device_loader(DEVICE))) == 2


def test_fixed_batch_size_wants_one_size_in_a_batch():
    batches = [(torch.ones(4), torch.ones(3))]
    with pytest.raises(BatchError, match=r"sizes \[3, 4\] in dim 0"):
        list(MpDeviceLoader(batches, DEVICE, fixed_batch_size=True, move=copy))


def test_a_loader_pads_its_batches():
    batches = [torch.ones(2, 3), torch.ones(2, 7)]
    loader = MpDeviceLoader(batches, DEVICE, buckets=[4, 8], move=copy)
    assert [batch.shape[1] for batch in loader] == [4, 8]


def test_uneven_ranks_are_agreed_upon():
    loader = MpDeviceLoader(
        Numbers(5), DEVICE, uneven="drop", exchange=lambda n: [n, min(n, 1)], move=copy
    )
    assert ints(loader) == [0, 1]
    # One rank has nobody to agree with.
    assert ints(MpDeviceLoader(Numbers(5), DEVICE, uneven="error", move=copy)) == list(range(5))


def test_input_sharding_is_applied_by_key():
    applied = []

    class Spec:
        def apply(self, tensor):
            applied.append(int(tensor))

    batch = {"x": torch.tensor(1), "y": torch.tensor(2)}
    spec = Spec()
    list(MpDeviceLoader([batch], DEVICE, input_sharding=spec, move=copy))
    list(MpDeviceLoader([batch], DEVICE, input_sharding={"x": spec, "y": spec}, move=copy))
    assert applied == [1, 2, 1, 2]
    with pytest.raises(KeyError, match=r"Keys: \['y'\] are missing from input_sharding"):
        list(MpDeviceLoader([batch], DEVICE, input_sharding={"x": spec}, move=copy))
    with pytest.raises(BatchError, match="input_sharding is a dict and the batch a list"):
        list(MpDeviceLoader([[batch["x"]]], DEVICE, input_sharding={"x": spec}, move=copy))


@pytest.mark.parametrize(
    ("kwargs", "words"),
    [
        ({"loader_prefetch_size": 0}, "loader_prefetch_size is 0; it needs at least 1"),
        ({"devices": []}, "devices is 0; it needs at least 1"),
        ({"loader": 5}, "the loader is 5; it needs an iterable of batches"),
        ({"uneven": "no"}, "uneven='no'; it may be"),
    ],
)
def test_parameters_that_cannot_work_are_refused(kwargs, words):
    with pytest.raises(ArgumentError, match=words):
        ParallelLoader(**{"loader": Numbers(1), "devices": [DEVICE], **kwargs})


def test_a_device_the_loader_was_not_made_for_is_refused():
    loader = ParallelLoader(Numbers(1), ["xla:0", "xla:1"], move=copy)
    with pytest.raises(ArgumentError, match="no device xla:7 here; it was made for xla:0, xla:1"):
        loader.per_device_loader("xla:7")


def test_the_wait_for_input_is_measured_and_judged():
    loader = MpDeviceLoader(Numbers(10, pause_s=0.02), DEVICE, move=copy)
    list(loader)
    assert loader.input_wait.batches == 10 and loader.input_wait.share > 0.5
    assert loader.input_wait.verdict().startswith("input-bound: ")
    fast = MpDeviceLoader(Numbers(10), DEVICE, move=copy)
    for _ in fast:
        time.sleep(0.05)
    assert fast.input_wait.verdict().startswith("not input-bound: ")


def test_a_subclass_finds_the_attributes_it_expects():
    class Wrapped(MpDeviceLoader):
        def __iter__(self):
            self.seen = (self._loader, self._device, self._parallel_loader_kwargs)
            return super().__iter__()

    numbers_ = Numbers(2)
    loader = Wrapped(numbers_, DEVICE, move=copy)
    assert ints(loader) == [0, 1]
    assert loader.seen == (numbers_, DEVICE, {"move": copy})


def test_iter_is_called_on_the_callers_thread():
    class Connected(Numbers):
        def __iter__(self):
            self.connection.execute("select 1")  # sqlite refuses other threads
            return super().__iter__()

    source = Connected(2)
    source.connection = sqlite3.connect(":memory:")
    assert ints(MpDeviceLoader(source, DEVICE, move=copy)) == [0, 1]
    source.connection.close()


def _ended():
    deadline_s = time.monotonic() + 5
    while threads.live() and time.monotonic() < deadline_s:
        time.sleep(0.005)
    return threads.live() == []
