"""Programs for a TPU elsewhere, under the keys by which JAX there looks for them."""

import jax
import numpy as np
import pytest
from jax._src import compilation_cache
from jax.sharding import SingleDeviceSharding

from torch_xdist.ahead import saved
from torch_xdist.ahead.topology import Topology, devices
from torch_xdist.core.kept import jax_cache, on_disk
from torch_xdist.core.programs.jax_internals import module_bytes
from torch_xdist.errors import ReleaseError

V5E = Topology("v5e:2x2")


class Asked:
    """What JAX asks of a cache that has nothing."""

    _path = "nowhere"

    def __init__(self):
        self.keys = []

    def get(self, key):
        self.keys.append(key)

    def put(self, key, value):
        pass


@pytest.fixture
def lowered():
    there = SingleDeviceSharding(devices(V5E)[0])
    shape = jax.ShapeDtypeStruct((8, 8), np.float32, sharding=there)
    return jax.jit(lambda x: x @ x).lower(shape)


@pytest.fixture
def asked(monkeypatch):
    for name in ("_cache", "_cache_initialized"):
        monkeypatch.setattr(compilation_cache, name, getattr(compilation_cache, name))
    found = Asked()
    assert jax_cache.keep_compiled(found)
    return found


OPTIONS = {"xla_enable_async_all_reduce": True}


def test_the_key_is_the_one_that_jax_asks_for(lowered, asked, compiler):
    given = saved.given(lowered, OPTIONS)
    lowered.compile(compiler_options=OPTIONS)
    assert asked.keys == [given.key]
    assert saved.given(lowered, {}).key != given.key


def test_what_is_kept_is_what_jax_reads(lowered, compiler, tmp_path):
    given = saved.given(lowered, OPTIONS)
    verdict = compiler.compile(module_bytes(lowered), V5E, [0], {}, given.options)
    assert verdict.is_ok and len(verdict.executable) > 1000
    folder = saved.Folder(str(tmp_path / "kept"))
    folder.keep(given.key, verdict.executable, 2.5)
    entry = compilation_cache.decompress_executable(folder.get(given.key))
    assert compilation_cache.extract_executable_and_time(entry) == (verdict.executable, 2)
    assert folder.get("another") is None


def test_programs_of_a_tpu_are_the_same_on_hosts_with_other_processors(monkeypatch):
    before = on_disk.stamp.__wrapped__(with_processor=False)
    monkeypatch.setattr(on_disk, "_processor", lambda: "another")
    assert on_disk.stamp.__wrapped__(with_processor=False) == before
    assert "libtpu " in before and on_disk.stamp.__wrapped__() != before


def test_a_jax_that_compiles_otherwise_is_named(monkeypatch):
    monkeypatch.setattr(saved, "compiler", None)
    with pytest.raises(ReleaseError, match=r"--save: jax .* compiles otherwise than jax 0\.10\.2"):
        saved.given(None, {})
