"""State dicts of FSDP modules: what the shards are called, and how they become whole again.

Keys and metadata are those of torch_xla, so its checkpoints can be consolidated here and ours
there. A shard's key is `...PREFIX._fsdp_shard<separator>...`, where PREFIX leads to its unit.
"""

import argparse
import glob
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from torch_xdist import world
from torch_xdist.collectives.buckets import plan
from torch_xdist.errors import CheckpointError
from torch_xdist.files import saving
from torch_xdist.ranks import collective_ops
from torch_xdist.ranks.fsdp.flatten import FlatModule
from torch_xdist.ranks.fsdp.options import is_unit
from torch_xdist.ranks.fsdp.shards import Layout, cut_shard

_INNER = "_fpw_module."
_WRAPPED = "_fsdp_wrapped_module."
_SHARD = "_fsdp_shard"
# How much of a whole model is on a device at a time, on its way to the host.
_GATHERED_BYTES = 2**28


def original(name: str) -> str:
    """A name below FSDP wrappers, as the unwrapped module has it."""
    return name.replace(_WRAPPED, "").replace(_INNER, "")


def _units(module: Any) -> list[tuple[str, Any]]:
    named = module.named_modules(remove_duplicate=False)
    return [(name, m) for name, m in named if is_unit(m)]


def _below(prefix: str, name: str) -> str:
    return f"{prefix}.{name}" if prefix else name


def original_names(module: Any) -> list[tuple[str, torch.nn.Parameter]]:
    """(name in the unwrapped module, shard) of every sharded parameter."""
    return [
        (original(_below(prefix, shard._orig_name)), shard)
        for prefix, unit in _units(module)
        for shard in unit.sharded_params
    ]


def metadata_of(module: Any) -> dict[str, Any]:
    """torch_xla's shard metadata, and `shared_info`: the other names of tied parameters."""
    shard_info, flatten_info = {}, {}
    for name, part in module.named_modules(remove_duplicate=False):
        prefix = name.replace(_INNER, "")
        if is_unit(part):
            shard_info[prefix] = {
                shard._name: {"_orig_size": shard._orig_size, "_orig_name": shard._orig_name}
                for shard in part.sharded_params
            }
        if isinstance(part, FlatModule):
            for index in range(len(part.members)):
                flatten_info[_below(prefix, f"flat_param_{index}")] = part.metadata(index)
    return {
        "shard_info": shard_info,
        "flatten_info": flatten_info,
        "buffer_info": {
            name: {"_orig_dtype": buffer._orig_dtype}
            for name, buffer in module.named_buffers()
            if hasattr(buffer, "_orig_dtype")
        },
        "shared_info": _shared(module),
        "world_size": module.world_size,
        "rank": module.rank,
    }


def _shared(module: Any) -> dict[str, str]:
    first: dict[tuple[int, int], str] = {}
    others: list[tuple[str, tuple[int, int]]] = []
    for prefix, unit in _units(module):
        parts = [(e, i, owners) for e in unit._sharded for i, (_, owners) in enumerate(e.parts)]
        for entry, index, owners in [*parts, *unit._borrowed]:
            names = [original(_below(prefix, f"{o[0]}.{o[2]}")) for o in owners]
            if (entry, index, owners) in parts:
                first[id(entry), index] = names.pop(0)
            others.extend((name, (id(entry), index)) for name in names)
    return {name: first[key] for name, key in others if key in first}


def assembled(
    state: dict[str, Any], metadata: dict[str, Any], join: Callable[[str], torch.Tensor]
) -> dict[str, Any]:
    """The unwrapped module's state dict.

    Args:
        state: a rank's state dict, for the names and buffers.
        join: all shards of an entry, in order, as one tensor.
    """
    whole: dict[str, Any] = {}
    buffers = {n.replace(_INNER, ""): i["_orig_dtype"] for n, i in metadata["buffer_info"].items()}
    for name, value in state.items():
        parts = name.split(".")
        found = [i for i, part in enumerate(parts) if part.startswith(_SHARD)]
        if not found:
            whole[original(name)] = value.to(buffers[name]) if name in buffers else value
            continue
        prefix, suffix = ".".join(parts[: found[0]]), ".".join(parts[found[0] :])
        info = metadata["shard_info"][prefix][suffix]
        flat = join(name).reshape(-1)[: torch.Size(info["_orig_size"]).numel()]
        full = _below(prefix, info["_orig_name"])
        joined = metadata["flatten_info"].get(full)
        if joined is None:
            whole[original(full)] = flat.reshape(info["_orig_size"])
            continue
        owner = full.rpartition(".")[0]
        for part, shape, piece in zip(joined[0], joined[1], flat.split(joined[2])):
            whole[original(_below(owner, part))] = piece.reshape(shape)
    for name, other in metadata.get("shared_info", {}).items():
        whole[name] = whole[other]
    return whole


def consolidate_sharded_state_dicts(
    state_dict_list: Sequence[dict[str, Any]], shard_metadata: dict[str, Any]
) -> dict[str, Any]:
    """The unwrapped module's state dict, of the state dicts of all ranks.

    Args:
        state_dict_list: `model.state_dict()` of each rank, in the order of ranks.
        shard_metadata: `model.get_shard_metadata()` of any of them.
    """
    count = shard_metadata["world_size"]
    if len(state_dict_list) != count:
        raise CheckpointError(
            f"consolidate: {len(state_dict_list)} state dicts of a model sharded over {count} "
            "ranks; give it those of all ranks, in their order"
        )

    def join(name: str) -> torch.Tensor:
        return torch.cat([state[name] for state in state_dict_list])

    return assembled(state_dict_list[0], shard_metadata, join)


def consolidate_sharded_model_checkpoints(
    ckpt_prefix: str, ckpt_suffix: str = "*.pth", save_path: str = "", save_model: bool = True
) -> tuple[dict[str, Any], str | None]:
    """Join the files of all ranks: dicts with "model" and "shard_metadata".

    Args:
        ckpt_prefix, ckpt_suffix: the files are those that match `ckpt_prefix + ckpt_suffix`.
        save_path: where {"model": state dict} goes; default `ckpt_prefix + "_consolidated.pth"`.
        save_model: False: write nothing.

    Returns the unwrapped module's state dict, and the path written.
    """
    pattern = ckpt_prefix + ckpt_suffix
    paths = sorted(glob.glob(pattern))
    if not paths:
        raise FileNotFoundError(f"consolidate: no file matches {pattern}; check the prefix")
    found = [(torch.load(path, map_location="cpu"), path) for path in paths]
    found.sort(key=lambda pair: pair[0]["shard_metadata"]["rank"])
    ranks = [checkpoint["shard_metadata"]["rank"] for checkpoint, _ in found]
    metadata = found[0][0]["shard_metadata"]
    if ranks != list(range(metadata["world_size"])):
        raise CheckpointError(
            f"consolidate: {pattern} matches files of the ranks {ranks}, of a model sharded over "
            f"{metadata['world_size']} ranks; each rank's file must be there once"
        )
    states = [checkpoint["model"] for checkpoint, _ in found]
    whole = consolidate_sharded_state_dicts(states, metadata)
    if not save_model:
        return whole, None
    target = save_path or ckpt_prefix + "_consolidated.pth"
    saving.write({"model": whole}, target)
    return whole, target


def full_state_dict(module: Any, *, rank0_only: bool) -> dict[str, Any]:
    """`XlaFullyShardedDataParallel.full_state_dict`."""
    state = module.state_dict()
    metadata = metadata_of(module)
    is_wanted = not rank0_only or world.rank() == 0
    names = [name for name in state if f".{_SHARD}" in f".{name}"]
    sizes = [(state[n].numel() * module.world_size, state[n].element_size()) for n in names]
    wholes: dict[str, torch.Tensor] = {}
    for bucket in plan(sizes, _GATHERED_BYTES):
        found = [names[i] for i in bucket]
        gathered = collective_ops.all_gather(
            [state[name] for name in found], groups=module.sharding_groups, pin_layout=False
        )
        saving.compute(gathered)
        if is_wanted:
            wholes.update(zip(found, saving.to_cpu(gathered)))
    if not is_wanted:
        return {}
    return saving.to_cpu(assembled(state, metadata, wholes.__getitem__))


@torch.no_grad()
def load_full_state_dict(module: Any, state: dict[str, Any], *, strict: bool) -> Any:
    """`XlaFullyShardedDataParallel.load_full_state_dict`."""
    sharded: dict[str, Any] = {}
    used = set(metadata_of(module)["shared_info"])
    for prefix, unit in _units(module):
        for entry in unit._sharded:
            names = [
                original(_below(prefix, f"{owners[0][0]}.{owners[0][2]}"))
                for _, owners in entry.parts
            ]
            used.update(names)
            if all(name in state for name in names):
                shapes = [shape for shape, _ in entry.parts]
                whole = _joined(names, shapes, state, entry.layout)
                key = _below(prefix.replace(_INNER, ""), entry.shard._name)
                sharded[key] = cut_shard(whole.to(entry.shard.dtype), entry.layout, unit._members)
    by_original = {original(name): name for name in module.state_dict()}
    rest = {by_original.get(name, name): v for name, v in state.items() if name not in used}
    return module.load_state_dict({**rest, **sharded}, strict=strict)


def _joined(
    names: Sequence[str], shapes: Sequence[torch.Size], state: dict[str, Any], layout: Layout
) -> torch.Tensor:
    for name, shape in zip(names, shapes):
        if state[name].shape != shape:
            raise CheckpointError(
                f"load_full_state_dict: {name} is {tuple(state[name].shape)}, and the model has "
                f"{tuple(shape)}; give it the state dict of the same model"
            )
    return torch.cat([state[name].detach().reshape(-1) for name in names]).reshape(layout.shape)


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line of `torch_xla.distributed.fsdp.consolidate_sharded_ckpts`."""
    parser = argparse.ArgumentParser(
        prog="consolidate_sharded_ckpts",
        description="Join the checkpoints of all ranks of an FSDP model into one.",
    )
    parser.add_argument("--ckpt_prefix", required=True, help="how the files' paths begin")
    parser.add_argument("--ckpt_suffix", default="*.pth", help="how they end (%(default)s)")
    parser.add_argument("--save_path", default="", help="default: PREFIX_consolidated.pth")
    given = parser.parse_args(arguments)
    whole, path = consolidate_sharded_model_checkpoints(
        given.ckpt_prefix, given.ckpt_suffix, given.save_path
    )
    print(f"saved {len(whole)} entries to {Path(str(path))}")


def main_of(module_name: str) -> None:
    """Run the command line where the module is the program itself."""
    if module_name == "__main__":
        main()
