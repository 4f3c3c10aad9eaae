"""Metrics files read back."""

import sys

import pytest

from torch_xdist.debug.metrics_files import (
    metric_points,
    metrics_report,
    save_plots,
    save_to_tensorboard,
)

TEXT = """[MetricsData; step=0]
Counter: MarkStep
  Value: 1

[MetricsData; step=1]
Counter: MarkStep
  Value: 2
Counter: UncachedCompile
  Value: 7
"""
POINTS = {"MarkStep__Value": [(0, 1), (1, 2)], "UncachedCompile__Value": [(1, 7)]}


def test_every_number_is_followed_from_report_to_report():
    assert metric_points(TEXT) == POINTS
    assert metric_points("") == {}


def test_the_table_has_a_block_for_each_name():
    assert metrics_report(POINTS) == (
        "[MarkStep__Value]\n0\t1\n1\t2\n\n[UncachedCompile__Value]\n1\t7\n"
    )


def test_each_name_is_drawn(tmp_path):
    save_plots({"aten::add__Value": [(0, 1), (1, 2)]}, tmp_path / "pictures")
    (picture,) = (tmp_path / "pictures").iterdir()
    assert picture.name == "aten__add__Value.png"
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_each_name_is_a_scalar_of_tensorboard(tmp_path, monkeypatch):
    written = []

    class SummaryWriter:
        def __init__(self, folder):
            written.append(folder)

        def __enter__(self):
            return self

        def __exit__(self, *error):
            written.append("closed")

        def add_scalar(self, *scalar):
            written.append(scalar)

    module = type(sys)("tensorboardX")
    module.SummaryWriter = SummaryWriter
    monkeypatch.setitem(sys.modules, "tensorboardX", module)
    save_to_tensorboard({"MarkStep__Value": [(0, 1)]}, tmp_path)
    assert written == [str(tmp_path), ("MarkStep__Value", 1, 0), "closed"]


@pytest.mark.parametrize(
    ("save", "package"), [(save_plots, "matplotlib.figure"), (save_to_tensorboard, "tensorboardX")]
)
def test_what_is_missing_is_named(save, package, monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ImportError, match=package):
        save(POINTS, tmp_path)
