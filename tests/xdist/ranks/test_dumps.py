"""What variables ask a rank to write: each rank has files of its own, also of its collectives."""

import os

import pytest
from device_ranks import DeviceRanks


def dumps(rank, size, folder, form, steps=2):
    """Train a little with XLA_SAVE_TENSORS_FILE; what the last all-reduce gave."""
    import torch

    import torch_xla
    import torch_xla.core.xla_model as xm
    from torch_xdist import settings

    wanted = {
        "XLA_SAVE_TENSORS_FILE": f"{folder}/graphs",
        "XLA_SAVE_TENSORS_FMT": form,
        "XLA_METRICS_FILE": f"{folder}/metrics",
    }
    os.environ.update(wanted)
    settings.reread()
    try:
        total = torch.zeros(3, device="xla")
        for _ in range(steps):
            total = xm.all_reduce("sum", total + rank + 1)
            torch_xla.sync()
        return total.tolist()
    finally:
        for name in wanted:
            del os.environ[name]
        settings.reread()


@pytest.fixture(scope="module", params=["host", "gloo"])
def world(request):
    """(ranks, the name of their transport)."""
    with DeviceRanks(2, XDIST_TRANSPORT=request.param) as ranks:
        yield ranks, request.param


# How a graph begins in each format, and how it shows the all-reduce on each transport.
SHOWN = {
    "text": ("IR {", {"host": "all_reduce", "gloo": "all_reduce"}),
    "dot": ("digraph G {", {"host": "all_reduce", "gloo": "all_reduce"}),
    "hlo": ("HloModule", {"host": "xdist_exchange", "gloo": "all-reduce("}),
    "stablehlo": ("module @", {"host": "xdist_exchange", "gloo": "stablehlo.all_reduce"}),
}


@pytest.mark.parametrize("form", SHOWN)
def test_each_rank_dumps_its_graphs_into_a_file_of_its_own(world, form, tmp_path):
    ranks, transport = world
    assert ranks.run(dumps, str(tmp_path), form) == [[9.0] * 3] * 2
    begin, shown = SHOWN[form]
    for rank in range(2):
        graphs = (tmp_path / f"graphs.{rank}").read_text().split("## BEGIN_GRAPH\n")[1:]
        assert len(graphs) == 2
        assert all(graph.startswith(begin) and shown[transport] in graph for graph in graphs)


def test_each_rank_dumps_its_metrics_into_a_file_of_its_own(world, tmp_path):
    world[0].run(dumps, str(tmp_path), "text")
    for rank in range(2):
        assert "MarkStep" in (tmp_path / f"metrics.{rank}").read_text()
    assert len(list(tmp_path.iterdir())) == 4
