"""Graph files read back."""

from torch_xdist.debug.graph_files import Graph, graph_report, parse_graphs


def block(frames, graph, hashes="ab"):
    lines = "".join(f"  {frame}\n" for frame in frames)
    return (
        f"[ScheduleSyncTensorsGraph]\nGraph Name: step\nTensorsGraphInfo:\n{lines}\n"
        f"Root Hashes: ({hashes})\n\n## BEGIN_GRAPH\nIR {{\n{graph}}}\n\n## END_GRAPH\n\n"
    )


ADD = "  %0 = f32[3] xla::device_data(), device=CPU:0\n  %1 = f32[3] aten::add(%0, %0), ROOT=0\n"
MORE = "  %0 = f32[] prim::Constant()\n" + ADD.replace("%1", "%2").replace("%0", "%1")


def test_each_graph_has_its_frames_its_hash_and_its_text():
    text = "noise\n" + block(["step (a.py:3)", "<module> (a.py:9)"], ADD, "cd")
    assert parse_graphs(text) == [
        Graph("  step (a.py:3)\n  <module> (a.py:9)", "cd", f"IR {{\n{ADD}}}\n\n")
    ]
    assert parse_graphs("") == []


def test_a_graph_without_frames_is_one_too():
    assert [graph.frames for graph in parse_graphs(block([], ADD))] == [""]


def test_graphs_of_one_place_are_compared_without_their_numbers():
    blocks = [(["a"], ADD, "1"), (["a"], ADD, "1"), (["a"], MORE, "2"), (["b"], ADD, "3")]
    report = graph_report(parse_graphs("".join(block(*words) for words in blocks)))
    assert report.startswith("Parsed 4 graph(s)\n2 frame group(s)\nFrame has 3 graph(s) (2 un")
    changed = [line for line in report.splitlines() if line.startswith(("  +", "  -"))]
    assert changed == ["  --- frame-0", "  +++ frame-1", "  +  f32[] prim::Constant()"]
    assert "Frame 0 (count=2) vs 1 (count=1)" in report
    assert "Collision" not in report


def test_different_graphs_of_one_hash_are_told():
    report = graph_report(parse_graphs(block(["a"], ADD) + block(["b"], MORE)))
    assert "Collision on hash ab: graphs [0] and [1] differ" in report
