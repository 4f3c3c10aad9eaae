"""Wrong calls of torch's operator database raise what CPU torch raises, on their line."""

import re
import warnings

import pytest
import torch
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils import _pytree as pytree

# By the start of CPU torch's words: why the device says nothing, or something else.
ELSEWHERE = {
    # Values, which a device that records does not read.
    "index 23 is out of bounds": "indices",
    "index 34 is out of bounds": "indices",
    "probability tensor contains": "values",
    "invalid multinomial distribution": "values",
    "uniform_ expects to return a [from, to) range": "numbers are inputs of the program",
    # Memory, which a functional program does not write.
    "unsupported operation: more than one element": "out=",
    "unsupported operation: some elements": "out=",
    "Trying to resize storage": "out=",
    "setStorage:": "strides of the operand",
    # What out= holds is cast where torch casts it for most operators.
    "Expected out tensor to have dtype": "out=",
    "Expected object of scalar type ComplexDouble": "out=",
    "Expected the dtype for input and out to match": "out=",
    "multinomial expects Long tensor out": "out=",
    "value cannot be converted to type": "asked with a mask of zeros, the CPU does not say so",
    # Limits of a kernel of the CPU's.
    "number of categories cannot exceed": "a limit",
    "masked_scatter_ only supports boolean masks": "torch_xla took bytes",
    "histogramdd: The size of bins": "asked by a composite",
}
CHECKED = [op for op in op_db if op.error_inputs_func is not None]


def first_line(error):
    return str(error).splitlines()[0] if str(error) else ""


def error_of(function, args, kwargs):
    """What a call raises, also where its result is read."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            pytree.tree_map_only(torch.Tensor, torch.Tensor.cpu, function(*args, **kwargs))
    except Exception as error:
        return error
    return None


def on_device(values):
    return pytree.tree_map_only(torch.Tensor, lambda x: x.detach().to("xla"), values)


@pytest.mark.parametrize("op", CHECKED, ids=[f"{op.name}-{op.variant_test_name}" for op in CHECKED])
def test_a_wrong_call_is_torchs_error(op):
    for wrong in op.error_inputs("cpu"):
        sample = wrong.sample_input
        values = ([sample.input, *sample.args], sample.kwargs)
        expected = error_of(op.op, *values)
        words = first_line(expected)
        leaves = [x for x in pytree.tree_leaves(values) if isinstance(x, torch.Tensor)]
        elsewhere = any(words.startswith(start) for start in ELSEWHERE)
        # numpy, through which tensors come here, has 64 dims.
        is_here = all(
            x.layout == torch.strided and x.dim() <= 64 and x.device.type == "cpu" for x in leaves
        )
        if expected is None or elsewhere or not is_here:
            continue
        error = error_of(op.op, *on_device(values))
        assert error is not None, words
        assert isinstance(error, type(expected)), (error, words)
        assert first_line(error) == words or re.search(wrong.error_regex, str(error))
