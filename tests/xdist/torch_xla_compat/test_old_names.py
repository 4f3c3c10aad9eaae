"""Names of old releases: they work, and the first call says which is the new one."""

import importlib
import subprocess
import sys
import warnings

import pytest

from torch_xdist.torch_xla_compat import deprecation, old_names

NEW_NAMES = {
    "xla_device": "torch_xla.device",
    "mark_step": "torch_xla.sync",
    "get_ordinal": "torch_xla.runtime.global_ordinal",
    "xrt_world_size": "torch_xla.runtime.world_size",
}


@pytest.mark.parametrize("name", NEW_NAMES)
def test_an_old_function_warns_once(name):
    function = getattr(importlib.reload(old_names), name)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        assert function() == function()
    (warning,) = told
    assert str(warning.message) == f"Use {NEW_NAMES[name]} instead"
    assert warning.category is DeprecationWarning and warning.filename == __file__


@pytest.mark.parametrize(
    ("module", "instead"),
    [
        ("torch_xla_py.xla_model", "torch_xla.core.xla_model"),
        ("torch_xla.experimental.pjrt", "torch_xla.runtime"),
        ("torch_xla.experimental.pjrt_backend", "torch_xla.distributed.xla_backend"),
        ("torch_xla.experimental.dynamo_mark_sharding", "torch.ops.xla.dynamo_mark_sharding"),
        ("torch_xla.experimental.dynamo_set_buffer_donor", "torch.ops.xla.dynamo_set_buffer_"),
    ],
)
def test_an_old_module_warns_when_it_is_imported_first(module, instead):
    for name in [name for name in sys.modules if f"{module}.".startswith(f"{name}.")]:
        if name in (module, "torch_xla_py"):
            del sys.modules[name]
    with pytest.warns(DeprecationWarning, match=f"is an old name; use {instead}"):
        importlib.import_module(module)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        importlib.import_module(module)


def test_a_script_sees_the_warning_at_its_own_line():
    script = "import torch_xla.core.xla_model as xm\nxm.xla_device()\nxm.xla_device()\n"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.stderr.count("<string>:2: DeprecationWarning: Use torch_xla.device instead") == 1


def test_an_old_name_keeps_its_signature_and_words():
    assert old_names.mark_step.__doc__ == old_names.mark_step.__wrapped__.__doc__
    assert deprecation.old_name(len, "that")([1]) == 1
