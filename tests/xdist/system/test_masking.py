"""Secrets in the environment are not shown."""

from torch_xdist.system.masking import masked


def test_a_variable_whose_name_says_secret_is_masked():
    assert masked("HF_TOKEN", "abc") == masked("XLA_RUN_SECRET", "abc") == "***"


def test_the_password_of_an_address_is_masked():
    assert masked("STORE", "https://me:word@host/x") == "https://***@host/x"


def test_any_other_value_is_shown():
    assert masked("XLA_FLAGS", "--xla_dump_to=/tmp/x") == "--xla_dump_to=/tmp/x"
