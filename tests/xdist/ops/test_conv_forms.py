"""The columns of a convolution are what each position of its kernel sees."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from torch_xdist.ops import conv_forms
from torch_xdist.ops.conv_forms import Window, columns_of

WINDOWS = {
    "line": ((9,), (3,), (1,), (1,)),
    "plane": ((6, 7), (3, 2), (1, 1), (1, 1)),
    "with strides": ((9, 8), (3, 3), (2, 3), (1, 1)),
    "dilated": ((9, 10), (2, 3), (1, 2), (3, 2)),
    "volume": ((4, 5, 3), (2, 2, 2), (1, 2, 1), (1, 1, 1)),
    "one place": ((3, 3), (3, 3), (1, 1), (1, 1)),
}


def seen(x, kernel, out, window, at):
    """The same by numpy, slice by slice."""
    parts = []
    for tap in itertools.product(*map(range, kernel)):
        places = [
            slice(t * d, t * d + (n - 1) * s + 1, s)
            for t, d, n, s in zip(tap, window.dilation, out, window.stride)
        ]
        parts.append(np.asarray(x)[(..., *places)])
    return np.stack(parts, at)


@pytest.mark.parametrize("most", [0, 1 << 20], ids=["in a loop", "in one gather"])
@pytest.mark.parametrize("at", [0, 1, 2])
@pytest.mark.parametrize("name", WINDOWS)
def test_columns_are_the_slices_of_all_positions(name, at, most, monkeypatch):
    monkeypatch.setattr(conv_forms, "_MOST_GATHERED", most)
    sizes, kernel, stride, dilation = WINDOWS[name]
    rank = len(sizes)
    window = Window(stride, (0,) * rank, (0,) * rank, dilation, 1)
    x = jnp.arange(2 * 3 * np.prod(sizes), dtype=jnp.float32).reshape(2, 3, *sizes)
    out = conv_forms.out_sizes(sizes, kernel, window)
    columns = jax.jit(lambda x: columns_of(x, kernel, out, window, at))
    np.testing.assert_array_equal(columns(x), seen(x, kernel, out, window, at))


@pytest.mark.parametrize(("channels", "form"), [(64, "gather"), (4096, "while")])
def test_few_columns_are_gathered_and_many_collected(channels, form):
    window = Window((1, 1), (0, 0), (0, 0), (1, 1), 1)
    x = jax.ShapeDtypeStruct((1, channels, 8, 8), jnp.float32)
    columns = jax.jit(lambda x: columns_of(x, (3, 3), (6, 6), window, 0))
    text = columns.lower(x).as_text()
    assert [name in text for name in ("stablehlo.gather", "stablehlo.while")] == [
        form == "gather",
        form == "while",
    ]
