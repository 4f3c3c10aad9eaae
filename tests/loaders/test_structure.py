"""Batches of every form keep it, and their tensors are found and replaced."""

import collections
import dataclasses
import threading

import pytest
import torch
from torch.nn.utils.rnn import PackedSequence, pack_sequence

from torch_xdist.arena import DataWrapper
from torch_xdist.loaders.structure import mapped, tensors

Pair = collections.namedtuple("Pair", "left right")


@dataclasses.dataclass
class Sample:
    image: torch.Tensor
    name: str


@dataclasses.dataclass(frozen=True, slots=True)
class Frozen:
    image: torch.Tensor
    rest: list


def plus_one(batch):
    return mapped(batch, lambda tensor, _: tensor + 1)


ONE, TWO = torch.tensor(1), torch.tensor(2)


def test_lists_and_dicts_keep_their_form_and_plain_values():
    batch = {"a": [ONE, None, "text", 3], "b": {"c": TWO, 5: b"raw"}}
    assert plus_one(batch) == {"a": [2, None, "text", 3], "b": {"c": 3, 5: b"raw"}}


def test_a_plain_tuple_arrives_as_a_list():
    assert plus_one((ONE, (TWO,))) == [2, [3]]


def test_a_named_tuple_stays_one():
    assert plus_one(Pair(ONE, "x")) == Pair(torch.tensor(2), "x")


def test_dataclasses_are_copied_and_the_given_ones_left_alone():
    given = Sample(ONE, "cat")
    moved = plus_one(given)
    assert type(moved) is Sample and moved.image == 2 and moved.name == "cat"
    assert given.image is ONE


def test_a_frozen_dataclass_with_slots_works():
    moved = plus_one(Frozen(ONE, [TWO]))
    assert moved.image == 2 and moved.rest == [3]


def test_dict_subclasses_stay_what_they_are():
    moved = plus_one(collections.OrderedDict(a=ONE))
    assert type(moved) is collections.OrderedDict and moved["a"] == 2
    moved = plus_one(collections.UserDict(a=ONE))
    assert type(moved) is collections.UserDict and moved["a"] == 2


def test_a_packed_sequence_keeps_its_batch_sizes_on_the_host():
    packed = pack_sequence([torch.ones(2), torch.ones(3)], enforce_sorted=False)
    moved = mapped(packed, lambda t, _: t.to("meta"))
    assert isinstance(moved, PackedSequence)
    assert moved.data.device.type == moved.sorted_indices.device.type == "meta"
    assert moved.batch_sizes.device.type == "cpu"


def test_a_data_wrapper_gives_and_takes_its_tensors():
    class Holder(DataWrapper):
        def __init__(self, held):
            self.held = held

        def get_tensors(self):
            return self.held

        def from_tensors(self, held):
            return Holder(held)

    assert plus_one(Holder([ONE, TWO])).held == [2, 3]


def test_an_object_is_copied_only_where_it_holds_a_tensor():
    class Thing:
        def __init__(self, value):
            self.value = value

    thing = Thing([ONE])
    moved = plus_one(thing)
    assert moved is not thing and moved.value == [2] and thing.value == [ONE]
    locked = Thing(threading.Lock())
    assert plus_one([locked])[0] is locked


def test_an_object_that_refers_to_itself_ends():
    class Loop:
        def __init__(self):
            self.me = self
            self.tensor = ONE

    moved = plus_one(Loop())
    assert moved.me is moved and moved.tensor == 2


def test_a_tensor_that_appears_twice_is_replaced_once():
    first, second = plus_one([ONE, ONE])
    assert first is second


def test_the_replacement_is_told_the_nearest_name():
    names = []
    mapped({"ids": [ONE], "pair": Pair(ONE + 0, TWO)}, lambda t, name: names.append(name))
    assert names == ["ids", "left", "right"]


@pytest.mark.parametrize(
    ("batch", "path"),
    [
        ([{"x": ONE}], "[0]['x']"),
        (Pair(0, ONE), ".right"),
        (Sample(ONE, ""), ".image"),
        ((0, [ONE]), "[1][0]"),
    ],
)
def test_paths_read_like_the_expression_that_reaches_the_tensor(batch, path):
    assert [found for found, _ in tensors(batch)] == [path]
