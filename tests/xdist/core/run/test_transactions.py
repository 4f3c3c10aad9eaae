"""A cut that fails before XLA began forgets nothing; one that fails later says what is gone."""

import gc
import subprocess
import sys
import threading
import warnings

import jax
import pytest
import torch

import torch_xdist.core.torch_side.registration  # noqa: F401
from torch_xdist import settings
from torch_xdist.core.devices import steps
from torch_xdist.core.jax_side.from_jax import from_jax
from torch_xdist.core.programs import collective_program, jax_internals, program
from torch_xdist.core.run import cuts, loop_cuts
from torch_xdist.core.run.device_trace import HERE, DeviceTrace
from torch_xdist.core.trace.trace import Tape, Trace
from torch_xdist.errors import ValueLostError


@pytest.fixture(autouse=True)
def nothing_pending():
    steps.sync()
    yield
    steps.sync()


def training():
    """A model, its optimizer, and a function that records one more step of them."""
    torch.manual_seed(0)
    model = torch.nn.Linear(3, 2)
    expected = torch.nn.Linear(3, 2)
    expected.load_state_dict(model.state_dict())
    x = torch.randn(5, 3)

    def recorder(model, x):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

        def record():
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()

        return record

    return model.to("xla"), recorder(model, x.to("xla")), expected, recorder(expected, x)


def fails(error):
    def compile(self, signature, key):
        raise error

    return compile


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("RESOURCE_EXHAUSTED: out of memory while compiling"),
        KeyboardInterrupt(),
        MemoryError(),
    ],
    ids=lambda error: type(error).__name__,
)
def test_a_failed_compilation_leaves_every_tensor_readable_and_can_be_repeated(monkeypatch, error):
    model, record, expected, record_expected = training()
    with loop_cuts.held():
        for _ in range(2):
            record()
            record_expected()
    with monkeypatch.context() as broken:
        broken.setattr(collective_program.OnDevice, "compile", fails(error))
        for _ in range(2):
            with pytest.raises(type(error)):
                steps.sync()
    record()
    record_expected()
    steps.sync()
    for found, wanted in zip(model.parameters(), expected.parameters()):
        torch.testing.assert_close(found.detach().cpu(), wanted.detach())


def test_what_was_written_in_place_survives_a_failure_and_what_comes_after_it(monkeypatch):
    w = torch.ones(3, device="xla")
    steps.sync()
    view = w[1:]
    w.mul_(2)
    with monkeypatch.context() as broken:
        broken.setattr(collective_program.OnDevice, "compile", fails(ValueError("no")))
        with pytest.raises(ValueError, match="no"):
            w.cpu()
    view.add_(1)
    assert w.tolist() == [2, 3, 3]


def test_rows_recorded_while_a_failing_program_was_compiled_are_kept(monkeypatch):
    x = torch.ones(53, device="xla") * 3  # Of a size that no other test compiled a program for.
    late = []

    def compile(self, signature, key):
        late.append(torch.ones(53, device="xla") * 5)
        raise RuntimeError("no")

    with monkeypatch.context() as broken:
        broken.setattr(collective_program.OnDevice, "compile", compile)
        with pytest.raises(RuntimeError, match="no"):
            steps.sync()
    assert (x + late[0]).tolist() == [8] * 53


def test_an_operator_recorded_while_another_thread_tried_to_run_the_tape_is_right(monkeypatch):
    a, b = torch.tensor([1.0, 2.0]).to("xla"), torch.tensor([5.0, 7.0]).to("xla")
    steps.sync()
    x = a * 2
    slot_of = Trace.slot_of

    def slot_on_the_tape_in_between(trace, value):
        monkeypatch.setattr(Trace, "slot_of", slot_of)
        tape, trace.tape = trace.tape, Tape()
        slot = trace.slot_of(value)
        trace._restore(tape)
        return slot

    monkeypatch.setattr(Trace, "slot_of", slot_on_the_tape_in_between)
    y = x - b
    assert Trace.slot_of is slot_of
    assert y.tolist() == [-3.0, -3.0]


def test_what_one_thread_recorded_outlives_ctrl_c_in_another_that_reads_of_it(monkeypatch):
    x = torch.ones(2, device="xla") * 3
    y = x + 1

    def interrupted(*_):
        raise KeyboardInterrupt

    def read():
        with monkeypatch.context() as broken:
            broken.setattr(DeviceTrace, "_absorb", interrupted)
            with pytest.raises(KeyboardInterrupt):
                x.cpu()

    reader = threading.Thread(target=read)
    reader.start()
    reader.join()
    assert (x.tolist(), y.tolist()) == ([3, 3], [4, 4])


def test_a_full_disk_under_a_dump_loses_nothing(monkeypatch):
    monkeypatch.setenv("XLA_SAVE_TENSORS_FILE", "/dev/full/graph")
    settings.reread()
    x = torch.ones(2, device="xla") * 3
    try:
        with pytest.raises(OSError, match="Not a directory"):
            steps.sync()
    finally:
        monkeypatch.undo()
        settings.reread()
    assert x.tolist() == [3, 3]


def test_a_warning_that_is_an_error_loses_nothing(monkeypatch):
    monkeypatch.setenv("XLA_COMPILATION_CACHE_SIZE", "1")
    settings.reread()
    try:
        (torch.ones(7, device="xla") * 3).tolist()
        x = torch.ones(8, device="xla") * 3
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            with pytest.raises(RuntimeWarning, match="the cache of compiled programs is full"):
                x.tolist()
            assert x.tolist() == [3] * 8
    finally:
        monkeypatch.undo()
        settings.reread()


def test_a_lowering_that_fails_only_when_the_program_is_built_loses_nothing():
    attempts = []

    @from_jax
    def capricious(x):
        attempts.append(1)
        if len(attempts) == 2:  # the first is the look at its results' types
            raise RuntimeError("not now")
        return x * 2

    w = torch.ones(2, device="xla")
    y = capricious(w)
    w.add_(1)
    with pytest.raises(RuntimeError, match="not now"):
        steps.sync()
    assert (y.tolist(), w.tolist()) == ([2, 2], [2, 2])


def test_what_cannot_be_compiled_holds_up_nothing_that_does_not_need_it():
    attempts = []

    @from_jax
    def impossible(x):
        attempts.append(1)
        if len(attempts) > 1:
            raise RuntimeError("never")
        return x * 2

    w = torch.ones(2, device="xla").mul_(3)
    y = impossible(torch.ones(2, device="xla"))
    for _ in range(2):
        with pytest.raises(RuntimeError, match="never") as raised:
            steps.sync()
        assert "Tensors that need nothing of what failed can be read" in raised.value.__notes__[-1]
    assert w.tolist() == [3, 3]
    with pytest.raises(RuntimeError, match="never"):
        y.tolist()
    del y
    gc.collect()  # The second error, whose frames had it.
    steps.sync()
    assert w.value.buffer is not None
    assert raised.value.__traceback__  # Whoever keeps the error keeps nothing of the step alive.


def consumed(program_of):
    """A program that fails when its operands are gone, as one does that XLA aborts halfway."""

    def fails(donated, kept, floats, ints):
        for buffer in donated:
            buffer.delete()
        raise jax.errors.JaxRuntimeError("INTERNAL: it broke")

    return fails


def test_an_error_after_the_operands_were_taken_names_what_is_gone(monkeypatch):
    w = torch.ones(2, 3, device="xla")
    kept = torch.ones(4, device="xla")
    steps.sync()
    w.mul_(2)
    y = kept + 1
    with monkeypatch.context() as broken:
        broken.setattr(collective_program, "direct_call", lambda *compiled: None)
        broken.setattr(collective_program, "callable_of", consumed)
        with pytest.raises(ValueLostError, match="its operands were used up") as caught:
            steps.sync()
    assert "float32[2, 3]" in str(caught.value) and "float32[4]" in str(caught.value)
    assert "INTERNAL: it broke" in str(caught.value) and __file__ in str(caught.value)
    assert kept.tolist() == [1] * 4
    with pytest.raises(
        ValueLostError, match=r"tensor float32\[2, 3\] has lost its value: the prog"
    ):
        w.cpu()
    with pytest.raises(ValueLostError, match="it broke"):
        y + 1
    w.copy_(torch.zeros(2, 3))
    assert w.sum().item() == 0


def test_an_error_of_a_running_program_that_took_nothing_can_be_repeated(monkeypatch):
    x = torch.ones(2, device="xla")
    steps.sync()
    y = x * 3

    def fails(*arguments):
        raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: out of memory")

    with monkeypatch.context() as broken:
        broken.setattr(collective_program, "direct_call", lambda *compiled: None)
        broken.setattr(collective_program, "callable_of", lambda compiled: fails)
        with pytest.raises(jax.errors.JaxRuntimeError, match="RESOURCE_EXHAUSTED"):
            steps.sync()
    program.PROGRAMS.clear()
    assert y.tolist() == [3, 3]


@pytest.mark.parametrize("module", [program, jax_internals])
def test_ctrl_c_after_the_program_began_keeps_its_results(module, monkeypatch):
    in_one_call = jax_internals.in_one_call
    program.PROGRAMS.clear()  # The other module's, which runs as it was made.
    w = torch.ones(2, device="xla")
    steps.sync()
    w.mul_(2)

    def interrupted(results, function, *arguments):
        in_one_call(results, function, *arguments)
        raise KeyboardInterrupt

    with monkeypatch.context() as broken:
        if module is program:
            broken.setattr(collective_program, "direct_call", lambda *compiled: None)
        broken.setattr(module, "in_one_call", interrupted)
        with pytest.raises(KeyboardInterrupt):
            steps.sync()
    assert w.tolist() == [2, 2]


@pytest.mark.long
def test_ctrl_c_during_a_real_compilation_leaves_everything(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        "import gc, os, signal, threading, torch, torch_xla\n"
        "from torch_xdist.core.programs import collective_program\n"
        # Python ignores an error in JAX's callback of the collector, and so Ctrl-C just there.
        "gc.disable()\n"
        "def grown(w):\n"
        "    for i in range(60): w.mul_(0.5).add_(w.sin() @ w / 100)\n"
        "    return w\n"
        "w = torch.ones(40, 40, device='xla'); torch_xla.sync(); grown(w)\n"
        "compile = collective_program.OnDevice.compile\n"
        "def begins(self, signature, key):\n"
        "    threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGINT)).start()\n"
        "    return compile(self, signature, key)\n"
        "collective_program.OnDevice.compile = begins\n"
        "try: torch_xla.sync(); print('not interrupted')\n"
        "except KeyboardInterrupt: print('interrupted')\n"
        "collective_program.OnDevice.compile = compile\n"
        "print(torch.allclose(w.cpu(), grown(torch.ones(40, 40)), rtol=1e-4))\n"
    )
    done = subprocess.run(
        [sys.executable, script], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.stdout.splitlines() == ["interrupted", "True"], done.stderr


def test_reading_what_is_there_runs_nothing():
    w = torch.ones(3, device="xla")
    steps.sync()
    y = w * 2
    before = len(cuts.LOG), len(HERE.trace.tape.entries)
    assert w.cpu().tolist() == [1, 1, 1] and w[0].shape == ()
    assert (len(cuts.LOG), len(HERE.trace.tape.entries)) == before
    assert y.tolist() == [2, 2, 2]


def test_what_was_copied_from_the_cpu_is_there():
    w = torch.ones(3, device="xla")
    w.copy_(torch.tensor([1.0, 2.0, 3.0]))
    before = len(cuts.LOG)
    assert w.tolist() == [1, 2, 3]
    assert len(cuts.LOG) == before


def test_rows_whose_results_nobody_holds_run_nothing():
    x = torch.ones(3, device="xla")
    steps.sync()
    x * 2 + 1
    gc.collect()
    before = len(cuts.LOG)
    steps.sync()
    assert len(cuts.LOG) == before
    assert HERE.trace.tape.entries == []


def test_a_script_that_makes_warnings_errors_compiles_what_has_no_use_for_a_buffer():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        x = torch.ones(5, 4, device="xla") * 2
        steps.sync()
        total = x.sum()
        del x
        assert total.item() == 40
        mine = [*warnings.filters]
        (torch.ones(6, device="xla") * 3).cpu()
        # Nothing changes where nothing has to: each change lets all warnings come again.
        assert all(one is other for one, other in zip(mine, warnings.filters, strict=True))
