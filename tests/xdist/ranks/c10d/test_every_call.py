"""Every public collective of torch.distributed on device tensors, against gloo on the CPU."""

from pathlib import Path

import c10d_calls
import pytest
import torch.distributed as dist
from device_ranks import DeviceRanks
from rank_pool import RankPool

# What needs no ranks, or another backend than this one; the last four are told so by torch.
NOT_CALLED = {
    *("Backend", "BackendConfig", "GroupMember", "GroupName", "PrefixStore", "ProcessGroup"),
    *("ProcessGroupGloo", "ReduceOp", "Store", "Work", "DebugLevel", "default_pg_timeout"),
    *("reduce_op", "group", "get_debug_level", "get_backend_config", "is_backend_available"),
    *("is_gloo_available", "is_mpi_available", "is_nccl_available", "is_ucc_available"),
    *("is_xccl_available", "is_torchelastic_launched", "get_default_backend_for_device"),
    *("monitored_barrier", "split_group", "shrink_group"),
    # From torch 2.15 on: other backends, and a limit that only theirs have.
    *("ProcessGroupNCCL", "ProcessGroupNCCL2", "ProcessGroupNCCLLazy", "set_timeout"),
}


def on_device(rank, size):
    import c10d_calls
    import torch.distributed as dist

    import torch_xla.distributed.xla_backend  # noqa: F401
    from torch_xdist import metrics

    dist.init_process_group("xla", init_method="xla://")
    found = c10d_calls.results(rank, size, "xla")
    return found, metrics.missing_lowerings()


def on_cpu(rank, size, store):
    import c10d_calls
    import torch.distributed as dist

    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=size)
    return c10d_calls.results(rank, size, "cpu")


@pytest.mark.parametrize("size", [2, pytest.param(3, marks=pytest.mark.long)])
def test_every_collective_gives_what_gloo_gives(tmp_path, size):
    with RankPool(size, ["torch"]) as ranks:
        expected = ranks.run(size, on_cpu, str(tmp_path / "store"), join=False)
    with DeviceRanks(size) as ranks:
        for rank, (found, fallbacks) in enumerate(ranks.run(on_device)):
            for name, value in found.items():
                assert value == expected[rank][name], (rank, name)
            assert fallbacks == []


def test_no_public_function_is_forgotten():
    text = Path(c10d_calls.__file__).read_text() + (
        Path(__file__).with_name("test_process_group.py").read_text()
    )
    public = set(dist.distributed_c10d.__all__) - NOT_CALLED
    forgotten = {name for name in public if not name.endswith("Options") and name not in text}
    assert forgotten == set()
