"""A byte-level GPT, small enough for a laptop, with the layers of the large ones.

Each checkpoint holds its configuration.
"""

from dataclasses import asdict, dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

BYTES = 256


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelConfig:
    context: int = 64
    """Number of bytes that a prediction may look back on."""
    width: int = 128
    layers: int = 3
    heads: int = 4
    dropout: float = 0.1

    def __post_init__(self) -> None:
        if self.width % self.heads:
            raise ValueError(f"width {self.width} is not a multiple of heads {self.heads}")

    def to_json(self) -> dict[str, float]:
        return asdict(self)


class Attention(nn.Module):
    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.heads = config.heads
        self.dropout = config.dropout
        self.qkv = nn.Linear(config.width, 3 * config.width)
        self.out = nn.Linear(config.width, config.width)

    def forward(self, x: Tensor) -> Tensor:
        """Maps (batch, length, width) to the same shape."""
        query, key, value = self.qkv(x).split(x.shape[2], dim=2)
        # The function does not know of eval(): with the rate alone an evaluation would drop out
        # too.
        dropout = self.dropout if self.training else 0.0
        mixed = F.scaled_dot_product_attention(
            self._split_heads(query),
            self._split_heads(key),
            self._split_heads(value),
            dropout_p=dropout,
            is_causal=True,
        )
        mixed = mixed.transpose(1, 2)
        return self.out(mixed.reshape(x.shape))

    def _split_heads(self, x: Tensor) -> Tensor:
        """Maps (batch, length, width) to (batch, heads, length, width / heads)."""
        batch, length, width = x.shape
        parts = x.view(
            batch,
            length,
            self.heads,
            width // self.heads,
        )
        return parts.transpose(1, 2)


class Block(nn.Module):
    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.norm_attention = nn.LayerNorm(config.width)
        self.attention = Attention(config)
        self.norm_feed = nn.LayerNorm(config.width)
        self.feed = nn.Sequential(
            nn.Linear(config.width, 4 * config.width),
            nn.GELU(),
            nn.Linear(4 * config.width, config.width),
            nn.Dropout(config.dropout),
        )

    def forward(self, x: Tensor) -> Tensor:
        attended = self.attention(self.norm_attention(x))
        x = x + attended
        return x + self.feed(self.norm_feed(x))


class ByteGPT(nn.Module):
    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.tokens = nn.Embedding(BYTES, config.width)
        self.positions = nn.Embedding(config.context, config.width)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.layers))
        self.norm = nn.LayerNorm(config.width)
        self.apply(_init)

    def forward(self, tokens: Tensor) -> Tensor:
        """Maps (batch, length) byte values to (batch, length, 256) logits of the next byte."""
        length = tokens.shape[1]
        positions = torch.arange(length, device=tokens.device)
        x = self.tokens(tokens) + self.positions(positions)
        for block in self.blocks:
            x = block(x)
        x = self.norm(x)
        # Tied to the embedding: one parameter under one key, which a checkpoint holds once.
        return x @ self.tokens.weight.T

    def loss(self, tokens: Tensor, following: Tensor) -> Tensor:
        """Returns the mean cross-entropy per byte, in nats."""
        logits = self(tokens)
        return next_byte_loss(logits, following)


def next_byte_loss(logits: Tensor, following: Tensor) -> Tensor:
    """Returns the mean cross-entropy per byte, in nats, of (batch, length, 256) logits."""
    predictions = logits.flatten(0, 1)
    targets = following.flatten()
    return F.cross_entropy(predictions, targets)


def _init(module: nn.Module) -> None:
    if isinstance(module, nn.Linear | nn.Embedding):
        nn.init.normal_(module.weight, std=0.02)
    if isinstance(module, nn.Linear):
        nn.init.zeros_(module.bias)
