"""What is printed of answers and troubles."""

from preflight_answers import answer, plan, with_device

from torch_xdist.launcher.preflight import judge, table
from torch_xdist.launcher.preflight.inquiry import Answer
from torch_xdist.launcher.preflight.trouble import Trouble


def shown(*answers: Answer) -> str:
    return table.text(answers, judge.troubles(answers, plan(*answers)))


def test_a_row_per_host_and_one_line_where_all_is_well() -> None:
    one, two = answer("a"), with_device("b", "CUDA")
    one.rates[1] = {"round_trip_ms": 0.12, "there_bytes_per_s": 9e9, "back_bytes_per_s": 1.15e9}
    assert table.text([one, two], []).splitlines() == [
        "HOST  LOGIN  PYTHON  TORCH   JAX     XDIST  CLOCK  DEVICES  NET               DISK   SHM  "
        "  FILES",
        "a     0.4 s  3.11.7  2.13.0  0.10.2  2.9.0  0 s    2 cores  -                 62 GB  25 GB"
        "  20000",
        "b     0.4 s  3.11.7  2.13.0  0.10.2  2.9.0  0 s    4 GPU    0.12 ms 1.1 GB/s  62 GB  25 GB"
        "  20000",
        "",
        "a job can run on 2 hosts",
    ]


def test_what_is_wrong_is_marked_and_told_below() -> None:
    text = shown(answer("a"), answer("b", versions={"jax": "0.10.1"}, limits={"open_files": 9}))
    lines = text.splitlines()
    assert "!0.10.1" in lines[2] and "!9" in lines[2] and "!" not in lines[1]
    assert lines[4].startswith("host b: jax 0.10.1 is there, but 0.10.2 on host a;")
    assert lines[5].startswith("warning: host b: a process may open 9 files")
    assert lines[6] == "no job can run on 2 hosts: 1 error; 1 warning"


def test_what_is_the_same_on_several_hosts_is_told_once() -> None:
    hosts = [answer(name) for name in "abcd"]
    lines = shown(*hosts, *(Answer(name) for name in "efg")).splitlines()
    assert lines[-2:] == [
        "hosts e, f, g: no answer within 15 s; try ssh by hand, or give it more time with --limit",
        "no job can run on 7 hosts: 3 errors",
    ]


def test_hosts_that_do_not_answer_have_a_row_too() -> None:
    lines = shown(answer("a"), Answer("b"), Answer("c", gone="x", gone_code=73)).splitlines()
    assert lines[2].split()[:3] == ["b", "!no", "answer"]
    assert lines[3].split()[:2] == ["c", "!failed"]


def test_columns_that_say_nothing_are_left_out() -> None:
    one = Answer("a", facts=answer("a").facts)
    title = table.text([one], []).splitlines()[0].split()
    assert not {"LOGIN", "CODE", "CLOCK", "NET", "LIBTPU"} & set(title)
    assert "a job can run on host a" in table.text([one], [])


def test_a_cell_is_coloured_by_the_worst_that_is_wrong_with_it() -> None:
    one = answer("a")
    both = [Trouble("a", "disk", "x"), Trouble("a", "disk", "y", is_warning=True)]
    text = table.text([one], both, marked=lambda c: f"<{c}>", warned=lambda c: f"({c})")
    assert "<!62 GB>" in text


def test_clocks_code_and_the_slowest_way_are_shown() -> None:
    one = answer("a", code={"files": {"a": "1", "b": "2"}, "whole": False})
    one.clock_s, one.reached = -2.26, {1: {"ms": 0.2}, 2: {"ms": 1.5}}
    row = table.text([one], []).splitlines()[1]
    assert " -2.3 s " in row and " 2 files+ " in row and " 1.50 ms " in row
