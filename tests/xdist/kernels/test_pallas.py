"""Users' Pallas kernels, and the TPU forms of ours: lowered for a TPU, and interpreted here."""

import inspect

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pallas_tpu
from jax.sharding import AbstractDevice, AbstractMesh, use_abstract_mesh

import torch_xla
from torch_xdist.errors import ArgumentError, DeviceError
from torch_xdist.kernels import flash_forms, gmm, paged_forms, rows, splash_forms
from torch_xdist.kernels.tpu_custom_call import call_of
from torch_xla.experimental import custom_kernel

# What it says beside the kind differs between releases of jax.
TOLD = {"num_cores": 1, "platform": "tpu"}.items()
KNOWN = inspect.signature(AbstractDevice).parameters
SOME_TPU = AbstractMesh(
    (),
    (),
    abstract_device=AbstractDevice("TPU v5 lite", **{k: v for k, v in TOLD if k in KNOWN}),
)


def add_kernel(x_ref, y_ref, out_ref):
    out_ref[...] = x_ref[...] + y_ref[...]


def add(x, y, factor=1):
    out = jax.ShapeDtypeStruct(x.shape, x.dtype)
    return factor * pl.pallas_call(add_kernel, out_shape=out)(x, y)


def same(x, *rest):
    return [(x.shape, x.dtype)]


def test_a_kernel_is_one_row_and_is_interpreted_without_a_tpu() -> None:
    x = torch.arange(8, dtype=torch.int32, device="xla")
    found = custom_kernel.make_kernel_from_pallas(add, same)(x, x, 3, static_argnums=(2,))
    assert "pallas::add" in torch_xla._XLAC._get_xla_tensors_text([found])
    assert found.tolist() == [6 * i for i in range(8)]


def test_equal_numbers_of_other_types_are_other_kernels() -> None:
    def scaled(x, y, factor):
        return [(x.shape, torch.float32 if isinstance(factor, float) else x.dtype)]

    x = torch.ones(8, dtype=torch.int32, device="xla")
    run = custom_kernel.make_kernel_from_pallas(add, scaled)
    assert [run(x, x, factor).dtype for factor in (2, 2.0)] == [torch.int32, torch.float32]


def test_a_kernel_that_gives_something_else_than_was_said_is_refused() -> None:
    x = torch.zeros(8, device="xla")
    other = custom_kernel.make_kernel_from_pallas(add, lambda *_: [((4,), torch.float32)])
    with pytest.raises(ArgumentError, match=r"the kernel returns .*\(8,\).* says \[\(\(4,\)"):
        other(x, x)
    no_list = custom_kernel.make_kernel_from_pallas(add, lambda *_: ((8,), torch.float32))
    with pytest.raises(ArgumentError, match="returned tuple; a list of"):
        no_list(x, x)


def test_a_kernel_is_compiled_for_a_tpu_once() -> None:
    x = torch.zeros(8, dtype=torch.int32)
    with use_abstract_mesh(SOME_TPU):
        payload, tensors = custom_kernel.trace_pallas(add, x, x, use_cache=True)
        again, _ = custom_kernel.trace_pallas(add, x, x, use_cache=True)
    assert payload is not None and "custom_call_config" in payload and again is payload
    assert len(tensors) == 2 and payload in custom_kernel.trace_pallas_arg_to_payload.values()
    with pytest.raises(
        DeviceError, match="this process has no TPU, and the kernel is compiled for"
    ):
        torch_xla._XLAC._xla_tpu_custom_call(tensors, payload, [(8,)], [torch.int32])
    call = call_of(payload, [((8,), "int32")])
    module = jax.export.export(jax.jit(call), platforms=["tpu"], disabled_checks=[_ALLOWED])(
        jnp.zeros(8, "int32")
    ).mlir_module()
    assert "tpu_custom_call" in module


def test_kernels_of_other_arguments_are_compiled_apart() -> None:
    def shifted(x, by, table=None):
        def body(x_ref, out_ref):
            out_ref[...] = x_ref[...] + by if isinstance(by, float) else x_ref[...] * by

        return pl.pallas_call(body, out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype))(x)

    x = torch.zeros(8)

    def payload(by, table):
        given = {"use_cache": True, "static_argnums": (1,)}
        return custom_kernel.trace_pallas(shifted, x, by, table=table, **given)[0]

    before = len(custom_kernel.trace_pallas_arg_to_payload)
    with use_abstract_mesh(SOME_TPU):
        assert payload(2, None) != payload(2.0, None)
        # Of operands that are no tensors of torch only the form counts.
        assert payload(2, np.zeros(2)) == payload(2, np.ones(2))
    assert len(custom_kernel.trace_pallas_arg_to_payload) == before + 3


_ALLOWED = jax.export.DisabledSafetyCheck.custom_call("tpu_custom_call")
Q = np.linspace(-0.1, 0.1, 2 * 130 * 128, dtype="float32").reshape(1, 2, 130, 128)
WHOLE, LINES = Q[:, :, :128], Q.reshape(260, 128)
PAGES = np.linspace(-1, 1, 2 * 8 * 16 * 128, dtype="float32").reshape(2, 8, 16, 128)
HEADS = Q[0].swapaxes(0, 1).repeat(4, 1)
PAIRS = PAGES.reshape(8, 16, 2, 128).repeat(2, 2)
OF_PAGES = np.array([5, 64]), np.arange(8).reshape(2, 4)
SIZES, TILES = np.array([100, 0, 130]), (128, 128, 128)
FLASH = {"causal": True, "sm_scale": 0.5}
PAGED = {"pages_per_compute_block": 2, "megacore_mode": None, "attn_logits_soft_cap": None}
RAGGED = {
    **dict.fromkeys(("sliding_window", "soft_cap", "k_scale", "v_scale", "vmem_limit_bytes")),
    "sm_scale": 0.5,
    "mask_value": flash_forms.MASK,
    "num_kv_pages_per_block": 2,
    "num_queries_per_block": 8,
}
SPLASH = {"causal": True, "config": splash_forms.SplashAttentionConfig(), "cap": None}


def backward_operands():
    operands = Q, Q, Q, None, None, None
    return Q, *operands, *flash_forms.plain_forward(*operands, **FLASH)


# For each kernel: its two forms, operands, settings.
FORMS = {
    "flash": (
        (flash_forms.pallas_forward, flash_forms.plain_forward),
        lambda: (Q, Q, Q, None, None, None),
        FLASH,
    ),
    "flash backward": (
        (flash_forms.pallas_backward, flash_forms.plain_backward),
        backward_operands,
        FLASH,
    ),
    "gmm": (
        (gmm._pallas_gmm, gmm._plain_gmm),
        lambda: (LINES, np.stack([LINES[:128], LINES[9:137], LINES[99:227]]), SIZES, None),
        {"tiling": TILES, "transpose_rhs": False},
    ),
    "tgmm": (
        (gmm._pallas_tgmm, gmm._plain_tgmm),
        lambda: (LINES.T, LINES, SIZES, None),
        {"tiling": TILES, "groups": 3},
    ),
    "paged": (
        (paged_forms.pallas_paged, paged_forms.plain_paged),
        lambda: (HEADS[:2], PAGES, PAGES, *OF_PAGES),
        PAGED,
    ),
    "ragged": (
        (paged_forms.pallas_ragged, paged_forms.plain_ragged),
        lambda: (HEADS[:32], PAIRS, *OF_PAGES, np.array([0, 4, 20]), np.array([2])),
        RAGGED,
    ),
    "splash": (
        (splash_forms._pallas, splash_forms._plain),
        lambda: (WHOLE, WHOLE, WHOLE, None),
        SPLASH,
    ),
}


def forms(name):
    """(the kernel and the plain form as functions of arrays, the arrays)."""
    (pallas, plain), operands, static = FORMS[name]
    kernel = rows.in_32_bits(pallas)
    return (
        jax.jit(lambda *arrays: kernel(*arrays, **static)),
        jax.jit(lambda *arrays: plain(*arrays, **static)),
        operands(),
    )


@pytest.mark.parametrize("name", FORMS)
def test_the_form_for_a_tpu_is_pallas_kernels_for_one(name) -> None:
    kernel, plain, operands = forms(name)
    with use_abstract_mesh(SOME_TPU):
        module = jax.export.export(kernel, platforms=["tpu"])(*operands).mlir_module()
    assert "tpu_custom_call" in module
    found, expected = (jax.eval_shape(form, *operands) for form in (kernel, plain))
    assert jax.tree.map(jnp.shape, found) == jax.tree.map(jnp.shape, expected)


# The interpreter cannot do what the ragged kernel does.
@pytest.mark.long
@pytest.mark.parametrize("name", [name for name in FORMS if name != "ragged"])
def test_the_kernels_compute_what_the_plain_forms_compute(name) -> None:
    kernel, plain, operands = forms(name)
    with pallas_tpu.force_tpu_interpret_mode():
        found = jax.tree.leaves(kernel(*operands))
    for have, want in zip(found, jax.tree.leaves(plain(*operands)), strict=True):
        # The paged kernel rounds keys and values to bfloat16.
        assert jnp.allclose(have, want, rtol=2e-2 if name == "paged" else 1e-4, atol=1e-4)
