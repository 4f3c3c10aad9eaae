"""Programs on disk, each run a process of its own with a cache folder of the test's."""

import json
import os
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from torch_xdist.core.kept import on_disk

ROOT = Path(__file__).parents[4]
COUNTERS = "Hit", "Miss", "Damaged", "Failure"
STEP = """
    import json, sys, torch, torch_xla
    from torch_xla.debug import metrics
    x = torch.arange(7, device="xla") * 2 + 1
    assert x.sum().item() == 49
    weight = torch.ones(3, device="xla", requires_grad=True)
    optimizer = torch.optim.AdamW([weight])
    weight.sin().sum().backward()
    optimizer.step()
    assert optimizer.state_dict()["state"][0]["exp_avg"].tolist()
    found = {n: metrics.counter_value("PersistentCache" + n) or 0 for n in COUNTERS}
    found["lowered"] = metrics.counter_value("LoweredProgram") or 0
    names = "torch._dynamo", "torch.distributed.tensor", "sympy"
    found["imported"] = [name for name in names if name in sys.modules]
    print(json.dumps(found))
""".replace("COUNTERS", repr(COUNTERS))


def process(home, code=STEP, **more):
    """What a process finds, and what it says on stderr, whose user has this home."""
    env = {**os.environ, "HOME": str(home), "PJRT_DEVICE": "CPU"}
    for name in ("XLA_PERSISTENT_CACHE_PATH", "XDG_CACHE_HOME"):
        env.pop(name, None)
    command = [sys.executable, "-c", textwrap.dedent(code)]
    done = subprocess.run(
        command, env={**env, **more}, capture_output=True, text=True, timeout=200, cwd=ROOT
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1]), done.stderr


def run(home, code=STEP, **more):
    """What a process counts, and what it says on stderr."""
    found, said = process(home, code, **more)
    return [found[name] for name in COUNTERS], said


def entries(folder):
    return sorted(folder.rglob("*-cache"))


@pytest.fixture(scope="module")
def first_run(tmp_path_factory):
    """A home in which a process was the first, and how many programs it compiled."""
    home = tmp_path_factory.mktemp("first")
    (_, missed, *_), _ = run(home)
    assert missed
    return home, missed


def test_the_second_run_compiles_nothing_and_traces_nothing_and_says_nothing(first_run):
    home, missed = first_run
    folder = home / ".cache" / "torch-xdist" / "programs-1"
    assert folder.stat().st_mode & 0o777 == 0o700
    assert all(file.stat().st_mode & 0o777 == 0o600 for file in folder.iterdir())
    found, said = process(home)
    counts = dict(zip(COUNTERS, (missed, 0, 0, 0), strict=True))
    assert (found, said) == ({**counts, "lowered": 0, "imported": []}, "")


LAPACK = """
    import json, torch, torch_xla
    from torch_xla.debug import metrics
    a = torch.randn(3, 3)
    a = a @ a.t() + torch.eye(3)
    for function in (
        torch.linalg.cholesky, torch.linalg.eigvalsh, torch.linalg.svdvals, torch.linalg.inv,
        lambda x: torch.linalg.qr(x).R.abs(), lambda x: torch.linalg.eigvals(x).abs().sort()[0],
    ):
        torch.testing.assert_close(function(a.to("xla")).cpu(), function(a), rtol=1e-3, atol=1e-4)
    found = {n: metrics.counter_value("PersistentCache" + n) or 0 for n in COUNTERS}
    print(json.dumps(found))
""".replace("COUNTERS", repr(COUNTERS))


def test_programs_with_functions_of_lapack_run_where_they_are_found(tmp_path):
    (_, missed, *_), _ = run(tmp_path, LAPACK)
    assert missed >= 6
    assert run(tmp_path, LAPACK)[0] == [missed, 0, 0, 0]


def test_an_empty_variable_turns_it_off(tmp_path):
    assert run(tmp_path, XLA_PERSISTENT_CACHE_PATH="") == ([0, 0, 0, 0], "")
    assert not (tmp_path / ".cache").exists()


def test_other_flags_of_xla_compile_anew(first_run):
    home, missed = first_run
    (found, again, *_), _ = run(home, XLA_FLAGS="--xla_cpu_enable_fast_math=true")
    assert (found, again) == (0, missed)


@pytest.mark.long  # two processes
def test_a_program_whose_key_is_another_is_found_by_jaxs(first_run, tmp_path):
    home, missed = first_run
    shutil.copytree(home, tmp_path, dirs_exist_ok=True)
    # The same source, with other times, as a reinstallation has it.
    code = """
        from torch_xdist.core.kept import program_key
        program_key.source = lambda: "another"
    """
    found, _ = process(tmp_path, textwrap.dedent(code) + textwrap.dedent(STEP))
    assert (found["Hit"], found["Miss"], found["lowered"]) == (missed, 0, missed)
    # And from now on by its own.
    found, _ = process(tmp_path, textwrap.dedent(code) + textwrap.dedent(STEP))
    assert (found["Hit"], found["Miss"], found["lowered"]) == (missed, 0, 0)


@pytest.mark.long
def test_damaged_entries_are_compiled_and_counted(first_run, tmp_path):
    home, missed = first_run
    shutil.copytree(home, tmp_path, dirs_exist_ok=True)
    for file in entries(tmp_path):
        file.write_bytes(file.read_bytes()[:-5])
    (found, again, damaged, failures), said = run(tmp_path)
    assert (found, again, failures, said) == (0, missed, 0, "") and damaged >= missed


def test_a_folder_that_others_may_write_is_told_once_and_not_used(tmp_path):
    folder = tmp_path / ".cache" / "torch-xdist" / "programs-1"
    folder.mkdir(parents=True)
    folder.chmod(0o777)
    counts, said = run(tmp_path)
    assert counts == [0, 0, 0, 1] and not entries(tmp_path)
    assert said.count("others may write into") == 1 and "chmod go-w" in said


def test_a_home_that_cannot_hold_a_folder_costs_one_line(tmp_path):
    (tmp_path / ".cache").write_text("not a folder")
    counts, said = run(tmp_path)
    assert counts == [0, 0, 0, 1]
    assert said.count("\n") == 1 and "cannot be used (Not a directory)" in said


def test_a_cache_that_jax_was_given_stays_jaxs(tmp_path):
    run(tmp_path / "home", JAX_COMPILATION_CACHE_DIR=str(tmp_path / "jax"))
    assert not (tmp_path / "home" / ".cache").exists()


def test_a_stamp_names_releases_and_the_processor(monkeypatch):
    stamp = on_disk.stamp()
    for name in ("torch-xdist", "torch", "jax", "jaxlib"):
        assert f"{name} " in stamp
    monkeypatch.setattr(on_disk, "_processor", lambda: "another one")
    assert on_disk.stamp.__wrapped__() != stamp


@pytest.mark.long
def test_the_second_run_of_the_digits_compiles_and_traces_nothing(tmp_path):
    # Two ranks, and the cache where XDG_CACHE_HOME says.
    def digits(name):
        code = f"""
            import json, runpy, sys, torch_xla.distributed.xla_multiprocessing as xmp
            from torch_xla.debug import metrics
            sys.path.insert(0, "scripts")
            import train_digits

            def train(index, flags):
                train_digits.train(index, flags)
                kinds = "PersistentCacheHit", "PersistentCacheMiss", "LoweredProgram"
                with open(f"{tmp_path}/{name}-{{index}}", "w") as file:
                    json.dump([metrics.counter_value(kind) or 0 for kind in kinds], file)

            if __name__ == "__main__":
                import argparse
                flags = argparse.Namespace(
                    epochs=1, batch_size=256, lr=2e-3, seed=0, out={str(tmp_path / name)!r}
                )
                xmp.spawn(train, args=(flags,), nprocs=2)
        """
        script = tmp_path / "digits.py"
        script.write_text(textwrap.dedent(code))
        env = {**os.environ, "PJRT_DEVICE": "CPU", "XDG_CACHE_HOME": str(tmp_path / "xdg")}
        del env["XLA_PERSISTENT_CACHE_PATH"]
        done = subprocess.run(
            [sys.executable, script], env=env, cwd=ROOT, capture_output=True, text=True, timeout=250
        )
        assert done.returncode == 0, done.stderr
        return [json.loads((tmp_path / f"{name}-{rank}").read_text()) for rank in range(2)]

    first = digits("first")
    # What both ranks run is compiled by one of them.
    assert sum(missed for _, missed, _ in first) < sum(found + missed for found, missed, _ in first)
    for found, missed, lowered in digits("second"):
        assert found and not missed and not lowered
