"""Collectives on device tensors, by torch_xla's rules, between real processes."""

import pytest
import torch

from torch_xdist.collectives.errors import ArgumentError, DtypeError
from torch_xdist.core.torch_side import registration
from torch_xdist.errors import DeviceError
from torch_xdist.ranks import collective_ops as xm
from torch_xla.distributed import xla_multiprocessing as xmp

registration.register()


def reduces(rank, size):
    from torch_xdist.core.devices import steps
    from torch_xdist.core.run import cuts
    from torch_xdist.ranks import collective_ops as xm

    x = torch.tensor([1.0, 2.0]).to("xla") + rank
    single = xm.all_reduce("sum", x, scale=0.5)
    kept = [x.clone(), torch.ones(3, dtype=torch.int32).to("xla"), torch.tensor(5.0).to("xla")]
    returned = xm.all_reduce("sum", kept, scale=1.0 / size)
    view = torch.zeros(2, 2).to("xla")
    xm.all_reduce("max", [view[rank].add_(rank + 1)])
    biggest = xm.all_reduce("max", x)
    apart = xm.all_reduce("sum", x, groups=[[0], [1]])
    before = len(cuts.LOG)
    steps.sync()
    values = [t.cpu().tolist() for t in (x, single, *kept, view, biggest, apart)]
    return values, returned is kept, len(cuts.LOG) - before


def test_all_reduce_gives_a_new_tensor_and_writes_lists_in_place(two):
    for rank, (values, same_list, programs) in enumerate(two.run(reduces)):
        x, single, *kept, view, biggest, apart = values
        assert x == [1.0 + rank, 2.0 + rank]
        assert single == [1.5, 2.5]
        assert kept == [[1.5, 2.5], [1, 1, 1], 5.0]
        assert view[rank] == [2.0, 2.0]
        assert biggest == [2.0, 3.0]
        assert apart == x
        assert same_list
        assert programs == 1


def every_dtype(rank, size):
    from torch_xdist.ranks import collective_ops as xm

    found = {}
    for dtype in (
        torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64,
        torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64,
    ):  # fmt: skip
        found[dtype] = xm.all_reduce("sum", torch.tensor([rank, 1]).to(dtype).to("xla"))
    return {dtype: value.cpu() for dtype, value in found.items()}


def test_all_reduce_keeps_every_dtype(two):
    for found in two.run(every_dtype):
        for dtype, value in found.items():
            assert value.dtype == dtype
            expected = torch.tensor([1, 2 if dtype is not torch.bool else 1]).to(dtype)
            torch.testing.assert_close(value, expected)


def moves(rank, size):
    from torch_xdist.ranks import collective_ops as xm

    x = (torch.arange(4.0).reshape(2, 2) + 10 * rank).to("xla")
    output = torch.zeros(4, 2).to("xla")
    shard = torch.zeros(1, 2).to("xla")
    results = {
        "gather": xm.all_gather(x),
        "gather1": xm.all_gather(x, dim=-1),
        "output": xm.all_gather(x, output=output),
        "list": xm.all_gather([x, x + 1], pin_layout=False)[1],
        "buckets": xm.all_gather_bucketized([x, x + 1], bucket_cap_mb=0)[1],
        "scatter": xm.reduce_scatter("sum", x, 0.5, 0, 2),
        "shard": xm.reduce_scatter("sum", x, 1.0, 0, 2, output=shard),
        "shards": xm.reduce_scatter_bucketized("sum", [x, x], 1.0, 1, 2)[1],
        "to_all": xm.all_to_all(x, 0, 1, 2),
        "swap": xm.collective_permute(x, [[0, 1], [1, 0]]),
        "one_way": xm.collective_permute(x, [[0, 1]]),
    }
    identical = results["output"] is output, results["shard"] is shard
    poisoned = torch.full((2,), float("nan") if rank else 3.0).to("xla")
    xm.collective_broadcast([poisoned])
    xm.optimization_barrier_([x])
    results |= {"root": poisoned, "barrier": x}
    return {name: value.cpu().tolist() for name, value in results.items()}, identical


def test_the_other_collectives_move_what_they_say(two):
    xs = [torch.arange(4.0).reshape(2, 2) + 10 * rank for rank in range(2)]
    whole = torch.cat(xs).tolist()
    for rank, (found, identical) in enumerate(two.run(moves)):
        total = xs[0] + xs[1]
        assert identical == (True, True)
        assert found["gather"] == found["output"] == whole
        assert found["gather1"] == torch.cat(xs, -1).tolist()
        assert found["list"] == found["buckets"] == (torch.cat(xs) + 1).tolist()
        assert found["scatter"] == (total[rank : rank + 1] / 2).tolist()
        assert found["shard"] == total[rank : rank + 1].tolist()
        assert found["shards"] == total[:, rank : rank + 1].tolist()
        assert found["to_all"] == torch.cat([x[rank : rank + 1] for x in xs], 1).tolist()
        assert found["swap"] == xs[1 - rank].tolist()
        assert found["one_way"] == (xs[0] * rank).tolist()
        assert found["root"] == [3.0, 3.0]
        assert found["barrier"] == xs[rank].tolist()


def differing(rank, size):
    from torch_xdist.collectives.errors import MismatchError
    from torch_xdist.ranks import collective_ops as xm

    try:
        xm.all_reduce("sum", torch.ones(2 + rank).to("xla")).cpu()
    except MismatchError as error:
        message = str(error)
    return message, xm.all_reduce("sum", torch.ones(()).to("xla")).item()


def test_uneven_shapes_are_an_error_that_names_every_rank_and_its_line(two):
    for message, total in two.run(differing):
        assert "rank 0 called all_reduce(sum) of float32[2]" in message
        assert "rank 1 called all_reduce(sum) of float32[3]" in message
        assert "test_collective_ops.py" in message
        assert total == 2.0


def one_rank_reads(rank, size):
    from torch_xdist.core.devices import steps
    from torch_xdist.ranks import collective_ops as xm

    seen = []
    for step in range(3):
        x = xm.all_reduce("sum", torch.full((2,), 1.0 + step).to("xla"))
        if rank == 0:
            seen.append(x[0].item())
        y = xm.all_reduce("sum", x)
        steps.sync()
    return seen, y.cpu().tolist()


def test_one_rank_may_read_values_and_the_other_not(two):
    assert two.run(one_rank_reads) == [([2.0, 4.0, 6.0], [12.0] * 2), ([], [12.0] * 2)]


def ends_without_a_cut(index, folder):
    from torch_xdist.ranks import collective_ops as xm

    x = torch.ones(2).to("xla") * (index + 1)
    xm.all_reduce("sum", [x])
    if index == 0:
        (folder / "sum").write_text(str(x.cpu().tolist()))


@pytest.mark.long
def test_a_rank_that_ends_runs_the_collectives_others_wait_in(tmp_path):
    xmp.spawn(ends_without_a_cut, args=(tmp_path,), nprocs=2)
    assert (tmp_path / "sum").read_text() == "[3.0, 3.0]"


def trains(rank, size):
    from torch_xdist.core.devices import steps
    from torch_xdist.core.run import cuts
    from torch_xdist.ranks import gradients

    torch.manual_seed(rank)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))
    model = model.to("xla")
    gradients.broadcast_master_param(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    generator = torch.Generator().manual_seed(1)
    compiled = []
    for _ in range(5):
        batch = torch.randn(8, 8, generator=generator)
        mine = batch.chunk(size)[rank].to("xla")
        optimizer.zero_grad()
        model(mine).square().mean().backward()
        gradients.optimizer_step(optimizer)
        steps.sync()
        compiled.append(cuts.LOG[-1].compiled)
    return [p.detach().cpu() for p in model.parameters()], compiled


def test_two_ranks_on_half_batches_train_as_one_on_whole_ones(two):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    generator = torch.Generator().manual_seed(1)
    for _ in range(5):
        optimizer.zero_grad()
        model(torch.randn(8, 8, generator=generator)).square().mean().backward()
        optimizer.step()
    for parameters, compiled in two.run(trains):
        for expected, found in zip(model.parameters(), parameters):
            torch.testing.assert_close(found, expected.detach(), rtol=1e-5, atol=1e-5)
        assert compiled[2:] == [False] * 3


def test_a_world_of_one_copies_and_does_not_scale():
    x = torch.ones(2).to("xla")
    alone = xm.all_reduce("sum", x, scale=0.5)
    tensors = [x]
    assert alone is not x
    assert alone.cpu().tolist() == [1.0, 1.0]
    assert xm.all_reduce("sum", tensors, scale=0.5) is tensors
    assert x.cpu().tolist() == [1.0, 1.0]
    assert xm.all_gather(x).cpu().tolist() == [1.0, 1.0]
    assert xm.reduce_scatter("sum", x, 0.5, 0, 1).cpu().tolist() == [0.5, 0.5]
    assert xm.collective_permute(x, []).cpu().tolist() == [0.0, 0.0]


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda x: xm.all_gather([x]), RuntimeError, "list of tensors input, pin_layout=True"),
        (lambda x: xm.all_gather(x, output=[x]), TypeError, "output holds a list"),
        (
            lambda x: xm.all_gather([x], output=[x, x], pin_layout=False),
            ArgumentError,
            "1 inputs, and output has 2 tensors",
        ),
        (lambda x: xm.all_reduce("sum", x, groups=[[0, 1]]), ArgumentError, "rank 1 is not a rank"),
        (lambda x: xm.reduce_scatter("or", x, 1.0, 0, 1), DtypeError, "'or' works on bits"),
        (lambda x: xm.all_gather(x.cpu()), DeviceError, "not an XLA tensor: torch.FloatTensor"),
        (
            lambda x: xm.all_gather_bucketized([x], bucket_cap_mb=-1),
            ArgumentError,
            "bucket_cap_mb is -1",
        ),
    ],
)
def test_wrong_arguments_are_named_at_the_call(call, error, message):
    with pytest.raises(error, match=message):
        call(torch.ones(2).to("xla"))


def test_an_output_becomes_the_result_whatever_it_was():
    x, output = torch.ones(2).to("xla"), torch.zeros(3, dtype=torch.int32).to("xla")
    told = r"all_gather: output was int32\[3\] and became float32\[2\]; give it a tensor of"
    with pytest.warns(UserWarning, match=told) as warned:
        assert xm.all_gather(x, output=output) is output
    assert warned[0].filename == __file__
    assert (output.dtype, output.tolist()) == (torch.float32, [1, 1])
    empty = torch.empty(0).to("xla")
    xm.reduce_scatter("sum", x, 3.0, 0, 1, output=empty)
    assert empty.tolist() == [3, 3]


def test_buckets_are_filled_and_let_go_by_hand():
    calls = []

    def double(inputs, outputs):
        calls.append(len(inputs))
        return [x * 2 for x in inputs]

    tensors = [torch.ones(2, device="xla") * n for n in range(3)]
    buckets = xm.CoalescingBuckets(double, tensors)
    for index, tensor in enumerate(tensors):
        buckets.add(tensor, index)
        if index == 1:
            buckets.flush()
    buckets.flush()
    buckets.flush()
    assert calls == [2, 1] and [t.tolist() for t in buckets.results] == [[0, 0], [2, 2], [4, 4]]
    assert [t.tolist() for t in buckets()] == [[0, 0], [2, 2], [4, 4]] and calls == [2, 1, 3]
