"""Step counters that rise together, and stay tensors of their own for everybody else."""

import copy

import torch

from torch_xdist.replay.counters import Counters


def test_counters_rise_together_and_stay_what_they_are():
    tensors = [torch.tensor(float(n)) for n in range(3)]
    counters = Counters(tensors)
    assert counters.values() == [0, 1, 2]
    counters.add(1)
    assert [t.item() for t in tensors] == counters.values() == [1, 2, 3]
    tensors[1].fill_(7)
    assert counters.values() == [1, 7, 3]
    kept = copy.deepcopy(tensors)
    counters.add(-1)
    assert [t.item() for t in kept] == [1, 7, 3] and counters.values() == [0, 6, 2]
    assert [counters.place(t) for t in tensors] == [0, 1, 2]


def test_counters_that_were_moved_are_found_again():
    tensors = [torch.tensor(1.0), torch.tensor(2.0)]
    counters = Counters(tensors)
    counters.values()
    tensors[0].data = torch.tensor(5.0)
    assert counters.values() == [5, 2]
    counters.add(1)
    assert [t.item() for t in tensors] == [6, 3]


def test_counters_of_several_kinds_rise_one_by_one():
    tensors = [torch.tensor(1.0), torch.tensor(2)]
    counters = Counters(tensors)
    assert counters.values() == [1, 2]
    counters.add(1)
    assert [t.item() for t in tensors] == [2, 3]


def test_two_that_move_the_same_counters_end_up_apart():
    tensors = [torch.tensor(float(n)) for n in range(3)]
    one, other = Counters(tensors), Counters([tensors[2], tensors[0]])
    for _ in range(8):
        one.values()
        one.add(1)
        other.values()
        other.add(1)
    assert [t.item() for t in tensors] == [16, 9, 18]


def test_no_counters_are_none():
    counters = Counters([])
    counters.add(1)
    assert counters.values() == []
