"""Random training loops with `pure` are the same to the bit as without."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pure_loops import ACTIONS, OPTIMIZERS, check

# What is most likely to go wrong, one after the other; each also stands in the random loops.
DIRECTED = {
    "branches and shapes": "steps; step 1; step 1; step 1; step 1; step 0; mode eval; steps; step 1"
    "; mode train; step 0",
    "hooks": "steps; hook; steps; unhook; step 0; module_hook; steps; unhook; step 0",
    "exceptions": "steps; step 0 fails; step 0; step 0 fails; step 0 fails; step 0 fails; step 0",
    "schedules": "steps; schedule; step 0; schedule; step 0; rate 0.2; step 0; momentum; step 0",
    "layers": "steps; freeze first on; steps; freeze first off; steps; replace; steps; data; steps",
    "loads": "steps; load; step 0; reload_optimizer; steps; load; step 0",
    "saved tensors": "steps; save_gradients; step 0; save_gradients; step 0; save_parameters"
    "; step 0; share; step 0; step 0; clone; step 0",
    "modes": "steps; autocast; steps; autocast; step 0; dropout 0.1; steps; scale 2.0; steps",
    "numbers": "steps; seed; step 0; negate_gradients; step 0; clear; step 0; write; step 0",
}


# Each compiles for 20 s: these run with the fast tests, all with the long ones.
FAST = ("branches and shapes", "layers", "saved tensors")


def directed(name, optimizer):
    return pytest.param(name, optimizer, marks=[] if name in FAST else pytest.mark.long)


@pytest.mark.parametrize(
    ("name", "optimizer"),
    [*map(directed, DIRECTED, ["adamw", "momentum", "sgd", "adam", "rmsprop"] * 2)],
)
def test_directed_loops(name, optimizer):
    check(optimizer, name == "numbers", DIRECTED[name].split("; "))


@pytest.mark.long
@given(
    optimizer=st.sampled_from(sorted(OPTIMIZERS)),
    zero_outside=st.booleans(),
    actions=st.lists(st.sampled_from(ACTIONS), min_size=6, max_size=16),
)
@settings(max_examples=40, deadline=None, derandomize=True)
def test_random_loops(optimizer, zero_outside, actions):
    check(optimizer, zero_outside, ["steps", *actions])
