"""Submodules are attributes of their packages, also where nobody imported them."""

import json
import subprocess
import sys

import pytest

import torch_xla
from torch_xdist.surface.compare import names

_EACH = """
import functools, json, sys, warnings
import torch_xla

warnings.simplefilter("ignore")
missing = []
for module in json.loads(sys.argv[1]):
    try:
        found = functools.reduce(getattr, module.split(".")[1:], torch_xla)
    except AttributeError as error:
        missing.append(str(error))
assert not missing, missing
"""


def test_a_script_that_imports_torch_xla_alone_reaches_every_module():
    modules = [m for m in names() if m.startswith("torch_xla.")]
    assert "torch_xla.distributed.xla_multiprocessing" in modules
    code = [sys.executable, "-W", "ignore", "-c", _EACH, json.dumps(modules)]
    subprocess.run(code, check=True, timeout=120)


def test_a_name_that_is_no_module_is_missing_as_before():
    assert not hasattr(torch_xla, "nothing") and not hasattr(torch_xla.debug, "__wrapped__")
    with pytest.raises(AttributeError, match=r"module 'torch_xla.debug' has no attribute 'metric'"):
        torch_xla.debug.metric  # noqa: B018


def test_a_module_that_is_left_out_is_no_attribute_and_says_why():
    assert getattr(torch_xla._internal, "neuron", None) is None
    with pytest.raises(AttributeError, match=r"no attribute 'neuron': .*no backend for AWS Neuron"):
        torch_xla._internal.neuron  # noqa: B018
