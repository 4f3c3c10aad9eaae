"""Old names log once which name to use."""

import sys

import pytest

from torch_xdist.torch_xla_compat import deprecation

HERE = sys.modules[__name__]


def new_function(x):
    return x + 1


@pytest.mark.parametrize(
    ("more", "end"), [(None, "instead."), ("Until 3.0.", "instead. Until 3.0.")]
)
def test_the_first_call_of_an_old_name_says_which_is_new(caplog, more, end):
    old = deprecation.deprecated(HERE, new_function, "old_function", more)
    assert [old(1), old(2)] == [2, 3]
    (record,) = caplog.records
    assert record.message == (
        f"{__name__}.old_function is deprecated. Use {__name__}.new_function {end}"
    )


def test_a_decorated_function_goes_to_the_new_one(caplog, monkeypatch):
    monkeypatch.setitem(sys.modules, __name__, HERE)

    @deprecation.mark_deprecated(new_function)
    def old_function(x):
        raise AssertionError("the old one is not called")

    assert old_function(1) == 2
    assert "old_function is deprecated" in caplog.text


def test_a_name_is_registered_as_deprecated(caplog, monkeypatch):
    module = type(sys)("older")
    deprecation.register_deprecated(module, new_function)
    assert module.new_function(1) == 2
    assert "older.new_function is deprecated" in caplog.text
