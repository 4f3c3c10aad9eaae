"""Small things training scripts import."""

import gc
import re

import pytest
import torch

from torch_xdist.torch_xla_compat import script_tools as tools


def test_fake_data_comes_as_often_as_asked():
    data = tools.SampleGenerator("batch", 3)
    assert list(data) == ["batch"] * 3 == list(data) and len(data) == 3


def test_a_function_makes_batches():
    data = tools.FnDataGenerator(lambda x: 2 * x, 4, torch.ones, dims=[3], count=2)
    assert [(x.shape, y.sum().item()) for x, y in data] == [((4, 3), 24)] * 2 and len(data) == 2


def test_next_takes_from_one_pass_over_the_batches():
    data = tools.SampleGenerator("batch", 2)
    assert [data.next(), next(data)] == ["batch"] * 2
    with pytest.raises(StopIteration):
        data.next()
    assert list(data) == ["batch"] * 2


def test_a_timed_block_says_what_was_set_as_its_error():
    lines = []
    with tools.TimedScope("reading: ", lines.append) as scope:
        scope.set_error("file not found")
    (line,) = lines
    assert re.fullmatch(r"reading: \d+\.\d{3}s \[file not found\]", line)


def test_a_lazy_property_is_computed_once():
    calls = []
    lazy = tools.LazyProperty(lambda: calls.append(1) or 7)
    assert (lazy.value, lazy.value, calls) == (7, 7, [1])


def test_a_temporary_folder_goes_with_its_block(tmp_path):
    with tools.TmpFolder() as name:
        path = tmp_path.__class__(name)
        (path / "file").touch()
    assert not path.exists()


def test_a_cleaner_runs_once():
    calls = []
    with tools.Cleaner(lambda: calls.append(1)):
        pass
    cleaner = tools.Cleaner(lambda: calls.append(2))
    del cleaner
    gc.collect()
    assert calls == [1, 2]


def test_a_timed_call_prints_and_returns():
    lines = []
    assert tools.timed(lambda: 5, msg="took ", printfn=lines.append) == 5
    assert lines[0].startswith("took ") and lines[0].endswith("s")


def test_work_is_spread_over_threads_in_order():
    assert tools.parallel_work(2, lambda a, b: a * b, [1, 2, 3], [4, 5, 6]) == [4, 10, 18]


def test_free_ports_differ():
    assert len(set(tools.get_free_tcp_ports(5))) == 5


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (tools.as_list((1, 2)), [1, 2]),
        (tools.as_list(3), [3]),
        (tools.shape([torch.ones(2, 3), torch.ones(2, 3)]), [2, 2, 3]),
        (tools.shape([]), [0]),
        (tools.flatten_nested_tuple((1, (2, [3, (4,)]))), (1, 2, 3, 4)),
        (tools.list_copy_append([1], 2), [1, 2]),
    ],
)
def test_nested_data_is_flattened_and_measured(found, expected):
    assert found == expected


def test_printing_goes_to_stderr_or_nowhere(capsys):
    tools.get_print_fn(True)("seen")
    tools.get_print_fn(False)("unseen")
    assert capsys.readouterr() == ("", "seen\n")
    tools.eprint("a", 1, sep="-", end="!")
    tools.null_print("b", file=None)
    assert capsys.readouterr() == ("", "a-1!")


def test_a_function_runs_once():
    calls = []
    once = tools.run_once(lambda: calls.append(1) or len(calls))
    assert (once(), once()) == (1, 1)
