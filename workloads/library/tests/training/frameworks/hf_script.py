"""A Hugging Face run of one rank: `hf_script.py URL STEPS OUT`, with RANK and friends in the environment."""

import os
import sys
from pathlib import Path

import torch
from torch import nn
from transformers import Trainer, TrainerCallback, TrainingArguments

from holdfast.training.frameworks.huggingface import HoldfastCallback
from workloads.library.tests.training.frameworks.waits import EVALUATING, WINDOW_S, Points, announce, compiled, digest

torch.set_num_threads(1)


class Lines(Points):
    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return dict(zip(("x", "labels"), super().__getitem__(index), strict=True))


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(8, 64), nn.Dropout(0.2), nn.Linear(64, 1))

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        out = self.body(x)
        return {"loss": (out - labels).square().mean(), "logits": out}


class Progress(TrainerCallback):
    def on_step_end(self, args, state, control, **_):
        announce(f"step {state.global_step}")

    def on_prediction_step(self, args, state, control, **_):
        announce(EVALUATING)


def main(url: str, steps: int, out: Path) -> None:
    torch.manual_seed(1)
    model = Net()
    model.body.forward = compiled(model.body.forward)
    args = TrainingArguments(
        output_dir=str(out),
        max_steps=steps,
        per_device_train_batch_size=4,
        learning_rate=1e-2,
        save_strategy="no",
        eval_strategy="steps",
        eval_steps=10,
        report_to=[],
        use_cpu=True,
        dataloader_num_workers=2,
        disable_tqdm=True,
        logging_strategy="no",
        ddp_find_unused_parameters=int(os.environ["WORLD_SIZE"]) > 2,
    )
    callbacks = [Progress(), HoldfastCallback(url, run="hf", every=4, window_s=WINDOW_S)]
    trainer = Trainer(model=model, args=args, train_dataset=Lines(), eval_dataset=Lines(), callbacks=callbacks)
    trainer.train()
    print(f"digest {digest(model)}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]))
