"""Tensors from nothing."""

import pytest
import torch

import torch_xdist.core.torch_side.registration  # noqa: F401


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("periodic", [True, False])
@pytest.mark.parametrize("length", [0, 1, 2, 9])
def test_kaiser_windows_are_the_cpus(length, periodic, dtype):
    for beta in (0.0, 12.0):
        got = torch.kaiser_window(length, periodic, beta, dtype=dtype, device="xla")
        torch.testing.assert_close(
            got.cpu(), torch.kaiser_window(length, periodic, beta, dtype=dtype)
        )
    got = torch.kaiser_window(length, device="xla")
    torch.testing.assert_close(got.cpu(), torch.kaiser_window(length))


def numbers(device):
    return [torch.tensor(float(i), device=device) for i in range(3)]


LISTS = {
    "a list": lambda d: torch.tensor(numbers(d)),
    "lists": lambda d: torch.tensor([numbers(d), numbers(d)]),
    "tuples": lambda d: torch.tensor([*zip(numbers(d), numbers(d))]),
    "with Python's": lambda d: torch.tensor([1, numbers(d)[1], 2.5]),
    "of another dtype": lambda d: torch.tensor(numbers(d), dtype=torch.bfloat16),
    "on the device": lambda d: torch.tensor(numbers(d), device=d),
    "one element each": lambda d: torch.tensor([x.view(1) for x in numbers(d)]),
    "as_tensor": lambda d: torch.as_tensor(numbers(d)),
    "the old constructor": lambda d: torch.Tensor(numbers(d)),
    "new_tensor": lambda d: torch.ones(1, device=d).new_tensor(numbers(d)),
    "integers": lambda d: torch.tensor([torch.tensor(3, device=d)]),
    "half complex": lambda d: torch.tensor(
        [torch.tensor(3 + 1j, dtype=torch.complex32, device=d)], dtype=torch.complex64
    ),
}


@pytest.mark.filterwarnings("ignore:ComplexHalf support")
@pytest.mark.parametrize("make", LISTS.values(), ids=LISTS)
def test_a_tensor_is_made_of_a_list_of_device_tensors(make):
    got, want = make("xla"), make("cpu")
    assert got.dtype is want.dtype and got.tolist() == want.tolist()


FILLED = {
    "arange": lambda out: torch.arange(0, 4, out=out),
    "linspace": lambda out: torch.linspace(0, 3, 4, out=out),
    "logspace": lambda out: torch.logspace(0, 2, 4, base=1.0, out=out),
}


@pytest.mark.parametrize("fill", FILLED.values(), ids=FILLED)
def test_numbers_are_written_into_an_out_of_any_shape(fill):
    def lists(device):
        x = torch.zeros(2, 3, device=device)
        part, turned = x.narrow(1, 1, 2), torch.zeros(2, 2, device=device).t()
        small = torch.zeros(1, device=device).resize_(0)
        made = [fill(part), fill(turned), fill(small)]
        return x.tolist(), [(one.tolist(), one.stride()) for one in made]

    assert lists("xla") == lists("cpu")
