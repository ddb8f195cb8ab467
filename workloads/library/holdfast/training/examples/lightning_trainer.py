# pyright: basic, reportMissingImports=false
"""Lightning with one more callback: `python -m holdfast.training.examples.lightning_trainer URL
[STEPS]`.

Start it again after any exit: it continues at the next batch, also within an epoch. Needs
holdfast-gke[lightning].
"""

import argparse
import os
import tempfile

import lightning.pytorch as pl
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from holdfast.training.frameworks.lightning import HoldfastCallback


class Regression(pl.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Dropout(0.1), nn.Linear(64, 1))

    def training_step(self, batch: list[torch.Tensor], _: int) -> torch.Tensor:
        inputs, targets = batch
        return nn.functional.mse_loss(self.body(inputs), targets)

    def configure_optimizers(self) -> dict[str, object]:
        optimizer = torch.optim.AdamW(self.parameters(), lr=1e-2)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 200)
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": schedule, "interval": "step"},
        }


def main(url: str, steps: int) -> None:
    pl.seed_everything(0)
    inputs = torch.randn(160, 32)
    loader = DataLoader(
        TensorDataset(inputs, inputs.sum(1, keepdim=True)), batch_size=8, shuffle=True
    )
    trainer = pl.Trainer(
        max_steps=steps,
        devices=1,
        logger=False,
        enable_checkpointing=False,  # the callback saves
        enable_progress_bar=False,
        default_root_dir=tempfile.gettempdir(),
        callbacks=[
            HoldfastCallback(
                url,
                run=os.environ.get("HOLDFAST_RUN", "lightning-trainer"),
                every=10,
            )
        ],
    )
    trainer.fit(Regression(), loader)


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
