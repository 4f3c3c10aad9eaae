"""Switches of the lazy core by private names, element types, custom calls of one's own."""

import ctypes

import jax
import pytest
import torch

import torch_xla
import torch_xla.debug.metrics as met
from torch_xdist.errors import ArgumentError
from torch_xla import _XLAC
from torch_xla.experimental.stablehlo_custom_call import stablehlo_custom_call


def programs_for(numbers, operator):
    """How many programs it takes to compute with each of them."""
    x = torch.arange(7.0, device="xla")
    torch_xla.sync()
    before = met.counter_value("UncachedCompile") or 0
    for number in numbers:
        torch.testing.assert_close(operator(x, number).cpu(), operator(torch.arange(7.0), number))
    return met.counter_value("UncachedCompile") - before


@pytest.fixture
def _switches_are_put_back():
    yield
    _XLAC._set_xla_handle_special_scalars(True)
    _XLAC._set_xla_all_numbers_special_scalars(False)


@pytest.mark.usefixtures("_switches_are_put_back")
def test_small_integers_are_constants_unless_a_switch_says_no():
    assert _XLAC._get_xla_handle_special_scalars()
    assert programs_for([0, 1, 2], lambda x, n: (x + n).sin()) == 3
    _XLAC._set_xla_handle_special_scalars(False)
    assert not _XLAC._get_xla_handle_special_scalars()
    assert programs_for([0, 1, 2], lambda x, n: (x + n).cos()) == 1


@pytest.mark.usefixtures("_switches_are_put_back")
def test_all_numbers_are_constants_where_a_switch_says_so():
    assert not _XLAC._get_xla_all_numbers_special_scalars()
    assert programs_for([0.5, 1.5], lambda x, n: (x * n).sin()) == 1
    _XLAC._set_xla_all_numbers_special_scalars(True)
    assert _XLAC._get_xla_all_numbers_special_scalars()
    assert programs_for([0.5, 1.5], lambda x, n: (x * n).cos()) == 2


def test_the_switch_of_the_cache_of_device_data_is_read_back():
    assert _XLAC._get_xla_enable_device_data_cache()
    _XLAC._set_xla_enable_device_data_cache(False)
    assert not _XLAC._get_xla_enable_device_data_cache()
    _XLAC._set_xla_enable_device_data_cache(True)


@pytest.mark.parametrize(
    ("dtype", "name"),
    [
        (torch.float32, "f32"),
        (torch.bfloat16, "bf16"),
        (torch.int64, "s64"),
        (torch.bool, "pred"),
        (torch.float8_e5m2, "f8e5m2"),
    ],
)
def test_the_elements_of_a_tensor_have_xlas_name(dtype, name):
    assert _XLAC._get_xla_tensor_shape_type(torch.empty(2, dtype=dtype, device="xla")) == name


@ctypes.CFUNCTYPE(
    None, ctypes.POINTER(ctypes.c_float), ctypes.POINTER(ctypes.POINTER(ctypes.c_float))
)
def doubled(out, operands):
    for index in range(3):
        out[index] = operands[0][index] * 2


def test_a_function_of_ones_own_is_the_target_of_a_custom_call():
    _XLAC._xla_register_custom_call_target("test_doubled", jax.ffi.pycapsule(doubled), "CPU")
    x = torch.tensor([1.0, 2.0, 3.0], device="xla")
    result = stablehlo_custom_call([x], "test_doubled", [[3]], [torch.float32], api_version=1)
    assert result.tolist() == [2, 4, 6]


def test_a_target_that_is_no_capsule_is_refused():
    with pytest.raises(ArgumentError, match="the function is a int; give it a PyCapsule"):
        _XLAC._xla_register_custom_call_target("test_number", 3, "CPU")
