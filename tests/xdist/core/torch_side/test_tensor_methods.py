"""Methods that torch answers for its own class alone: a device tensor answers as a CPU tensor."""

import copy

import pytest
import torch

import torch_xla  # noqa: F401

NUMBERS = [torch.tensor(2.345), torch.tensor(3), torch.tensor(True), torch.tensor(1 + 2j)]


@pytest.mark.parametrize("number", NUMBERS, ids=["float", "int", "bool", "complex"])
@pytest.mark.parametrize("spec", ["", ".2f", ">12", "5"])
def test_a_number_is_formatted_as_on_the_cpu(number, spec):
    def text(tensor):
        try:
            return f"{tensor:{spec}}"
        except (TypeError, ValueError) as error:
            return str(error)

    assert text(number.to("xla")) == text(number)


def test_a_loss_is_printed_with_so_many_digits():
    loss = torch.full((4,), 0.5, device="xla", requires_grad=True).mean()
    assert f"loss {loss:.4f}" == "loss 0.5000"
    assert f"{loss:.1f}" == "0.5"
    assert format(loss) == "0.5"


@pytest.mark.parametrize("make", [torch.ones, lambda n: torch.nn.Parameter(torch.ones(n))])
def test_more_than_a_number_takes_no_digits(make):
    with pytest.raises(TypeError) as expected:
        f"{make(2):.2f}"
    tensor = (
        torch.nn.Parameter(make(2).data.to("xla")) if make is not torch.ones else make(2).to("xla")
    )
    with pytest.raises(TypeError) as found:
        f"{tensor:.2f}"
    assert str(found.value) == str(expected.value)
    assert f"{tensor}" == str(tensor)


def test_a_parameter_of_no_dims_is_named_as_torch_names_it():
    parameter = torch.nn.Parameter(torch.tensor(1.5)).to("xla")
    parameter = torch.nn.Parameter(parameter.data)
    with pytest.raises(
        TypeError, match=r"unsupported format string passed to Parameter\.__format__"
    ):
        f"{parameter:.2f}"
    assert f"{parameter}".startswith("Parameter containing:")


@pytest.mark.parametrize("wrap", [lambda x: x, torch.nn.Parameter], ids=["tensor", "parameter"])
def test_a_shallow_copy_shares_memory(wrap):
    for device in ("cpu", "xla"):
        x = wrap(torch.ones(2, device=device))
        x.note = "kept"
        twin = copy.copy(x)
        twin.data.add_(1)
        assert type(twin) is type(x) and twin.requires_grad == x.requires_grad
        assert twin is not x and x.tolist() == [2, 2] and twin.note == "kept"
        assert twin.data_ptr() == x.data_ptr()
