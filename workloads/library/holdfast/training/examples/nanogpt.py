"""A loop in the style of nanoGPT: `python -m holdfast.training.examples.nanogpt URL [STEPS]`.

Gradients of several batches are accumulated and clipped, the rate warms up and decays, the next
batch is drawn while the device computes, and the best evaluation is remembered. All of it is
restored bit by bit after a kill.
"""

import argparse
import math
import os

import torch

from holdfast.checkpoint import Checkpointer, track
from holdfast.training.trainer.data import Corpus
from holdfast.training.trainer.model import ByteGPT, ModelConfig

CONTEXT = 64
BATCH = 8
BATCHES_A_STEP = 2
WARM_UP = 10


def main(url: str, steps: int) -> None:
    torch.manual_seed(1337)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    data = Corpus.read(None).text.long()  # Python's own sources
    model = ByteGPT(ModelConfig(context=CONTEXT, width=64, layers=2)).to(device)
    optimizer = torch.optim.AdamW(
        model.parameters(),
        lr=1e-3,
        weight_decay=0.1,
    )
    rates = torch.optim.lr_scheduler.LambdaLR(
        optimizer,
        lambda step: min((step + 1) / WARM_UP, 0.55 + 0.45 * math.cos(math.pi * step / steps)),
    )
    progress = {"best": 9.0}

    def draw() -> tuple[torch.Tensor, torch.Tensor]:
        starts = torch.randint(len(data) - CONTEXT, (BATCH,))
        rows = torch.stack([data[start : start + CONTEXT + 1] for start in starts])
        inputs = rows[:, :-1].to(device)
        following = rows[:, 1:].to(device)
        return inputs, following

    get_batch = track(draw, ahead=1)  # one batch is drawn and not yet used when a step ends
    state = {
        "model": model,
        "optimizer": optimizer,
        "rates": rates,
        "batches": get_batch,
        "progress": progress,
    }
    with Checkpointer(
        url,
        state,
        run=os.environ.get("HOLDFAST_RUN", "nanogpt"),
        every=10,
    ) as ckpt:
        batch = get_batch()
        for step in range(ckpt.step, steps):
            total = 0.0
            for _ in range(BATCHES_A_STEP):
                loss = model.loss(*batch) / BATCHES_A_STEP
                batch = get_batch()
                loss.backward()
                total += loss.item()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            rates.step()
            optimizer.zero_grad(set_to_none=True)
            progress["best"] = min(progress["best"], total)
            print(f"step {step + 1} loss {total:.6f} best {progress['best']:.6f}", flush=True)
            ckpt.tick(step + 1)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url")
    parser.add_argument(
        "steps",
        nargs="?",
        type=int,
        default=60,
    )
    main(**vars(parser.parse_args()))
