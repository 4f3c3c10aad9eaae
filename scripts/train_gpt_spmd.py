"""A small GPT on every device of this machine, in one process, sharded by marks.

scripts/train_gpt_spmd.py --way one|data|2d|fsdp
    one    one device does everything
    data   the batch is cut over the devices, every device holds the model
    2d     the batch is cut along one axis of the mesh, the layers along the other
    fsdp   the batch and every parameter are cut over all devices (FSDPv2)
CPU_NUM_DEVICES=4 makes four devices of a CPU. The text it learns is this file.
"""

import argparse
import functools
import os
import time
from pathlib import Path

import torch
from torch import nn

os.environ.setdefault("CPU_NUM_DEVICES", "4")

import torch_xla
import torch_xla.debug.metrics as met
import torch_xla.distributed.spmd as xs
import torch_xla.runtime as xr
from torch_xdist.spmd import look
from torch_xla.distributed.fsdp.wrap import transformer_auto_wrap_policy
from torch_xla.experimental.spmd_fully_sharded_data_parallel import SpmdFullyShardedDataParallel

MIB = 1 << 20


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before_attention, self.before_mlp = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        shape = batch, length, self.heads, width // self.heads
        parts = self.qkv(self.before_attention(x)).chunk(3, -1)
        q, k, v = (part.view(shape).transpose(1, 2) for part in parts)
        mixed = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(x.shape))
        return x + self.down(nn.functional.gelu(self.up(self.before_mlp(x))))


class GPT(nn.Module):
    def __init__(self, vocabulary: int, width: int, heads: int, layers: int, length: int) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        self.blocks = nn.Sequential(*[Block(width, heads) for _ in range(layers)])
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        places = torch.arange(x.shape[1], device=x.device)
        return self.head(self.norm(self.blocks(self.tokens(x) + self.places(places))))


def cut_layers(model: GPT, mesh: xs.Mesh) -> None:
    """Cut the first matrix of each pair by its rows, the second by its columns.

    Between the two every device computes on its own part, so a block exchanges twice.
    """
    for block in model.blocks:
        for first, second in ((block.qkv, block.out), (block.up, block.down)):
            xs.mark_sharding(first.weight, mesh, ("model", None))
            xs.mark_sharding(first.bias, mesh, ("model",))
            xs.mark_sharding(second.weight, mesh, (None, "model"))
    xs.mark_sharding(model.tokens.weight, mesh, ("model", None))
    xs.mark_sharding(model.head.weight, mesh, ("model", None))


def sharded(model: GPT, way: str) -> tuple[nn.Module, xs.Mesh | None, tuple[str, None]]:
    """The model on the devices, their mesh, and how a batch is cut."""
    if way == "one":
        return model.to("xla"), None, ("data", None)
    xr.use_spmd()
    count = xr.global_runtime_device_count()
    if way == "fsdp":
        mesh = xs.get_1d_mesh("fsdp")
        blocks = functools.partial(transformer_auto_wrap_policy, transformer_layer_cls={Block})
        wrapped = SpmdFullyShardedDataParallel(model, mesh=mesh, auto_wrap_policy=blocks)
        return wrapped, mesh, ("fsdp", None)
    across = 2 if way == "2d" and count % 2 == 0 else 1
    mesh = xs.Mesh(list(range(count)), (count // across, across), ("data", "model"))
    model = model.to("xla")
    if way == "2d":
        cut_layers(model, mesh)
    return model, mesh, ("data", None)


def main() -> None:
    formatter = argparse.RawTextHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=formatter)
    parser.add_argument("--way", choices=["one", "data", "2d", "fsdp"], default="2d")
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--length", type=int, default=64)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--layers", type=int, default=2)
    args = parser.parse_args()

    text = torch.tensor(list(Path(__file__).read_bytes()))
    torch.manual_seed(0)
    model = GPT(256, args.width, 4, args.layers, args.length)
    model, mesh, cut = sharded(model, args.way)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    draw = torch.Generator().manual_seed(0)
    for step in range(args.steps):
        starts = torch.randint(len(text) - args.length - 1, (args.batch,), generator=draw)
        rows = torch.stack([text[start : start + args.length + 1] for start in starts])
        x, y = rows[:, :-1].to("xla"), rows[:, 1:].to("xla")
        if mesh is not None:
            xs.mark_sharding(x, mesh, cut)
            xs.mark_sharding(y, mesh, cut)
        optimizer.zero_grad()
        logits = model(x)
        loss = nn.functional.cross_entropy(logits.view(-1, 256), y.reshape(-1))
        loss.backward()
        optimizer.step()
        torch_xla.sync()
        if step == 2:  # what follows is neither compiled nor loaded any more
            started = time.perf_counter()
        if step % 10 == 9 or step == 0:
            print(f"step {step + 1:3}  loss {loss.item():.4f}", flush=True)
    print(f"{(time.perf_counter() - started) / (args.steps - 3) * 1e3:.1f} ms a step", end=", ")
    print(f"{met.counter_value('UncachedCompile')} programs compiled")
    if mesh is not None:
        print("collectives of the step:", dict(sorted(look.collectives().items())) or "none")
    model.zero_grad()
    del x, y, rows, logits, loss
    for device, held in look.bytes_per_device().items():
        print(f"{device} holds {held / MIB:.2f} MiB of parameters and optimizer states")


if __name__ == "__main__":
    main()
