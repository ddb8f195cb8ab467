"""The predictor `gpt`: the loss of a document under a checkpoint's byte-level GPT, in nats a byte.

It imports torch, so only a worker that predicts with it imports this module. Every forward pass has
the same shape, filled with windows of any documents of the batch: the kernels, and with them each
row's rounding, do not depend on the other rows. A document's windows are added with fsum, which is
exact in any order.
"""

# Decision: infra/decisions/0042.

import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

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
"""The number of windows in one forward pass."""
MODEL_PREFIX = "model/"
_NOT_READ = torch.empty(0)  # replaces the optimizer's tensors, which are not used


@dataclass(frozen=True, kw_only=True)
class Model:
    identity: Mapping[str, object]
    """The run, step and attempt of one commit, which is create-only and never changes."""
    config: Mapping[str, Any]
    """The configuration of the network, which the trainer saved with the tensors."""
    tensors: Mapping[str, torch.Tensor]


class GptLoss:
    """Scores the first `score_bytes` of a body; a body of less than two bytes has no score."""

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
        # cuBLAS reads this variable once, at the first kernel.
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(True)
        # One thread: how a sum is split over threads depends on their number.
        torch.set_num_threads(1)
        tensors: dict[str, torch.Tensor] = {}
        for key, tensor in self._model.tensors.items():
            tensors[key.removeprefix(MODEL_PREFIX)] = tensor
        try:
            # The class checks its arguments itself.
            network = ByteGPT(ModelConfig(**self._model.config))  # pyright: ignore[reportArgumentType]
            network.load_state_dict(tensors)
        except (TypeError, ValueError, RuntimeError) as error:
            reason = " ".join(str(error).split())
            raise InputError(
                "the checkpoint does not fit the predictor",
                got=f"{self._model.identity}: {reason[:300]}",
                allowed="a checkpoint of holdfast.training's ByteGPT",
                fix="name the run of such a training with --run, or choose another --predictor",
            ) from None
        self._network = network.to(self._device).eval()
        self._context = network.config.context

    def predict(self, bodies: Sequence[bytes]) -> list[Value]:
        texts = [body[: self._score_bytes] for body in bodies]
        windows = list(self._split_windows(texts))
        nats: list[list[float]] = [[] for _ in texts]
        for first in range(0, len(windows), ROWS):
            rows = windows[first : first + ROWS]
            losses = self._compute_losses([row.text for row in rows])
            for row, loss in zip(rows, losses, strict=True):
                nats[row.body].append(loss)
        return [_make_value(text, losses) for text, losses in zip(texts, nats, strict=True)]

    def _split_windows(self, texts: Sequence[bytes]) -> Iterator["_Window"]:
        """Splits texts into windows that overlap by a byte, which the earlier one only predicts."""
        for body, text in enumerate(texts):
            for start in range(0, len(text) - 1, self._context):
                yield _Window(
                    body=body,
                    text=text[start : start + self._context + 1],
                )

    def _compute_losses(self, windows: Sequence[bytes]) -> list[float]:
        """Returns the loss of each window, summed over its bytes."""
        inputs = _make_grid((window[:-1] for window in windows), self._context)
        targets = _make_grid((window[1:] for window in windows), self._context)
        lengths = torch.zeros(ROWS, dtype=torch.long)
        for row, window in enumerate(windows):
            lengths[row] = len(window) - 1
        is_text = torch.arange(self._context) < lengths[:, None]
        logits = self._run_network(inputs)
        losses = F.cross_entropy(
            logits.flatten(0, 1),
            targets.flatten(),
            reduction="none",
        )
        grid = losses.view(ROWS, self._context).double()
        sums = torch.where(is_text, grid, 0.0).sum(dim=1)
        return sums[: len(windows)].tolist()

    def _run_network(self, inputs: torch.Tensor) -> torch.Tensor:
        autocast = torch.autocast(self._device.type, torch.bfloat16, enabled=self._bf16)
        try:
            with torch.inference_mode(), autocast:
                logits = self._network(inputs.to(self._device))
            return logits.float().cpu()
        except torch.AcceleratorError as error:
            raise PredictorBroken(f"the device failed: {type(error).__name__}") from error


@dataclass(frozen=True, kw_only=True, slots=True)
class _Window:
    body: int
    """The position of its body in the batch."""
    text: bytes


def _make_grid(texts: Iterator[bytes], width: int) -> torch.Tensor:
    """Makes rows of bytes, padded with zeros to the one shape that is ever computed.

    The network is causal and padding is at the end, so it does not change the text's losses.
    """
    rows = b"".join(text.ljust(width, b"\0") for text in texts)
    data = bytearray(rows.ljust(ROWS * width, b"\0"))
    return torch.frombuffer(data, dtype=torch.uint8).long().view(ROWS, width)


def _make_value(text: bytes, nats: Sequence[float]) -> Value:
    count = max(0, len(text) - 1)
    return {
        "score": math.fsum(nats) / count if count else None,
        "bytes": count,
    }


def load_model(
    url: str,
    run: str,
    pinned: Mapping[str, object],
) -> Model:
    """Loads the commit that the job is pinned to, or else the newest one that verifies.

    Raises InputError if the pinned commit is no longer readable.
    """
    storage = open_storage(url)
    run = run or str(pinned.get("run") or only_run(storage))
    step = pinned.get("step")
    if pinned.get("run") != run or not isinstance(step, int):
        newest_step, tensors = load_tensors(
            url,
            run,
            [MODEL_PREFIX],
        )
        return _make_model(storage, run, newest_step, tensors)
    try:
        tensors = read_whole(
            storage,
            open_step(storage, run, step),
            [MODEL_PREFIX],
        )
        return _make_model(storage, run, step, tensors)
    except Damaged as error:
        raise InputError(
            "the checkpoint that this job started with is no longer readable",
            got=f"{run} step {step}: {error}",
            allowed=f"one of the steps {committed_steps(storage, run)[:5]}",
            fix="enqueue the items as another job, which starts with the newest checkpoint",
        ) from None


def _make_model(
    storage: Storage,
    run: str,
    step: int,
    tensors: Mapping[str, torch.Tensor],
) -> Model:
    checkpoint = open_step(storage, run, step)
    values: dict[str, object] = {}
    for name, value in checkpoint.values(0).items():
        # Names with "__" are the library's own records, not the trainer's state.
        if not name.startswith("__"):
            values[name] = decode(value, lambda key: tensors.get(key, _NOT_READ))
    return Model(
        identity={
            "run": run,
            "step": step,
            "attempt": checkpoint.commit.attempt,
        },
        config=_find_config(values) or {},
        tensors=tensors,
    )


def _find_config(values: object) -> dict[str, Any] | None:
    """Finds the mapping that describes a network, anywhere in the trainer's state."""
    if not isinstance(values, dict):
        return None
    mapping = cast("dict[str, Any]", values)
    if {"context", "width", "layers", "heads"} <= mapping.keys():
        return mapping
    for value in mapping.values():
        config = _find_config(value)
        if config:
            return config
    return None
