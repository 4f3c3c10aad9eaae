"""Calls that cannot be replayed: each for its reason, and with the right results."""

import queue

import pytest
import torch
from torch import nn

import torch_xla
import torch_xla.core.xla_model as xm
from torch_xdist import metrics
from torch_xdist.replay import recording

pytestmark = pytest.mark.usefixtures("counted_from_zero")

HOST = torch.arange(3.0)


def refused(function, *args, kind: str, told: str, capfd, turns: int = 5):
    """Call a function that must not be replayed; its results are those of the function."""
    step = torch_xla.compile(function, pure=True)
    results = [step(*args) for _ in range(turns)]
    assert not metrics.counter_value("ReplayedStep")
    assert metrics.counter_value(f"ReplayRefused.{kind}")
    said = capfd.readouterr().err
    assert told in said
    assert said.count("cannot be replayed, and is recorded at each call: ") == 1
    return results


def on_device(*shape: int) -> torch.Tensor:
    return torch.ones(*shape).to("xla")


def test_a_tensor_of_the_cpu_among_the_arguments(capfd):
    told = "argument 0 is a torch.FloatTensor of shape (3,) on cpu; give tensors that are on"
    results = refused(lambda x: x.to("xla") + 1, HOST, kind="argument", told=told, capfd=capfd)
    assert results[-1].tolist() == [1, 2, 3]


def test_an_array_of_numpy_among_the_arguments(capfd):
    told = "argument 0 is a numpy array; give tensors of the device"
    refused(
        lambda x: torch.from_numpy(x).to("xla") + 1, HOST.numpy(),
        kind="argument", told=told, capfd=capfd,
    )  # fmt: skip


def test_an_argument_that_requires_a_gradient(capfd):
    x = on_device(2).requires_grad_()
    told = "argument 0 requires a gradient; let the function find parameters in a module"
    refused(lambda x: (x * 2).sum(), x, kind="argument", told=told, capfd=capfd)


def test_a_value_that_is_read(capfd):
    told = "it does not run in one piece: "
    results = refused(
        lambda x: x * x.sum().item(), on_device(2), kind="cut", told=told, capfd=capfd
    )
    assert results[-1].tolist() == [2, 2]


def test_a_number_that_is_another_one_at_each_call(capfd):
    numbers = iter(range(10))
    function = torch_xla.compile(lambda x: x * (3.5 + next(numbers)), pure=True)
    results = [function(on_device(1)).item() for _ in range(6)]
    assert results == [3.5, 4.5, 5.5, 6.5, 7.5, 8.5]
    told = capfd.readouterr().err
    assert "computes with a Python number that is another one at each call (" in told
    assert "make it an argument that is a tensor of the device" in told
    assert metrics.counter_value("ReplayRefused.number")


def test_an_array_that_has_other_values_at_each_call(capfd):
    numbers = iter(range(10))
    function = torch_xla.compile(
        lambda x: x + torch.full((2,), float(next(numbers)), device="cpu").to("xla"), pure=True
    )
    assert [function(on_device(2)).tolist()[0] for _ in range(6)] == [1, 2, 3, 4, 5, 6]
    told = capfd.readouterr().err
    assert "puts an array of shape (2,) on the device that has other values at each call" in told


def test_a_large_array_that_is_put_on_the_device(capfd):
    told = "puts a tensor float32[40000] on the device, and it is large; make it an argument"
    refused(
        lambda x: x + torch.ones(40000, device="cpu").to("xla"), on_device(1),
        kind="upload", told=told, capfd=capfd,
    )  # fmt: skip


def test_a_tensor_that_nothing_names(capfd):
    hidden = {object(): on_device(2)}
    told = "it reads a tensor float32[2] at "
    refused(
        lambda x: x + next(iter(vars_of(hidden))), on_device(2),
        kind="unknown", told=told, capfd=capfd,
    )  # fmt: skip


def vars_of(hidden):
    return hidden.values()


def test_a_tensor_that_outlives_the_call(capfd):
    class Kept:
        def __init__(self):
            self.last = None

        def step(self, x):
            self.last = x * 2
            return x + 1

    kept = Kept()
    step = torch_xla.compile(kept.step, pure=True)
    for n in range(6):
        step(torch.full((2,), float(n)).to("xla"))
        assert kept.last.tolist() == [2 * n, 2 * n]
    assert not metrics.counter_value("ReplayedStep")
    assert "outlives the call; return it, or write it" in capfd.readouterr().err


def test_a_result_that_is_kept_besides(capfd):
    kept = []

    def step(x):
        y = x * 2
        kept[:] = [y]
        return y

    told = "is kept somewhere else too; return it"
    results = refused(step, on_device(2), kind="alive", told=told, capfd=capfd)
    assert kept[0].tolist() == results[-1].tolist() == [2, 2]


def test_a_result_that_is_none_of_tensors_and_plain_values(capfd):
    told = "it returns a object; return tensors of the device"
    refused(lambda x: (x + 1, object()), on_device(2), kind="result", told=told, capfd=capfd)


def test_a_result_that_was_not_computed(capfd):
    told = "it returns a tensor that it did not compute"
    refused(
        lambda x: (x + 1, torch.ones(2, device="cpu").to("xla")), on_device(2),
        kind="result", told=told, capfd=capfd,
    )  # fmt: skip


def test_a_seed_that_is_set_inside(capfd):
    def noisy(x):
        torch_xla.manual_seed(3)
        return x + torch.rand(2, device="xla")

    told = "the function sets the seed of the device; set it outside"
    results = refused(noisy, on_device(2), kind="random", told=told, capfd=capfd)
    assert len({tuple(r.tolist()) for r in results}) == 1


def test_a_generator_of_its_own(capfd):
    generator = torch.Generator("xla")

    def noisy(x):
        return x + torch.rand(2, device="xla", generator=generator)

    told = "draws from a generator of its own; draw from the device's"
    results = refused(noisy, on_device(2), kind="random", told=told, capfd=capfd)
    assert len({tuple(r.tolist()) for r in results}) == len(results)


def test_a_step_closure_that_is_added_inside(capfd):
    seen = []

    def step(x):
        xm.add_step_closure(lambda: seen.append(1))
        return x + 1

    step(on_device(1))
    torch_xla.sync()
    assert seen == [1]
    told = "it adds a step closure; add that outside of the function"
    refused(step, on_device(1), kind="closure", told=told, capfd=capfd)
    assert len(seen) == 6


def test_a_tensor_that_takes_the_memory_of_another(capfd):
    target = on_device(2) * 0

    def step(x):
        target.copy_(x)
        return x + 1

    torch_xla.sync()
    told = "it gives one tensor the memory of another (copy_ of a whole tensor)"
    refused(step, on_device(2) + 1, kind="memory", told=told, capfd=capfd)
    assert target.tolist() == [2, 2]


def test_two_arguments_of_which_one_shares_memory_with_a_variable(capfd):
    x = on_device(2)
    told = "two of its tensors share memory, an argument is one of them"
    refused(lambda y: x + y, x, kind="alias", told=told, capfd=capfd)


def test_gradients_of_gradients(capfd):
    model = nn.Linear(2, 1).to("xla")

    def step(x):
        model.zero_grad()
        model(x).square().sum().backward(create_graph=True)
        return x + 1

    step = torch_xla.compile(step, pure=True)
    with pytest.warns(UserWarning, match="create_graph=True"):
        for _ in range(5):
            step(on_device(3, 2))
    assert "gradients require gradients (create_graph=True)" in capfd.readouterr().err
    assert not metrics.counter_value("ReplayedStep")


def test_gradients_that_are_kept_by_the_function(capfd):
    model = nn.Linear(2, 1).to("xla")
    kept = queue.SimpleQueue()

    def step(x):
        model.zero_grad()
        model(x).sum().backward()
        kept.put(model.weight.grad)
        return x + 1

    told = "the function keeps the .grad of a parameter somewhere else"
    refused(step, on_device(3, 2), kind="alive", told=told, capfd=capfd)
    assert kept.get().tolist() == [[3, 3]]


def test_a_gradient_that_becomes_a_tensor_that_was_there(capfd):
    model, fixed = nn.Linear(2, 1).to("xla"), on_device(1, 2)

    def step(x):
        model.weight.grad = fixed
        return model(x).detach()

    told = "the .grad of a parameter becomes a tensor that was there"
    step = torch_xla.compile(step, pure=True)
    for _ in range(5):
        model.weight.grad = None
        step(on_device(3, 2))
    assert told in capfd.readouterr().err and not metrics.counter_value("ReplayedStep")


def test_a_sparse_gradient(capfd):
    table = nn.Embedding(4, 2, sparse=True).to("xla")
    ids = torch.tensor([1, 2]).to("xla")

    def step(ids):
        table.zero_grad()
        table(ids).sum().backward()
        return ids + 1

    step = torch_xla.compile(step, pure=True)
    for _ in range(5):
        step(ids)
    assert "a gradient is a SparseXlaTensor" in capfd.readouterr().err
    assert not metrics.counter_value("ReplayedStep")


def test_numbers_of_an_optimizer_without_a_formula(capfd):
    model = nn.Linear(2, 1).to("xla")
    optimizer = torch.optim.AdamW(model.parameters(), 0.1, foreach=False)

    def step(x):
        optimizer.zero_grad()
        model(x).sum().backward()
        optimizer.step()

    told = "computes with a Python number that is another one at each call ("
    refused(step, on_device(3, 2), kind="number", told=told, capfd=capfd, turns=9)


def test_a_view_that_outlives_the_call_and_is_read_by_several_operators(capfd):
    told = "a view that outlives it is read by more than one operator"
    step = torch_xla.compile(lambda x: real_of(x + 1j), pure=True)
    for _ in range(5):
        step(on_device(2))
    assert told in capfd.readouterr().err or metrics.counter_value("ReplayedStep")


def real_of(x):
    return torch.view_as_real(x)


def test_a_mistake_of_the_recording_does_not_end_the_step(capfd, monkeypatch):
    def fails(*_):
        raise IndexError("a mistake")

    monkeypatch.setattr(recording, "Ends", fails)
    told = "it could not be looked at (IndexError('a mistake')); please report it"
    results = refused(lambda x: x + 1, on_device(2), kind="error", told=told, capfd=capfd)
    assert results[-1].tolist() == [2, 2]


def test_a_function_that_records_nothing(capfd):
    refused(lambda x: x, on_device(2), kind="nothing", told="it records nothing", capfd=capfd)


def test_a_state_on_the_cpu_that_is_no_counter(capfd):
    model = nn.Linear(2, 1).to("xla")
    optimizer = torch.optim.RMSprop(model.parameters(), 0.1)

    def step(x):
        optimizer.zero_grad()
        model(x).sum().backward()
        optimizer.step()
        for state in optimizer.state.values():
            state["step"].add_(1)
        return x + 1

    told = "it changes a tensor of an optimizer's state on the CPU"
    refused(step, on_device(3, 2), kind="host", told=told, capfd=capfd)
    assert next(iter(optimizer.state.values()))["step"].item() == 10
