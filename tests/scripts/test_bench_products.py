"""The benchmark of a step's products: which there are, how often, and what the table says."""

import json
from collections import Counter

import pytest
from scripts_as_modules import SCRIPTS, loaded

HLO = """\
HloModule jit_step, entry_computation_layout={(f32[4,3]{1,0}, f32[3,2]{1,0})->f32[4,2]{1,0}}

%fused (p0: f32[4,3], p1: f32[3,2]) -> f32[4,2] {
  %p0 = f32[4,3]{1,0} parameter(0)
  %p1 = f32[3,2]{0,1} parameter(1)
  ROOT %dot.1 = f32[4,2]{1,0} dot(%p0, %p1), lhs_contracting_dims={1}, rhs_contracting_dims={0}
}

%inner (p: f32[8,4,3]) -> f32[8,4,4] {
  %p = f32[8,4,3]{2,1,0} parameter(0)
  ROOT %dot.2 = f32[8,4,4]{2,1,0} dot(f32[8,4,3]{2,1,0} %p, f32[8,4,3]{2,1,0} %p), lhs_batch_dims={0}, lhs_contracting_dims={2}, rhs_batch_dims={0}, rhs_contracting_dims={2}
}

%body (p: (s64[], f32[4,3])) -> (s64[], f32[4,3]) {
  %p = (s64[], f32[4,3]{1,0}) parameter(0)
  %call = f32[8,4,4]{2,1,0} call(%p), to_apply=%inner
  %fusion.1 = f32[4,2]{1,0} fusion(%p, %p), kind=kCustom, calls=%fused
  ROOT %tuple = (s64[], f32[4,3]{1,0}) tuple(%p, %p)
}

ENTRY %main (a: f32[4,3], b: f32[3,2]) -> f32[4,2] {
  %a = f32[4,3]{1,0} parameter(0)
  %b = f32[3,2]{0,1} parameter(1)
  %while = (s64[], f32[4,3]{1,0}) while(%a), condition=%cond, body=%body, backend_config={"known_trip_count":{"n":"5"}}
  ROOT %fusion = f32[4,2]{1,0} fusion(%a, %b), kind=kCustom, calls=%fused, backend_config={"outer_dimension_partitions":[]}
}
"""  # noqa: E501


@pytest.fixture(scope="module")
def script():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(SCRIPTS)
        yield loaded("bench_products")


def test_products_are_counted_through_calls_fusions_and_loops(script):
    # The second operand's columns lie together: [2, 3] in memory.
    plain = script.Product("f32", (4, 3), (2, 3), ((), ()), ((1,), (1,)))
    batched = script.Product("f32", (8, 4, 3), (8, 4, 3), ((0,), (0,)), ((2,), (2,)))
    assert script.products_of(HLO) == Counter({plain: 6, batched: 5})
    assert str(plain) == "f32 [4,3] x [2,3] over [1], [1]"
    assert batched.free(0) == (1,)


def test_products_of_a_program_of_this_xla_are_found_and_no_others(script):
    import jax
    import jax.numpy as jnp

    def looped(a, b):
        return jax.lax.fori_loop(0, 7, lambda _, x: jnp.tanh(x @ b), a)

    a, b = jnp.ones((64, 64)), jnp.ones((64, 64))
    text = jax.jit(looped).lower(a, b).compile().as_text()
    found = script.products_of(text)
    assert found.total() == 7 and {(p.left, p.right) for p in found} == {((64, 64), (64, 64))}
    assert script.products_of(jax.jit(jnp.tanh).lower(a).compile().as_text()) == Counter()


@pytest.mark.parametrize(
    ("left", "right", "batch", "summed", "result"),
    [
        ((4, 3), (2, 3), ((), ()), ((1,), (1,)), (8, 3)),
        ((5, 4, 3), (5, 3, 2), ((0,), (0,)), ((2,), (1,)), (40, 3)),
        ((4, 5, 3), (5, 3, 6), ((), ()), ((1, 2), (0, 1)), (24, 15)),
    ],
)
def test_torch_multiplies_what_xla_does(script, left, right, batch, summed, result):
    product = script.Product("f32", left, right, batch, summed)
    theirs = script.in_torch(product)()
    assert (theirs.numel(), *theirs.unique().tolist()) == result
    assert {*script.in_xla(product)} <= {*script.WAYS}
    ours = script.in_xla(product)["xla"]()
    assert (ours.size, *{*ours.flatten().tolist()}) == result


def test_a_way_that_xla_does_not_know_is_left_out_and_told(script, monkeypatch, capsys):
    monkeypatch.setitem(script.WAYS, "another", {"xla_of_another_release": "1"})
    product = script.Product("f32", (4, 3), (2, 3), ((), ()), ((1,), (1,)))
    assert "another" not in script.in_xla(product)
    assert "another is left out" in capsys.readouterr().err


def test_sums_are_times_by_counts_and_the_quicker_way_counts(script, monkeypatch, capsys):
    one = script.Product("f32", (4, 3), (2, 3), ((), ()), ((1,), (1,)))
    slow, quick = script.WAYS
    count = script.IN_ONE
    times = {(one, slow): 0.5 + 3 * count, (one, quick): 0.5 + 2 * count, (one, "torch"): 1.5}
    times |= {"step": 10.0, "nothing": 0.5}
    monkeypatch.setattr(script, "medians", lambda runs, rounds: {key: times[key] for key in runs})
    found = script.measure(Counter({one: 6}), lambda: None, 1)
    told = json.loads(capsys.readouterr().out)
    assert (told["count"], told["xla_ms"], told["way"], told["torch_ms"]) == (6, 2.0, quick, 1.5)
    assert found == {
        "products": 6,
        "eager_ms": 10.0,
        "xla_ms": 12.0,
        "torch_ms": 9.0,
        "xla / eager": 1.2,
        "torch / eager": 0.9,
    }
    assert (
        script.table({"gpt": found}).splitlines()[2] == "| gpt | 10.0 | 12.0 (1.20) | 9.0 (0.90) |"
    )


def test_runs_take_turns_and_the_median_is_told(script, monkeypatch):
    order = []
    runs = {name: lambda name=name: order.append(name) for name in "ab"}
    monkeypatch.setattr(script, "TURN_MS", 0.0)
    found = script.medians(runs, 3)
    assert {*found} == {"a", "b"} and all(ms >= 0 for ms in found.values())
    # A call that is not counted goes before.
    assert "".join(order[-8:]) == "aabbaabb"


def test_an_unknown_model_is_named(script, capsys):
    with pytest.raises(SystemExit):
        script.main(["bert"])
    assert "no such model: bert" in capsys.readouterr().err


@pytest.mark.long
def test_a_models_products_are_found_and_timed(script, capsys):
    script.main(["mnist", "--rounds", "1"])
    *lines, _, _, row = capsys.readouterr().out.splitlines()
    *products, whole = map(json.loads, lines)
    assert whole["bench"] == "products" and whole["products"] == sum(p["count"] for p in products)
    assert whole["eager_ms"] > 0 and whole["xla_ms"] > 0 and row.startswith("| mnist | ")
