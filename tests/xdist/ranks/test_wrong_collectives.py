"""What is said, on every rank, where ranks disagree about a collective, and where one is wrong by
itself; and that the next collective works."""

import pytest
import torch
from device_ranks import DeviceRanks, on_threads

from torch_xdist.collectives.errors import ArgumentError, DtypeError
from torch_xdist.core.torch_side import registration
from torch_xdist.errors import DeviceError
from torch_xdist.ranks import collective_ops as xm
from torch_xla.core import functions as xf

registration.register()

# name: what the last rank calls, and what the others call, as host messages say it.
DIFFERENCES = {
    "all_reduce": ("float32[3]", "float32[2]"),
    "all_reduce dtype": ("int32[2]", "float32[2]"),
    "all_reduce type": ("all_reduce(max) of float32[2]", "all_reduce(sum) of float32[2]"),
    "all_reduce list": ("float32[3]", "float32[2]"),
    "all_reduce longer list": ("no more", "float32[2]"),
    "all_gather": ("float32[2, 3] along dim 0", "float32[2, 2] along dim 0"),
    "all_gather dim": ("float32[2, 2] along dim 1", "float32[2, 2] along dim 0"),
    "all_gather list": ("float32[3]", "float32[2]"),
    "all_gather_bucketized": ("float32[3]", "float32[2]"),
    "reduce_scatter": ("float32[12, 2] along dim 0", "float32[6, 2] along dim 0"),
    "reduce_scatter dim": ("float32[6, 6] along dim 1", "float32[6, 6] along dim 0"),
    "reduce_scatter_bucketized": ("float32[12]", "float32[6]"),
    "all_to_all": ("float32[12, 2] from dim 0 to dim 0", "float32[6, 2] from dim 0 to dim 0"),
    "all_to_all dims": ("float32[6, 6] from dim 0 to dim 1", "float32[6, 6] from dim 0 to dim 0"),
    "collective_permute": ("float32[3]", "float32[2]"),
    "collective_permute pairs": ("collective_permute([[0, 1]])", "collective_permute([[1, 0]])"),
    "collective_broadcast": ("float32[3]", "float32[2]"),
    "collective_broadcast root": ("broadcast(from rank 1)", "broadcast(from rank 0)"),
    "xf.all_reduce": ("float32[3]", "float32[2]"),
    "xf.all_gather": ("float32[3]", "float32[2]"),
    "different collectives": ("all_gather of float32[2]", "all_reduce(sum) of float32[2]"),
}


def calls(rank, size):
    """What each name of DIFFERENCES does; the last rank is the odd one."""
    odd = rank == size - 1
    n = 3 if odd else 2

    def ones(*shape, dtype=torch.float32):
        return torch.ones(shape, dtype=dtype).to("xla")

    def twos(count):
        return [ones(2) for _ in range(count)]

    def broadcast(x, root):
        xm.collective_broadcast([x], root)
        return x

    six = 12 if odd else 6
    return {
        "all_reduce": lambda: xm.all_reduce("sum", ones(n)),
        "all_reduce dtype": lambda: xm.all_reduce(
            "sum", ones(2, dtype=torch.int32 if odd else torch.float32)
        ),
        "all_reduce type": lambda: xm.all_reduce("max" if odd else "sum", ones(2)),
        "all_reduce list": lambda: xm.all_reduce("sum", [*twos(5), ones(n)])[0],
        "all_reduce longer list": lambda: xm.all_reduce("sum", twos(4 if odd else 5))[0],
        "all_gather": lambda: xm.all_gather(ones(2, n)),
        "all_gather dim": lambda: xm.all_gather(ones(2, 2), int(odd)),
        "all_gather list": lambda: xm.all_gather([ones(2), ones(n)], pin_layout=False)[1],
        "all_gather_bucketized": lambda: xm.all_gather_bucketized([ones(n)])[0],
        "reduce_scatter": lambda: xm.reduce_scatter("sum", ones(six, 2), 1.0, 0, size),
        "reduce_scatter dim": lambda: xm.reduce_scatter("sum", ones(6, 6), 1.0, int(odd), size),
        "reduce_scatter_bucketized": lambda: xm.reduce_scatter_bucketized(
            "sum", [ones(six)], 1.0, 0, size
        )[0],
        "all_to_all": lambda: xm.all_to_all(ones(six, 2), 0, 0, size),
        "all_to_all dims": lambda: xm.all_to_all(ones(6, 6), 0, int(odd), size),
        "collective_permute": lambda: xm.collective_permute(ones(n), [[0, 1]]),
        "collective_permute pairs": lambda: xm.collective_permute(
            ones(2), [[0, 1]] if odd else [[1, 0]]
        ),
        "collective_broadcast": lambda: broadcast(ones(n), 0),
        "collective_broadcast root": lambda: broadcast(ones(2), int(odd)),
        "xf.all_reduce": lambda: xf.all_reduce("sum", ones(n)),
        "xf.all_gather": lambda: xf.all_gather(ones(n)),
        "different collectives": lambda: (
            xm.all_gather(ones(2)) if odd else xm.all_reduce("sum", ones(2))
        ),
    }


def disagrees(rank, size):
    from torch_xdist.collectives.errors import MismatchError

    found = {}
    for name, call in calls(rank, size).items():
        try:
            found[name] = f"no error: {call().cpu()}"
        except MismatchError as error:
            found[name] = str(error)
        assert xm.all_reduce("sum", torch.ones(()).to("xla")).item() == size
    return found


def check_differences(outcomes):
    last = len(outcomes) - 1
    for found in outcomes:
        for name, message in found.items():
            odd, usual = DIFFERENCES[name]
            assert f"rank {last} called" in message, name
            assert ("rank 0 called" if last == 1 else "ranks 0 and 1 called") in message, name
            assert odd in message and usual in message, f"{name}: {message}"
            assert "all ranks of a group must call the same collectives" in message


@pytest.mark.parametrize("world", ["two", pytest.param("three", marks=pytest.mark.long)])
def test_every_rank_names_what_each_rank_brought(world, request):
    check_differences(request.getfixturevalue(world).run(disagrees))


@pytest.mark.long
def test_threads_name_what_each_of_them_brought():
    check_differences(on_threads(3, disagrees))


@pytest.mark.long
def test_over_the_mesh_every_rank_is_told_before_the_program_runs():
    with DeviceRanks(2, XDIST_TRANSPORT="gloo") as ranks:
        for found in ranks.run(disagrees, timeout_s=200):
            for name, message in found.items():
                assert "the ranks differ from collective #1 on: rank 0: " in message, name
                assert "; rank 1: " in message
                shapes = [text for text in DIFFERENCES[name] if text.startswith(("float", "int"))]
                for shape in shapes:
                    assert shape.partition("] ")[0].rstrip("]") + "]" in message, name


def mistakes(size):
    """(a wrong call, its error, what the error says), in a world of that many ranks."""
    x, y = torch.ones(3, 4).to("xla"), torch.ones(size).to("xla")
    whole = [list(range(size))]
    out = torch.zeros(2, 2).to("xla")
    return [
        (lambda: xm.all_reduce("avg", x), ArgumentError, "all_reduce: reduction 'avg' is unknown"),
        (lambda: xm.all_reduce("and", x), DtypeError, "'and' works on bits, and float32 is no"),
        (lambda: xm.all_reduce("max", x.to(torch.complex64)), DtypeError, "'max' needs an order"),
        (lambda: xm.all_reduce("sum", [x, 3]), TypeError, "all_reduce: input holds a int"),
        (lambda: xm.all_reduce("sum", None), TypeError, "all_reduce: input holds a NoneType"),
        (lambda: xm.all_reduce("sum", [x.cpu()]), DeviceError, "not an XLA tensor"),
        (
            lambda: xm.all_reduce("sum", x, groups=[[0], [0, 1]]),
            ArgumentError,
            r"rank 0 is there twice of groups=\[\[0\], \[0, 1\]\]; each rank from 0 to",
        ),
        (
            lambda: xm.all_reduce("sum", x, groups=[[0]]),
            ArgumentError,
            r"all_reduce: rank 1 is in no group of groups=\[\[0\]\]",
        ),
        (
            lambda: xm.all_gather(x, groups=[[0, 1], [5]]),
            ArgumentError,
            "all_gather: rank 5 is not a rank of groups",
        ),
        (
            lambda: xm.all_gather(x, groups=[*whole, []]),
            ArgumentError,
            "all_gather: groups=.* has a group without ranks; leave it out",
        ),
        (
            lambda: xm.all_to_all(x, 0, 0, 1, groups=[0, 1]),
            ArgumentError,
            r"all_to_all: groups=\[0, 1\] is no list of lists of ranks; write it as \[\[0, 1\]",
        ),
        (
            lambda: xm.all_gather(x, 2),
            ArgumentError,
            r"all_gather: dim 2 is out of range for shape \(3, 4\); use -2 to 1",
        ),
        (lambda: xm.all_gather(x, output=out.cpu()), DeviceError, "all_gather: output: Input"),
        (
            lambda: xm.all_gather_bucketized([x, x], output=[out]),
            ArgumentError,
            "bucketized collective: 2 inputs, and output has 1 tensors",
        ),
        (
            lambda: xm.reduce_scatter("sum", torch.ones(7).to("xla"), 1.0, 0, size),
            ArgumentError,
            rf"reduce_scatter over {size} ranks: dim 0 of shape \(7,\) has size 7, which {size} do",
        ),
        (
            lambda: xm.reduce_scatter("sum", y, 1.0, 0, size + 1),
            ArgumentError,
            f"shard_count is {size + 1}, and the group has {size} ranks; use shard_count={size}",
        ),
        (
            lambda: xm.reduce_scatter("sum", y, 1.0, 3, size),
            ArgumentError,
            "reduce_scatter: dim 3 is out of range",
        ),
        (
            lambda: xm.all_to_all(x, 0, 5, size),
            ArgumentError,
            r"all_to_all: dim 5 is out of range for shape \(3, 4\)",
        ),
        (
            lambda: xm.all_to_all(y, 0, 0, size + 1),
            ArgumentError,
            f"all_to_all: split_count is {size + 1}, and the group has {size} ranks",
        ),
        (
            lambda: xm.all_to_all(torch.ones(7).to("xla"), 0, 0, size),
            ArgumentError,
            f"all_to_all over {size} ranks: dim 0 of shape",
        ),
        (
            lambda: xm.collective_permute(x, [[0, 1], [0, 0]]),
            ArgumentError,
            "collective_permute: rank 0 is source of several pairs",
        ),
        (
            lambda: xm.collective_permute(x, [[0, size]]),
            ArgumentError,
            rf"collective_permute: \[0, {size}\] is no pair of ranks",
        ),
        (
            lambda: xm.collective_permute(x, [0, 1]),
            ArgumentError,
            r"collective_permute: pairs=\[0, 1\] is no list of lists of ranks",
        ),
        (
            lambda: xm.collective_broadcast([x], size),
            ArgumentError,
            f"broadcast: root {size} is no rank; use 0 to {size - 1}",
        ),
        (
            lambda: xm.collective_broadcast(["x"]),
            TypeError,
            "collective_broadcast: input holds a str; give it a tensor or a list of them",
        ),
        (
            lambda: xf.all_reduce("and", x),
            RuntimeError,
            "xf.all_reduce: Unsupported reduce type: and",
        ),
    ]


def makes_mistakes(rank, size):
    for call, error, message in mistakes(size):
        with pytest.raises(error, match=message):
            call()
    # None of them was recorded: only this one runs.
    total = xm.all_reduce("sum", torch.ones(()).to("xla"))
    from torch_xdist.core.devices import device

    return len(device.trace_of(device.index_of(None)).tape.collectives), total.item()


def test_a_wrong_argument_is_named_on_each_rank_and_nothing_is_recorded(two):
    assert two.run(makes_mistakes) == [(1, 2.0)] * 2


@pytest.mark.long
def test_wrong_arguments_over_the_mesh_and_on_threads():
    with DeviceRanks(2, XDIST_TRANSPORT="gloo") as ranks:
        assert ranks.run(makes_mistakes) == [(1, 2.0)] * 2
    assert on_threads(2, makes_mistakes) == [(1, 2.0)] * 2


def uneven_groups(rank, size):
    groups = [[0], [1, 2]]
    found = {}
    for name, call in {
        "gather": lambda: xm.all_gather(torch.ones(2).to("xla"), groups=groups),
        "scatter": lambda: xm.reduce_scatter("sum", torch.ones(2).to("xla"), 1.0, 0, 2, groups),
        "to_all": lambda: xm.all_to_all(torch.ones(2).to("xla"), 0, 0, 2, groups),
    }.items():
        with pytest.raises(ArgumentError) as caught:
            call()
        found[name] = str(caught.value)
    return found


def test_groups_of_different_sizes_are_refused_where_the_result_has_one_shape(three):
    for found in three.run(uneven_groups):
        for name, message in zip(("all_gather", "reduce_scatter", "all_to_all"), found.values()):
            assert f"{name}: groups [[0], [1, 2]] have sizes [1, 2]; its result has one" in message
