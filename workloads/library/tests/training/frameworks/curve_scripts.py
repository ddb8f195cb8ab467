"""`curve_scripts.py hf|lightning URL FOLDER`: a framework with a curve in TensorBoard.

KILL_BEFORE_STEP kills the process before that step, once the checkpoint of the step before is
durable. `curve_scripts.py read FOLDER` prints what TensorBoard shows.
"""

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
from torch.utils.data import DataLoader
from transformers import Trainer, TrainerCallback, TrainingArguments

from holdfast.training.curves.tensorboard import TensorBoardCurve
from holdfast.training.frameworks import huggingface, lightning
from workloads.library.tests.training.curves.scripts import RUN, read_tensorboard
from workloads.library.tests.training.frameworks.scripts import Lines, Net, layers
from workloads.library.tests.training.frameworks.waits import KILL_BEFORE_STEP, WINDOW_S, Points

STEPS = 20
SAVE_EVERY = 4
LOG_EVERY = 3
EVALUATE_EVERY = 10
ITEMS = 24
"""Six batches, so that several epochs are left and resumed."""
OPTIONS: dict[str, Any] = {"run": RUN, "every": SAVE_EVERY, "window_s": WINDOW_S}


def await_commit(checkpoints: Any, steps_done: int) -> None:
    """Waits for the save in flight, so that each start resumes where the test expects it."""
    assert checkpoints._ckpt.wait(120)
    if str(steps_done + 1) == os.environ.get(KILL_BEFORE_STEP):
        os.kill(os.getpid(), signal.SIGKILL)


class Killer(TrainerCallback):
    def __init__(self, checkpoints: Any) -> None:
        self._checkpoints = checkpoints

    def on_step_begin(self, args, state, control, **_):
        await_commit(self._checkpoints, state.global_step)


def train_hf(url: str, folder: Path) -> None:
    callback = huggingface.HoldfastCallback(url, curve=TensorBoardCurve(folder), **OPTIONS)
    arguments = TrainingArguments(
        output_dir=str(folder / "out"),
        max_steps=STEPS,
        per_device_train_batch_size=4,
        dataloader_num_workers=2,
        learning_rate=1e-2,
        logging_steps=LOG_EVERY,
        eval_strategy="steps",
        eval_steps=EVALUATE_EVERY,
        save_strategy="no",
        report_to="none",
        use_cpu=True,
        disable_tqdm=True,
    )
    Trainer(
        model=Net(),
        args=arguments,
        train_dataset=Lines(ITEMS),
        eval_dataset=Lines(ITEMS),
        callbacks=[callback, Killer(callback._checkpoints)],
    ).train()


class Lit(pl.LightningModule):
    def __init__(self, callback: lightning.HoldfastCallback) -> None:
        super().__init__()
        self._callback = callback
        self.body = layers()

    def compute_loss(self, batch: Any) -> torch.Tensor:
        return (self.body(batch[0]) - batch[1]).square().mean()

    def training_step(self, batch, index):
        loss = self.compute_loss(batch)
        self.log("loss", loss)
        return loss

    def validation_step(self, batch, index):
        self.log("val_loss", self.compute_loss(batch))

    def on_train_batch_start(self, *_):
        await_commit(self._callback._checkpoints, self.trainer.global_step)

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-2)


def train_lightning(url: str, folder: Path) -> None:
    callback = lightning.HoldfastCallback(url, curve=TensorBoardCurve(folder), **OPTIONS)
    trainer = pl.Trainer(
        accelerator="cpu",
        devices=1,
        max_steps=STEPS,
        log_every_n_steps=LOG_EVERY,
        check_val_every_n_epoch=None,
        val_check_interval=EVALUATE_EVERY,
        num_sanity_val_steps=0,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[callback],
    )
    loaders = []
    for shuffle in (True, False):
        loaders.append(DataLoader(Points(ITEMS), batch_size=4, shuffle=shuffle))
    trainer.fit(Lit(callback), *loaders)


if __name__ == "__main__":
    torch.set_num_threads(1)
    kind, *words = sys.argv[1:]
    if kind == "read":
        print(json.dumps(read_tensorboard(Path(words[0]))))
    else:
        train = {"hf": train_hf, "lightning": train_lightning}[kind]
        train(words[0], Path(words[1]))
