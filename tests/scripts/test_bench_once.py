"""The scripts that the benchmark of programs that come once times."""

import json

import pytest
from scripts_as_modules import loaded

bench = loaded("bench_once")


@pytest.mark.parametrize("name", bench.SCRIPTS)
def test_a_script_runs_in_eager_torch(name):
    bench.SCRIPTS[name]("cpu")


def test_a_line_tells_the_medians_of_runs_by_turns(monkeypatch, capsys):
    asked = []

    def timed_s(name, side):
        asked.append((name, side))
        return {"computed": 1.0, "compiled": 4.0, "eager": 0.5}[side] * len(asked)

    monkeypatch.setattr(bench, "timed_s", timed_s)
    monkeypatch.setattr(bench, "SCRIPTS", {"numbers": None})
    monkeypatch.setattr("sys.argv", ["bench_once", "--rounds", "3"])
    bench.main()
    assert asked == [("numbers", side) for side in ("computed", "compiled", "eager")] * 3
    assert json.loads(capsys.readouterr().out) == {
        "case": "numbers",
        "computed_s": 4.0,
        "compiled_s": 20.0,
        "eager_s": 3.0,
        "computed / compiled": 0.2,
    }
