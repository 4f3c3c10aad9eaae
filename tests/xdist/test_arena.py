"""Replacing tensors in nested data."""

import threading
from collections import OrderedDict, namedtuple

import pytest
import torch

from torch_xdist.arena import (
    DataWrapper,
    ToXlaTensorArena,
    for_each_instance,
    for_each_instance_rewrite,
)

Pair = namedtuple("Pair", "left right")


def doubled(data, **kwargs):
    return ToXlaTensorArena(
        lambda tensors: [2 * t for t in tensors],
        lambda value: isinstance(value, torch.Tensor),
        **kwargs,
    ).transform(data)


def test_tensors_in_every_container_are_replaced():
    one = torch.ones(())
    out = doubled({"list": [one, 3], "set": {1}, "text": "a", "none": None})
    assert out == {"list": [torch.tensor(2.0), 3], "set": {1}, "text": "a", "none": None}


def test_objects_are_met_in_the_same_order_whether_they_are_replaced_or_not():
    data = {"a": [1, 2], 3: {"b": 4}, "c": (5, {6: 7})}
    met, replaced = [], []

    def is_plain(value):
        return isinstance(value, int | str)

    for_each_instance(data, is_plain, met.append)
    for_each_instance_rewrite(data, is_plain, lambda value: replaced.append(value) or value)
    assert met == replaced == ["a", 1, 2, 3, "b", 4, "c", 5, 6, 7]


def test_tuples_become_lists_as_in_torch_xla():
    assert doubled((1, Pair(2, torch.ones(())))) == [1, [2, torch.tensor(2.0)]]


def test_tuples_may_be_kept():
    out = doubled((1, Pair(2, torch.ones(()))), keep_tuples=True)
    assert out == (1, Pair(2, torch.tensor(2.0))) and type(out[1]) is Pair


def test_shared_tensors_stay_shared_and_are_converted_once():
    calls = []

    def convert(tensors):
        calls.append(len(tensors))
        return [t + 1 for t in tensors]

    shared = torch.zeros(())
    arena = ToXlaTensorArena(convert, lambda v: isinstance(v, torch.Tensor))
    left, right = arena.transform([shared, shared])
    assert left is right and calls == [1]


def test_cycles_survive():
    loop = [torch.ones(())]
    loop.append(loop)
    out = doubled(loop)
    assert out[1] is out and out[0] == 2


def test_a_dict_keeps_its_type_keys_and_attributes():
    state = OrderedDict(weight=torch.ones(()))
    state._metadata = {"": {"version": 1}}
    out = doubled(state)
    assert type(out) is OrderedDict and out._metadata == state._metadata
    assert state["weight"] == 1 and out["weight"] == 2


def test_tensors_may_be_keys():
    key = torch.ones(())
    assert [k.item() for k in doubled({key: "value"})] == [2.0]


def test_objects_are_copied_and_their_attributes_rewritten():
    class Batch:
        pass

    batch = Batch()
    batch.images = torch.ones(())
    out = doubled(batch)
    assert out is not batch and out.images == 2 and batch.images == 1


def test_a_wrapper_gives_and_takes_its_tensors():
    class Hidden(DataWrapper):
        def __init__(self, tensor):
            self.tensor = tensor

        def get_tensors(self):
            return [self.tensor]

        def from_tensors(self, tensors):
            return Hidden(*tensors)

    assert doubled([Hidden(torch.ones(()))])[0].tensor == 2


def test_a_wrapper_without_methods_says_so():
    with pytest.raises(NotImplementedError, match="get_tensors: define it in the subclass"):
        DataWrapper().get_tensors()
    with pytest.raises(NotImplementedError, match="from_tensors: define it in the subclass"):
        DataWrapper().from_tensors([])


def test_a_conversion_that_loses_tensors_is_an_error():
    arena = ToXlaTensorArena(lambda tensors: [], lambda v: isinstance(v, torch.Tensor))
    with pytest.raises(ValueError, match="was given 1 tensors and returned 0"):
        arena.transform([torch.ones(())])


def test_for_each_instance_sees_each_object_once():
    tensor, seen = torch.ones(()), []
    for_each_instance(
        [tensor, {"a": (tensor,)}], lambda v: isinstance(v, torch.Tensor), seen.append
    )
    assert len(seen) == 1


def test_a_module_is_rewritten_and_what_holds_no_tensor_is_left_alone():
    module = torch.nn.Linear(1, 1)
    module.lock = threading.Lock()
    out = doubled(module)
    assert out is not module and out.lock is module.lock
    assert torch.equal(out.weight, 2 * module.weight)
