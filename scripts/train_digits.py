"""Train a small CNN on the handwritten digits of scikit-learn, as a torch_xla script.

On a CPU two ranks share the work (`--nprocs`); PJRT_DEVICE=CUDA or TPU runs the same script there.
Each rank sees its half of the training images, gradients are averaged by `xm.optimizer_step`, and
every epoch ends with the accuracy over all ranks. Writes a checkpoint and a plot into --out.
"""

import argparse
import os
import time
from pathlib import Path

import matplotlib
import numpy as np
import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset
from tqdm import tqdm

import torch_xla
import torch_xla.core.xla_model as xm
import torch_xla.distributed.parallel_loader as pl
import torch_xla.distributed.xla_multiprocessing as xmp
import torch_xla.runtime as xr

matplotlib.use("Agg")
import matplotlib.pyplot as plt

TEST_IMAGES = 320
NEEDED_ACCURACY = 0.97


class DigitsNet(nn.Module):
    """Images [n, 1, 8, 8] to the logits [n, 10] of the ten digits."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 32, 3, padding=1)
        self.norm1 = nn.BatchNorm2d(32)
        self.conv2 = nn.Conv2d(32, 64, 3, padding=1)
        self.norm2 = nn.BatchNorm2d(64)
        self.dropout = nn.Dropout(0.25)
        self.linear = nn.Linear(64 * 2 * 2, 10)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        x = F.max_pool2d(F.relu(self.norm1(self.conv1(images))), 2)
        x = F.max_pool2d(F.relu(self.norm2(self.conv2(x))), 2)
        return self.linear(self.dropout(x.flatten(1)))


def datasets() -> tuple[TensorDataset, TensorDataset]:
    """The 1797 digits as (training, test) sets of images [1, 8, 8] in 0..1 and labels."""
    digits = load_digits()
    order = np.random.default_rng(0).permutation(len(digits.target))
    images = torch.from_numpy(digits.images[order] / 16).float().unsqueeze(1)
    labels = torch.from_numpy(digits.target[order]).long()
    train, test = slice(TEST_IMAGES, None), slice(TEST_IMAGES)
    return TensorDataset(images[train], labels[train]), TensorDataset(images[test], labels[test])


def loader(dataset: TensorDataset, batch_size: int, *, train: bool) -> DataLoader:
    """This rank's share of the dataset, in batches."""
    sampler = DistributedSampler(
        dataset, num_replicas=xr.world_size(), rank=xr.global_ordinal(), shuffle=train
    )
    return DataLoader(dataset, batch_size=batch_size, sampler=sampler, drop_last=train)


def train_epoch(model, optimizer, batches, tracker, bar, images_per_step: int) -> float:
    """One pass over the training images. Returns the last loss."""
    model.train()
    for images, labels in batches:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(images), labels)
        loss.backward()
        xm.optimizer_step(optimizer)
        tracker.add(images_per_step)
        bar.update(images_per_step)
    last = loss.item()
    bar.set_postfix(loss=f"{last:.4f}", rate=f"{tracker.global_rate():.0f}/s")
    return last


def accuracy(model, batches) -> float:
    """The share of test images told right, over all ranks."""
    model.eval()
    right, seen = torch.zeros((), device=torch_xla.device()), 0
    with torch.no_grad():
        for images, labels in batches:
            right += (model(images).argmax(dim=1) == labels).sum()
            seen += len(labels)
    return xm.mesh_reduce("accuracy", right.item() / seen, lambda shares: sum(shares) / len(shares))


def plot(losses: list[float], accuracies: list[float], path: Path) -> None:
    """Loss and accuracy by epoch, as a PNG."""
    epochs = range(1, len(losses) + 1)
    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.5))
    left.plot(epochs, losses, marker="o")
    left.set(title="training loss", xlabel="epoch", yscale="log")
    right.plot(epochs, [100 * share for share in accuracies], marker="o")
    right.set(title="test accuracy (%)", xlabel="epoch")
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    plt.close(figure)


def train(index: int, flags: argparse.Namespace) -> float:
    """The work of one rank. Returns the final accuracy."""
    torch.manual_seed(flags.seed)
    device = torch_xla.device()
    train_set, test_set = datasets()
    train_loader = loader(train_set, flags.batch_size, train=True)
    if not len(train_loader):
        raise ValueError(
            f"--batch-size {flags.batch_size} is more than a rank has: {xr.world_size()} ranks "
            f"share {len(train_set)} images; take at most {len(train_set) // xr.world_size()}"
        )
    train_batches = pl.MpDeviceLoader(train_loader, device)
    test_batches = pl.MpDeviceLoader(loader(test_set, flags.batch_size, train=False), device)
    model = DigitsNet().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=flags.lr)
    images_per_step = flags.batch_size * xr.world_size()
    tracker, losses, accuracies = xm.RateTracker(), [], []
    bar = tqdm(
        total=flags.epochs * len(train_loader) * images_per_step,
        unit="image",
        disable=not xm.is_master_ordinal(),
    )
    for epoch in range(flags.epochs):
        train_loader.sampler.set_epoch(epoch)
        losses.append(train_epoch(model, optimizer, train_batches, tracker, bar, images_per_step))
        accuracies.append(accuracy(model, test_batches))
    bar.close()
    out = Path(flags.out)
    if xm.is_master_ordinal():
        out.mkdir(parents=True, exist_ok=True)
        plot(losses, accuracies, out / "digits.png")
    xm.rendezvous("output folder")
    xm.save(model.state_dict(), out / "digits.pt")
    return accuracies[-1]


def train_and_check(index: int, flags: argparse.Namespace) -> None:
    """Train, say what came out, and fail when the model did not learn."""
    started = time.monotonic()
    share = train(index, flags)
    xm.master_print(f"test accuracy {share:.2%} in {time.monotonic() - started:.1f} s")
    xm.master_print(f"wrote {flags.out}/digits.pt and {flags.out}/digits.png")
    if share < NEEDED_ACCURACY and flags.epochs >= 8:
        raise RuntimeError(f"accuracy {share:.2%} is below {NEEDED_ACCURACY:.0%}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--batch-size", type=int, default=32, help="per rank")
    parser.add_argument("--lr", type=float, default=2e-3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", default="runs/digits", help="folder of checkpoint and plot")
    parser.add_argument("--nprocs", type=int, default=None, help="ranks (CPU: 2)")
    flags = parser.parse_args()
    nprocs = flags.nprocs
    if nprocs is None and os.environ.get("PJRT_DEVICE", "CPU") == "CPU":
        nprocs = int(os.environ.get("CPU_NUM_DEVICES", 2))
    xmp.spawn(train_and_check, args=(flags,), nprocs=nprocs)


if __name__ == "__main__":
    main()
