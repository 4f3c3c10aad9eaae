"""Sharded tensors in torch's checkpoints: each part is written once, and any mesh reads it."""

import collections
import io
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed.checkpoint as dist_cp
from spmd_process import SpmdProcess
from torch.distributed.checkpoint.metadata import Metadata, MetadataIndex
from torch.distributed.checkpoint.planner import (
    LoadItemType,
    ReadItem,
    SavePlan,
    WriteItem,
    WriteItemType,
)

import torch_xla
import torch_xla.distributed.spmd as xs
from torch_xdist.errors import CheckpointError
from torch_xla.experimental.distributed_checkpoint import SPMDLoadPlanner, SPMDSavePlanner, _helpers

four = SpmdProcess(4)
spec_of = torch_xla._XLAC._get_xla_sharding_spec


def sharded(tensor: torch.Tensor, shape: tuple[int, ...], spec: tuple[Any, ...]) -> torch.Tensor:
    """A copy of a tensor on the device, sharded over a mesh of this shape."""
    copy = tensor.to("xla")
    xs.mark_sharding(copy, xs.Mesh(np.arange(4), shape), spec)
    return copy


def numbers(*shape: int) -> torch.Tensor:
    return torch.arange(1.0, 1 + torch.Size(shape).numel()).reshape(shape)


def alone(run: Any, folder: Path, state: dict[str, Any], planner: Any) -> None:
    """Save or load without other ranks."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")
        run(state, checkpoint_id=str(folder), planner=planner, no_dist=True)


def save(folder: Path, state: dict[str, Any], planner: Any = None) -> None:
    alone(dist_cp.save, folder, state, planner or SPMDSavePlanner())


def load(folder: Path, state: dict[str, Any], planner: Any = None) -> None:
    alone(dist_cp.load, folder, state, planner or SPMDLoadPlanner())


def plan_of(state: dict[str, Any]) -> tuple[SPMDSavePlanner, Any]:
    """A planner and the items that it would write."""
    planner = SPMDSavePlanner()
    planner.set_up_planner(state, is_coordinator=True)
    (plan,), _ = planner.create_global_plan([planner.create_local_plan()])
    return planner, planner.finish_plan(plan).items


def load_plan_of(state: dict[str, Any], saved: dict[str, Any]) -> tuple[SPMDLoadPlanner, Any]:
    """A planner and the items that it would read of a checkpoint of another state dict."""
    planner = SPMDLoadPlanner()
    planner.set_up_planner(state, metadata_of(saved), True)
    (plan,) = planner.create_global_plan([planner.create_local_plan()])
    return planner, planner.finish_plan(plan).items


def metadata_of(state: dict[str, Any]) -> Metadata:
    planner = SPMDSavePlanner()
    planner.set_up_planner(state, is_coordinator=True)
    return planner.create_global_plan([planner.create_local_plan()])[1]


MESHES = [
    ((4,), (0, None)),
    ((4,), (None, 0)),
    ((2, 2), (0, 1)),
    ((2, 2), (1, 0)),
    ((2, 2), (0, None)),
    ((2, 2), (None, 1)),
    ((2, 2), ((0, 1), None)),
    ((4,), (None, None)),
]


@pytest.mark.parametrize(("shape", "spec"), MESHES)
@four
def test_a_tensor_is_read_on_the_mesh_that_wrote_it(tmp_path, shape, spec):
    save(tmp_path, {"w": sharded(numbers(8, 4), shape, spec)})
    found = sharded(torch.zeros(8, 4), shape, spec)
    before = spec_of(found)
    load(tmp_path, {"w": found})
    assert torch.equal(found.cpu(), numbers(8, 4))
    assert spec_of(found) == before


@pytest.mark.parametrize(("shape", "spec"), MESHES)
@four
def test_a_tensor_is_read_on_another_mesh_than_wrote_it(tmp_path, shape, spec):
    save(tmp_path, {"w": sharded(numbers(8, 4), (2, 2), (0, 1))})
    found = sharded(torch.zeros(8, 4), shape, spec)
    load(tmp_path, {"w": found})
    assert torch.equal(found.cpu(), numbers(8, 4))


@pytest.mark.parametrize(("shape", "spec"), MESHES)
@four
def test_dims_that_the_devices_do_not_divide_are_read_on_any_mesh(tmp_path, shape, spec):
    save(tmp_path, {"w": sharded(numbers(5, 3), (4,), (0, None))})
    found = sharded(torch.zeros(5, 3), shape, spec)
    load(tmp_path, {"w": found})
    assert torch.equal(found.cpu(), numbers(5, 3))


@pytest.mark.parametrize(("shape", "spec"), MESHES)
@four
def test_dims_that_the_devices_do_not_divide_are_written_from_any_mesh(tmp_path, shape, spec):
    save(tmp_path, {"w": sharded(numbers(5, 3), shape, spec)})
    found = sharded(torch.zeros(5, 3), (2, 2), (1, 0))
    load(tmp_path, {"w": found})
    assert torch.equal(found.cpu(), numbers(5, 3))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.int64, torch.bool])
@four
def test_parts_are_written_in_their_dtype(tmp_path, dtype):
    whole = numbers(5, 2).to(dtype)
    save(tmp_path, {"w": sharded(whole, (4,), (0, None))})
    found = sharded(torch.zeros(5, 2, dtype=dtype), (2, 2), (0, 1))
    load(tmp_path, {"w": found})
    assert torch.equal(found.cpu(), whole)


@four
def test_a_sharded_tensor_reads_what_torchs_planner_wrote_of_a_cpu_tensor(tmp_path):
    save(tmp_path, {"w": numbers(6, 4)}, dist_cp.DefaultSavePlanner())
    found = sharded(torch.zeros(6, 4), (2, 2), (1, 0))
    load(tmp_path, {"w": found})
    assert torch.equal(found.cpu(), numbers(6, 4))


@four
def test_torchs_planner_reads_into_a_cpu_tensor_what_the_devices_wrote(tmp_path):
    save(tmp_path, {"w": sharded(numbers(5, 3), (4,), (0, None))})
    found = torch.zeros(5, 3)
    load(tmp_path, {"w": found}, dist_cp.DefaultLoadPlanner())
    assert torch.equal(found, numbers(5, 3))


@four
def test_a_device_tensor_without_a_sharding_reads_the_parts_of_one(tmp_path):
    save(tmp_path, {"w": sharded(numbers(5, 3), (4,), (0, None))})
    found = torch.zeros(5, 3, device="xla")
    load(tmp_path, {"w": found})
    assert torch.equal(found.cpu(), numbers(5, 3))


@four
def test_a_model_reads_its_parameters_in_place(tmp_path):
    model = torch.nn.Linear(4, 8).to("xla")
    mesh = xs.Mesh(np.arange(4), (4,))
    xs.mark_sharding(model.weight, mesh, (0, None))
    expected = {name: tensor.cpu() for name, tensor in model.state_dict().items()}
    save(tmp_path, {"model": model.state_dict()})
    weight = model.weight
    with torch.no_grad():
        model.weight.zero_()
        model.bias.zero_()
    load(tmp_path, {"model": model.state_dict()})
    assert model.weight is weight
    assert spec_of(model.weight) == "{devices=[4,1]0,1,2,3}"
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor.cpu(), expected[name]), name


@four
def test_what_is_no_tensor_comes_back_in_the_dict(tmp_path):
    state = {"step": 3, "names": ["a", "b"], "deep": {"rate": 0.5}}
    save(tmp_path, {"w": sharded(numbers(8, 4), (4,), (0, None)), **state})
    found = {
        "w": sharded(torch.zeros(8, 4), (4,), (0, None)),
        "step": 0,
        "names": [],
        "deep": {"rate": 0.0},
    }
    load(tmp_path, found)
    assert {name: found[name] for name in state} == state


@pytest.mark.parametrize(
    ("shape", "spec", "parts"),
    [((4,), (0, None), 4), ((2, 2), (0, 1), 4), ((2, 2), (0, None), 2), ((2, 2), (None, 1), 2)],
)
@four
def test_each_distinct_part_is_written_once(shape, spec, parts):
    _, items = plan_of({"w": sharded(numbers(8, 4), shape, spec)})
    places = collections.Counter(item.tensor_data.chunk.offsets for item in items)
    assert places.total() == len(places) == parts
    assert sum(item.tensor_data.chunk.sizes.numel() for item in items) == 32


@four
def test_the_metadata_names_each_distinct_part_once():
    metadata = metadata_of({"w": sharded(numbers(8, 4), (2, 2), (0, None))})
    chunks = metadata.state_dict_metadata["w"].chunks
    assert [(c.offsets, c.sizes) for c in chunks] == [((0, 0), (4, 4)), ((4, 0), (4, 4))]


@pytest.mark.parametrize("marked", [True, False])
@four
def test_a_tensor_that_every_device_holds_is_written_once(marked):
    x = sharded(numbers(8, 4), (4,), (None, None)) if marked else numbers(8, 4).to("xla")
    planner, items = plan_of({"w": x})
    assert [item.tensor_data.chunk.sizes for item in items] == [(8, 4)]
    assert "w" in planner.unsharded_state_dict


@four
def test_no_padding_is_written():
    planner, items = plan_of({"w": sharded(numbers(5), (4,), (0,))})
    assert [item.index.offset for item in items] == [(0,), (2,), (4,)]
    assert [planner.resolve_data(item).tolist() for item in items] == [[1, 2], [3, 4], [5]]


@four
def test_a_planner_that_is_used_again_writes_the_new_values(tmp_path):
    planner = SPMDSavePlanner()
    x = sharded(numbers(8), (4,), (0,))
    save(tmp_path / "0", {"w": x}, planner)
    x += 100
    save(tmp_path / "1", {"w": x}, planner)
    found = torch.zeros(8)
    load(tmp_path / "1", {"w": found}, dist_cp.DefaultLoadPlanner())
    assert torch.equal(found, numbers(8) + 100)


@four
def test_torch_has_nothing_to_warn_of(tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        save(tmp_path, {"w": sharded(numbers(8), (4,), (0,))})
        load(tmp_path, {"w": sharded(numbers(8), (4,), (0,))})


@pytest.mark.parametrize(
    ("args", "kwargs"),
    [((True,), {}), ((None, True), {}), ((), {"storage_meta": None, "is_coordinator": True})],
)
@four
def test_a_save_planner_is_told_by_torch_or_as_by_torch_xla_that_it_coordinates(args, kwargs):
    planner = SPMDSavePlanner()
    planner.set_up_planner({}, *args, **kwargs)
    assert planner.is_coordinator is True


@four
def test_a_sharded_tensor_that_the_checkpoint_lacks_is_an_error():
    x = sharded(numbers(8), (4,), (0,))
    with pytest.raises(CheckpointError, match=r"checkpoint: it has no b, which the .* \['a'\]"):
        load_plan_of({"b": x}, {"a": x})


@four
def test_loading_a_name_that_the_checkpoint_lacks_says_so(tmp_path):
    x = sharded(numbers(8), (4,), (0,))
    save(tmp_path, {"a": x})
    with pytest.raises(dist_cp.CheckpointException, match="checkpoint: it has no b, which the"):
        load(tmp_path, {"b": x})


@four
def test_a_tensor_without_a_sharding_that_the_checkpoint_lacks_is_torchs_error():
    with pytest.raises(RuntimeError, match="Missing key in checkpoint state_dict: b"):
        load_plan_of({"b": torch.zeros(2)}, {"a": torch.zeros(2)})


@four
def test_a_sharded_tensor_of_another_shape_is_an_error():
    with pytest.raises(
        CheckpointError, match=r"w is \[4\] in it, and a tensor of shape \[8\] in the state dict"
    ):
        load_plan_of({"w": sharded(numbers(8), (4,), (0,))}, {"w": numbers(4)})


@four
def test_a_sharded_tensor_that_is_no_tensor_in_the_checkpoint_is_an_error():
    with pytest.raises(CheckpointError, match=r"w is no tensor in it, and a tensor of shape \[8\]"):
        load_plan_of({"w": sharded(numbers(8), (4,), (0,))}, {"w": "text"})


def written(value: Any) -> io.BytesIO:
    stream = io.BytesIO()
    torch.save(value, stream)
    stream.seek(0)
    return stream


def read_of(name: str) -> ReadItem:
    index = MetadataIndex(name)
    none = torch.Size([0])
    return ReadItem(LoadItemType.BYTE_IO, index, none, index, none, none)


@four
def test_bytes_are_read_into_their_place_in_the_dict():
    state = {"deep": {"rate": 0.0, "w": torch.zeros(2)}}
    planner = SPMDLoadPlanner()
    planner.set_up_planner(state, metadata_of(state), True)
    planner.load_bytes(read_of("deep.rate"), written(0.5))
    assert state["deep"]["rate"] == 0.5


@four
def test_bytes_with_more_in_them_than_weights_are_refused():
    state = {"path": ""}
    planner = SPMDLoadPlanner()
    planner.set_up_planner(state, metadata_of(state), True)
    with pytest.raises(Exception, match="Weights only load failed"):
        planner.load_bytes(read_of("path"), written(collections.deque))
    assert state == {"path": ""}


@four
def test_the_parts_go_to_the_devices_after_the_last_one_was_read():
    x = sharded(torch.zeros(8), (4,), (0,))
    planner, items = load_plan_of({"w": x}, {"w": numbers(8)})
    for item in items:
        assert x.cpu().tolist() == [0.0] * 8
        target = planner.resolve_tensor(item)
        target.fill_(1 + item.dest_index.index)
        planner.commit_tensor(item, target)
    assert len(items) == 4
    assert x.cpu().tolist() == [1, 1, 2, 2, 3, 3, 4, 4]


@four
def test_every_device_that_holds_a_part_reads_it():
    x = sharded(torch.zeros(8), (2, 2), (0,))
    _, items = load_plan_of({"w": x}, {"w": numbers(8)})
    assert [item.dest_offsets for item in items] == [(0,)] * 4
    assert sorted(item.dest_index.index for item in items) == [0, 1, 2, 3]


@four
def test_more_elements_than_the_devices_hold_are_an_error():
    x = sharded(torch.zeros(8), (4,), (0,))
    planner, items = load_plan_of({"w": x}, {"w": numbers(8)})
    target = planner.resolve_tensor(items[0])
    for _ in range(3):
        planner.commit_tensor(items[0], target)
    with pytest.raises(CheckpointError, match="1 more elements were read for w than the devices"):
        big = items[0].__class__(**{**vars(items[0]), "lengths": torch.Size([3])})
        planner.commit_tensor(big, target)


@four
def test_a_write_of_another_part_than_the_number_says_is_an_error():
    planner, _ = plan_of({"w": sharded(numbers(8), (4,), (0,))})
    with pytest.raises(
        CheckpointError,
        match=r"the WriteItem for w is of the part at .*\[2\]\), and part 0 lies at .*\[0\]\)",
    ):
        planner.lookup_object(MetadataIndex("w", (2,), 0))


@four
def test_a_read_of_another_part_than_the_number_says_is_an_error():
    x = sharded(numbers(8), (4,), (0,))
    planner, _ = load_plan_of({"w": x}, {"w": x})
    with pytest.raises(
        CheckpointError,
        match=r"the ReadItem for w is of the part at .*\[0\]\), and part 1 lies at .*\[2\]\)",
    ):
        planner.lookup_tensor(MetadataIndex("w", (0,), 1))


def test_a_state_dict_is_taken_apart_by_paths_and_put_together():
    x, y = torch.ones(2), torch.zeros(1)
    state = {"model": {"w": x}, "steps": [y, {"n": 3}], "epoch": 7}
    flat, paths = _helpers.flatten_state_dict(state)
    assert set(flat) == {"model.w", "steps.0", "steps.1", "epoch"} or "steps.1.n" in flat
    assert flat["model.w"] is x and paths["steps.0"] == ("steps", 0)
    again = {}
    for name, path in paths.items():
        _helpers.set_element(again, path, flat[name])
    assert again["model"]["w"] is x and again["steps"][0] is y and again["epoch"] == 7
    assert again["steps"][1] == {"n": 3}
    with pytest.raises(ValueError, match=r"duplicated flatten key a\.b: "):
        _helpers.flatten_state_dict({"a": {"b": x}, "a.b": y})


def test_a_part_of_a_tensor_is_a_view_of_it():
    whole = numbers(4, 3)
    part = _helpers.narrow_tensor_by_index(whole, (1, 0), (2, 2))
    assert part.tolist() == [[4, 5], [7, 8]]
    part.zero_()
    assert whole[1:3, :2].abs().sum() == 0 and whole[0].tolist() == [1, 2, 3]


def test_what_several_ranks_would_write_is_written_by_one():
    def plan(*names):
        items = [WriteItem(index=MetadataIndex(name), type=WriteItemType.TENSOR) for name in names]
        return SavePlan(items)

    once = _helpers.dedup_tensors([plan("a", "b"), plan("b", "c"), plan("a")])
    written = collections.Counter(item.index.fqn for one in once for item in one.items)
    assert written == {"a": 1, "b": 1, "c": 1}
