"""torch's slow modules are imported by who has use of them, and work then as ever."""

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import torch

from torch_xdist.core.unimported import without_dynamo
from torch_xdist.releases import patches

ROOT = Path(__file__).resolve().parents[4]
TRAINED = """
    import sys, torch, torch_xla

    def trained(device):
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.ReLU(), torch.nn.Linear(3, 1))
        model.to(device)
        x, found = torch.ones(2, 3).to(device), {}
        for kind in torch.optim.AdamW, torch.optim.SGD, torch.optim.RMSprop, torch.optim.Adagrad:
            optimizer = kind(model.parameters(), lr=0.1)
            optimizer.load_state_dict(optimizer.state_dict())
            for _ in range(2):
                optimizer.zero_grad()
                model(x).sum().backward()
                optimizer.step()
        return [p.detach().cpu() for p in model.parameters()]

    def check():
        for ours, theirs in zip(trained("xla"), trained("cpu")):
            torch.testing.assert_close(ours, theirs)

    trained("xla")
"""


def ran(code):
    """What a process prints."""
    command = [sys.executable, "-c", textwrap.dedent(TRAINED) + textwrap.dedent(code)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=250, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


@pytest.mark.long
def test_a_training_imports_neither_dynamo_nor_dtensor_and_who_compiles_has_dynamo():
    found = ran("""
        slow = "torch._dynamo", "torch.distributed.tensor"
        print([name for name in slow if name in sys.modules])
        check()
        compiled = torch.compile(lambda x: x * 2 + 1, backend="eager")
        print(compiled(torch.ones(2)).tolist())
        from torch.optim import Optimizer
        kept_out = Optimizer.add_param_group.__wrapped__
        assert vars(kept_out)["__dynamo_disable"] is None
        check()
        assert vars(kept_out)["__dynamo_disable"] is not kept_out
        weight = torch.ones(2, requires_grad=True)
        optimizer = torch.optim.SGD([weight], lr=0.5)
        weight.grad = torch.ones(2)
        torch.compile(optimizer.step, backend="eager")()
        print(weight.tolist())
    """)
    assert found == ["[]", "[3.0,", "3.0]", "[0.5,", "0.5]"]


@pytest.mark.long
def test_dtensors_are_as_without_the_device_and_so_are_their_subclasses():
    found = ran("""
        import os
        import torch.distributed as dist
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.tensor import DTensor, Shard, distribute_tensor

        store = dist.HashStore()
        dist.init_process_group("gloo", store=store, rank=0, world_size=1)
        mesh = init_device_mesh("cpu", (1,))
        x = distribute_tensor(torch.ones(4, 4), mesh, [Shard(0)])
        y = x @ x + 1
        assert type(y) is DTensor and y.placements == (Shard(0),)
        print(y.full_tensor().sum().item())

        class Mine(DTensor):
            pass

        mine = Mine(x._local_tensor, x._spec, requires_grad=False)
        assert isinstance(mine + x, DTensor) and not isinstance(torch.ones(1), DTensor)
        weight = torch.nn.Parameter(x)
        (weight @ x).sum().backward()
        assert type(weight.grad) is DTensor
        check()
        dist.destroy_process_group()
    """)
    assert found == ["80.0"]


def test_what_dynamo_is_kept_out_of_is_found():
    kept_out, steps = without_dynamo._found()
    names = {function.__name__ for function in kept_out}
    assert {"add_param_group", "state_dict", "zero_grad"} <= names
    # A meta kernel in Python, behind three decorators.
    assert len(kept_out) > 50
    assert torch.optim.Optimizer.add_param_group.__wrapped__ in kept_out
    assert all(callable(step) for step in steps)


def test_what_was_marked_is_what_it_was_once_it_is_undone(monkeypatch):
    class Owner:
        pass

    target = "torch._compile._disable_dynamo.*.__dynamo_disable"
    monkeypatch.setattr(patches, "_marked", [])
    monkeypatch.setattr(patches, "_made", [])
    owner = Owner()
    patches.mark(target, [(owner, 1)])
    assert vars(owner) == {"__dynamo_disable": 1}
    patches.undo(target)
    assert vars(owner) == {"__dynamo_disable": None}
