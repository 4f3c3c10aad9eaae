"""What glibc keeps of freed memory in a process whose devices are CPUs, and who gets its holes."""

import os
import resource
import subprocess
import sys
import textwrap

import pytest
import torch

import torch_xla
from torch_xdist import settings
from torch_xdist.core.programs import heap
from torch_xdist.launcher.facts import placement

MALLOPT = {"arenas": -8, "largest not of the heap": -3, "kept at its top": -1}


@pytest.fixture
def chosen(monkeypatch):
    """What mallopt would be told."""
    found: dict[int, int] = {}
    monkeypatch.setattr(heap, "_holes", None)
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


of_glibc = pytest.mark.skipif(
    sys.platform != "linux" or settings.tunes_malloc() or heap._mallopt() is None,
    reason="the C library has no mallopt, or MALLOC_* or GLIBC_TUNABLES tune it from outside",
)


@of_glibc
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


@of_glibc
@pytest.mark.parametrize("gives_back", [True, False])
def test_what_lies_in_no_hole_any_more_comes_from_behind_them_until_they_are_open(gives_back):
    blocks = 2000 if gives_back else 500
    told = run(
        f"""
        holes, size = heap.Holes(gives_back={gives_back}), 40_000
        blocks = [malloc(size) for _ in range({blocks})]
        for block in blocks:
            ctypes.memset(block, 1, size)
        for block in blocks[::2]:
            free(block)
        last, before_kb = max(blocks), resident_kb()
        assert malloc(size) < last  # It lies in a hole.
        free_bytes = holes.free_bytes()
        holes.close()
        assert free_bytes - holes.free_bytes() > {blocks} // 2 * 32_000
        assert malloc(size) > last and len(holes) >= {blocks} // 2 - 1
        print(before_kb - resident_kb())
        assert ctypes.string_at(blocks[1], size) == b"\\1" * size
        assert holes.open() and not len(holes)
        assert malloc(size) < last and not holes.open()
        """
    )
    # Of each hole of ten pages eight or nine are whole.
    assert (int(told) > blocks // 2 * 24) == gives_back


@of_glibc
def test_a_program_that_takes_long_to_compile_leaves_no_holes_and_others_leave_them():
    told = run(
        """
        import torch, torch_xla

        def grow(layers):
            x = torch.ones(64, 64, device="xla")
            for layer in range(layers):
                x = (torch.tanh(x @ x.roll(layer, 1)) * 2).sort(layer % 2).values
            torch_xla.sync(wait=True)
            return float(x.sum())

        # How long it takes is the machine's matter, and what else runs on it.
        heap._LONG_S = float("inf")
        grow(1)
        before = len(heap._holes)
        heap._LONG_S = 0
        values = [grow(24), grow(24), grow(28)]
        print(before, len(heap._holes) > 0, values[0] == values[1])
        """
    )
    assert told.split() == ["0", "True", "True"]


def test_no_more_is_taken_than_glibc_has_free():
    holes = heap.Holes(gives_back=False)
    taken = []
    # As under another allocator, whose blocks lie in no order.
    holes._allocate, holes._free = lambda size: taken.append(size) or 1 << 40 - len(taken), id
    holes.free_bytes = lambda: 3 << 22
    holes.close()
    assert taken == [1 << 28, *[1 << 22] * 3]


def test_where_there_is_no_memory_for_the_block_behind_them_the_holes_stay():
    holes = heap.Holes(gives_back=True)
    holes._allocate = lambda size: None
    holes.close()
    assert not len(holes) and not holes.open()


@pytest.mark.parametrize(("megabytes", "takes"), [("1024", True), ("256", False)])
def test_a_heap_too_small_for_a_block_behind_the_holes_keeps_them(chosen, megabytes, takes):
    settings.os.environ["XDIST_HEAP_MB"] = megabytes
    settings.reread()
    assert heap.keep_freed_memory() and (heap._holes is not None) == takes


def run(body: str) -> str:
    """What a process of its own prints, whose heap is as torch_xdist has it."""
    prelude = """
        import ctypes
        from torch_xdist.core.programs import heap

        assert heap.keep_freed_memory()
        library = ctypes.CDLL(None)
        malloc, free = library.malloc, library.free
        malloc.restype, malloc.argtypes, free.argtypes = (
            ctypes.c_void_p, [ctypes.c_size_t], [ctypes.c_void_p]
        )

        def resident_kb():
            rows = open("/proc/self/status").read().splitlines()
            return next(int(row.split()[1]) for row in rows if row.startswith("VmRSS"))
        """
    script = textwrap.dedent(prelude) + textwrap.dedent(body)
    env = {**os.environ, "PJRT_DEVICE": "CPU", "XLA_PERSISTENT_CACHE_PATH": ""}
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=240, env=env
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
