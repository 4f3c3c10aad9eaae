"""Reading a step's loss while the step still runs."""

import json
import os
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
import torch
from torch import nn

import torch_xla
from torch_xdist import metrics
from torch_xdist.core.early import announcement
from torch_xdist.core.programs import program

ROOT = Path(__file__).resolve().parents[4]
# A step whose loss takes nothing, and whose update takes some 20 ms.
_LARGE = 2048


def early_reads():
    return metrics.counter_value("EarlyRead") or 0


def large_step():
    weight = nn.Parameter(torch.full((_LARGE, _LARGE), 0.5, device="xla"))
    optimizer = torch.optim.Adam([weight], 0.1)

    def step():
        optimizer.zero_grad()
        loss = weight[0].sum()
        loss.backward()
        optimizer.step()
        torch_xla.sync()
        return loss.detach()

    return step


def test_a_loss_is_read_before_its_step_is_over_and_stays_what_it_was():
    step = large_step()
    before = early_reads()
    for _ in range(12):
        loss = step()
        number = loss.item()
        assert np.float32(number) == np.asarray(loss.value.buffer)
    # Whoever comes late finds the step over.
    assert early_reads() > before


def test_losses_are_those_of_the_cpu():
    def losses(where):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(8, 512), nn.Tanh(), nn.Linear(512, 1)).to(where)
        optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)
        x, y = torch.randn(1024, 8).to(where), torch.randn(1024, 1).to(where)
        found = []
        for _ in range(20):
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(x), y)
            loss.backward()
            optimizer.step()
            found.append(loss.item())  # The step ends here, where no sync ended it.
        return found

    torch.testing.assert_close(losses("xla"), losses("cpu"))


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
def test_a_loss_of_another_dtype_is_the_same_number_early_and_late(dtype):
    weight = nn.Parameter(torch.full((_LARGE, _LARGE), 1.37, dtype=dtype, device="xla"))
    optimizer = torch.optim.SGD([weight], 0.1, momentum=0.9)
    before = early_reads()
    for _ in range(12):
        optimizer.zero_grad()
        loss = weight[0].mean().tanh() * 0.7
        loss.backward()
        optimizer.step()
        torch_xla.sync()
        early = loss.detach().cpu()
        loss.value.buffer.block_until_ready()
        assert early.dtype == dtype and torch.equal(early, loss.detach().cpu())
    assert early_reads() > before


def test_flags_and_counts_are_announced_too():
    weight = nn.Parameter(torch.ones(_LARGE, _LARGE, device="xla"))
    optimizer = torch.optim.Adam([weight], 0.1)
    before = early_reads()
    for _ in range(12):
        optimizer.zero_grad()
        row = weight[0] * 2
        count, flag = (row > 1.9).sum(), (row > 0).all()
        row.sum().backward()
        optimizer.step()
        torch_xla.sync()
        found = count.item(), flag.item()
        count.value.buffer.block_until_ready()
        assert found == (int(count.cpu()), bool(flag.cpu()))
        assert type(found[0]) is int and type(found[1]) is bool
    assert early_reads() > before


def tickets(monkeypatch, run):
    """Whether each of the runs that `run` launches is asked to announce."""
    asked, stamped = [], announcement.stamped

    def watched(arguments):
        found = stamped(arguments)
        asked.append(bool(found[0][2][-1]))
        return found

    monkeypatch.setattr(announcement, "stamped", watched)
    run()
    return asked


def test_a_loop_that_reads_nothing_is_called_by_no_program(monkeypatch):
    step = large_step()
    monkeypatch.setattr(announcement._Readers, "unread", 4)
    assert tickets(monkeypatch, lambda: [step() for _ in range(5)]) == [False] * 5


def test_a_loop_that_stops_reading_is_called_four_times_more(monkeypatch):
    monkeypatch.setattr(announcement._Readers, "unread", 0)  # As a reader leaves it.
    nothing = (), (), np.zeros(2), np.zeros(0, np.int64)
    found = [announcement.stamped(nothing)[0][2][-1] for _ in range(6)]
    assert [bool(ticket) for ticket in found] == [True] * 4 + [False] * 2
    announcement._running.clear()


def test_a_reader_of_the_last_step_but_one_is_served():
    step = large_step()
    before, last = early_reads(), step()
    for _ in range(10):
        newest = step()
        assert last.item() == np.asarray(last.value.buffer)
        last = newest
    assert early_reads() > before


def test_several_threads_read_one_loss():
    step = large_step()
    step().item()
    loss, found = step(), []
    threads = [threading.Thread(target=lambda: found.append(loss.item())) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert found == [loss.item()] * 4


def test_a_replayed_step_announces_its_loss_too():
    weight = nn.Parameter(torch.full((_LARGE, _LARGE), 0.5, device="xla"))
    optimizer = torch.optim.SGD([weight], 0.1, momentum=0.9)

    @torch_xla.compile(pure=True)
    def step():
        optimizer.zero_grad()
        loss = weight[0].sum()
        loss.backward()
        optimizer.step()
        return loss.detach()

    before, losses = early_reads(), []
    for _ in range(12):
        losses.append(step())
        assert losses[-1].item() == np.asarray(losses[-1].value.buffer)
    assert early_reads() > before
    assert (metrics.counter_value("ReplayedStep") or 0) > 0


class Result:
    """An array of a program that takes a while, and never announces it."""

    shape, dtype = (), np.dtype("float32")

    def __init__(self, looks):
        self.looks = looks

    def is_deleted(self):
        return False

    def is_ready(self):
        self.looks -= 1
        return self.looks < 0


def launched(result, monkeypatch, *, unread=0):
    monkeypatch.setattr(announcement._Readers, "unread", unread)
    _, run = announcement.stamped(((), (), np.zeros(0), np.zeros(0, np.int64)))
    announcement.launched(announcement.Early((0,), (0,), 1), run, [result, object()])


def test_a_program_that_failed_and_never_calls_is_waited_for_no_longer_than_it_runs(monkeypatch):
    result = Result(looks=2)
    launched(result, monkeypatch)
    started_s = time.monotonic()
    assert announcement.read(result) is None
    assert 0.05 <= time.monotonic() - started_s < 5


def test_who_waits_for_a_run_that_announces_nothing_has_the_next_one_announce(monkeypatch):
    result = Result(looks=1)
    launched(result, monkeypatch, unread=9)
    assert announcement.read(result) is None
    assert announcement._Readers.unread == 0


def test_an_array_that_nothing_announces_is_read_as_ever():
    assert announcement.read(jnp.zeros(3)) is None


def test_what_was_launched_is_forgotten_after_some_runs(monkeypatch):
    results = [Result(looks=0) for _ in range(100)]
    for result in results:
        launched(result, monkeypatch)
    assert len(announcement._running) <= 32 and len(announcement._of_results) <= 32
    announcement._running.clear()


STEPS = """
    import json
    import torch, torch_xla
    import torch_xla.debug.metrics as met
    weight = torch.nn.Parameter(torch.full((2048, 2048), 0.5, device="xla"))
    optimizer = torch.optim.SGD([weight], 0.1)
    for _ in range(20):
        optimizer.zero_grad()
        loss = weight[0].sum()
        loss.backward()
        optimizer.step()
        torch_xla.sync()
        loss.item()
    names = "EarlyRead", "PersistentCacheMiss"
    print(json.dumps([met.counter_value(name) or 0 for name in names]))
"""


def process(code, **variables):
    env = {**os.environ, "PJRT_DEVICE": "CPU", **variables}
    command = [sys.executable, "-c", textwrap.dedent(code)]
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=120, cwd=ROOT)


def test_a_program_from_the_disk_announces_as_it_did(tmp_path):
    first, second = (
        json.loads(process(STEPS, XLA_PERSISTENT_CACHE_PATH=str(tmp_path)).stdout) for _ in range(2)
    )
    assert first[0] and first[1]
    assert second[0] and not second[1]


def test_a_process_that_ends_while_its_program_runs_ends_as_it_says():
    code = """
        import torch, torch_xla
        from torch import nn
        model = nn.Sequential(*[nn.Linear(512, 512) for _ in range(4)]).to("xla")
        optimizer = torch.optim.SGD(model.parameters(), 0.01)
        x = torch.randn(8192, 512).to("xla")
        for i in range(3):
            optimizer.zero_grad()
            loss = (model(x) ** 2).mean()
            loss.backward()
            optimizer.step()
            torch_xla.sync()
            if i < 2:
                loss.item()
        raise SystemExit(7)
    """
    ended = process(code)
    assert ended.returncode == 7, ended.stderr


def test_the_text_of_a_graph_has_no_call():
    large_step()()
    announcing = [one for one in program.PROGRAMS.values() if one.early is not None]
    assert announcing and all("xdist_announce" in one.executable.text() for one in announcing)
    weight = nn.Parameter(torch.ones(_LARGE, _LARGE, device="xla"))
    torch_xla.sync()
    loss = weight[0].sum()
    loss.backward()
    text = torch_xla._XLAC._get_xla_tensors_hlo([loss.detach(), weight.grad])
    assert "xdist_announce" not in text
