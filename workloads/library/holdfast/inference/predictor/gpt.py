"""Loss of a document under the byte-level GPT of a committed checkpoint, in nats for each byte.

Imports torch, so it is imported only by a worker that predicts with it. Every forward pass has the
same shape, filled with windows of any documents that wait: the kernels, and with them each row's
rounding, do not depend on the other rows. A document's windows are added with
fsum, which is exact in any order.
"""

# Why it is so: infra/decisions/0042.

import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import functional as F

from holdfast.checkpoint import committed_steps, load_tensors
from holdfast.checkpoint.errors import Damaged
from holdfast.checkpoint.restore.reader import open_step
from holdfast.checkpoint.restore.tensor_loading import only_run, read_whole
from holdfast.checkpoint.state import decode
from holdfast.checkpoint.stores import Storage, open_storage
from holdfast.inference.errors import PredictorBroken
from holdfast.inference.values import Value
from holdfast.runtime import gpu
from holdfast.support.errors import InputError
from holdfast.training.trainer.model import ByteGPT, ModelConfig

ROWS = 32
"""Windows of one forward pass."""
MODEL_PREFIX = "model/"
_NOT_READ = torch.empty(0)  # in place of the optimizer's tensors, which are not used here


@dataclass(frozen=True, kw_only=True)
class Model:
    identity: Mapping[str, object]
    """Run, step and attempt: names one commit for ever, as commits are create-only."""
    config: Mapping[str, Any]
    """What the trainer saved with the tensors to build the network with."""
    tensors: Mapping[str, torch.Tensor]


class GptLoss:
    """Scores the first `score_bytes` of a body; a body too short to have a following byte has no
    score.
    """

    def __init__(self, model: Model, *, score_bytes: int = 2048) -> None:
        self._model = model
        self._score_bytes = score_bytes
        self._device = torch.device(gpu.device_type(torch.cuda.is_available()))
        self._bf16 = self._device.type == "cuda" and torch.cuda.is_bf16_supported()

    @property
    def configuration(self) -> Mapping[str, object]:
        return {
            "predictor": "gpt-loss",
            "version": 1,
            **self._model.identity,
            "score_bytes": self._score_bytes,
            "rows": ROWS,
            "precision": "bf16" if self._bf16 else "fp32",
            "device": self._device.type,
        }

    def load(self) -> None:
        # cuBLAS reads it once, when the first kernel is launched.
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(True)
        # One thread: the split of a sum over threads would depend on how many there are.
        torch.set_num_threads(1)
        tensors = {
            key.removeprefix(MODEL_PREFIX): tensor for key, tensor in self._model.tensors.items()
        }
        try:
            # The class itself checks what it is given.
            network = ByteGPT(ModelConfig(**self._model.config))  # pyright: ignore[reportArgumentType]
            network.load_state_dict(tensors)
        except (TypeError, ValueError, RuntimeError) as error:
            raise InputError(
                "the checkpoint does not fit the predictor",
                got=f"{self._model.identity}: {' '.join(str(error).split())[:300]}",
                allowed="a checkpoint of holdfast.training's ByteGPT",
                fix="name the run of such a training with --run, or choose another --predictor",
            ) from None
        self._network = network.to(self._device).eval()
        self._context = network.config.context

    def predict(self, bodies: Sequence[bytes]) -> list[Value]:
        nats: list[list[float]] = [[] for _ in bodies]
        windows = list(self._windows(bodies))
        for first in range(0, len(windows), ROWS):
            rows = windows[first : first + ROWS]
            for (body, _), loss in zip(rows, self._losses([text for _, text in rows]), strict=True):
                nats[body].append(loss)
        return [
            _value(body[: self._score_bytes], losses)
            for body, losses in zip(bodies, nats, strict=True)
        ]

    def _windows(self, bodies: Sequence[bytes]) -> Iterator[tuple[int, bytes]]:
        """Of each body, by its number; they overlap by a byte, which the first only predicts."""
        for n, body in enumerate(bodies):
            text = body[: self._score_bytes]
            for at in range(0, len(text) - 1, self._context):
                yield n, text[at : at + self._context + 1]

    def _losses(self, windows: Sequence[bytes]) -> list[float]:
        inputs = _grid((window[:-1] for window in windows), self._context)
        following = _grid((window[1:] for window in windows), self._context)
        lengths = torch.tensor(
            [len(window) - 1 for window in windows] + [0] * (ROWS - len(windows))
        )
        counted = torch.arange(self._context) < lengths[:, None]
        try:
            with (
                torch.inference_mode(),
                torch.autocast(self._device.type, torch.bfloat16, enabled=self._bf16),
            ):
                logits = self._network(inputs.to(self._device))
            logits = logits.float().cpu()
        except torch.AcceleratorError as error:
            raise PredictorBroken(f"the device failed: {type(error).__name__}") from error
        each = F.cross_entropy(logits.flatten(0, 1), following.flatten(), reduction="none").view(
            ROWS, self._context
        )
        return torch.where(counted, each.double(), 0.0).sum(dim=1)[: len(windows)].tolist()


def _grid(texts: Iterator[bytes], width: int) -> torch.Tensor:
    """Rows of bytes, padded with zeros to the one shape that is ever computed. Causal: padding is
    behind.
    """
    rows = b"".join(text.ljust(width, b"\0") for text in texts)
    return (
        torch.frombuffer(bytearray(rows.ljust(ROWS * width, b"\0")), dtype=torch.uint8)
        .long()
        .view(ROWS, width)
    )


def _value(text: bytes, nats: Sequence[float]) -> Value:
    count = max(0, len(text) - 1)
    return {
        "score": math.fsum(nats) / count if count else None,
        "bytes": count,
    }


def load_model(url: str, run: str, pinned: Mapping[str, object]) -> Model:
    """The commit that the job is pinned to, or the newest that verifies when it is not pinned yet."""
    storage = open_storage(url)
    run = run or str(pinned.get("run") or only_run(storage))
    if pinned.get("run") != run or not isinstance(step := pinned.get("step"), int):
        return _model(storage, run, *load_tensors(url, run, [MODEL_PREFIX]))
    try:
        return _model(
            storage, run, step, read_whole(storage, open_step(storage, run, step), [MODEL_PREFIX])
        )
    except Damaged as error:
        raise InputError(
            "the checkpoint that this job started with is no longer readable",
            got=f"{run} step {step}: {error}",
            allowed=f"one of the steps {committed_steps(storage, run)[:5]}",
            fix="enqueue the items as another job, which starts with the newest checkpoint",
        ) from None


def _model(
    storage: Storage,
    run: str,
    step: int,
    tensors: Mapping[str, torch.Tensor],
) -> Model:
    opened = open_step(storage, run, step)
    identity = {
        "run": run,
        "step": step,
        "attempt": opened.commit.attempt,
    }
    # Names with "__" are the library's own notes, not the trainer's state.
    saved = {name: value for name, value in opened.values(0).items() if not name.startswith("__")}
    values = {
        name: decode(value, lambda key: tensors.get(key, _NOT_READ))
        for name, value in saved.items()
    }
    return Model(
        identity=identity,
        config=_find_config(values) or {},
        tensors=tensors,
    )


def _find_config(values: object) -> dict[str, Any] | None:
    """The mapping that describes a network, wherever in the state the trainer put it."""
    if isinstance(values, dict):
        if {"context", "width", "layers", "heads"} <= values.keys():
            return values
        return next((found for value in values.values() if (found := _find_config(value))), None)
    return None
