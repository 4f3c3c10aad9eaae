"""JAX by torch_xla's precautions."""

import sys
import types

import jax

from torch_xdist.torch_xla_compat import jax_imports


def test_jax_is_always_there():
    assert jax_imports.maybe_get_jax() is jax
    jax_imports.jax_import_guard()
    with jax_imports.jax_env_context():
        assert jax_imports.requires_jax(abs) is abs


def test_torchax_is_there_where_it_is_installed(monkeypatch):
    monkeypatch.setitem(sys.modules, "torchax", None)
    assert jax_imports.maybe_get_torchax() is None
    installed = types.ModuleType("torchax")
    monkeypatch.setitem(sys.modules, "torchax", installed)
    assert jax_imports.maybe_get_torchax() is installed
