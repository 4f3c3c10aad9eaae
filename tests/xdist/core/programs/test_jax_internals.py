"""Programs that XLA's client runs without JAX's look at each argument."""

import weakref

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

import torch_xla
from torch_xdist.core.programs import jax_internals, program
from torch_xdist.core.programs.jax_internals import direct_call, put_on


def compiled(step, *arguments):
    there = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    jitted = jax.jit(step, donate_argnums=0, in_shardings=there, out_shardings=there)
    return jitted.lower(*arguments).compile()


@pytest.mark.filterwarnings("ignore:Some donated buffers were not usable")
def test_operands_that_a_program_does_not_read_are_left_out():
    def step(donated, kept, floats, ints):
        return [donated[1] + kept[0] * floats[1], kept[0] + 1]

    one, two, three = (jnp.full(2, float(n)) for n in (1, 2, 3))
    numbers = np.array([5.0, 7.0]), np.zeros(0, np.int64)
    direct = direct_call(compiled(step, (one, two), (three,), *numbers), jax.devices()[0])
    assert direct is not None and direct.kept == [1, 2, 3]
    results = []
    direct.run(((one, two), (three,), *numbers), results)
    assert [r.tolist() for r in results[0]] == [[23, 23], [4, 4]]
    assert two.is_deleted() and not three.is_deleted()


def numbers_given(direct, floats):
    """The operand that the program gets for these numbers."""
    given = []
    told = direct._replace(execute=lambda operands: given.extend(operands) or Nothing())
    told.run(((), (), np.array(floats, np.float32), np.zeros(0, np.int32)), [])
    return given[0]


class Nothing:
    def consume_with_handlers(self, handlers):
        return []


def test_numbers_that_are_those_of_the_last_run_are_on_the_device_already():
    arguments = (), (), np.zeros(2, np.float32), np.zeros(0, np.int32)
    direct = direct_call(compiled(lambda *a: [a[2] * 2], *arguments), jax.devices()[0])
    first = numbers_given(direct, [0.5, 0.0])
    assert numbers_given(direct, [0.5, 0.0]) is first
    for other in ([0.25, 0.0], [0.5, -0.0], [0.5, float("nan")]):
        found = numbers_given(direct, other)
        assert found is not first and np.array_equal(found, other, equal_nan=True)
        assert np.array_equal(np.signbit(found), np.signbit(other))
    assert first.tolist() == [0.5, 0.0]


def test_arrays_go_to_a_device_also_where_jax_has_no_quick_way(monkeypatch):
    device = jax.devices()[0]
    quick = put_on(device)(np.arange(3, dtype=np.int32))
    monkeypatch.setattr(jax_internals, "_batched_device_put", None)
    put_on.cache_clear()
    try:
        plain = put_on(device)(np.arange(3, dtype=np.int32))
    finally:
        put_on.cache_clear()
    assert plain.aval == quick.aval and plain.sharding == quick.sharding
    assert plain.committed and quick.committed and plain.tolist() == quick.tolist()


def test_a_program_that_fails_hands_nothing_over():
    direct = direct_call(
        compiled(lambda *a: [a[1][0] + 1], (), (jnp.ones(2, jnp.float32),)), jax.devices()[0]
    )
    results = []
    gone = jnp.ones(2, jnp.float32)
    gone.delete()
    with pytest.raises(RuntimeError, match="Array has been deleted with shape=float32"):
        direct.run(((), (gone,)), results)
    assert results == []


def test_jax_looks_for_nan_where_it_is_asked_to():
    x = torch.zeros(2).to("xla")
    torch_xla.sync()
    jax.config.update("jax_debug_nans", True)
    try:
        with pytest.raises(Exception, match="nan"):
            (x / x).tolist()
    finally:
        jax.config.update("jax_debug_nans", False)
    y = x + 1
    torch_xla.sync()
    assert y.tolist() == [1, 1]


def test_what_jax_has_another_way_is_run_by_jax():
    assert direct_call(object(), jax.devices()[0]) is None
    newest = max(program.PROGRAMS.values(), key=lambda p: p.used, default=None)
    assert newest is None or newest.executable.direct is not None


def test_types_that_a_function_was_traced_with_are_forgotten_and_it_is_not_traced_again():
    traced = []

    def doubled(x):
        traced.append(x.shape)
        return x * 2

    jitted = jax.jit(doubled)
    for rows in (2, 3):
        jitted(jnp.ones(rows))
    assert len(jax_internals._TRACED[doubled]) == 2
    jax_internals.forget_types()
    assert not jax_internals._TRACED[doubled]
    assert jitted(jnp.ones(3)).tolist() == [2, 2, 2] and traced == [(2,), (3,)]
    assert jitted(jnp.ones(4)).tolist() == [2] * 4 and traced == [(2,), (3,), (4,)]


def test_types_with_states_are_kept(monkeypatch):
    def function():
        pass

    types = {"without": [[]], "never": [], "with": [[], [("argument", "state")]]}
    monkeypatch.setattr(jax_internals, "_TRACED", weakref.WeakKeyDictionary({function: types}))
    jax_internals.forget_types()
    assert types == {"with": [[], [("argument", "state")]]}


def test_a_jax_that_keeps_no_types_has_none_to_forget(monkeypatch):
    monkeypatch.setattr(jax_internals, "_TRACED", None)
    jax_internals.forget_types()
