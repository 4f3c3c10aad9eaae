"""Loops that call a module again and again without gradients, and end no step."""

import sys
import types

import pytest
import torch
from unended_loops import fresh, reasons, rounds

import torch_xla
from torch_xdist.core.run import cuts
from torch_xdist.core.run.device_trace import HERE, DeviceTrace


@pytest.fixture(autouse=True)
def _fresh(monkeypatch):
    yield from fresh(monkeypatch)


class Deep(torch.nn.Module):
    """Forty rows, in modules of its own."""

    def __init__(self):
        super().__init__()
        self.part = torch.nn.Sequential(*[torch.nn.Tanh() for _ in range(20)])

    def forward(self, x):
        return self.part(self.part(x) + 1)


def evaluated(net, count, after=lambda made: made):
    x = torch.ones(2, 4, device="xla")
    with torch.no_grad():
        return [after(net(x)) for _ in range(count)]


def is_watched():
    return bool(torch.nn.modules.module._global_forward_hooks)


def test_a_loop_of_one_module_is_cut_once_much_is_pending():
    made = evaluated(Deep(), 40)
    assert 25 <= len(rounds()) <= 28
    assert rounds()[0] > 500 and {*rounds()[1:]} == {41}
    torch.testing.assert_close(made[3].cpu(), Deep()(torch.ones(2, 4)))
    torch.testing.assert_close(made[39].cpu(), made[0].cpu())


def test_modules_are_not_looked_at_when_the_loop_is_over():
    evaluated(Deep(), 20)
    assert is_watched()
    torch.nn.Linear(4, 3).to("xla")(torch.ones(2, 4, device="xla"))
    assert not is_watched()
    evaluated(Deep(), 20)
    with torch.no_grad():
        Deep()(torch.ones(2, 4, device="xla"))
    assert not is_watched()


def test_with_gradients_no_module_ends_a_round():
    net, x = Deep(), torch.ones(2, 4, device="xla", requires_grad=True)
    for _ in range(20):
        net(x)
    assert not reasons() and not HERE.trace.rounds.vain


def test_a_loop_with_gradients_is_not_cut_although_modules_are_looked_at():
    _made = evaluated(Deep(), 13)
    assert is_watched()
    net, x = Deep(), torch.ones(2, 4, device="xla", requires_grad=True)
    for _ in range(4):
        net(x)
    assert not reasons() and not is_watched()


def test_where_programs_may_not_run_no_module_ends_a_round():
    _made = evaluated(Deep(), 13)
    torch_xla._XLAC._set_allow_execution(False)
    try:
        _more = evaluated(Deep(), 3)
    finally:
        torch_xla._XLAC._set_allow_execution(True)
    assert not reasons()


def test_one_loop_after_the_other_is_cut():
    for _ in range(4):
        before = len(rounds())
        _made = evaluated(Deep(), 30)
        torch_xla.sync()
        assert len(rounds()) - before >= 15


def test_a_module_in_a_module_ends_no_round():
    class Repeated(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.deep = Deep()

        def forward(self, x):
            for _ in range(20):
                x = self.deep(x)
            return x

    evaluated(Repeated(), 1)
    assert not reasons()


def test_long_steps_that_end_are_looked_at_only_a_few_times():
    net = torch.nn.Sequential(*[Deep() for _ in range(20)])
    seen = []
    for _ in range(12):
        _made = evaluated(net, 1, after=lambda made: seen.append(is_watched()) or made)
        torch_xla.sync()
    assert reasons() == [cuts.SYNC] * 12
    assert seen[:2] == [True, True] and not any(seen[-4:])


def test_where_torch_compile_was_used_no_module_is_looked_at(monkeypatch):
    monkeypatch.undo()
    dynamo = types.SimpleNamespace(counters={"frames": {"total": 1}})
    monkeypatch.setitem(sys.modules, "torch._dynamo.utils", dynamo)
    _made = evaluated(Deep(), 20)
    assert not is_watched() and not rounds()


def test_an_optimizer_that_records_much_is_no_loop():
    net = torch.nn.ModuleList([torch.nn.Linear(2, 2) for _ in range(40)]).to("xla")
    optimizer = torch.optim.AdamW(net.parameters(), foreach=False)
    sum(layer(torch.ones(1, 2, device="xla")).sum() for layer in net).backward()
    optimizer.step()
    assert len(HERE.trace.tape.entries) > 512
    assert not HERE.trace.rounds.vain and not is_watched()


def test_in_a_block_no_module_is_looked_at():
    with torch_xla.step():
        _made = evaluated(Deep(), 20)
        assert not is_watched()
    assert reasons() == [cuts.SYNC]


def test_a_limit_below_that_cuts_as_it_says():
    trace = DeviceTrace(HERE.trace.device, 100)
    assert trace.limit == 100
    HERE.trace.most = HERE.trace.limit = 100
    try:
        evaluated(Deep(), 6)
    finally:
        HERE.trace.most, HERE.trace.limit = 100_000, 512
    assert {*reasons()} == {cuts.LIMIT}


def gradients_of_each(net, count, calls=1):
    """As a script that computes gradients of every sample by itself, without an optimizer."""
    made = []
    for _ in range(count):
        x = torch.ones(2, 4, device="xla", requires_grad=True)
        results = [net(x) for _ in range(calls)]
        made += torch.autograd.grad(sum(results).sum(), x)
    return made


@pytest.mark.parametrize("calls", [1, 2])
def test_a_loop_that_computes_gradients_is_cut_once_much_is_pending(calls):
    made = gradients_of_each(Deep(), 30, calls)
    later = rounds()[1:]
    assert len(later) >= 15 and len({*later}) == 1
    x = torch.ones(2, 4, requires_grad=True)
    (wanted,) = torch.autograd.grad(sum(Deep()(x) for _ in range(calls)).sum(), x)
    for found in (made[0], made[12], made[-1]):
        torch.testing.assert_close(found.cpu(), wanted)


def test_an_optimizer_ends_rounds_of_gradients_by_itself():
    net, weight = Deep(), torch.nn.Parameter(torch.ones(2, 4, device="xla"))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    net(weight).sum().backward()
    optimizer.step()
    torch_xla.sync()
    before = len(rounds())
    # One step of many tasks.
    sum(torch.autograd.grad(net(weight).sum(), weight)[0] for _ in range(20)).sum()
    assert len(rounds()) == before


def test_a_process_that_only_imported_dynamo_has_its_modules_looked_at(monkeypatch):
    dynamo = types.SimpleNamespace(counters={})
    monkeypatch.undo()
    monkeypatch.setitem(sys.modules, "torch._dynamo.utils", dynamo)
    _made = evaluated(Deep(), 20)
    assert is_watched()
