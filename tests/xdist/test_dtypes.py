"""Which dtypes the device holds, and the switches that store them narrower."""

import os
import subprocess
import sys

import jax.numpy as jnp
import pytest
import torch

import torch_xdist.core.torch_side.registration  # noqa: F401
from torch_xdist import dtypes
from torch_xdist.errors import UnsupportedDtypeError

PROGRAM = """
import torch, torch_xdist.core.torch_side.registration
x = torch.tensor([1.0, 1 / 3]).to("xla")
n = torch.tensor([1, 2]).to("xla")
y, m = x * 2, n + 1
normal = torch.layer_norm(y, (2,))
print(y.dtype, m.dtype, y.cpu().dtype, y.value.type.dtype, normal.dtype)
print(x.value.buffer.dtype, n.value.buffer.dtype, y.cpu().tolist()[0], m.tolist())
"""


@pytest.mark.parametrize(
    "dtype", [torch.bool, torch.int64, torch.bfloat16, torch.complex64], ids=str
)
def test_every_dtype_has_its_jax_twin(dtype):
    assert dtypes.to_torch(dtypes.to_jax(dtype)) is dtype


def test_a_dtype_jax_lacks_is_refused_by_name():
    with pytest.raises(UnsupportedDtypeError, match=r"torch.quint8 does not exist on xla devices"):
        dtypes.to_jax(torch.quint8)


@pytest.mark.parametrize(
    ("switch", "float_type", "int_type"),
    [
        ("XLA_USE_BF16", "bfloat16", "int64"),
        pytest.param("XLA_DOWNCAST_BF16", "bfloat16", "int64", marks=pytest.mark.long),
        ("XLA_USE_32BIT_LONG", "float32", "int32"),
    ],
)
def test_switches_narrow_what_the_device_stores_but_not_what_torch_sees(
    switch, float_type, int_type
):
    env = {**os.environ, switch: "1"}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], env=env, capture_output=True, text=True, timeout=200
    )
    assert done.returncode == 0, done.stderr
    seen, stored = done.stdout.strip().splitlines()
    assert seen == "torch.float32 torch.int64 torch.float32 torch.float32 torch.float32"
    assert stored == f"{float_type} {int_type} 2.0 [2, 3]"


LATE = """
import os, torch, torch_xla

os.environ.update(CPU_NUM_DEVICES="2", XLA_USE_BF16="1")
assert torch_xla.device_count() == 2
rounded = torch.tensor([1 + 2**-10], device="xla")
os.environ["XLA_USE_32BIT_LONG"] = "1"
print(rounded.item(), rounded.dtype, torch.tensor([2**31], device="xla").item())
"""


def test_switches_hold_that_are_set_after_the_import_and_before_their_first_use():
    words = [sys.executable, "-c", LATE]
    done = subprocess.run(words, capture_output=True, text=True, timeout=200)
    assert done.stdout == f"1.0 torch.float32 {-(2**31)}\n", done.stderr


def test_result_dtypes_are_torchs_promotion():
    i = torch.ones(2, dtype=torch.int32, device="xla")
    assert (i + torch.tensor(1, dtype=torch.int64).to("xla")).dtype is torch.int32
    assert (i / 2).dtype is torch.float32
    assert (i > 0).sum().dtype is torch.int64
    b = torch.ones(2, dtype=torch.bool, device="xla")
    assert (b & torch.ones(2, dtype=torch.uint8, device="xla")).dtype is torch.uint8
    assert jnp.dtype(dtypes.to_jax(torch.float16)) == jnp.float16
