"""The models that people measure devices with, as published, and tiny ones of the same layers.

ResNet-50, GPT-2 of 124 M parameters, ViT-B/16 and BERT-large, without dropout: eager torch, the
device and a hand-written JAX see the same numbers. `scripts/check_gpu` measures them.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from models import Gpt, TransformerBlock, class_loss
from torch import nn


class Bottleneck(nn.Module):
    """1x1, 3x3, 1x1 convolutions beside a shortcut, [n, c_in, h, w] to [n, 4 c, h / s, w / s]."""

    def __init__(self, c_in: int, c: int, stride: int) -> None:
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(c_in, c, 1, bias=False), nn.BatchNorm2d(c)
        self.conv2 = nn.Conv2d(c, c, 3, stride, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(c)
        self.conv3, self.norm3 = nn.Conv2d(c, 4 * c, 1, bias=False), nn.BatchNorm2d(4 * c)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or c_in != 4 * c:
            conv = nn.Conv2d(c_in, 4 * c, 1, stride, bias=False)
            self.shortcut = nn.Sequential(conv, nn.BatchNorm2d(4 * c))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = F.relu(self.norm1(self.conv1(x)))
        y = F.relu(self.norm2(self.conv2(y)))
        return F.relu(self.norm3(self.conv3(y)) + self.shortcut(x))


class ResNet50(nn.Module):
    """Images [n, 3, h, w] to logits [n, classes]; `stages` are the numbers of blocks."""

    def __init__(
        self, width: int = 64, classes: int = 1000, stages: tuple[int, ...] = (3, 4, 6, 3)
    ) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, width, 7, 2, 3, bias=False), nn.BatchNorm2d(width)
        blocks: list[nn.Module] = []
        c_in = width
        for stage, count in enumerate(stages):
            for number in range(count):
                stride = 2 if stage and not number else 1
                blocks.append(Bottleneck(c_in, width << stage, stride))
                c_in = 4 * (width << stage)
        self.blocks = nn.Sequential(*blocks)
        self.head = nn.Linear(c_in, classes)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        x = F.max_pool2d(F.relu(self.norm(self.conv(images))), 3, 2, 1)
        return self.head(self.blocks(x).mean((2, 3)))


class VitB(nn.Module):
    """Images [n, 3, size, size] in patches of 16 x 16 to logits [n, classes]."""

    def __init__(
        self, size: int = 224, d: int = 768, heads: int = 12, layers: int = 12, classes: int = 1000
    ) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, d, 16, 16)
        self.first = nn.Parameter(torch.zeros(1, 1, d))
        self.places = nn.Parameter(torch.randn(1, (size // 16) ** 2 + 1, d) * 0.02)
        blocks = [TransformerBlock(d, heads, causal=False) for _ in range(layers)]
        self.blocks = nn.Sequential(*blocks)
        self.norm, self.head = nn.LayerNorm(d), nn.Linear(d, classes)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        x = self.patches(images).flatten(2).transpose(1, 2)
        x = torch.cat([self.first.expand(x.size(0), -1, -1), x], 1) + self.places
        return self.head(self.norm(self.blocks(x))[:, 0])


class BertBlock(nn.Module):
    """Self-attention, a GELU perceptron, each normalised after its sum, [b, t, d] to itself."""

    def __init__(self, d: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv, self.out = nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.norm1, self.norm2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.up, self.down = nn.Linear(d, 4 * d), nn.Linear(4 * d, d)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, t, d = x.shape
        split = self.qkv(x).view(b, t, 3, self.heads, d // self.heads)
        q, k, v = split.permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, t, d)
        x = self.norm1(x + self.out(y))
        return self.norm2(x + self.down(F.gelu(self.up(x))))


class Bert(nn.Module):
    """Tokens [b, t] to logits [b, t, vocabulary]: masked words, the head tied to the embedding."""

    def __init__(
        self,
        vocabulary: int = 30522,
        length: int = 512,
        d: int = 1024,
        heads: int = 16,
        layers: int = 24,
    ) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(vocabulary, d), nn.Embedding(length, d)
        self.kinds = nn.Embedding(2, d)
        self.norm = nn.LayerNorm(d)
        self.blocks = nn.Sequential(*(BertBlock(d, heads) for _ in range(layers)))
        self.last, self.last_norm = nn.Linear(d, d), nn.LayerNorm(d)
        self.head = nn.Linear(d, vocabulary)
        self.head.weight = self.tokens.weight
        _gentle(self)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        places = torch.arange(tokens.size(1), device=tokens.device)
        x = self.tokens(tokens) + self.places(places) + self.kinds.weight[0]
        x = self.blocks(self.norm(x))
        return self.head(self.last_norm(F.gelu(self.last(x))))


def gpt2(
    vocabulary: int = 50257, length: int = 1024, d: int = 768, heads: int = 12, layers: int = 12
) -> Gpt:
    """GPT-2: the head is the embedding."""
    model = Gpt(vocabulary, length, d, heads, layers)
    model.head.weight = model.tokens.weight
    _gentle(model)
    return model


def _gentle(model: nn.Module) -> None:
    # As published: torch's own start of an embedding would make logits of some hundreds.
    for part in model.modules():
        if isinstance(part, nn.Embedding):
            nn.init.normal_(part.weight, std=0.02)


class Made(NamedTuple):
    """A model and a batch for it, on the CPU."""

    model: nn.Module
    inputs: torch.Tensor
    target: torch.Tensor


@dataclass(frozen=True)
class Measured:
    """A model as it is measured: images or tokens, n of them at a time.

    Attributes:
        shape: of one input: [3, h, w] or [t].
        classes: of images, or the vocabulary.
        heads: of attention; 0 where there is none.
    """

    model: Callable[[], nn.Module]
    n: int
    shape: tuple[int, ...]
    classes: int
    heads: int = 0

    def batch(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Inputs and their targets, by torch's seed, on the CPU."""
        if len(self.shape) == 3:
            return torch.randn(self.n, *self.shape), torch.randint(self.classes, (self.n,))
        words = torch.randint(self.classes, (self.n, self.shape[0] + 1))
        return words[:, :-1].contiguous(), words[:, 1:].contiguous()

    def make(self) -> Made:
        """The same weights and the same batch at each call."""
        torch.manual_seed(0)
        return Made(self.model(), *self.batch())

    @staticmethod
    def loss(logits: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return class_loss(logits.float(), target)


PUBLISHED: Mapping[str, Measured] = {
    "gpt2": Measured(gpt2, 16, (1024,), 50257, 12),
    "resnet50": Measured(ResNet50, 256, (3, 224, 224), 1000),
    "vit_b": Measured(VitB, 128, (3, 224, 224), 1000, 12),
    "bert_large": Measured(Bert, 16, (512,), 30522, 16),
}
TINY: Mapping[str, Measured] = {
    "gpt2": Measured(lambda: gpt2(64, 16, 32, 4, 1), 2, (16,), 64, 4),
    "resnet50": Measured(lambda: ResNet50(8, 10, (1, 1)), 4, (3, 64, 64), 10),
    "vit_b": Measured(lambda: VitB(32, 32, 4, 1, 10), 4, (3, 32, 32), 10, 4),
    "bert_large": Measured(lambda: Bert(64, 16, 32, 4, 1), 2, (16,), 64, 4),
}
