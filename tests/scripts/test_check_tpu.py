"""The steps and collectives that `scripts/check_tpu` compiles."""

import importlib.util
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))

from families import FAMILIES
from tpu_parts import collectives, models

from torch_xdist.ahead.compiler import Compiler
from torch_xdist.ahead.topology import Topology, devices
from torch_xdist.core.devices import aim

V5E = Topology("v5e:2x2")
pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("libtpu") is None, reason="libtpu, the TPU compiler, is not installed"
)


@pytest.fixture(scope="module")
def compiler():
    with Compiler(limit_s=240) as found:
        yield found


def of_family(name, compiler, *, ranks=False):
    with aim.at(devices(V5E), ranks=ranks):
        return models.of_family(name, FAMILIES[name], V5E, compiler)


def test_a_step_gives_all_of_its_state_back(compiler):
    found = of_family("recommender", compiler)
    assert found.word == "ok", found.verdict.words
    assert found.verdict.donated_share == 1.0


@pytest.mark.long
@pytest.mark.parametrize("name", [name for name in FAMILIES if name != "recommender"])
def test_a_step_of_each_family_compiles(name, compiler):
    found = of_family(name, compiler)
    assert found.word == "ok", (found.verdict.words, found.fallbacks)
    assert found.verdict.donated_share == 1.0


@pytest.mark.parametrize("name", ["all_to_all", "all_reduce mul"])
def test_a_collective_compiles(name, compiler):
    with aim.at(devices(V5E), ranks=True):
        call = collectives.COLLECTIVES[name]
        found = collectives.of_collective(name, call, V5E, 4, compiler)
    assert found.word == "ok", found.verdict.words
    assert sum(found.verdict.collectives.values()) == 1
