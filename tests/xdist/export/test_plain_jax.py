"""What was exported runs where torch is not."""

import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
import torch
from torch.export import Dim

from torch_xdist.errors import ArgumentError
from torch_xdist.export import bundle, modules, plain_jax
from torch_xdist.export.plain_jax import Program, load
from torch_xdist.export.programs import save_as_stablehlo

WITHOUT_TORCH = """
import sys
class Nowhere:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("torch", "torch_xla"):
            raise ImportError(name + " is not here")
sys.meta_path.insert(0, Nowhere())
import numpy as np
"""


PAGE = Path(__file__).resolve().parents[3] / "docs" / "export.md"


def run_without_torch(code, folder):
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_TORCH + textwrap.dedent(code), str(folder)],
        env={**os.environ, "JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def folder(small, tmp_path_factory):
    model, args, program = small
    where = tmp_path_factory.mktemp("saved")
    save_as_stablehlo(program, where)
    np.save(where / "expected.npy", model(*args)[0].detach().numpy())
    return where


def test_it_loads_and_runs_in_a_process_that_cannot_import_torch(folder):
    run_without_torch(
        """
        from torch_xdist.export.plain_jax import load
        import jax
        model = load(sys.argv[1])
        x = np.arange(6, dtype="float32").reshape(2, 3)
        expected = np.load(sys.argv[1] + "/expected.npy")
        np.testing.assert_allclose(model(x, np.zeros(2, "float32"))[0], expected, rtol=1e-6)
        jitted = jax.jit(lambda x: model(x, None)[0] * 2)
        np.testing.assert_allclose(jitted(x), expected * 2, rtol=1e-6)
        assert "torch" not in sys.modules
        """,
        folder,
    )


def test_the_lines_of_the_page_load_it_with_jax_alone(folder):
    (code,) = (
        snippet
        for snippet in re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.S)
        if "def load(folder):" in snippet
    )
    check = """
import sys
x = np.arange(6, dtype="float32").reshape(2, 3)
found = load(sys.argv[1])(x, None)[0]
np.testing.assert_allclose(found, np.load(sys.argv[1] + "/expected.npy"), rtol=1e-6)
assert not {"torch", "torch_xdist"} & set(sys.modules)
"""
    run_without_torch(code + check, folder)


def test_one_artifact_serves_every_size(tmp_path):
    model = torch.nn.Linear(3, 2)
    shapes = ({0: Dim("batch")},)
    save_as_stablehlo(
        torch.export.export(model, (torch.ones(4, 3),), dynamic_shapes=shapes), tmp_path
    )
    loaded = load(tmp_path)
    for size in (1, 5):
        x = torch.rand(size, 3)
        (result,) = loaded(x.numpy())
        torch.testing.assert_close(torch.from_numpy(np.array(result)), model(x).detach())


def test_the_least_recently_used_sizes_are_forgotten(tmp_path, monkeypatch):
    monkeypatch.setattr(plain_jax, "_KEPT", 2)
    shapes = ({0: Dim("size")},)
    model = torch.export.export(Negative(), (torch.ones(4),), dynamic_shapes=shapes)
    save_as_stablehlo(model, tmp_path)
    (func,) = bundle.load_bundle(tmp_path).stablehlo_funcs
    program = Program(func.bytecode)
    for size in (1, 2, 3, 1):
        assert program(jnp.ones(size, "float32"))[0].tolist() == [-1] * size
    assert program._call_of.cache_info().currsize == 2


class Negative(torch.nn.Module):
    def forward(self, x):
        return -x


def test_another_shape_is_refused_with_both(folder):
    with pytest.raises(
        ArgumentError, match=r"called with .*float32\[2, 4\].*; it takes .*\[2, 3\]"
    ):
        load(folder)(np.zeros((2, 4), "float32"), None)
    with pytest.raises(ArgumentError, match="it has no function 'backward'; it has forward"):
        load(folder, "backward")


def test_a_program_may_be_made_of_any_artifact():
    module = """func.func public @main(%arg0: tensor<2xf32>, %arg1: tensor<2xi1>)
        -> (tensor<2xf32>) {
      %0 = stablehlo.negate %arg0 : tensor<2xf32>
      %1 = stablehlo.select %arg1, %arg0, %0 : tensor<2xi1>, tensor<2xf32>
      return %1 : tensor<2xf32>
    }"""
    program = Program(modules.bytecode_of(module))
    (result,) = program(jnp.ones(2, "float32"), jnp.array([True, False]))
    assert result.tolist() == [1.0, -1.0]


def test_a_parameter_that_no_array_holds_is_refused():
    module = """func.func public @main(%arg0: tensor<2xi4>) -> tensor<2xi4> {
      return %arg0 : tensor<2xi4>
    }"""
    with pytest.raises(ArgumentError, match="tensor<2xi4>, which no array holds"):
        modules.signature_of(module)
    with pytest.raises(ArgumentError, match=r"!stablehlo.token, which no array holds"):
        modules.signature_of(module.replace("tensor<2xi4>", "!stablehlo.token"))


def test_objects_of_json_become_what_they_were():
    location = bundle.InputLocation.constant(3)
    text = bundle.StableHLOJSONSerializer().encode(location)
    assert text == '{"type_": "constant", "position": 3, "name": ""}'
    told = {"type_": "constant", "position": 3, "name": ""}
    assert bundle.stablehlo_obj_hook(told) == location
    assert bundle.stablehlo_obj_hook({"other": 1}) == {"other": 1}


def test_nested_arguments_are_flattened_in_order():
    locations = [bundle.InputLocation.input_arg(1), bundle.InputLocation.input_arg(0)]
    meta = bundle.StableHLOFunctionMeta("f", "1.0.0", [], [], locations, [])
    assert bundle.call_parameters_of_args(({"x": 1}, [2]), meta, None) == [2, 1]
    with pytest.raises(
        ArgumentError, match="'f': called with 1 arguments; it reads the one at pos"
    ):
        bundle.call_parameters_of_args(({"x": 1},), meta, None)
