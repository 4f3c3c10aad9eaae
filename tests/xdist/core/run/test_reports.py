"""What is written at a cut or a step's end when a variable asks for it."""

import re

import pytest
import torch

import torch_xla
import torch_xla.core.xla_model as xm
import torch_xla.debug.profiler as xp
import torch_xla.distributed.parallel_loader as pl
from torch_xdist import metrics
from torch_xdist.core.programs import collective_program, program, program_cache
from torch_xdist.core.run import cuts, reports, unlowered


def test_the_metrics_are_appended_at_every_step(ask, tmp_path, monkeypatch):
    monkeypatch.setattr(reports, "_thread", type("Thread", (), {})())
    ask(XLA_METRICS_FILE=tmp_path / "metrics")
    for _ in range(2):
        torch.ones(2, device="xla") + 1
        torch_xla.sync()
    text = (tmp_path / "metrics").read_text()
    assert re.findall(r"\[MetricsData; step=(\d+)\]\n", text) == ["0", "1"]
    assert text.endswith("\n\n") and "Counter: MarkStep\n" in text


@pytest.mark.parametrize("stream", ["STDOUT", "STDERR"])
def test_the_metrics_may_be_printed(capsys, stream):
    reports.save_metrics(stream)
    out, err = capsys.readouterr()
    assert "[MetricsData; step=" in (out if stream == "STDOUT" else err)


def test_graphs_are_appended_when_they_run(ask, tmp_path):
    ask(XLA_SAVE_TENSORS_FILE=tmp_path / "graphs")
    kept = torch.ones(2, device="xla") + 1
    torch_xla.sync()
    text = (tmp_path / "graphs.0").read_text()
    assert text.startswith("[ScheduleSyncTensorsGraph]\nTensorsGraphInfo:\n  test_graphs_are_app")
    assert re.search(r"\nRoot Hashes: \([0-9a-f]{32}\)\n\n## BEGIN_GRAPH\nIR \{\n", text)
    assert re.search(r"\n}\n\nGraph Hash: [0-9a-f]{32}\n\n## END_GRAPH\n\n$", text)
    assert kept.tolist() == [2, 2]


def test_the_hash_of_a_dump_is_the_one_told_and_sees_no_runtime_scalar(ask, tmp_path, capsys):
    ask(PT_XLA_DEBUG_LEVEL=2, XLA_SAVE_TENSORS_FILE=tmp_path / "graphs")
    for number in (1.5, 2.5):
        kept = torch.ones(2, 17, device="xla") * number
        torch_xla.sync()
    assert not cuts.LOG[-1].compiled and kept.tolist()[0][0] == 2.5
    text = (tmp_path / "graphs.0").read_text()
    hashes = re.findall(r"\nGraph Hash: ([0-9a-f]{32})\n", text)
    assert hashes == [cuts.LOG[-1].fingerprint] * 2
    assert f"Graph Hash: {hashes[0]}\n" in capsys.readouterr().err
    roots = re.findall(r"\nRoot Hashes: \(([0-9a-f]{32})\)\n", text)
    assert len(set(roots)) == 1
    kept = torch.ones(2, 17, device="xla") / 1.5
    torch_xla.sync()
    text = (tmp_path / "graphs.0").read_text()
    assert len(set(re.findall(r"\nRoot Hashes: \(([0-9a-f]{32})\)\n", text))) == 2


def test_a_program_that_fails_is_written_down(ask, tmp_path, monkeypatch):
    def fail(*arguments):
        raise RuntimeError("no room")

    ask(XLA_SAVE_HLO_FILE=tmp_path / "failed", XLA_DUMP_HLO_GRAPH=1)
    x = torch.ones(2, 19, device="xla").sinh()
    with monkeypatch.context() as patch:
        patch.setattr(collective_program, "callable_of", fail)
        with pytest.raises(RuntimeError, match="no room") as error:
            torch_xla.sync()
    note = "".join(error.value.__notes__)
    assert ">>> Dumping Computation 0\nHloModule " in note
    text = (tmp_path / "failed").read_text()
    assert text.startswith("[HLO Graph 0 From Thread ") and "]\nHloModule " in text
    with monkeypatch.context() as patch:
        patch.setattr(collective_program.OnDevice, "_lowered", fail)
        with pytest.raises(RuntimeError, match="no room") as error:
            torch_xla.sync()
    assert "no HLO: it cannot be lowered (RuntimeError: no room)" in "".join(error.value.__notes__)
    torch_xla.sync()
    with monkeypatch.context() as patch:
        patch.setattr(collective_program, "direct_call", lambda *compiled: None)
        patch.setattr(program, "in_one_call", fail)
        y = torch.ones(2, 19, device="xla").cosh()
        with pytest.raises(RuntimeError, match="no room") as error:
            torch_xla.sync()
    assert ">>> Dumping" in "".join(error.value.__notes__) and x.shape == y.shape


def causes(text, kind):
    return re.findall(rf"{kind} Analysis: {kind} Cause\n{kind} Analysis:   (.*)\n", text)


def test_executions_and_compilations_are_explained(ask, capsys):
    ask(PT_XLA_DEBUG_LEVEL=2)
    kept = torch.ones(2, 7, device="xla") + 100
    torch_xla.sync()
    print(kept.sum().item())
    text = capsys.readouterr().err
    assert causes(text, "Execution") == [
        "user torch_xla.sync",
        "most likely user code trying to access tensor value before torch_xla.sync",
    ]
    assert causes(text, "Compilation")[0] == "user torch_xla.sync"
    assert re.search(r"Execution Analysis:   Graph Hash: [0-9a-f]{32}\n", text)
    assert "Execution Analysis:   Number of Graph Outputs: 1\n" in text
    assert "Python Frame Triggered Execution: \nExecution Analysis:   sync (" in text


def test_what_a_program_needs_is_told_after_it_was_compiled(ask, capsys, monkeypatch):
    ask(PT_XLA_DEBUG_LEVEL=1)
    kept = torch.ones(6, 13, device="xla") + 100
    xm.mark_step()
    text = capsys.readouterr().err
    assert re.search(
        r"\n\nComputation hash: [0-9a-f]{32}\n\nPost Compilation Analysis: ={80}\n"
        r"Post Compilation Analysis: Graph input size: 0\.\d{6} GB\n"
        r"Post Compilation Analysis: Graph output size: 0\.\d{6} GB\n"
        r"Post Compilation Analysis: Aliased Input size: 0\.\d{6} GB\n"
        r"Post Compilation Analysis: Intermediate tensor size: 0\.\d{6} GB\n"
        r"Post Compilation Analysis: Compiled program size: 0\.\d{6} GB\n"
        r"Post Compilation Analysis: -{80}\nPost Compilation Analysis: ={80}\n",
        text,
    )
    assert "Execution Analysis" not in text and kept.shape == (6, 13)
    monkeypatch.setattr(program_cache.Program, "memory", lambda self: None)
    kept = torch.ones(6, 14, device="xla") + 100
    xm.mark_step()
    assert "Analysis: Graph input size: Unknown  GB\n" in capsys.readouterr().err


def test_a_captured_graph_is_told_apart(ask, capsys, tmp_path):
    ask(PT_XLA_DEBUG_LEVEL=2, XLA_SAVE_TENSORS_FILE=tmp_path / "graphs")
    torch._dynamo.reset()
    torch.compile(lambda x: x * 100, backend="openxla")(torch.ones(4, 15, device="xla") + 1)
    text = capsys.readouterr().err
    assert causes(text, "Compilation") == [
        "torch_xla.sync when dynamo processing input graphs",
        "dynamo is compiling a FX graph to HLO",
    ]
    assert causes(text, "Execution")[1] == "dynamo is executing a compiled program"
    assert "[dynamo]\nTensorsGraphInfo:\n" in (tmp_path / "graphs.0").read_text()


def stepping():
    kept = torch.ones(4, 2, device="xla") + 1
    with torch_xla.step():
        return kept * 2


def tracing():
    with xp.StepTrace("train"):
        return torch.ones(4, 3, device="xla") + 1


@pytest.mark.parametrize(
    ("run", "causes_of_each"),
    [
        (stepping, ["torch_xla.compile"] * 2),
        (tracing, ["torch_xla.sync when exiting a profiler StepTrace region"]),
    ],
)
def test_blocks_that_end_a_step_are_named_as_the_cause(ask, capsys, run, causes_of_each):
    ask(PT_XLA_DEBUG_LEVEL=2)
    kept = run()
    assert causes(capsys.readouterr().err, "Execution") == causes_of_each and kept.dim() == 2


def test_a_random_graph_has_one_input(ask, capsys):
    ask(PT_XLA_DEBUG_LEVEL=2)
    kept = torch.randn(3, device="xla")
    xm.mark_step()
    assert "Number of Graph Inputs: 1\n" in capsys.readouterr().err
    assert kept.shape == (3,)


def test_the_loader_is_named_as_the_cause(ask, capsys):
    ask(PT_XLA_DEBUG_LEVEL=2)
    for x in pl.MpDeviceLoader([torch.ones(3)] * 4, xm.xla_device()):
        kept = x + 1
    found = causes(capsys.readouterr().err, "Execution")
    assert found == ["torch_xla.sync in parallel loader at step end"] * 4 and kept.shape == (3,)


@pytest.mark.parametrize("is_decorator", [False, True])
def test_a_compiled_function_has_a_name(ask, capsys, is_decorator):
    ask(PT_XLA_DEBUG_LEVEL=2)
    pending = torch.ones(5, device="xla") + 1
    if is_decorator:
        torch_xla.compile(name="double")(lambda: pending * 2)()
    else:
        torch_xla.compile(lambda: pending * 2, name="double")()
    text = capsys.readouterr().err
    assert "Graph Name: double_clear_pending\n" in text
    assert "torch_xla.compile clear the pending graph prior calling the target function" in text


def test_findings_go_into_a_file(ask, tmp_path, monkeypatch):
    ask(PT_XLA_DEBUG=1, PT_XLA_DEBUG_FILE=tmp_path / "debug")
    monkeypatch.setattr(metrics, "_counters", {"MarkStep": 20, "aten::nonzero": 1})
    monkeypatch.setattr(metrics, "_metrics", {})
    for _ in range(19):
        metrics.observe("CompileTime", 400)
    reports.at_sync()
    assert (tmp_path / "debug").read_text() == (
        "pt-xla-profiler: CompileTime too frequent: 19 counts during 20 steps\n"
        "pt-xla-profiler: CompileTime too slow: longest instance took 07m40s000ms000.000us. Please"
        " open a GitHub issue with the graph dump for our team to optimize.\n"
        "pt-xla-profiler: Op(s) not lowered: aten::nonzero,  Please open a GitHub issue with the"
        " above op lowering requests.\n"
    )


def test_lines_that_run_operators_on_the_cpu_are_told_at_the_end(ask, capsys, tmp_path):
    ask(PT_XLA_DEBUG=1, PT_XLA_DEBUG_LEVEL=0)
    x = torch.ones(2, device="xla")
    for _ in range(2):
        x.sum().item()
    unlowered.tell_unlowered()
    text = capsys.readouterr().err
    head = "Unlowered Op usage summary (more of these ops, lower performance)\n"
    assert text.startswith(f"pt-xla-profiler: {'=' * 80}\npt-xla-profiler: {head}")
    assert 'profiler: FRAME (count=2):\npt-xla-profiler: Unlowered Op: "_local_scalar' in text
    assert "pt-xla-profiler:   test_lines_that_run_operators_on_the_cpu_are_told" in text
    ask(PT_XLA_DEBUG_FILE=tmp_path / "debug")
    unlowered.note_unlowered("nonzero")
    unlowered.tell_unlowered()
    assert 'FRAME (count=1):\nUnlowered Op: "nonzero"\nPython Frames:\n  test_lines' in (
        (tmp_path / "debug").read_text()
    )


def test_a_step_may_not_end_inside_a_trace_block():
    refused = pytest.raises(RuntimeError, match=r"Expecting scope to be empty but it is conv1\.1;")
    with xp.Trace("conv1"), refused:
        torch_xla.sync()
    torch_xla.sync()


def test_a_step_trace_ends_the_step():
    before = metrics.counter_value("MarkStep") or 0
    with xp.StepTrace("train", step_num=3):
        torch.ones(2, device="xla") + 1
    assert metrics.counter_value("MarkStep") == before + 1


def test_profiles_are_written_one_at_a_time(tmp_path):
    with pytest.raises(RuntimeError, match="No profile started"):
        xp.stop_trace()
    xp.start_trace(str(tmp_path))
    with pytest.raises(RuntimeError, match="Only one profile may be run at a time"):
        xp.start_trace(str(tmp_path))
    xp.trace_me("named")(lambda: torch.ones(2, device="xla").sum().item())()
    xp.stop_trace()
    assert list(tmp_path.glob("**/plugins/profile/*/*.xplane.pb"))
