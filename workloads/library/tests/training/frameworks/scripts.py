"""A rank of a run under a framework: `scripts.py hf|lightning|accelerate URL STEPS OUT`, with RANK
and friends in the environment.

`scripts.py exact SHUFFLE WORKERS VALIDATION STEP,STEP...`: Lightning in one process, a crash after
each of the steps, and a resume. Prints the digest of a run that nothing disturbed, and of the one
that crashed. Its data is drawn from torch's stream as well, so that a batch which is read at
another moment shows.
"""

import os
import sys
import tempfile
from typing import Any

import lightning.pytorch as pl
import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader
from transformers import Trainer, TrainerCallback, TrainingArguments

from holdfast.training.frameworks import huggingface, lightning
from holdfast.training.frameworks.accelerate import AccelerateCheckpointer
from workloads.library.tests.training.frameworks.waits import (
    EVALUATING,
    WINDOW_S,
    Points,
    announce,
    compile_if_asked,
    digest,
)

EPOCHS_OF_FIVE = 20  # items, in batches of four
VALIDATION: dict[str, dict[str, Any]] = {
    "epoch": {},
    "steps": {"check_val_every_n_epoch": None, "val_check_interval": 7},
}


def layers() -> nn.Sequential:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(8, 64), nn.Dropout(0.2), nn.Linear(64, 1))


class Lines(Points):
    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return dict(zip(("x", "labels"), super().__getitem__(index), strict=True))


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = layers()
        self.body.forward = compile_if_asked(self.body.forward)

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        out = self.body(x)
        return {
            "loss": (out - labels).square().mean(),
            "logits": out,
        }


class Progress(TrainerCallback):
    def on_step_end(self, args, state, control, **_):
        announce(f"step {state.global_step}")

    def on_prediction_step(self, args, state, control, **_):
        announce(EVALUATING)


def hf(url: str, steps: int, out: str) -> nn.Module:
    model = Net()
    quiet = {
        "report_to": [],
        "disable_tqdm": True,
        "logging_strategy": "no",
        "save_strategy": "no",
        "output_dir": out,
    }
    loading = {
        "per_device_train_batch_size": 4,
        "dataloader_num_workers": 2,
        "eval_strategy": "steps",
        "eval_steps": 10,
    }
    unused = int(os.environ["WORLD_SIZE"]) > 2
    args = TrainingArguments(
        max_steps=steps,
        learning_rate=1e-2,
        use_cpu=True,
        ddp_find_unused_parameters=unused,
        **loading,
        **quiet,
    )
    callbacks = [
        Progress(),
        huggingface.HoldfastCallback(
            url,
            run="hf",
            every=4,
            window_s=WINDOW_S,
        ),
    ]
    Trainer(
        model=model,
        args=args,
        train_dataset=Lines(),
        eval_dataset=Lines(),
        callbacks=callbacks,
    ).train()
    return model


class Crash(Exception):
    pass


class Lit(pl.LightningModule):
    def __init__(
        self, callback: lightning.HoldfastCallback, crash_after: int | None = None
    ) -> None:
        super().__init__()
        self._callback = callback
        self._crash_after = crash_after
        self.body = layers()

    def training_step(self, batch, index):
        return (self.body(batch[0]) - batch[1]).square().mean()

    def on_train_batch_start(self, *_):
        if self.trainer.global_step == self._crash_after:
            checkpointer = self._callback._checkpoints._ckpt
            assert checkpointer.wait(60)
            checkpointer.close()
            raise Crash

    def on_train_batch_end(self, *_):
        announce(f"step {self.trainer.global_step}")

    def validation_step(self, batch, index):
        if not self.trainer.sanity_checking:
            announce(EVALUATING)

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-2)


def lit_trainer(callback: lightning.HoldfastCallback, steps: int, **options: Any) -> pl.Trainer:
    quiet = {
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
    }
    return pl.Trainer(
        accelerator="cpu",
        max_steps=steps,
        logger=False,
        callbacks=[callback],
        **quiet,
        **options,
    )


def lit(url: str, steps: int, _: str) -> nn.Module:
    callback = lightning.HoldfastCallback(
        url,
        run="pl",
        every=4,
        window_s=WINDOW_S,
    )
    model = Lit(callback)
    ranks = int(os.environ["WORLD_SIZE"])
    strategy = "ddp_find_unused_parameters_true" if ranks > 2 else "ddp"
    validation = {"check_val_every_n_epoch": None, "val_check_interval": 10}
    loaders = []
    for shuffle in (True, False):
        loaders.append(
            DataLoader(
                Points(),
                batch_size=4,
                shuffle=shuffle,
                num_workers=2,
            )
        )
    lit_trainer(
        callback,
        steps,
        devices=ranks,
        strategy=strategy,
        **validation,
    ).fit(model, *loaders)
    return model


def train_with_accelerate(url: str, steps: int, _: str) -> nn.Module:
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    net = layers()
    adam = torch.optim.AdamW(net.parameters(), lr=1e-2)
    data = DataLoader(
        Points(),
        batch_size=4,
        shuffle=True,
        num_workers=2,
    )
    decay = torch.optim.lr_scheduler.CosineAnnealingLR(adam, steps)
    model, optimizer, loader, scheduler = accelerator.prepare(net, adam, data, decay)
    with AccelerateCheckpointer(
        accelerator,
        url,
        run="accelerate",
        every=4,
        window_s=WINDOW_S,
    ) as ckpt:
        for _, batches in ckpt.epochs(loader, steps // len(loader)):
            for x, y in batches:
                with accelerator.accumulate(model):
                    accelerator.backward((model(x) - y).square().mean())
                    optimizer.step()
                    scheduler.step()
                    optimizer.zero_grad()
                announce(f"step {ckpt.step + 1}")
                ckpt.tick()
    return net


def exact(
    shuffle: str,
    workers: int,
    validation: str,
    crashes: list[int],
) -> None:
    def run(url: str, crash_after: int | None = None) -> str:
        callback = lightning.HoldfastCallback(
            url,
            run="pl",
            every=1,
            window_s=60,
        )
        model = Lit(callback, crash_after)
        trainer = lit_trainer(
            callback,
            13,
            devices=1,
            num_sanity_val_steps=0,
            **VALIDATION[validation],
        )
        noise = 0.0 if workers else 0.1  # what a worker draws is its own, and not kept
        training = DataLoader(
            Points(EPOCHS_OF_FIVE, noise),
            batch_size=4,
            shuffle=shuffle == "shuffle",
            num_workers=workers,
        )
        try:
            trainer.fit(model, training, DataLoader(Points(EPOCHS_OF_FIVE), batch_size=4))
        except Crash:
            return ""
        return digest(model)

    with tempfile.TemporaryDirectory() as folder:
        print("digest", run(f"{folder}/whole"), flush=True)
        for step in crashes:
            assert not run(f"{folder}/crashed", crash_after=step)
        print("digest", run(f"{folder}/crashed"), flush=True)


if __name__ == "__main__":
    torch.set_num_threads(1)
    kind, *words = sys.argv[1:]
    if kind == "exact":
        exact(words[0], int(words[1]), words[2], [int(step) for step in words[3].split(",")])
    else:
        trained = {
            "hf": hf,
            "lightning": lit,
            "accelerate": train_with_accelerate,
        }[kind](words[0], int(words[1]), words[2])
        print(f"digest {digest(trained)}", flush=True)
