"""The lines training scripts print."""

import re
import sys
import unittest

import pytest

from torch_xdist.debug import training_log as log


class Writer:
    """Keeps what is written, as tensorboardX would."""

    def __init__(self, logdir=None):
        self.logdir, self.scalars, self.is_closed = logdir, [], False

    def add_scalar(self, name, value, step):
        self.scalars.append((name, value, step))

    def close(self):
        self.is_closed = True


def test_a_training_line_has_torch_xlas_form(capsys):
    writer = Writer()
    log.print_training_update("xla:0", 1160, 0.00136, 430.414, 365.586, 1, writer)
    line = capsys.readouterr().out
    assert re.fullmatch(
        r"\| Training Device=xla:0/0 Epoch=1 Step=1160 Loss=0\.00136 Rate=430\.41"
        r" GlobalRate=365\.59 Time=\d\d:\d\d:\d\d\n",
        line,
    )
    assert ("Loss/train", 0.00136, 1160) in writer.scalars


def test_a_test_line_leaves_out_what_is_not_known(capsys):
    log.print_test_update("xla:0", 98.123, epoch=1, step=90)
    log.print_test_update("xla:0", 98.123)
    first, second = capsys.readouterr().out.splitlines()
    assert first.startswith("| Test Device=xla:0/0 Step=90 Epoch=1 Accuracy=98.12 Time=")
    assert second.startswith("| Test Device=xla:0/0 Accuracy=98.12 Time=")


def test_a_summary_holds_the_metrics_too():
    writer = Writer()
    log.write_to_summary(writer, 3, {"loss": 1.0}, write_xla_metrics=True)
    names = [name for name, _, _ in writer.scalars]
    assert names[0] == "loss" and names[-1] == "aten_ops_sum"
    log.write_to_summary(None, 3, {"loss": 1.0})


def test_no_folder_means_no_writer(monkeypatch):
    assert log.get_summary_writer("") is None
    log.close_summary_writer(None)
    monkeypatch.setitem(sys.modules, "tensorboardX", None)
    with pytest.raises(ImportError, match="tensorboardX is not installed; run `pip install"):
        log.get_summary_writer("logs")


def test_a_writer_notes_its_start(monkeypatch):
    module = type(sys)("tensorboardX")
    module.SummaryWriter = lambda log_dir: Writer(log_dir)
    monkeypatch.setitem(sys.modules, "tensorboardX", module)
    writer = log.get_summary_writer("logs")
    assert writer.logdir == "logs" and writer.scalars[0][0] == "TensorboardStartTimestamp"
    log.close_summary_writer(writer)
    assert writer.is_closed


@pytest.mark.filterwarnings("ignore")
def test_a_test_runs_in_a_process_of_its_own():
    class Case(unittest.TestCase):
        @log.mp_test
        def good(self):
            self.assertTrue(True)

        @log.mp_test
        def bad(self):
            sys.exit(3)

    Case("good").good()
    with pytest.raises(AssertionError, match="bad: its process exited with 3"):
        Case("bad").bad()
