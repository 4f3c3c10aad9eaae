"""How many compiled programs are kept, and what happens when there are more."""

import gc
import weakref

import pytest
import torch
from spmd_process import SpmdProcess

import torch_xla
from torch_xdist import metrics, settings
from torch_xdist.core.programs import (
    collective_program,
    jax_internals,
    program,
    program_cache,
)
from torch_xdist.core.programs.sharded_program import OnLayout
from torch_xdist.core.trace.plans import PLANS


@pytest.fixture
def limited(monkeypatch):
    """A function that sets XLA_COMPILATION_CACHE_SIZE and empties the cache of this process."""

    def limit(count):
        monkeypatch.setenv("XLA_COMPILATION_CACHE_SIZE", str(count))
        settings.reread()
        program.PROGRAMS.clear()

    yield limit
    monkeypatch.undo()
    settings.reread()


def evicted():
    return metrics.counter_value("EvictedProgram") or 0


def compiled():
    return metrics.counter_value("UncachedCompile") or 0


def run(rows):
    result = torch.ones(rows, 3, device="xla") * 2
    torch_xla.sync()
    assert result.cpu().sum() == rows * 6


def program_of(mask, name="", rows=0):
    return program_cache.Program(None, (), mask, name, "", rows, frozenset(), (0, 0), (), ())


def filled(count):
    """A cache of so many programs, and why the last one that went had to go."""
    cache = program_cache.ProgramCache()
    full = ""
    for number in range(count):
        program = program_cache.Program(
            None, (), (), str(number), "", 0, frozenset(), (0, 0), (), ()
        )
        full = cache.put((number,), program)[1] or full
    return cache, full


def test_the_least_recently_used_program_makes_room_and_is_compiled_again(limited):
    limited(3)
    with pytest.warns(RuntimeWarning, match=r"full with 3 programs \(XLA_COMPILATION_CACHE_SIZE"):
        for rows in (1, 2, 3, 1, 4):
            run(rows)
    before = compiled()
    run(1)
    assert compiled() == before
    with pytest.warns(RuntimeWarning, match="EvictedProgram"):
        run(2)
    assert compiled() > before


def test_programs_make_room_where_they_hold_too_much_memory(monkeypatch):
    monkeypatch.setenv("XDIST_PROGRAMS_MB", "2")
    settings.reread()
    try:
        cache = program_cache.ProgramCache()
        for number, rows in enumerate((0, 50, 0, 1000, 0)):
            made = program_of((), str(number), rows)
            dropped, full = cache.put((number,), made)
            if number == 2:
                assert not dropped and len(cache) == 3
            elif number == 3:
                # One that is larger than all that there may be is kept alone.
                assert len(dropped) == 3 and len(cache) == 1
                assert full == "about 2 MB of programs (XDIST_PROGRAMS_MB)"
        assert [program.fingerprint for program in cache.values()] == ["4"]
    finally:
        monkeypatch.undo()
        settings.reread()


@pytest.mark.long
def test_plans_go_with_their_programs(limited, monkeypatch):
    # Where there are many of other tests', many may be free before they are looked at.
    monkeypatch.setattr(PLANS, "_FREE_PER_PLAN", 0.0)
    limited(2)
    with pytest.warns(RuntimeWarning, match="full with 2 programs"):
        for rows in range(3000, 3120):
            run(rows)
            if rows == 3060:
                before = len(PLANS)
    # Each shape has several plans of its own; sixty of them would be far more.
    assert len(PLANS) < before + 100


def test_the_memory_of_an_evicted_program_is_given_back(limited):
    limited(2)
    with pytest.warns(RuntimeWarning, match="full with 2 programs"):
        for rows in range(1, 6):
            run(rows)
        before = program_cache.used_maps()
        for rows in range(6, 16):
            run(rows)
    # A program of one operator has six maps; ten of them would be 60.
    assert program_cache.used_maps() - before < 30


def test_a_shape_that_came_once_leaves_nothing_in_jax_s_own_functions(limited):
    def kept_after(shapes):
        for rows in shapes:
            torch.ones(rows, 3, device="xla").sin().sum(0)[1:].repeat(2).tolist()
        return sum(map(len, jax_internals._TRACED.values()))

    limited(2)
    with pytest.warns(RuntimeWarning, match="full with 2 programs"):
        before = kept_after(range(21, 25))
        assert kept_after(range(25, 35)) <= before


def test_half_of_the_programs_go_where_the_memory_maps_run_out(monkeypatch):
    monkeypatch.setattr(program_cache, "allowed_maps", lambda: 100)
    monkeypatch.setattr(program_cache, "used_maps", lambda: 51)
    before = evicted()
    cache, full = filled(16)
    assert full == "half of the 100 memory maps of a process (vm.max_map_count)"
    assert [kept.fingerprint for kept in cache.values()] == [str(n) for n in range(8, 16)]
    assert evicted() - before == 8


def test_nothing_goes_while_there_are_maps_enough(monkeypatch):
    monkeypatch.setattr(program_cache, "used_maps", lambda: 100)
    assert len(filled(40)[0]) == 40


def test_a_system_that_does_not_say_sets_no_bound(monkeypatch, tmp_path):
    monkeypatch.setattr(program_cache, "Path", lambda name: tmp_path / "missing")
    assert program_cache.used_maps() == 0
    assert len(filled(40)[0]) == 40


def test_what_was_traced_is_gone_when_a_program_is_compiled(monkeypatch):
    """JAX holds traces and MLIR modules as long as their function lives: 1.3 MB for this one."""
    steps_seen = []
    usual = collective_program.executable

    def noted(step, *arguments):
        steps_seen.append(weakref.ref(step))
        return usual(step, *arguments)

    monkeypatch.setattr(collective_program, "executable", noted)
    x = torch.ones(17, 19).to("xla")
    ((x * 2).sin() + 1).tolist()
    gc.collect()
    assert len(steps_seen) == 1 and steps_seen[0]() is None


four = SpmdProcess(4)


@four
def test_what_was_traced_for_the_logical_device_is_gone_too():
    x = torch.ones(16, 19).to("xla")
    ((x * 2).sin() + 1).tolist()
    made = [one for one in program.PROGRAMS.values() if type(one.executable) is OnLayout]
    assert made and all(one.executable._function is None for one in made)


def key_of(mask, entries=("row",)):
    return entries, (0, 1), mask, (2,), 0, ()


def test_a_program_has_further_keys_and_counts_once():
    cache = program_cache.ProgramCache()
    made, all_, one = program_of((True, False)), key_of((True, True)), key_of((True, False))
    cache.put(one, made)
    cache.put_also(all_, one)
    assert cache.get(all_) is cache.get(one) is made
    assert len(cache) == 1 and [*cache.values()] == [made]
    assert {*cache.alike(key_of((False, False)))} == {((True, False), made.outs)}
    assert cache.alike(key_of((False, False), ("other",))) == []
    cache.put(one, program_of((True, False)))
    assert not made.is_kept and cache.get(all_) is None and len(cache) == 1
    cache.put_also(all_, key_of((False, False)))
    assert cache.get(all_) is None


def test_a_program_has_not_any_number_of_keys():
    cache = program_cache.ProgramCache()
    cache.put(key_of(()), program_of(()))
    for number in range(40):
        cache.put_also(key_of((), (number,)), key_of(()))
    assert len(cache._programs) == 16 and len(cache) == 1


def test_a_key_is_missed_again_where_few_steps_were_since(monkeypatch):
    cache = program_cache.ProgramCache()
    monkeypatch.setattr(program_cache.PROGRESS, "step", 7)
    assert not cache.missed_again(key_of((True, True)))
    monkeypatch.setattr(program_cache.PROGRESS, "step", 10)
    assert not cache.missed_again(key_of((False, True)))
    assert cache.missed_again(key_of((True, True)))
    monkeypatch.setattr(program_cache.PROGRESS, "step", 14)
    assert not cache.missed_again(key_of((False, True)))


def test_of_many_keys_that_were_missed_the_last_are_remembered():
    cache = program_cache.ProgramCache()
    for number in range(300):
        assert not cache.missed_again((number,))
    assert cache.missed_again((299,)) and not cache.missed_again((0,))
    assert len(cache._missed) == 256
