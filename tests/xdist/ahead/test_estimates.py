"""What is told of a program against the truth: a closed form, and the same step written in JAX."""

import jax
import jax.numpy as jnp
import pytest
import torch
from jax.sharding import SingleDeviceSharding

import torch_xdist.core.torch_side.registration  # noqa: F401
from torch_xdist.ahead import step
from torch_xdist.ahead.module_compiler import compile_module
from torch_xdist.ahead.topology import Topology, devices
from torch_xdist.ahead.verdict import facts_of
from torch_xdist.core.devices import aim, steps
from torch_xdist.core.programs.jax_internals import module_bytes, options_in

V5E = Topology("v5e:2x2")
# Large beside the 0.7 MB of temporaries that our program has and JAX's has not.
ROWS, WIDE, INNER = 2048, 1024, 4096


def of_torch(compiler):
    with aim.at(devices(V5E)):
        model = torch.nn.Sequential(
            torch.nn.Linear(WIDE, INNER), torch.nn.ReLU(), torch.nn.Linear(INNER, WIDE)
        ).to("xla")
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        rows = torch.zeros(ROWS, WIDE).to("xla")
        steps.sync()
        loss = model(rows).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        found = step.pending(V5E, compiler)
        step.forget()
        assert found.is_ok, found.words
        del loss
    return found.bytes, found.flops


def of_jax():
    def loss_of(p, x):
        return jnp.mean(jnp.square(jax.nn.relu(x @ p[0] + p[1]) @ p[2] + p[3]))

    def sgd(p, x):
        loss, grads = jax.value_and_grad(loss_of)(p, x)
        return [a - 0.1 * g for a, g in zip(p, grads)], loss

    there = SingleDeviceSharding(devices(V5E)[0])
    shapes = [(WIDE, INNER), (INNER,), (INNER, WIDE), (WIDE,)]
    parameters = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes]
    rows = jax.ShapeDtypeStruct((ROWS, WIDE), jnp.float32)
    jitted = jax.jit(sgd, donate_argnums=(0,), in_shardings=there, out_shardings=there)
    lowered = jitted.lower(parameters, rows)
    made = compile_module(module_bytes(lowered), devices(V5E), [0], options_in(lowered))
    return facts_of(made)["bytes"]


def needed(sizes):
    return sizes["arguments"] + sizes["results"] + sizes["temporaries"] - sizes["aliased"]


@pytest.mark.long
def test_memory_and_operations_are_those_of_the_step_in_jax_and_on_paper(compiler):
    sizes, flops = of_torch(compiler)
    assert needed(sizes) == pytest.approx(needed(of_jax()), rel=0.05)
    # Forward two products, backward three: the rows need no gradient.
    assert flops == pytest.approx(5 * 2 * ROWS * WIDE * INNER, rel=0.02)
