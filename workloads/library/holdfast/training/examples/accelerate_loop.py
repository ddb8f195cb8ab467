# pyright: basic, reportMissingImports=false
"""A loop over objects from `accelerator.prepare`: `python -m
holdfast.training.examples.accelerate_loop URL [EPOCHS]`.

Start it again after any exit: it continues at the next batch, also within an epoch. Needs
holdfast-gke[accelerate].
"""

import argparse
import os

import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from holdfast.training.frameworks.accelerate import AccelerateCheckpointer


def main(url: str, epochs: int) -> None:
    torch.manual_seed(0)
    accelerator = Accelerator(gradient_accumulation_steps=2)
    net = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Dropout(0.1), nn.Linear(64, 1))
    adam = torch.optim.AdamW(net.parameters(), lr=1e-2)
    inputs = torch.randn(160, 32)
    targets = inputs.sum(1, keepdim=True)
    dataset = TensorDataset(inputs, targets)
    data = DataLoader(dataset, batch_size=8, shuffle=True)
    decay = torch.optim.lr_scheduler.CosineAnnealingLR(adam, epochs * len(data))
    model, optimizer, loader, schedule = accelerator.prepare(net, adam, data, decay)
    run = os.environ.get("HOLDFAST_RUN", "accelerate-loop")
    with AccelerateCheckpointer(
        accelerator,
        url,
        run=run,
        every=10,
    ) as ckpt:
        for epoch, batches in ckpt.epochs(loader, epochs):
            for batch_inputs, batch_targets in batches:
                with accelerator.accumulate(model):
                    predictions = model(batch_inputs)
                    loss = nn.functional.mse_loss(predictions, batch_targets)
                    accelerator.backward(loss)
                    optimizer.step()
                    schedule.step()
                    optimizer.zero_grad()
                ckpt.tick()
            accelerator.print(f"epoch {epoch + 1} loss {loss.item():.6f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url")
    parser.add_argument(
        "epochs",
        nargs="?",
        type=int,
        default=3,
    )
    main(**vars(parser.parse_args()))
