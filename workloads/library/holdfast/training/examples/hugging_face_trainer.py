# pyright: basic, reportMissingImports=false
"""Hugging Face Trainer with one more callback: `python -m
holdfast.training.examples.hugging_face_trainer URL`.

Start it again after any exit: it continues after the last batch that was used. Needs
holdfast-gke[transformers].
"""

import argparse
import os
import tempfile

import torch
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments, set_seed

from holdfast.training.frameworks.huggingface import HoldfastCallback
from holdfast.training.trainer.data import Corpus

CONTEXT = 64


class Windows(Dataset):
    """Python's own sources, byte by byte."""

    def __init__(self) -> None:
        self._text = Corpus.read(None).text.long()

    def __len__(self) -> int:
        return len(self._text) // CONTEXT

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        window = self._text[index * CONTEXT : (index + 1) * CONTEXT]
        return {"input_ids": window, "labels": window}


def main(url: str, steps: int) -> None:
    set_seed(0)
    ends = {"bos_token_id": 0, "eos_token_id": 0}
    model = GPT2LMHeadModel(
        GPT2Config(
            vocab_size=256,
            n_positions=CONTEXT,
            n_embd=64,
            n_layer=2,
            n_head=4,
            **ends,
        )
    )
    options = TrainingArguments(
        output_dir=tempfile.gettempdir(),
        max_steps=steps,
        per_device_train_batch_size=8,
        learning_rate=1e-3,
        warmup_steps=10,
        save_strategy="no",  # the callback saves
        report_to=[],
    )
    callback = HoldfastCallback(
        url, run=os.environ.get("HOLDFAST_RUN", "hugging-face-trainer"), every=10
    )
    Trainer(
        model=model,
        args=options,
        train_dataset=Windows(),
        callbacks=[callback],
    ).train()


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
