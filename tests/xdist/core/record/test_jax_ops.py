"""Rows of our own and what is refused."""

import subprocess
import sys

import pytest
import torch

import torch_xdist.core.torch_side.registration  # noqa: F401
from torch_xdist.core.devices import device, transfer
from torch_xdist.core.record.jax_ops import record_jax
from torch_xdist.errors import DeviceError, NoLoweringError
from torch_xdist.ops.table import add_rows


def test_a_row_of_a_jax_function_records_any_jax_function():
    x = torch.ones(3, device="xla")
    plus, twice = record_jax("both", lambda x: (x + 1, x * 2), [x])
    assert plus.tolist() == twice.tolist() == [2.0] * 3


def test_a_row_of_a_jax_function_refuses_cpu_tensors_by_name():
    with pytest.raises(DeviceError, match="mine: Input tensor is not an XLA tensor"):
        record_jax("mine", lambda x: x, [torch.ones(1)])


def test_two_rows_of_one_name_are_refused():
    with pytest.raises(ValueError, match=r"aten.add.Tensor has two rows; keep one"):
        add_rows({"aten.add.Tensor": lambda self, other: self})


@pytest.mark.on_cpu
def test_the_device_list_is_the_processs():
    assert device.devices() == [torch.device("xla:0")]
    assert device.device_count() == len(device.real_devices()) == 1
    assert device.device_type() == "CPU"


LATE = """
import os, sys, jax
jax.numpy.ones(1)
os.environ["CPU_NUM_DEVICES"] = sys.argv[1]
import torch, torch_xla
print(torch.ones(2, device="xla").tolist())
"""


@pytest.mark.on_cpu
@pytest.mark.parametrize(
    ("count", "said"), [("1", "[1.0, 1.0]"), ("3", "CPU_NUM_DEVICES=3: JAX runs already")]
)
def test_jax_may_be_used_before_the_device_unless_more_devices_are_wanted(count, said):
    done = subprocess.run(
        [sys.executable, "-c", LATE, count], capture_output=True, text=True, timeout=200
    )
    assert said in done.stdout + done.stderr


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta")
def test_a_matrix_of_sparse_rows_is_no_array_of_the_device():
    rows = torch.ones(2, 2).to_sparse_csr()
    with pytest.raises(NoLoweringError, match=r"sparse_csr cannot go .*\.to_sparse\(\) first"):
        transfer.as_numpy(rows)
