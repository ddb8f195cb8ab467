"""A loop as a stranger writes it, in the manner of nanoGPT: `stranger_loop.py URL STEPS OUT`.

Batches are drawn one ahead, losses are scaled, the rate decays, an average of the weights is kept, the best evaluation
is remembered, and everything draws from one random stream. Prints each step's loss, and at the end a digest.
"""

import hashlib
import sys
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from holdfast.checkpoint import Checkpointer, track

BLOCK, BATCH, VOCABULARY = 16, 4, 64


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.qkv = nn.LayerNorm(width), nn.Linear(width, 3 * width)
        self.feed = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width)
        )
        self.drop = nn.Dropout(0.1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(self.norm(x)).chunk(3, dim=-1)
        x = x + self.drop(F.scaled_dot_product_attention(q, k, v, is_causal=True))
        return x + self.drop(self.feed(x))


class GPT(nn.Module):
    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, width)
        self.blocks = nn.Sequential(Block(width), Block(width))
        self.head = nn.Linear(width, VOCABULARY, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(self.head(self.blocks(self.tokens(x))).flatten(0, 1), y.flatten())


def main(url: str, steps: int, out: Path) -> None:
    torch.manual_seed(1337)
    torch.set_num_threads(1)
    data = torch.randint(VOCABULARY, (4096,))
    model = GPT()
    mean = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    decay = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=5)
    progress = {"best": 9.0}

    @track_ahead
    def get_batch() -> tuple[torch.Tensor, torch.Tensor]:
        rows = torch.randint(len(data) - BLOCK - 1, (BATCH,))
        cut = torch.stack([data[at : at + BLOCK + 1] for at in rows])
        return cut[:, :-1], cut[:, 1:]

    state = {"model": model, "mean": mean, "optimizer": optimizer, "decay": decay, "scaler": scaler}
    state |= {"progress": progress, "batches": get_batch}
    with Checkpointer(url, state, run="gpt", every=3, keep=2) as ckpt, out.open("a", buffering=1) as log:
        x, y = get_batch()
        for step in range(ckpt.step, steps):
            loss = model(x, y)
            x, y = get_batch()  # while the device works
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            decay.step()
            optimizer.zero_grad(set_to_none=True)
            mean.update_parameters(model)
            if step % 7 == 6:
                progress["best"] = min(progress["best"], loss.item())
            log.write(f"step {step + 1} {loss.item()!r} {progress['best']!r}\n")
            ckpt.tick(step + 1)
        bits = b"".join(p.detach().numpy().tobytes() for p in (*model.parameters(), *mean.parameters()))
        digest = hashlib.sha256(bits).hexdigest()
    with out.open("a") as log:
        log.write(f"digest {digest}\n")


def track_ahead(draw):
    return track(draw, ahead=1)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]))
