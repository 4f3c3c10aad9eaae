"""HLO texts, as torch_xla prints them."""

import torch

import torch_xla
from torch_xdist import settings
from torch_xdist.core.programs import hlo_text, jax_internals

hlo_of = torch_xla._XLAC._get_xla_tensors_hlo


def test_instructions_are_named_by_what_they_do():
    x = torch.ones(2, 3).to("xla")
    text = hlo_of([x @ x.T])
    assert "%p0.1 = f32[2,3]{1,0} parameter(0)" in text
    assert " dot(f32[2,3]{1,0} %p0.1, f32[3,2]{0,1} %transpose.1)" in text
    assert "metadata" not in text


def test_the_devices_of_a_sharding_are_listed():
    listed = hlo_text._devices_listed
    assert listed("sharding={devices=[2,2]<=[4]}") == "sharding={devices=[2,2]0,1,2,3}"
    assert listed("{devices=[1,4]<=[2,2]T(1,0)}") == "{devices=[1,4]0,2,1,3}"
    assert listed("{devices=[2,3]<=[6]}") == "{devices=[2,3]0,1,2,3,4,5}"
    assert (
        listed("{devices=[2,1,4]<=[2,2,2]T(1,0,2) last_tile_dim_replicate}")
        == "{devices=[2,1,4]0,1,4,5,2,3,6,7 last_tile_dim_replicate}"
    )
    assert listed("{replicated}") == "{replicated}"


def test_what_shardy_notes_is_left_out():
    noted = (
        "x, sharding={replicated}, frontend_attributes="
        '{xla.sdy.sharding="#sdy.sharding<@mesh, [{\\"0\\"}, {}]>"}'
    )
    assert hlo_text._SHARDY.sub("", noted) == "x, sharding={replicated}"
    meshes = 'm, frontend_attributes={xla.sdy.meshes={mesh = #sdy.mesh<["0"=2, "1"=2]>}}'
    assert hlo_text._SHARDY.sub("", meshes) == "m"


def test_the_program_as_xla_optimized_it_is_printed_on_request(monkeypatch):
    monkeypatch.setenv("XLA_DUMP_POST_OPTIMIZATIONS", "1")
    assert settings.dumps_optimized()
    x = torch.ones(4).to("xla")
    assert "is_scheduled=true" in hlo_of([x * 2 + 1])


def test_without_jaxs_printer_its_own_text_is_given(monkeypatch):
    monkeypatch.setattr(jax_internals, "_hlo", None)
    assert jax_internals.hlo_of_module("module {}") is None
    x = torch.ones(4).to("xla")
    assert hlo_of([x * 2]).startswith("HloModule")
