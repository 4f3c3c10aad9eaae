"""Why a program was compiled again: what is said, where, how often."""

import pytest
import torch

from torch_xdist import metrics, settings
from torch_xdist.core.devices import steps
from torch_xdist.core.run import program_difference, recompilations


@pytest.fixture(autouse=True)
def nothing_ran():
    recompilations.clear()
    yield
    recompilations.clear()


def train(turns, step):
    """A loop of its own; its sync is one line for all turns."""
    for turn in turns:
        kept = step(turn)
        steps.sync()
        del kept


def line_of(function, offset):
    return f"{__file__}:{function.__code__.co_firstlineno + offset}"


def told(capfd):
    return [line for line in capfd.readouterr().err.splitlines() if "compiled again" in line]


def sum_of_rows(rows):
    x = torch.ones(rows, 3).to("xla")
    return (x * 2).sum(0)


def test_a_last_batch_is_told_with_the_line_that_reads_it_and_a_remedy(capfd):
    train([8, 8, 8, 5, 8, 5], sum_of_rows)
    (line,) = told(capfd)
    assert f"{line_of(train, 4)}: after step " in line and "a program (2 operators)" in line
    assert "a tensor it reads is float32[5, 3], was float32[8, 3]" in line
    assert f", at {line_of(sum_of_rows, 2)};" in line
    assert "DataLoader(drop_last=True), or MpDeviceLoader(pad_to={0: 8})" in line


def test_what_is_larger_or_differs_elsewhere_is_no_last_batch(capfd):
    train([8, 8, 8, 50], sum_of_rows)
    assert "MpDeviceLoader(pad_to=...) or (buckets=...)" in told(capfd)[0]


def test_the_first_runs_of_a_line_are_not_told(capfd):
    train([8, 7], sum_of_rows)
    train([8, 6], sum_of_rows)
    assert len(told(capfd)) == 1  # By then the line has run three times.


def test_a_new_line_is_not_told(capfd):
    train([8, 8, 8], sum_of_rows)
    sum_of_rows(8).sin()
    steps.sync()
    assert told(capfd) == []


def test_the_same_cause_is_told_again_at_its_tenth_time(capfd):
    before = metrics.counter_value("CompiledAgain.shape") or 0
    train([40, 40, 40, *range(39, 20, -1)], sum_of_rows)
    first, tenth = told(capfd)
    assert "for the 10th time for this reason, " in tenth and " s in all: " in tenth
    assert "last batch" in first and "last batch" not in tenth
    assert metrics.counter_value("CompiledAgain.shape") - before == 19


def rolled(places):
    x = torch.ones(5, 3).to("xla")
    y = x + 1
    return y.roll(places, 0)


def test_a_python_number_is_told_with_both_values_and_its_line(capfd):
    train([1, 1, 1, 1, 2], rolled)
    (line,) = told(capfd)
    assert f"aten.roll.default: 1 -> 2, at {line_of(rolled, 3)}; a Python number" in line


def branch(is_other):
    x = torch.ones(6, 3).to("xla")
    y = x * 3
    if is_other:
        y = y.abs()
    return y.sin()


def test_another_way_through_python_is_told_with_the_operators_and_where(capfd):
    train([False, False, False, False, True], branch)
    (line,) = told(capfd)
    assert "aten.abs.default in place of aten.sin.default, 1 operator more in all" in line
    assert f", at {line_of(branch, 5)}; Python took another way" in line


def test_an_operator_fewer_at_the_end_is_told(capfd):
    def step(is_short):
        x = torch.ones(6, 4).to("xla") * 3
        return x if is_short else x.cos()

    train([False, False, False, False, True], step)
    assert "the end in place of aten.cos.default, 1 operator fewer in all" in told(capfd)[0]


def test_operators_that_are_new_at_the_end_are_told_by_name_and_not_by_what_they_read(capfd):
    other = torch.ones(6, 5).to("xla")

    def step(is_longer):
        x = torch.ones(6, 5).to("xla") * 3
        return x * 2 + other if is_longer else x * 2

    train([False, False, False, False, True], step)
    assert "aten.add.Tensor in place of the end, 1 operator more in all" in told(capfd)[0]


def test_the_same_operators_of_other_operands_are_told(capfd):
    def step(is_turned):
        x, y = torch.ones(7, 4).to("xla"), torch.ones(7, 4).to("xla")
        x, y = x * 2, y * 2
        return y - x if is_turned else x - y

    train([False, False, False, False, True], step)
    assert "aten.sub.Tensor of other operands" in told(capfd)[0]


def test_another_dtype_is_told(capfd):
    train(
        [torch.float32] * 4 + [torch.float16],
        lambda dtype: torch.ones(9, dtype=dtype).to("xla") * 2,
    )
    (line,) = told(capfd)
    assert "a tensor it reads is float16[9], was float32[9]" in line and "same dtypes" in line


def test_another_layout_is_told(capfd):
    plain, turned = torch.ones(4, 6).to("xla"), torch.ones(6, 4).to("xla").t().clone()
    assert turned.stride() != plain.stride()
    steps.sync()
    train([plain] * 4 + [turned], lambda x: x.exp())
    (line,) = told(capfd)
    assert "with strides [1, 4] from 0, was float32[4, 6] with strides [6, 1] from 0" in line


def test_a_result_that_is_kept_is_told(capfd):
    kept = []

    def step(is_kept):
        y = torch.ones(11).to("xla") * 2
        if is_kept:
            kept.append(y)
        return y.sum()

    train([False, False, False, False, True], step)
    (line,) = told(capfd)
    assert "1 more of its results are kept" in line and "add_step_closure" in line


def test_a_buffer_that_somebody_holds_is_told(capfd):
    held = []
    x = torch.ones(12, 12).to("xla")

    def step(is_held):
        if is_held:
            held.append(x.value.buffer)
        x.add_(1)

    train([False, False, False, False, True], step)
    (line,) = told(capfd)
    assert "1 of the tensors it reads can be overwritten now, or no longer" in line


def test_another_precision_is_told(capfd):
    x = torch.ones(5, 5).to("xla")
    try:
        with_precision = ["highest"] * 4 + ["high"]

        def step(precision):
            torch.set_float32_matmul_precision(precision)
            return x @ x

        train(with_precision, step)
        (line,) = told(capfd)
        assert "the precision of matrix products" in line and "before the first step" in line
    finally:
        torch.set_float32_matmul_precision("highest")


def test_the_nearest_program_is_what_a_program_is_compared_with(capfd):
    def step(turn):
        is_other, rows = turn
        x = torch.ones(rows, 3).to("xla")
        return (x.sin() if is_other else x.cos().tan()) * 2

    train([(False, 8)] * 3 + [(True, 8), (True, 6)], step)
    branch_told, shape_told = told(capfd)
    assert "aten.sin.default in place of aten.cos.default" in branch_told
    assert "float32[6, 3], was float32[8, 3]" in shape_told


def test_a_variable_turns_the_words_off(capfd, monkeypatch):
    monkeypatch.setenv("XDIST_EXPLAIN_RECOMPILES", "0")
    settings.reread()
    try:
        train([8, 8, 8, 52], sum_of_rows)
    finally:
        monkeypatch.undo()
        settings.reread()
    assert told(capfd) == []


def test_what_cannot_be_told_is_a_warning_and_no_error(monkeypatch):
    def fails(old, new):
        raise KeyError("a mistake")

    monkeypatch.setattr(recompilations, "difference", fails)
    before = metrics.counter_value("CompiledAgain.unexplained") or 0
    with pytest.warns(UserWarning, match="why, is not known .KeyError.'a mistake'"):
        train([8, 8, 8, 51], sum_of_rows)
    assert metrics.counter_value("CompiledAgain.unexplained") - before == 1


def test_places_and_their_programs_are_bounded():
    code = "def turn(rows):\n    import torch\n    return torch.ones(rows, 2).to('xla') * 2\n"
    for number in range(300):
        scope = {"steps": steps}
        exec(compile(code + "\n" * number + "turn(3)\nsteps.sync()", "many.py", "exec"), scope)
    train(range(3, 30), sum_of_rows)
    assert len(recompilations._places) <= 256
    assert max(len(place.known) for place in recompilations._places.values()) == 8
    assert max(len(place.lines) for place in recompilations._places.values()) <= 8


def test_only_tapes_after_a_compilation_are_recorded_with_lines(monkeypatch):
    train([8], sum_of_rows)  # Another test may have left a tape with lines.
    recompilations.clear()
    begun = []
    monkeypatch.setattr(recompilations.row_lines, "begin", begun.append)
    train([8] * 12, sum_of_rows)
    assert len(begun) == 2
    train([8] * 3, sum_of_rows)
    assert len(begun) == 2


def test_every_kind_has_a_remedy():
    names = "SHAPE DTYPE LAYOUT CONSTANT OPERATORS RESULTS BUFFERS STATE".split()
    assert {getattr(program_difference, name) for name in names} == {*program_difference.REMEDIES}
