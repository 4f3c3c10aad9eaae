"""The scripts around the suite: lanes, the environment's stamp, the digits."""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from scripts_as_modules import loaded

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def lanes(tmp_path, monkeypatch):
    module = loaded("test_lanes")
    monkeypatch.setattr(module, "LOGS", tmp_path)
    monkeypatch.setattr(module, "ROOT", tmp_path)
    return module


def test_the_suite_runs_in_two_lanes_and_then_the_launcher_in_three(lanes, tmp_path):
    for folder in ("tests/xdist/core", "tests/xdist/kernels", "tests/launcher/head"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / lanes.OVER_HOSTS).mkdir()
    for name in ("a", "b", "c", "d", "e"):
        (tmp_path / lanes.OVER_HOSTS / f"test_{name}.py").touch()
        (tmp_path / "tests/launcher" / f"test_{name}.py").touch()
    (tmp_path / lanes.WITH_THEM[0]).touch()
    named = {"core": ["tests/xdist/core"], "kernels": ["tests/xdist/kernels"]}
    ignored = ("tests/launcher", "tests/xdist/core", "tests/xdist/kernels")
    first, last = lanes.phases(["-x"])
    rest = ["tests", *(f"--ignore={path}" for path in ignored)]
    assert (first.lanes, first.parts) == (2, {**named, "rest": rest})
    tests = {name: f"tests/launcher/test_{name}.py" for name in ("a", "b", "c", "d", "e")}
    assert (last.lanes, last.parts) == (
        3,
        {
            "clusters": [lanes.WITH_THEM[0]],
            "pods-1": [f"{lanes.OVER_HOSTS}/test_a.py", f"{lanes.OVER_HOSTS}/test_d.py"],
            "pods-2": [f"{lanes.OVER_HOSTS}/test_b.py", f"{lanes.OVER_HOSTS}/test_e.py"],
            "pods-3": [f"{lanes.OVER_HOSTS}/test_c.py"],
            "jobs-1": [tests["a"], tests["e"]],
            "jobs-2": [tests["b"]],
            "jobs-3": [tests["c"]],
            "jobs-4": [tests["d"]],
            "launcher-1": ["tests/launcher/head"],
        },
    )


def test_what_the_parts_name_is_in_the_suite_and_in_one_of_them():
    lanes = loaded("test_lanes")
    named = [path for paths in lanes.PARTS.values() for path in paths]
    assert all((ROOT / path).exists() for path in (*named, lanes.OVER_HOSTS, *lanes.WITH_THEM))
    assert len(named) == len(set(named))
    files = {path.name for path in (ROOT / "tests/launcher").glob("test_*.py")}
    of_launcher = [Path(path) for paths in lanes.launcher_parts().values() for path in paths]
    assert sorted(path.name for path in of_launcher if len(path.parts) == 3 and path.suffix) == (
        sorted(files)
    )


def test_a_named_path_runs_alone(lanes, tmp_path):
    (tmp_path / "tests").mkdir()
    assert lanes.phases(["tests::name"]) == [(1, {"tests": []})]


def test_the_closing_line_adds_all_parts_and_names_the_failed_one(lanes, tmp_path, capsys):
    for folder, body in (("xdist/core", "assert False"), ("more", "pass")):
        path = tmp_path / "tests" / folder
        path.mkdir(parents=True)
        (path / f"test_{path.name}.py").write_text(f"def test_it():\n    {body}\n")
    assert lanes.main(["-p", "no:cacheprovider"]) == 1
    out = capsys.readouterr().out
    assert "part core failed with exit code 1; its log is core.log" in out
    assert re.search(r"^(core \d+ s, rest|rest \d+ s, core) \d+ s$", out, re.M)
    assert out.splitlines()[-1].startswith("1 passed, 1 failed in ")


@pytest.mark.parametrize(("options", "code"), [([], 0), (["--faults-must-run"], 1)])
def test_a_skipped_proof_of_a_fault_fails_where_faults_must_run(tmp_path, options, code):
    file = "tests/launcher/pods/test_launchers_over_hosts.py"
    command = [sys.executable, "-m", "pytest", "-q", "-m", "fault", "-k", "mpirun", *options, file]
    # A machine without mpirun.
    environ = {**os.environ, "PATH": str(tmp_path)}
    done = subprocess.run(
        command, cwd=ROOT, env=environ, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == code
    assert "mpirun (openmpi-bin) is not installed" in done.stdout
    assert ("install what it needs, see .ci/install" in done.stdout) == bool(code)


def test_the_long_tests_are_listed_with_the_time_each_took(tmp_path):
    (tmp_path / "conftest.py").write_text((ROOT / "tests" / "conftest.py").read_text())
    (tmp_path / "fault_table.py").write_text("def faults(): return {}\n")
    (tmp_path / "test_it.py").write_text(
        "import time, pytest\n@pytest.mark.long\ndef test_slow(): time.sleep(0.3)\n"
        "def test_quick(): pass\n"
    )
    command = [sys.executable, "-m", "pytest", "-q", "-W", "ignore", str(tmp_path)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0
    assert re.search(r" 1 long tests took 0 s =+\n +0\.3 s  test_it.py::test_slow\n", done.stdout)
    assert "test_quick" not in done.stdout


def test_a_test_that_took_long_is_told_when_it_ends(tmp_path):
    text = (ROOT / "tests" / "conftest.py").read_text()
    (tmp_path / "conftest.py").write_text(text.replace("TOLD_FROM_S = 20", "TOLD_FROM_S = 0.2"))
    (tmp_path / "fault_table.py").write_text("def faults(): return {}\n")
    (tmp_path / "test_it.py").write_text(
        "import time, pytest\n"
        "@pytest.mark.parametrize('s', [0.3, 0])\ndef test_slow(s): time.sleep(s)\n"
    )
    command = [sys.executable, "-m", "pytest", "-W", "ignore", str(tmp_path)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0
    assert re.findall(r"^ +(\d\.\d) s  (.*)$", done.stdout, re.M) == [
        ("0.3", "test_it.py::test_slow[0.3]")
    ]


@pytest.mark.parametrize("name", ["quickstart", "test", "check"])
def test_a_script_asked_for_help_says_what_it_does_and_installs_nothing(name):
    script = ROOT / "scripts" / name
    done = subprocess.run([script, "--help"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and done.stderr == ""
    comment = script.read_text().splitlines()[1].removeprefix("# ")
    assert done.stdout.startswith(comment + "\n") and f"scripts/{name} [" in done.stdout


def test_the_digits_are_told_apart(tmp_path):
    digits = loaded("train_digits")
    train, test = digits.datasets()
    assert (len(train), len(test)) == (1477, 320)
    assert train[0][0].shape == (1, 8, 8) and 0 <= train[0][0].min() <= train[0][0].max() <= 1
    digits.plot([1.0, 0.5], [0.8, 0.9], tmp_path / "plot.png")
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")


def test_a_batch_that_no_rank_has_is_refused_with_the_largest_there_is(monkeypatch):
    digits = loaded("train_digits")
    monkeypatch.setattr(digits.xr, "world_size", lambda: 256)
    flags = argparse.Namespace(seed=0, batch_size=32)
    with pytest.raises(ValueError, match="256 ranks share 1477 images; take at most 5"):
        digits.train(0, flags)


@pytest.mark.long
def test_two_ranks_learn_the_digits(tmp_path):
    command = [sys.executable, ROOT / "scripts" / "train_digits.py", "--out", tmp_path]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stdout + done.stderr
    assert (tmp_path / "digits.pt").exists() and (tmp_path / "digits.png").exists()


def test_counting_instructions_without_valgrind_says_what_to_install():
    command = [sys.executable, ROOT / "scripts" / "bench_instructions.py"]
    done = subprocess.run(command, env={"PATH": ""}, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert "valgrind is not on PATH; install it" in done.stderr


@pytest.mark.long
@pytest.mark.timeout(1200)
@pytest.mark.skipif(not shutil.which("valgrind"), reason="valgrind is not on PATH")
def test_a_tree_takes_as_many_instructions_as_itself():
    command = [sys.executable, ROOT / "scripts" / "bench_instructions.py", "--layers", "1"]
    command += ["--against", ROOT]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900)
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert [line["what"] for line in lines] == ["host, AdamW default", "host, AdamW foreach=False"]
    assert all(abs(line["ratio"] - 1) < 0.02 for line in lines)


@pytest.mark.long
@pytest.mark.timeout(700)
def test_the_clock_compares_a_tree_with_itself_and_with_another():
    command = [sys.executable, ROOT / "scripts" / "bench_clock.py", ROOT]
    command += ["--layers", "1", "--turns", "3"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert [line["what"] for line in lines] == ["host, AdamW default", "host, AdamW foreach=False"]
    for line in lines:
        assert line["this / other"]["median"] > 0
        assert line["other / other"]["median"] > 0


def test_the_clock_wants_a_checkout(tmp_path):
    command = [sys.executable, ROOT / "scripts" / "bench_clock.py", tmp_path]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert f"{tmp_path} has no scripts/bench_steps.py: name a checkout" in done.stderr


@pytest.mark.long
def test_the_clock_says_when_a_worker_ended(tmp_path):
    (tmp_path / "scripts").mkdir()
    (tmp_path / "scripts" / "bench_steps.py").write_text("raise SystemExit(3)")
    command = [sys.executable, ROOT / "scripts" / "bench_clock.py", tmp_path, "--layers", "1"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 1
    assert "bench_clock: a worker ended with code 3" in done.stderr


def test_a_callgrind_that_was_left_stopped_goes_on(monkeypatch):
    script = loaded("bench_instructions")
    monkeypatch.setattr(script, "LOOK_S", 0.2)
    stops = "import os, signal, sys; os.kill(os.getpid(), signal.SIGSTOP); sys.stderr.write('on')"
    process = subprocess.Popen([sys.executable, "-c", stops], stderr=subprocess.PIPE, text=True)
    assert script.to_the_end(process) == "on" and process.returncode == 0


@pytest.mark.long
def test_the_benchmark_of_recording_answers_each_call_of_both_passes() -> None:
    command = [sys.executable, ROOT / "scripts" / "bench_recording.py", "--rounds", "2"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["calls"] > 200 and found["answered_us"] > 0


def test_the_page_of_operators_is_that_of_the_code() -> None:
    command = [sys.executable, ROOT / "scripts" / "list_ops.py", "--check"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
