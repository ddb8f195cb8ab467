"""A Lightning run of one rank: `lightning_script.py URL STEPS OUT`, with RANK and friends in the environment."""

import os
import sys

import lightning.pytorch as pl
import torch
from torch import nn
from torch.utils.data import DataLoader

from holdfast.training.frameworks.lightning import HoldfastCallback
from workloads.library.tests.training.frameworks.waits import EVALUATING, WINDOW_S, Points, announce, digest

torch.set_num_threads(1)


class Net(pl.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(8, 64), nn.Dropout(0.2), nn.Linear(64, 1))

    def training_step(self, batch, index):
        return (self.body(batch[0]) - batch[1]).square().mean()

    def on_train_batch_end(self, *_):
        announce(f"step {self.trainer.global_step}")

    def validation_step(self, batch, index):
        if not self.trainer.sanity_checking:
            announce(EVALUATING)

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-2)


def main(url: str, steps: int) -> None:
    torch.manual_seed(1)
    model = Net()
    ranks = int(os.environ["WORLD_SIZE"])
    trainer = pl.Trainer(
        accelerator="cpu",
        devices=ranks,
        strategy="ddp_find_unused_parameters_true" if ranks > 2 else "ddp",
        max_steps=steps,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        logger=False,
        check_val_every_n_epoch=None,
        val_check_interval=10,
        callbacks=[HoldfastCallback(url, run="pl", every=4, window_s=WINDOW_S)],
    )
    loaders = [DataLoader(Points(), batch_size=4, shuffle=shuffle, num_workers=2) for shuffle in (True, False)]
    trainer.fit(model, *loaders)
    print(f"digest {digest(model)}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
