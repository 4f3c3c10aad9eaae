"""Loops that end no step: each round runs when the next one begins."""

import copy
import threading

import pytest
import torch
import torch.nn.functional as F
from unended_loops import fresh, reasons, rounds

import torch_xla
import torch_xla.core.xla_model as xm
from torch_xdist import metrics, settings
from torch_xdist.core.programs import program
from torch_xdist.core.run import cuts
from torch_xdist.core.run.device_trace import HERE
from torch_xdist.progress import PROGRESS


@pytest.fixture(autouse=True)
def _fresh(monkeypatch):
    yield from fresh(monkeypatch)


def model():
    torch.manual_seed(0)
    layers = [torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 8), torch.nn.ReLU()]
    return torch.nn.Sequential(*layers, torch.nn.Linear(8, 3)).to("xla")


def batches(count):
    generator = torch.Generator().manual_seed(1)
    return [
        (torch.randn(6, 4, generator=generator), torch.randint(3, (6,), generator=generator))
        for _ in range(count)
    ]


def backward(net, x, y):
    loss = F.cross_entropy(net(x), y)
    loss.backward()
    return loss


def train(net, optimizer, count, device="xla"):
    for x, y in batches(count):
        x, y = x.to(device), y.to(device)
        optimizer.zero_grad()
        loss = backward(net, x, y)
        optimizer.step()
    return loss


def test_each_round_of_a_training_loop_is_one_program():
    net = model()
    train(net, torch.optim.SGD(net.parameters(), lr=0.1), 8)
    assert len(rounds()) == 7
    assert len({*rounds()[1:]}) == 1
    assert not any(cut.compiled for cut in [*cuts.LOG][2:])


def test_it_trains_as_on_the_cpu():
    net = model()
    host = copy.deepcopy(net).cpu()
    loss = train(net, torch.optim.AdamW(net.parameters()), 6)
    expected = train(host, torch.optim.AdamW(host.parameters()), 6, "cpu")
    torch.testing.assert_close(loss.detach().cpu(), expected.detach())
    for p, q in zip(net.parameters(), host.parameters()):
        torch.testing.assert_close(p.detach().cpu(), q.detach())


def evaluate(net, count):
    right = 0
    with torch.no_grad():
        for x, y in batches(count):
            right += (net(x.to("xla")).argmax(1) == y.to("xla")).sum()
    return int(right)


def test_an_evaluation_is_no_program_with_the_last_step_before_it():
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    for epoch in range(3):
        train(net, optimizer, 4)
        (last,) = {cut.fingerprint for cut in [*cuts.LOG][-2:]}
        before = len(cuts.LOG)
        evaluate(net, 1)
        # The last step is a program that there was.
        ended, read = [*cuts.LOG][before:]
        assert (ended.fingerprint, ended.compiled) == (last, False)
        assert read.compiled == (epoch == 0)


def test_a_number_that_the_host_knows_ends_no_round():
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for (x, y), taken in zip(batches(6), (3, 3, 2, 3, 3, 3)):
        mask = (torch.arange(6) < taken).to("xla")
        assert int((mask * 2).sum()) == 2 * taken
        optimizer.zero_grad()
        backward(net, x.to("xla"), y.to("xla"))
        optimizer.step()
    assert len({*rounds()[1:]}) == 1 and len(rounds()) == 5


def test_what_is_put_on_the_device_in_the_first_round_too_is_no_loop_of_its_own():
    nets = [model(), model()]
    optimizers = [torch.optim.SGD(net.parameters(), lr=0.1) for net in nets]
    for (x, y), (z, w) in zip(batches(5), batches(5)):
        for net, optimizer, given, wanted in zip(nets, optimizers, (x, z), (y, w)):
            optimizer.zero_grad()
            if net is nets[0]:
                backward(net, given.to("xla"), wanted.to("xla"))
            else:
                backward(net, given.to("xla"), wanted.to("xla"))
            optimizer.step()
    assert len({*rounds()[1:]}) == 1 and len(rounds()) == 4


def test_a_round_is_cut_where_its_batch_is_put_on_the_device():
    net = model()
    train(net, torch.optim.SGD(net.parameters(), lr=0.1), 3)
    line = train.__code__.co_firstlineno + 2
    assert {cut.where for cut in cuts.LOG} == {f"{__file__}:{line}"}


def test_rounds_count_as_steps():
    before = PROGRESS.step
    net = model()
    train(net, torch.optim.SGD(net.parameters(), lr=0.1), 5)
    assert PROGRESS.step == before + 4


def test_rounds_of_an_evaluation_are_cut_too():
    net = model()
    right = torch.zeros((), device="xla")
    with torch.no_grad():
        for x, y in batches(20):
            right += (net(x.to("xla")).softmax(1).argmax(1) == y.to("xla")).sum()
    assert len(rounds()) >= 9
    assert max(rounds()) < 40


def test_short_rounds_share_a_program():
    total = torch.zeros(6, 4, device="xla")
    for x, _ in batches(40):
        total += x.to("xla").exp().log().square().sqrt()
    # Five rows and a batch each; in the first one what they are added to besides.
    assert 11 <= len(rounds()) <= 13
    assert {*rounds()[1:]} == {15}


def test_a_model_that_is_filled_parameter_by_parameter_is_a_few_programs():
    net = torch.nn.ModuleList([torch.nn.Linear(2, n) for n in range(1, 41)]).to("xla")
    for p in net.parameters():
        p.data = torch.ones(p.shape).to("xla") * 2
    assert len(rounds()) == 1
    assert rounds()[0] >= 60


def test_without_uploads_a_round_ends_with_the_step_of_the_optimizer():
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    x = torch.ones(6, 4, device="xla")
    for _ in range(6):
        optimizer.zero_grad()
        net(x).square().mean().backward()
        optimizer.step()
    assert len(rounds()) == 5
    assert len({*rounds()[1:]}) == 1
    assert not HERE.trace.tape.entries


def test_a_batch_that_comes_in_the_middle_of_a_round_does_not_cut_it():
    net = torch.nn.Sequential(*[torch.nn.Tanh() for _ in range(16)], model())
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    (x, y), *later = batches(7)
    x, y = x.to("xla"), y.to("xla")
    for x_next, y_next in later:
        optimizer.zero_grad()
        loss = F.cross_entropy(net(x), y)
        x, y = x_next.to("xla"), y_next.to("xla")
        loss.backward()
        optimizer.step()
    assert {cut.where for cut in cuts.LOG} == {f"{__file__}:{_line_of_step()}"}
    assert len(rounds()) == 5


def _line_of_step():
    own = test_a_batch_that_comes_in_the_middle_of_a_round_does_not_cut_it
    return own.__code__.co_firstlineno + 10


def test_two_optimizers_that_take_turns_are_one_round():
    one, other = model(), torch.nn.Linear(3, 1).to("xla")
    of_one = torch.optim.SGD(one.parameters(), lr=0.1)
    of_other = torch.optim.SGD(other.parameters(), lr=0.1)
    for x, _ in batches(6):
        made = one(x.to("xla"))
        of_other.zero_grad()
        other(made.detach()).mean().backward()
        of_other.step()
        of_one.zero_grad()
        other(made).mean().neg().backward()
        of_one.step()
    assert len(rounds()) == 5


def test_a_loop_that_ends_its_steps_is_left_alone():
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for x, y in batches(5):
        optimizer.zero_grad()
        backward(net, x.to("xla"), y.to("xla"))
        xm.optimizer_step(optimizer, barrier=True)
    assert reasons() == [cuts.SYNC] * 5


def test_a_loop_that_reads_its_loss_is_cut_there_alone():
    net = model()
    optimizer = torch.optim.AdamW(net.parameters())
    before = PROGRESS.step
    for x, y in batches(6):
        x, y = x.to("xla"), y.to("xla")
        optimizer.zero_grad()
        backward(net, x, y).item()
        optimizer.step()
    assert reasons() == [cuts.READ] * 6
    assert PROGRESS.step == before + 5


class Scaled(torch.nn.Linear):
    def forward(self, x):
        scale = torch.tensor([0.5, 1.0]).to("xla")
        return super().forward(x) * scale.sum() + super().forward(x.tanh()) * scale.mean()


def test_what_modules_put_on_the_device_is_no_batch():
    net = torch.nn.Sequential(*[Scaled(4, 4) for _ in range(6)]).to("xla")
    net(torch.ones(2, 4).to("xla")).sum()
    assert not reasons()


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        scale = torch.tensor([2.0, 2.0]).to("xla")
        for _ in range(16):
            gradient = gradient * scale.mean()
        return gradient / 2**15


def test_what_gradients_put_on_the_device_is_no_batch():
    x = torch.ones(2, device="xla", requires_grad=True)
    y = x
    for _ in range(4):
        y = Doubled.apply(y)
    y.sum().backward()
    assert not reasons()


class Noisy(torch.optim.SGD):
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                scale = torch.tensor([0.1, 0.2]).to("xla")
                with torch.no_grad():
                    for _ in range(10):
                        p.sub_(p.grad * scale.sum())


def test_what_optimizers_put_on_the_device_is_no_batch():
    net = model()
    optimizer = Noisy(net.parameters(), lr=0.1)
    net(torch.ones(6, 4, device="xla")).sum().backward()
    optimizer.step()
    assert not reasons()


def test_the_parts_of_a_batch_are_one_batch():
    batch = {"x": torch.ones(6, 4), "y": torch.ones(6, 4), "z": torch.ones(6, 4)}
    total = torch.zeros(6, 4, device="xla")
    for _ in range(4):
        there = {name: part.to("xla") for name, part in batch.items()}
        for _ in range(5):
            total = total + there["x"] * there["y"] - there["z"]
    assert len(rounds()) == 3


def put(x):
    return x.to("xla")


def test_a_helper_that_is_called_at_two_places_of_a_round_is_two_places():
    net = model()
    for x, y in batches(4):
        logits = net(put(x)).square().exp().log().sin().cos().tanh().exp().log()
        logits = logits.sin().cos().tanh().exp().log().square()
        F.cross_entropy(logits, put(y))
    assert len(rounds()) == 3


def test_numbers_are_no_batches():
    x = torch.ones(4, device="xla")
    for _ in range(10):
        scale = torch.tensor(0.5).to("xla")
        for _ in range(20):
            x = x * scale
    assert not reasons()


@pytest.mark.parametrize("block", [torch_xla.step, torch_xla.compile])
def test_a_block_that_is_one_step_is_not_cut(block):
    net = model()
    with block():
        train(net, torch.optim.SGD(net.parameters(), lr=0.1), 4)
        assert not rounds()
    assert reasons() == [cuts.SYNC]
    train(net, torch.optim.SGD(net.parameters(), lr=0.1), 4)
    assert len(rounds()) == 3


def test_a_function_that_may_not_be_cut_is_not():
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    step = torch_xla.compile(lambda: train(net, optimizer, 4), full_graph=True)
    step()
    assert reasons() == [cuts.SYNC]


def test_where_programs_may_not_run_no_round_does():
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    torch_xla._XLAC._set_allow_execution(False)
    try:
        train(net, optimizer, 4)
    finally:
        torch_xla._XLAC._set_allow_execution(True)
    assert not reasons()


def test_only_so_many_places_are_remembered():
    text = "".join(f"torch.ones(2).to('xla') * {n}\n" for n in range(100))
    exec(text)
    assert len(HERE.trace.rounds.seen) == 64


def test_the_setting_leaves_loops_whole(monkeypatch):
    monkeypatch.setenv("XDIST_CUT_LOOPS", "0")
    settings.reread()
    try:
        net = model()
        train(net, torch.optim.SGD(net.parameters(), lr=0.1), 4)
        assert not reasons()
    finally:
        monkeypatch.undo()
        settings.reread()


def test_a_batch_that_another_thread_puts_on_the_device_cuts_nothing():
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    found = []
    for x, y in batches(1) * 4:
        thread = threading.Thread(target=lambda x=x, y=y: found.extend([put(x), put(y)]))
        thread.start()
        thread.join()
        optimizer.zero_grad()
        backward(net, *found[-2:])
    assert not reasons()


def test_a_cut_round_is_counted():
    before = metrics.counter_value("Cut.loop") or 0
    net = model()
    train(net, torch.optim.SGD(net.parameters(), lr=0.1), 3)
    assert metrics.counter_value("Cut.loop") == before + 2


def test_the_first_round_is_the_same_program_as_the_others():
    program.PROGRAMS.clear()
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for x, y in batches(4):
        optimizer.zero_grad()
        # Nobody but the tape holds the batch.
        F.cross_entropy(net(x.to("xla")), y.to("xla")).backward()
        optimizer.step()
    assert [cut.compiled for cut in cuts.LOG][1:] == [False, False]


def test_reports_say_why_it_ran(monkeypatch, capsys):
    monkeypatch.setenv("PT_XLA_DEBUG_LEVEL", "2")
    settings.reread()
    try:
        net = model()
        train(net, torch.optim.SGD(net.parameters(), lr=0.1), 2)
    finally:
        monkeypatch.undo()
        settings.reread()
    found = [line for line in capsys.readouterr().err.splitlines() if "without torch_xla" in line]
    assert found[-1] == "Execution Analysis:   the next round of a loop without torch_xla.sync"
