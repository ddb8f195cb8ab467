"""An example of a predictor: labels of a text by a Hugging Face sequence classifier in a local folder.

Imports transformers, which is no dependency of holdfast: install it into the batch image to use this. Safetensors
only, no code from the model's folder, no downloads. As in gpt.py every forward pass has one shape, so that an
item's numbers do not depend on its company.
"""

import hashlib
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from holdfast.contract.errors import InputError
from holdfast.inference.errors import PredictorBroken
from holdfast.inference.values import Value
from holdfast.runtime import gpu

ROWS = 32
MAX_TOKENS = 256


class TextClassifier:
    def __init__(self, folder: str, *, max_tokens: int = MAX_TOKENS) -> None:
        self._folder, self._max_tokens = checked_folder(folder), max_tokens
        self._device = torch.device(gpu.device_type(torch.cuda.is_available()))
        self._bf16 = self._device.type == "cuda" and torch.cuda.is_bf16_supported()

    @property
    def configuration(self) -> Mapping[str, object]:
        return {
            "predictor": "hf-text-classifier",
            "version": 1,
            "model": digest_of(self._folder),
            "max_tokens": self._max_tokens,
            "rows": ROWS,
            "precision": "bf16" if self._bf16 else "fp32",
            "device": self._device.type,
        }

    def load(self) -> None:
        os.environ.update(HF_HUB_OFFLINE="1", TRANSFORMERS_OFFLINE="1", TOKENIZERS_PARALLELISM="false")
        try:
            from transformers import (  # pyright: ignore[reportMissingImports]
                AutoModelForSequenceClassification,
                AutoTokenizer,
            )
        except ImportError:
            raise InputError(
                "transformers is not installed", got="--predictor hf", allowed="an image that contains it",
                fix="pip install transformers",
            ) from None  # fmt: skip
        local: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False}
        # One thread: the split of a sum over threads would depend on how many there are.
        torch.set_num_threads(1)
        try:
            self._tokenizer = AutoTokenizer.from_pretrained(self._folder, **local)
            model = AutoModelForSequenceClassification.from_pretrained(self._folder, use_safetensors=True, **local)
        except (OSError, ValueError) as error:
            raise _not_a_model(self._folder, str(error)) from None
        self._model: Any = model.to(self._device).eval()

    def predict(self, bodies: Sequence[bytes]) -> list[Value]:
        texts = [body.decode() for body in bodies]  # a body that is no UTF-8 is its own failure
        batches = (texts[first : first + ROWS] for first in range(0, len(texts), ROWS))
        return [value for batch in batches for value in self._labelled(batch)]

    def _labelled(self, texts: list[str]) -> list[Value]:
        grid = texts + [""] * (ROWS - len(texts))
        tokens = self._tokenizer(
            grid, padding="max_length", truncation=True, max_length=self._max_tokens, return_tensors="pt"
        )
        try:
            with torch.inference_mode(), torch.autocast(self._device.type, torch.bfloat16, enabled=self._bf16):
                logits = self._model(**tokens.to(self._device)).logits
            shares = logits.float().softmax(dim=-1).cpu()[: len(texts)].tolist()
        except torch.AcceleratorError as error:
            raise PredictorBroken(f"the device failed: {type(error).__name__}") from error
        labels: Mapping[int, str] = self._model.config.id2label
        return [{"label": labels[row.index(max(row))], "score": max(row)} for row in shares]


def checked_folder(folder: str) -> Path:
    if not folder or not (Path(folder) / "config.json").is_file():
        raise _not_a_model(Path(folder), "no config.json")
    return Path(folder)


def digest_of(folder: Path) -> str:
    """Of names and bytes of all files: weights, vocabulary, labels."""
    total = hashlib.sha256()
    for path in sorted(p for p in folder.rglob("*") if p.is_file()):
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        total.update(f"{path.relative_to(folder).as_posix()}\0{digest}\n".encode())
    return total.hexdigest()[:32]


def _not_a_model(folder: Path, why: str) -> InputError:
    return InputError(
        "the model cannot be loaded",
        got=f"{folder}: {' '.join(why.split())[:300]}",
        allowed="a folder with config.json, the tokenizer's files and *.safetensors",
        fix="give --model FOLDER, as save_pretrained() wrote it",
    )
