"""`cat` and `stack` of many small tensors from the host: joined there, as by CPU torch."""

import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import torch_xla.debug.metrics as met
from torch_xdist.core.devices import steps


def joined():
    return met.counter_value("JoinedOnHost") or 0


def compilations():
    return (met.metric_data("CompileTime") or [0])[0]


def states(count, device="xla"):
    return [torch.tensor([n, n + 0.5], device=device).unsqueeze(0) for n in range(count)]


@pytest.fixture(autouse=True)
def fresh():
    steps.sync()


def test_samples_of_a_replay_memory_are_one_program():
    memory, of_cpu, layer = states(60), states(60, "cpu"), torch.nn.Linear(2, 3).to("xla")
    seen = []
    for _ in range(4):
        chosen = random.sample(range(60), 20)
        before = joined()
        batch = torch.cat([memory[n] for n in chosen])
        assert joined() == before + 1
        assert torch.equal(batch.cpu(), torch.cat([of_cpu[n] for n in chosen]))
        layer(batch).sum().backward()
        steps.sync()
        seen.append(compilations())
    # The second step adds to gradients.
    assert seen[1] == seen[2] == seen[3]


def test_a_number_that_was_read_is_known_from_then_on():
    layer, before = torch.nn.Linear(2, 3).to("xla"), joined()
    with torch.no_grad():
        actions = [layer(state).max(1).indices.view(1, 1) for state in states(16)]
    torch.cat(actions)
    assert joined() == before
    expected = [action.item() for action in actions]
    found = torch.cat(actions)
    assert joined() == before + 1
    assert found.flatten().tolist() == expected
    actions[0].fill_(7)
    assert torch.cat(actions).flatten().tolist() == [7, *expected[1:]]


def test_views_of_one_number_that_are_more_or_none_are_read_as_they_are():
    number = torch.tensor([3], device="xla") * 2
    assert number.expand(4).tolist() == [6] * 4
    assert number[:0].tolist() == []
    steps.sync()
    assert number.expand(4).cpu().tolist() == [6] * 4
    assert number[:0].cpu().tolist() == []
    assert torch.cat([number] * 16).tolist() == [6] * 16


@settings(max_examples=40, deadline=None)
@given(
    count=st.integers(16, 20),
    dim=st.integers(0, 1),
    views=st.lists(
        st.sampled_from([lambda x: x, torch.t, lambda x: x[1:], lambda x: x[:, :1]]), max_size=3
    ),
    stacked=st.booleans(),
)
def test_parts_of_known_memory_are_joined_as_on_the_cpu(count, dim, views, stacked):
    whole = torch.arange(count * 9.0).reshape(count, 3, 3)

    def parts(tensors):
        for view in views:
            tensors = [view(tensor) if tensor.numel() else tensor for tensor in tensors]
        return (torch.stack if stacked else torch.cat)(tensors, dim)

    found, wanted = parts([x.to("xla") for x in whole]), parts([*whole])
    assert found.stride() == wanted.stride()
    assert torch.equal(found.cpu(), wanted)


def test_what_was_written_in_between_is_seen():
    memory = states(16)
    memory[3].mul_(10)
    assert torch.cat(memory)[3].tolist() == [30.0, 35.0]


def test_dtypes_are_promoted_and_errors_are_torchs():
    mixed = [torch.tensor([n], device="xla") for n in range(15)] + [torch.ones(1, device="xla")]
    assert torch.cat(mixed).dtype is torch.float32
    assert torch.cat(mixed).tolist() == [*map(float, range(15)), 1.0]
    odd = [*states(16), torch.ones(1, 3, device="xla")]
    with pytest.raises(RuntimeError) as on_device:
        torch.cat(odd)
    with pytest.raises(RuntimeError) as on_cpu:
        torch.cat([tensor.cpu() for tensor in odd])
    assert str(on_device.value) == str(on_cpu.value)


def test_parameters_and_few_tensors_are_rows():
    before = joined()
    parameters = [torch.nn.Parameter(state) for state in states(16)]
    torch.cat(parameters).sum().backward()
    assert parameters[0].grad.tolist() == [[1.0, 1.0]]
    torch.cat(states(15))
    torch.cat([state * 1.5 for state in states(16)])
    assert joined() == before
