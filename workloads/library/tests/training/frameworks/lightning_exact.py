"""`lightning_exact.py SHUFFLE WORKERS VALIDATION STEP,STEP...`: one process, a crash after each of the steps, and a resume.

Prints the digest of the parameters of a run that nothing disturbed, and of the one that crashed. The data is drawn from
torch's stream as well, so that a batch which is read at another moment shows.
"""

import sys
import tempfile
from typing import Any

import lightning.pytorch as pl
import torch
from torch import nn
from torch.utils.data import DataLoader

from holdfast.training.frameworks.lightning import HoldfastCallback
from workloads.library.tests.training.frameworks.waits import Points, digest

STEPS, BATCH, ITEMS = 13, 4, 20  # epochs of five steps
VALIDATION: dict[str, dict[str, Any]] = {
    "epoch": {},
    "steps": {"check_val_every_n_epoch": None, "val_check_interval": 7},
}


class Crash(Exception):
    pass


class Net(pl.LightningModule):
    def __init__(self, callback: HoldfastCallback, crash_after: int | None) -> None:
        super().__init__()
        self._callback, self._crash_after = callback, crash_after
        self.body = nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.2), nn.Linear(16, 1))

    def training_step(self, batch, index):
        return (self.body(batch[0]) - batch[1]).square().mean()

    def on_train_batch_start(self, *_):
        if self.trainer.global_step == self._crash_after:
            checkpointer = self._callback._checkpoints._ckpt
            assert checkpointer.wait(60)
            checkpointer.close()
            raise Crash

    def validation_step(self, batch, index):
        pass

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-2)


def run(url: str, shuffle: bool, workers: int, validation: str, *, crash_after: int | None = None) -> str:
    torch.manual_seed(1)
    callback = HoldfastCallback(url, run="pl", every=1, window_s=60)
    model = Net(callback, crash_after)
    quiet = {"enable_checkpointing": False, "enable_progress_bar": False, "enable_model_summary": False}
    trainer = pl.Trainer(
        accelerator="cpu",
        devices=1,
        max_steps=STEPS,
        num_sanity_val_steps=0,
        logger=False,
        callbacks=[callback],
        **quiet,
        **VALIDATION[validation],
    )
    noise = 0.0 if workers else 0.1  # what a worker draws is its own, and not kept
    training = DataLoader(Points(ITEMS, noise), batch_size=BATCH, shuffle=shuffle, num_workers=workers)
    try:
        trainer.fit(model, training, DataLoader(Points(ITEMS), batch_size=BATCH))
    except Crash:
        return ""
    return digest(model)


def main(shuffle: bool, workers: int, validation: str, crashes: list[int]) -> None:
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        print("digest", run(f"{folder}/whole", shuffle, workers, validation), flush=True)
        for step in crashes:
            assert not run(f"{folder}/crashed", shuffle, workers, validation, crash_after=step)
        print("digest", run(f"{folder}/crashed", shuffle, workers, validation), flush=True)


if __name__ == "__main__":
    main(sys.argv[1] == "shuffle", int(sys.argv[2]), sys.argv[3], [int(step) for step in sys.argv[4].split(",")])
