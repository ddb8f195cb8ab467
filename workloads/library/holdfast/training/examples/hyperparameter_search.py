"""One point of a search: `python -m holdfast.training.examples.hyperparameter_search URL --lr 1e-3
--width 64`.

The job file next to it starts twelve of them. Each is a run of its own, which continues where its
pod was preempted, and prints its evaluation at the end.
"""

import argparse
import os

import torch

from holdfast.checkpoint import Checkpointer


def main(url: str, lr: float, width: int, steps: int) -> None:
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = torch.nn.Sequential(
        torch.nn.Linear(16, width), torch.nn.ReLU(), torch.nn.Linear(width, 1)
    ).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr)

    def evaluate(seed: int) -> torch.Tensor:
        """Return the loss on the batch of a seed, which any start draws again."""
        generator = torch.Generator().manual_seed(seed)
        inputs = torch.randn(64, 16, generator=generator).to(device)
        return (model(inputs).squeeze(1) - inputs.sin().sum(1)).square().mean()

    with Checkpointer(
        url,
        {"model": model, "optimizer": optimizer},
        run=os.environ.get("HOLDFAST_RUN", "hyperparameter-search"),
        every=50,
    ) as ckpt:
        for step in range(ckpt.step, steps):
            loss = evaluate(step)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            ckpt.tick(step + 1)
    with torch.no_grad():
        print(f"lr {lr:g} width {width} loss {evaluate(steps).item():.6f}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url")
    parser.add_argument("--lr", type=float, required=True)
    parser.add_argument("--width", type=int, required=True)
    parser.add_argument("--steps", type=int, default=300)
    main(**vars(parser.parse_args()))
