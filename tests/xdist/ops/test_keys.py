"""Keys of random rows give JAX's own numbers, by code without its loop."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

import torch_xla
from torch_xdist import platforms
from torch_xdist.ops import forms, keys

SEEDS = (0, 7, 2**40 + 3, -1)
COUNTERS = (0, 5, 2**33 + 1, -1)
SHAPES = ((), (3,), (4, 5), (0, 3), (2, 3, 4))


def data(key):
    return np.asarray(jax.random.key_data(key)).tolist()


def own(seed, counter):
    """JAX's own key."""
    return jax.random.fold_in(jax.random.key(jnp.int64(seed)), jnp.int64(counter))


@pytest.fixture(autouse=True)
def wide():
    """Programs of the device have integers of 64 bits."""
    with jax.enable_x64(True):
        yield


@pytest.fixture
def on_gpu():
    forms.choose(platforms.CHOICES["cuda"])
    yield
    forms.choose(platforms.CHOICES["cpu"])


@pytest.mark.parametrize("counter", COUNTERS)
@pytest.mark.parametrize("seed", SEEDS)
def test_a_key_has_the_words_of_jax_s(seed, counter):
    expected = data(own(seed, counter))
    assert data(keys.folded(np.int64(seed), np.int64(counter))) == expected
    assert data(keys.own(keys.folded(seed, np.int64(counter)))) == expected


def test_several_are_folded_at_once():
    made = keys.folded(np.array(SEEDS), np.array(COUNTERS))
    assert data(made) == [data(own(*pair)) for pair in zip(SEEDS, COUNTERS)]


@pytest.mark.parametrize("dtype", [jnp.uint8, jnp.uint16, jnp.uint32, jnp.uint64])
@pytest.mark.parametrize("shape", SHAPES)
def test_bits_are_jax_s(shape, dtype):
    ours, theirs = (jax.random.bits(key, shape, dtype) for key in (keys.folded(3, 4), own(3, 4)))
    np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize("draw", [jax.random.normal, jax.random.gumbel, jax.random.uniform])
def test_draws_are_jax_s(draw):
    np.testing.assert_array_equal(draw(keys.folded(3, 4), (9, 5)), draw(own(3, 4), (9, 5)))


def test_split_keys_are_jax_s():
    ours, theirs = (jax.random.split(key, (2, 3)) for key in (keys.folded(3, 4), own(3, 4)))
    assert data(ours) == data(theirs)


def test_counters_pass_32_bits_where_there_are_more_numbers():
    high, low = jax.eval_shape(lambda: keys._counters((2**17, 2**16)))
    assert high.shape == low.shape == (2**17, 2**16)
    # The last place of a shape that is long in one dim alone.
    last = jax.jit(lambda: [part[0, -1] for part in keys._counters((1, 2**32 + 2))])
    assert [int(part) for part in last()] == [1, 1]


def test_elsewhere_they_are_jax_s_own(on_gpu):
    made = keys.folded(np.array(SEEDS), np.array(COUNTERS))
    assert "xfry" not in str(made.dtype)
    assert "xfry" not in str(keys.folded(1, 2).dtype)
    assert data(made) == [data(own(*pair)) for pair in zip(SEEDS, COUNTERS)]


def test_a_generator_that_jax_is_set_to_is_kept():
    with jax.default_prng_impl("rbg"):
        made = keys.folded(1, 2)
        assert "rbg" in str(made.dtype) and keys.own(made) is made


def test_draws_are_hashed_without_a_loop_by_keys_at_places_that_xla_does_not_know():
    drawn = [torch.empty(64, 64, device="xla").normal_() for _ in range(3)]
    program = torch_xla._XLAC._get_xla_tensors_hlo(drawn)
    assert "while(" not in program
    # One for each place, one for the keys of all.
    assert program.count(" opt-barrier(") == 4


def test_a_loop_draws_by_jax_s_own():
    made = keys.own(keys.folded(3, 4))
    assert made.dtype == own(3, 4).dtype and data(made) == data(own(3, 4))
