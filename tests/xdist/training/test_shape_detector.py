"""How many graphs a function may be traced into, and what is said of one too many."""

import pytest
import torch

import torch_xla


def steps(x, step):
    result = x + x
    if step == 0:
        return result * 2
    if step == 1:
        return result + x
    return result / 3 if step == 2 else result


ADD, MUL, DIV = (
    f"[] aten::{name}, xla_shape=f32[10]{{0}}, dynamic_dims: ()" for name in ("add", "mul", "div")
)
LIMIT = "Maximum number of different graphs allowed per function exceeded: "


@pytest.mark.parametrize(
    ("seen", "new", "limit", "told"),
    [
        ([0], 2, 1, f"Got: {DIV}\nExpected: {MUL}\n"),
        ([0, 1], 2, 2, f"Got: {DIV}\nExpected either of:\n  - {MUL}\n  - {ADD}\n"),
        ([0], 3, 1, f"Reached the end of the function at: {ADD}\nExpected: {MUL}\n"),
        ([3], 0, 1, f"Got: {MUL}\nExpected: the end of the function\n"),
    ],
)
def test_the_first_operator_that_differs_is_named(seen, new, limit, told):
    x = torch.ones(10, device="xla")
    compiled = torch_xla.compile(lambda x, step: steps(x, step), max_different_graphs=limit)
    for step in [*seen, *seen]:
        compiled(x, step)
    with pytest.raises(RuntimeError) as error:
        compiled(x, new)
    assert str(error.value) == f"{LIMIT}{limit}\n{told}"


def test_a_function_that_is_compiled_again_is_the_same_function():
    def twice(x):
        return x + x

    torch_xla.compile(twice, max_different_graphs=1)(torch.ones(10, device="xla"))
    again = torch_xla.compile(twice, max_different_graphs=1)
    again(torch.ones(10, device="xla"))
    with pytest.raises(RuntimeError, match=f"{LIMIT}1"):
        again(torch.ones(5, device="xla"))


def test_another_shape_is_another_graph():
    compiled = torch_xla.compile(lambda x: x + x, max_different_graphs=1)
    compiled(torch.ones(10, device="xla"))
    with pytest.raises(RuntimeError, match=r"Got: \[\] aten::add, xla_shape=f32\[5\]\{0\}"):
        compiled(torch.ones(5, device="xla"))


def test_a_function_that_records_nothing_is_no_graph():
    compiled = torch_xla.compile(lambda: 5, max_different_graphs=0)
    assert compiled() == 5
