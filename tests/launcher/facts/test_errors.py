"""The tree of the launcher's errors."""

import pickle

import pytest

from torch_xdist.launcher.facts import errors

LEAVES = [
    value
    for value in vars(errors).values()
    if isinstance(value, type) and issubclass(value, errors.LauncherError)
]


@pytest.mark.parametrize("error", LEAVES, ids=lambda error: error.__name__)
def test_every_error_stands_in_the_tree_with_its_code(error):
    code = "*" if error is errors.RankFailedError else str(int(error.exit_code))
    row = next(
        line for line in errors.__doc__.splitlines() if line.strip().startswith(error.__name__)
    )
    assert code in row.split()
    if error is not errors.LauncherError:
        builtin = row.split()[1]
        assert issubclass(error, __builtins__[builtin])


@pytest.mark.parametrize("error", LEAVES, ids=lambda error: error.__name__)
def test_every_error_survives_pickling(error):
    back = pickle.loads(pickle.dumps(error("where: what; do this")))
    assert type(back) is error and str(back) == "where: what; do this"


def test_a_failed_rank_keeps_its_code_and_rank_over_pickling():
    back = pickle.loads(pickle.dumps(errors.RankFailedError("rank 2 raised", 7, rank=2)))
    assert (back.exit_code, back.rank) == (7, 2)


def test_every_exit_code_of_ours_is_in_the_table_of_the_docs():
    named = " ".join(code for code, _ in errors.EXIT_CODES)
    for code in errors.ExitCode:
        assert code == 1 or str(int(code)) in named.replace(",", "").split()
