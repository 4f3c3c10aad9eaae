"""What every test may count on, which tests prove a fault, and how long the long ones took."""

import collections
import os
import signal
import sys
import zlib
from collections.abc import Generator, Iterator

import fault_table
import hypothesis
import pytest

# A test that takes so long has a line of its own when it ends.
TOLD_FROM_S = 20
# No test depends on what an earlier run compiled, nor fills the developer's own cache: those about
# it name a folder. Before anything reads the variable; programs that tests start inherit it.
os.environ["XLA_PERSISTENT_CACHE_PATH"] = ""
# Tests are of the programs; CPU torch, which they are compared with, computes none of them.
os.environ["XDIST_COMPUTE_ONCE"] = "0"
# An example may take long on a busy machine: no test is about that.
hypothesis.settings.register_profile("without a clock", deadline=None)
hypothesis.settings.load_profile("without a clock")
NAMES_OF_RANKS = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "CPU_NUM_DEVICES", "XLA_USE_SPMD")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--faults-must-run",
        action="store_true",
        help="a skipped test that proves a fault of docs/failures.md counts as failed",
    )


def pytest_configure() -> None:
    """Let Ctrl-C reach the programs the tests start.

    A shell starts background jobs with SIGINT ignored, and children inherit that.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


# Before pytest's own, which selects by markers.
@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests that docs/failures.md names, and skip those of another device than this."""
    rows = fault_table.faults()
    device = os.environ.get("PJRT_DEVICE") or "CPU"
    for item in items:
        row = rows.get((item.path, getattr(item, "originalname", item.name)))
        if row is not None and not _is_a_long_case(item):
            item.add_marker(pytest.mark.fault(row))
        if device != "CPU" and item.get_closest_marker("on_cpu"):
            item.add_marker(pytest.mark.skip(f"it is about a CPU, and PJRT_DEVICE is {device}"))


# Before fixtures of any scope, which draw as well.
@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Draw the same numbers in every run of a test, whatever ran before it in its process."""
    if torch := sys.modules.get("torch"):
        # Of the CPU alone: `torch.manual_seed` would seed, and so start, the devices as well.
        torch.default_generator.manual_seed(zlib.crc32(item.nodeid.encode()))


def _is_a_long_case(item: pytest.Item) -> bool:
    """Whether it is one of several cases of a test, and marked as long by itself."""
    marks = sum(node is item for node, _ in item.iter_markers_with_node("long"))
    of_all = getattr(getattr(item, "function", None), "pytestmark", ())
    return marks > sum(mark.name == "long" for mark in of_all)


@pytest.fixture(autouse=True, scope="module")
def _leaves_no_rank_in_the_environment() -> Iterator[None]:
    """Later files start programs, which would take themselves for ranks of a job."""
    before = [os.environ.get(name) for name in NAMES_OF_RANKS]
    yield
    assert [os.environ.get(name) for name in NAMES_OF_RANKS] == before, NAMES_OF_RANKS


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Where faults must run, a fault that is skipped is proved by nothing."""
    report = yield
    if report.when == "call" and report.duration >= TOLD_FROM_S:
        reporter = item.config.pluginmanager.get_plugin("terminalreporter")
        reporter.write_line(f"{report.duration:7.1f} s  {item.nodeid}")
    mark = item.get_closest_marker("fault")
    if report.skipped and mark is not None and item.config.getoption("--faults-must-run"):
        row: fault_table.Row = mark.args[0]
        if not row.needs_hardware:
            why = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr
            report.outcome = "failed"
            report.longrepr = (
                f'docs/failures.md names this test for "{row.fault}", but it was skipped here '
                f"({why}); install what it needs, see .ci/install"
            )
    return report


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say how long each test took that is marked `long`, setup and teardown included."""
    taken_s: collections.Counter[str] = collections.Counter()
    for reports in terminalreporter.stats.values():
        for report in reports:
            if isinstance(report, pytest.TestReport) and "long" in report.keywords:
                taken_s[report.nodeid] += report.duration
    if taken_s:
        terminalreporter.section(f"{len(taken_s)} long tests took {sum(taken_s.values()):.0f} s")
        for name, seconds in taken_s.most_common():
            terminalreporter.write_line(f"{seconds:7.1f} s  {name}")
