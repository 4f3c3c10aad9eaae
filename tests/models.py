"""Small models of every kind that is trained on the device, with a batch, a loss and an optimizer.

Shared by tests and benchmarks. Nothing here is random but by torch's seed: no dropout, so that
eager torch and the device see the same numbers.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn


class DigitsNet(nn.Module):
    """Images [n, 1, 8, 8] to the logits [n, 10] of the ten digits."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, width, 3, padding=1)
        self.norm1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, 2 * width, 3, padding=1)
        self.norm2 = nn.BatchNorm2d(2 * width)
        self.linear = nn.Linear(2 * width * 4, 10)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        x = F.max_pool2d(F.relu(self.norm1(self.conv1(images))), 2)
        x = F.max_pool2d(F.relu(self.norm2(self.conv2(x))), 2)
        return self.linear(x.flatten(1))


class MnistNet(nn.Module):
    """Images [n, 1, 28, 28] to log probabilities [n, 10]: the layers of torch_xla's MNIST test."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 10, 5)
        self.norm1 = nn.BatchNorm2d(10)
        self.conv2 = nn.Conv2d(10, 20, 5)
        self.norm2 = nn.BatchNorm2d(20)
        self.linear1 = nn.Linear(320, 50)
        self.linear2 = nn.Linear(50, 10)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        x = self.norm1(F.relu(F.max_pool2d(self.conv1(images), 2)))
        x = self.norm2(F.relu(F.max_pool2d(self.conv2(x), 2)))
        return F.log_softmax(self.linear2(F.relu(self.linear1(x.flatten(1)))), dim=1)


class ResidualBlock(nn.Module):
    """Two 3x3 convolutions beside a shortcut, [n, c_in, h, w] to [n, c_out, h / s, w / s]."""

    def __init__(self, c_in: int, c_out: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(c_in, c_out, 3, stride, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(c_out)
        self.conv2 = nn.Conv2d(c_out, c_out, 3, 1, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(c_out)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or c_in != c_out:
            conv = nn.Conv2d(c_in, c_out, 1, stride, bias=False)
            self.shortcut = nn.Sequential(conv, nn.BatchNorm2d(c_out))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = F.relu(self.norm1(self.conv1(x)))
        return F.relu(self.norm2(self.conv2(y)) + self.shortcut(x))


class ResNet18(nn.Module):
    """ResNet-18 as published, with `width` channels in its first stage (64 there)."""

    def __init__(self, width: int = 64, classes: int = 10) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, width, 7, 2, 3, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(3, 2, 1),
        )
        blocks: list[nn.Module] = []
        c_in = width
        for stage in range(4):
            c_out = width << stage
            blocks.append(ResidualBlock(c_in, c_out, 1 if stage == 0 else 2))
            blocks.append(ResidualBlock(c_out, c_out, 1))
            c_in = c_out
        self.blocks = nn.Sequential(*blocks)
        self.head = nn.Linear(c_in, classes)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        x = F.adaptive_avg_pool2d(self.blocks(self.stem(images)), 1)
        return self.head(x.flatten(1))


class TransformerBlock(nn.Module):
    """Pre-norm self-attention and a GELU perceptron, [b, t, d] to [b, t, d]."""

    def __init__(self, d: int, heads: int, *, causal: bool) -> None:
        super().__init__()
        self.heads, self.causal = heads, causal
        self.norm1, self.norm2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.qkv, self.out = nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.up, self.down = nn.Linear(d, 4 * d), nn.Linear(4 * d, d)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, t, d = x.shape
        split = self.qkv(self.norm1(x)).view(b, t, 3, self.heads, d // self.heads)
        q, k, v = split.permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        x = x + self.out(y.transpose(1, 2).reshape(b, t, d))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Gpt(nn.Module):
    """Tokens [b, t] to logits [b, t, vocabulary]."""

    def __init__(
        self, vocabulary: int = 65, length: int = 32, d: int = 32, heads: int = 4, layers: int = 2
    ) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(vocabulary, d), nn.Embedding(length, d)
        blocks = [TransformerBlock(d, heads, causal=True) for _ in range(layers)]
        self.blocks = nn.Sequential(*blocks)
        self.norm = nn.LayerNorm(d)
        self.head = nn.Linear(d, vocabulary, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        places = torch.arange(tokens.size(1), device=tokens.device)
        x = self.tokens(tokens) + self.places(places)
        return self.head(self.norm(self.blocks(x)))


class VisionTransformer(nn.Module):
    """Images [n, 3, 16, 16], cut into 4x4 patches, to logits [n, 10]."""

    def __init__(self, d: int = 32, heads: int = 4, layers: int = 1) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, d, 4, 4)
        self.first = nn.Parameter(torch.zeros(1, 1, d))
        self.places = nn.Parameter(torch.randn(1, 17, d) * 0.02)
        blocks = [TransformerBlock(d, heads, causal=False) for _ in range(layers)]
        self.blocks = nn.Sequential(*blocks)
        self.norm, self.head = nn.LayerNorm(d), nn.Linear(d, 10)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        x = self.patches(images).flatten(2).transpose(1, 2)
        x = torch.cat([self.first.expand(x.size(0), -1, -1), x], 1) + self.places
        return self.head(self.norm(self.blocks(x))[:, 0])


class Recurrent(nn.Module):
    """Tokens [b, t] to logits [b, t, vocabulary] through a recurrent layer."""

    def __init__(self, layer: type[nn.RNNBase], vocabulary: int = 30, d: int = 16) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, d)
        self.layers = layer(d, d, num_layers=2, batch_first=True)  # type: ignore[call-arg]
        self.head = nn.Linear(d, vocabulary)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.layers(self.tokens(tokens))[0])


def class_loss(logits: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Cross entropy over the last dimension of the logits."""
    return F.cross_entropy(logits.flatten(0, -2), target.flatten())


@dataclass(frozen=True)
class Training:
    """How one model is trained: everything is made on the CPU and moved by the caller."""

    model: Callable[[], nn.Module]
    batch: Callable[[], tuple[torch.Tensor, torch.Tensor]]
    loss: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
    optimizer: Callable[[list[nn.Parameter]], torch.optim.Optimizer]


def _images(n: int, c: int, size: int) -> Callable[[], tuple[torch.Tensor, torch.Tensor]]:
    return lambda: (torch.randn(n, c, size, size), torch.randint(10, (n,)))


def _tokens(b: int, t: int, vocabulary: int) -> Callable[[], tuple[torch.Tensor, torch.Tensor]]:
    return lambda: (torch.randint(vocabulary, (b, t)), torch.randint(vocabulary, (b, t)))


def _sgd(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.01, momentum=0.9, weight_decay=1e-4)


def _gentle_sgd(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    # Batch norm over few values in 20 layers amplifies rounding from step to step; small steps
    # keep two correct trainings comparable.
    return torch.optim.SGD(parameters, lr=1e-3, momentum=0.9, weight_decay=1e-4)


def _adam(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.Adam(parameters, lr=1e-3)


def _adamw(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=1e-3, weight_decay=0.1)


TRAININGS: dict[str, Training] = {
    "digits": Training(DigitsNet, _images(16, 1, 8), class_loss, _adam),
    "mnist": Training(MnistNet, _images(8, 1, 28), F.nll_loss, _sgd),
    "resnet18": Training(lambda: ResNet18(8), _images(8, 3, 64), class_loss, _gentle_sgd),
    "gpt": Training(Gpt, _tokens(4, 32, 65), class_loss, _adamw),
    "lstm": Training(lambda: Recurrent(nn.LSTM), _tokens(4, 12, 30), class_loss, _adam),
    "gru": Training(lambda: Recurrent(nn.GRU), _tokens(4, 12, 30), class_loss, _adam),
    "vit": Training(VisionTransformer, _images(4, 3, 16), class_loss, _adamw),
}
