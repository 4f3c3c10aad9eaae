"""Recorded steps through the TPU compiler: operators, a model's step, ranks, slices."""

import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from models import DigitsNet, Gpt
from spmd_process import SpmdProcess

import torch_xdist.core.torch_side.registration  # noqa: F401
import torch_xla.core.xla_model as xm
import torch_xla.distributed.spmd as xs
from torch_xdist.ahead import step, sweep
from torch_xdist.ahead.compiler import Compiler
from torch_xdist.ahead.topology import Topology, devices
from torch_xdist.core.devices import aim, steps
from torch_xdist.errors import DeviceError

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "scripts"))
import check_tpu
from sweep import full_name, op_db

V5E = Topology("v5e:2x4")
TWO_SLICES = Topology("v5e:2x2", 2)
FAST = """
    add mul
    div.no_rounding_mode exp where sum mean var softmax log_softmax matmul bmm addmm
    einsum cumsum sort topk
    argmax gather scatter index_select index_put cat linalg.svdvals linalg.svd linalg.pinv
    linalg.eigh linalg.qr linalg.eig nn.functional.linear nn.functional.conv2d
    nn.functional.max_pool2d nn.functional.layer_norm nn.functional.embedding
    nn.functional.cross_entropy nn.functional.gelu nn.functional.scaled_dot_product_attention
""".split()
# Positions and targets that are of 32 bits inside.
NARROW = """
    sort topk argmax gather scatter index_select index_put nn.functional.max_pool2d
    nn.functional.embedding nn.functional.cross_entropy nn.functional.scaled_dot_product_attention
""".split()
on_eight = SpmdProcess(8)


def found_of(name, compiler, dtype=torch.float32):
    [op] = [op for op in op_db if full_name(op) == name]
    with aim.at(devices(V5E)):
        return check_tpu.found_of(op, dtype, V5E, compiler)


@pytest.mark.parametrize("name", FAST)
def test_an_operator_compiles_or_falls_back_by_name(name, compiler):
    found = found_of(name, compiler)
    assert found.word == ("falls back" if name == "linalg.eig" else "ok"), found.verdict.words
    assert found.fallbacks == (("aten::linalg_eig",) if name == "linalg.eig" else ())
    assert name not in NARROW or not found.verdict.wide_inside, found.verdict.wide_inside


@pytest.mark.parametrize("name", ["mm", "nn.functional.conv2d"])
def test_products_of_64_bit_integers_compile(name, compiler):
    found = found_of(name, compiler, torch.int64)
    assert found.word == "ok", found.verdict.words


def test_what_cannot_be_recorded_is_told(compiler):
    found = sweep.tried("broken", lambda: None, lambda _: 1 // 0, V5E, compiler)
    assert found.word == "not recorded" and "ZeroDivisionError" in found.verdict.words


def trained(model, data, target, optimizer):
    """Two steps of which the second is pending; the gradients are set aside."""
    for _ in range(2):
        steps.sync()
        loss = torch.nn.functional.cross_entropy(model(data).flatten(0, -2), target.flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return loss.detach()


@pytest.mark.long
def test_a_step_of_a_gpt_gives_its_memory_back(compiler):
    torch.manual_seed(0)
    with aim.at(devices(V5E)):
        model = Gpt().to("xla")
        ids = torch.randint(0, 20, (2, 8)).to("xla")
        optimizer = torch.optim.AdamW(model.parameters())
        loss = trained(model, ids, ids, optimizer)
        found = step.pending(V5E, compiler)
    assert found.is_ok, found.words
    assert found.donated > 3 * len([*model.parameters()]) - 1
    assert found.donated_share == 1.0
    assert torch.isfinite(loss.cpu())


def test_the_step_of_the_quickstart(compiler):
    torch.manual_seed(0)
    with aim.at(devices(V5E)):
        model = DigitsNet().to("xla")
        images = torch.randn(8, 1, 8, 8).to("xla")
        target = torch.zeros(8, dtype=torch.long, device="xla")
        optimizer = torch.optim.SGD(model.parameters(), 0.1, 0.9)
        loss = trained(model, images, target, optimizer)
        found = step.pending(V5E, compiler)
    assert found.is_ok, found.words
    assert found.donated_share == 1.0
    assert torch.isfinite(loss.cpu())


def test_ranks_reduce_over_all_chips_of_a_slice(compiler):
    with aim.at(devices(V5E), ranks=True):
        x = torch.ones(1024).to("xla")
        steps.sync()
        total = xm.all_reduce(xm.REDUCE_SUM, x * 2)
        found = step.pending(V5E, compiler)
        del total
        step.forget()
    assert found.is_ok, found.words
    assert found.collectives == {"all-reduce": 1}
    assert "replica_groups={{0,1,2,3,4,5,6,7}}" in found.hlo


def test_ranks_give_memory_back_that_all_of_them_together_would_lay_out_otherwise(compiler):
    with aim.at(devices(V5E), ranks=True):
        weight, gradient = (torch.ones(16, 32).to("xla") for _ in range(2))
        steps.sync()
        weight.add_(xm.all_reduce(xm.REDUCE_SUM, gradient))
        found = step.pending(V5E, compiler)
        step.forget()
    assert found.is_ok, found.words
    assert (found.aliases, found.donated) == (1, 1)


@pytest.mark.long
def test_gradients_travel_while_those_of_layers_before_are_made(compiler):
    with aim.at(devices(V5E), ranks=True):
        # Of gradients that fit in a chip's vector memory the compiler makes no chains.
        layers = [torch.nn.Linear(2048, 2048, bias=False) for _ in range(4)]
        model = torch.nn.Sequential(*layers).to("xla").bfloat16()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        rows = torch.zeros(8192, 2048, dtype=torch.bfloat16).to("xla")
        steps.sync()
        model(rows).square().mean().backward()
        xm.optimizer_step(optimizer)
        found = step.pending(V5E, compiler)
        step.forget()
    assert found.is_ok, found.words
    overlapped = sum(one["count"] for one in found.exchanges if one["fusions"])
    assert overlapped >= 1, found.exchanges


@on_eight
def test_a_hybrid_mesh_reduces_inside_slices_and_between_them():
    with Compiler(120) as compiler, aim.at(devices(TWO_SLICES)):
        mesh = xs.HybridMesh(
            ici_mesh_shape=(1, 4), dcn_mesh_shape=(2, 1), axis_names=("data", "model")
        )
        assert np.array(mesh.get_logical_mesh()).tolist() == [[0, 2, 1, 3], [4, 6, 5, 7]]
        up = torch.nn.Linear(128, 256, bias=False).to("xla")
        down = torch.nn.Linear(256, 128, bias=False).to("xla")
        xs.mark_sharding(up.weight, mesh, ("model", None))
        xs.mark_sharding(down.weight, mesh, (None, "model"))
        x = torch.randn(64, 128).to("xla")
        xs.mark_sharding(x, mesh, ("data", None))
        optimizer = torch.optim.SGD([up.weight, down.weight], lr=0.1)
        for _ in range(2):
            steps.sync()
            optimizer.zero_grad()
            down(up(x).relu()).square().mean().backward()
            optimizer.step()
        optimizer.zero_grad()
        found = step.pending(TWO_SLICES, compiler)
        assert found.is_ok, found.words
        # Activations are summed over the model axis of each slice, gradients over the data axis.
        assert found.collectives == {"all-reduce": 1}
        assert found.across_slices.keys() == {"ALL_REDUCE"}
        assert found.donated_share == 1.0


@on_eight
def test_a_topology_of_another_size_is_named():
    with Compiler(60) as compiler, aim.at(devices(Topology("v5e:2x2"))):
        y = torch.ones(8).to("xla") + 1
        with pytest.raises(DeviceError, match=r"a program of 8 devices for a topology of 4"):
            step.pending(Topology("v5e:2x2"), compiler)
        assert y.sum().item() == 16
