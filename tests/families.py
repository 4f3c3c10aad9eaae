"""One small model of each of eleven families, with the layers that the family is made of.

`scripts/check_tpu --models` compiles a training step of each for TPUs.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from large_models import TINY, gpt2
from models import Recurrent, class_loss
from torch import nn

_CLASSES = 16


class EncoderDecoder(nn.Module):
    """Tokens [b, t] translated, by torch's own transformer layers: [b, t, vocabulary]."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(_CLASSES, 32)
        self.body = nn.Transformer(32, 4, 1, 1, 64, dropout=0.0, batch_first=True)
        self.head = nn.Linear(32, _CLASSES)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.tokens(tokens)
        mask = nn.Transformer.generate_square_subsequent_mask(x.size(1), device=x.device)
        return self.head(self.body(x, x, tgt_mask=mask, tgt_is_causal=True))


class UNet(nn.Module):
    """Images [n, 3, h, w] down, up again beside the way down, and a class: group norms, SiLU."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.down = nn.Conv2d(3, 16, 3, padding=1), nn.Conv2d(16, 32, 3, 2, 1)
        self.norm1, self.norm2 = nn.GroupNorm(4, 16), nn.GroupNorm(4, 32)
        self.up = nn.ConvTranspose2d(32, 16, 2, 2)
        self.last = nn.Conv2d(32, _CLASSES, 1)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        x = F.silu(self.norm1(self.first(images)))
        y = self.up(F.silu(self.norm2(self.down(x))))
        y = F.interpolate(F.avg_pool2d(y, 2), scale_factor=2.0, mode="bilinear")
        return self.last(torch.cat([x, y], 1)).mean((2, 3))


class Experts(nn.Module):
    """Tokens [b, t]; each goes to the two best of four experts: [b, t, vocabulary]."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.gate = nn.Embedding(_CLASSES, 32), nn.Linear(32, 4)
        self.up = nn.Parameter(torch.randn(4, 32, 64) / 8)
        self.down = nn.Parameter(torch.randn(4, 64, 32) / 8)
        self.head = nn.Linear(32, _CLASSES)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.tokens(tokens).flatten(0, 1)
        weights, chosen = self.gate(x).softmax(-1).topk(2)
        order = chosen.flatten().argsort(stable=True)
        ends = F.one_hot(chosen.flatten(), 4).sum(0).cumsum(0).to(torch.int32)
        rows = x.repeat_interleave(2, 0)[order].bfloat16()
        hidden = F.gelu(torch._grouped_mm(rows, self.up.bfloat16(), ends))
        found = torch._grouped_mm(hidden, self.down.bfloat16(), ends).float()
        found = found * weights.flatten()[order, None]
        y = torch.zeros_like(x).index_add(0, order // 2, found)
        return self.head(x + y).unflatten(0, tokens.shape)


class Recommender(nn.Module):
    """Words [b, t] as bags of a table, with their products by pairs: [b, classes]."""

    def __init__(self) -> None:
        super().__init__()
        self.bags = nn.EmbeddingBag(64, 16, mode="mean")
        self.table = nn.Embedding(64, 16, padding_idx=0)
        self.head = nn.Linear(16 + 36, _CLASSES)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        rows = self.table(words[:, :8])
        products = rows @ rows.transpose(1, 2)
        i, j = torch.triu_indices(8, 8, device=words.device)
        return self.head(torch.cat([self.bags(words), products[:, i, j]], 1))


class Graph(nn.Module):
    """Words [b, t] are the edges of a ring of nodes that send each other messages: [b, classes]."""

    def __init__(self) -> None:
        super().__init__()
        self.nodes, self.step = nn.Embedding(_CLASSES, 32), nn.Linear(32, 32)
        self.head = nn.Linear(32, _CLASSES)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        x = self.nodes.weight
        source, target = words.flatten(), words.roll(1, 1).flatten()
        for _ in range(2):
            sent = torch.zeros_like(x).index_add(0, target, x[source])
            x = F.relu(self.step(x + sent))
        return self.head(x[words].amax(1))


class Autoencoder(nn.Module):
    """Images [n, 3, h, w] through a few numbers with noise, and a class: [n, classes]."""

    def __init__(self) -> None:
        super().__init__()
        self.inside, self.outside = nn.Linear(3 * 16 * 16, 32), nn.Linear(16, _CLASSES)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        mean, scale = self.inside(images.flatten(1)).chunk(2, 1)
        return self.outside(mean + torch.randn_like(mean) * F.softplus(scale))


@dataclass(frozen=True)
class Family:
    """A model, one batch of it on the CPU, and the loss of its results."""

    model: Callable[[], nn.Module]
    batch: Callable[[], tuple[torch.Tensor, torch.Tensor]]
    loss: Callable[[Any, torch.Tensor], torch.Tensor] = class_loss


def _words(t: int, *, each: bool) -> Callable[[], tuple[torch.Tensor, torch.Tensor]]:
    def batch() -> tuple[torch.Tensor, torch.Tensor]:
        words = torch.randint(_CLASSES, (4, t))
        return words, words if each else words[:, 0]

    return batch


def _images() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(4, 3, 16, 16), torch.randint(_CLASSES, (4,))


FAMILIES: Mapping[str, Family] = {
    "resnet": Family(TINY["resnet50"].model, TINY["resnet50"].batch),
    "gpt": Family(lambda: gpt2(64, 16, 32, 4, 1), TINY["gpt2"].batch),
    "bert": Family(TINY["bert_large"].model, TINY["bert_large"].batch),
    "vit": Family(TINY["vit_b"].model, TINY["vit_b"].batch),
    "encoder-decoder": Family(EncoderDecoder, _words(8, each=True)),
    "lstm": Family(lambda: Recurrent(nn.LSTM, _CLASSES, 32), _words(8, each=True)),
    "u-net": Family(UNet, _images),
    "experts": Family(Experts, _words(8, each=True)),
    "recommender": Family(Recommender, _words(8, each=False)),
    "graph": Family(Graph, _words(8, each=False)),
    "autoencoder": Family(Autoencoder, _images),
}
