"""What glibc keeps of freed memory in a process whose devices are CPUs."""

import resource
import sys

import pytest
import torch

import torch_xla
from torch_xdist import settings
from torch_xdist.core.devices import heap
from torch_xdist.launcher.facts import placement

MALLOPT = {"arenas": -8, "largest not of the heap": -3, "kept at its top": -1}


@pytest.fixture
def chosen(monkeypatch):
    """What mallopt would be told."""
    found: dict[int, int] = {}
    monkeypatch.setattr(
        heap, "_mallopt", lambda: lambda name, value: not found.update({name: value})
    )
    monkeypatch.setattr("os.environ", {})
    settings.reread()
    yield found
    monkeypatch.undo()
    settings.reread()


def test_large_blocks_come_from_one_heap_that_keeps_a_gibibyte(chosen):
    assert heap.keep_freed_memory()
    size = 1 << 30
    assert chosen == dict(zip(MALLOPT.values(), (1, size, size)))


@pytest.mark.parametrize(("given", "kept"), [("64", 64 << 20), ("99999", 2047 << 20)])
def test_a_variable_says_how_much_is_kept(chosen, given, kept):
    settings.os.environ["XDIST_HEAP_MB"] = given
    settings.reread()
    assert heap.keep_freed_memory()
    assert chosen[MALLOPT["kept at its top"]] == kept


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("XDIST_HEAP_MB", "0"),
        ("MALLOC_ARENA_MAX", "2"),
        ("GLIBC_TUNABLES", "glibc.malloc.hugetlb=1:glibc.malloc.arena_max=2"),
    ],
)
def test_who_tunes_the_allocator_is_left_alone(chosen, name, value):
    settings.os.environ[name] = value
    settings.reread()
    assert not heap.keep_freed_memory()
    assert chosen == {}


def test_ranks_of_the_launcher_which_asks_for_large_pages_keep_freed_memory(chosen):
    settings.os.environ.update(placement.library_environ({}, 2))
    assert "glibc.malloc" in settings.os.environ["GLIBC_TUNABLES"]
    assert heap.keep_freed_memory()
    assert chosen[MALLOPT["arenas"]] == 1


def test_a_c_library_without_mallopt_is_left_alone(monkeypatch):
    monkeypatch.setattr("ctypes.CDLL", lambda name: object())
    assert not heap.keep_freed_memory()


@pytest.mark.skipif(
    sys.platform != "linux" or settings.tunes_malloc() or heap._mallopt() is None,
    reason="the C library has no mallopt, or MALLOC_* or GLIBC_TUNABLES tune it from outside",
)
def test_a_large_result_gets_memory_that_an_earlier_run_has_freed():
    x = torch.ones(12 << 20, device="xla")  # 48 MiB, 12,288 pages
    pages = []
    # What is small takes pieces of freed blocks, so the heap grows for up to a dozen turns.
    for _ in range(30):
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        y = x + 1
        torch_xla.sync(wait=True)
        del y
        pages.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
    assert min(pages) < 1000
