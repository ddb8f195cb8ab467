"""What a gang's checkpoint holds beside the user's state, and what a resumed gang checks against it. A Stateful."""

from collections.abc import Mapping
from typing import Any

import torch

from holdfast.contract.errors import InputError
from holdfast.training.elastic.gradients import ExactGradientSum, GradientSum


class GangProgress:
    def __init__(self, *, shards: int, seed: int, facts: Mapping[str, str | int], gradients: GradientSum) -> None:
        exact = isinstance(gradients, ExactGradientSum)
        self._facts: dict[str, Any] = {"shards": shards, "seed": seed, "exact": exact, **facts}
        self._gradients = gradients
        self._gpu = _gpu_of(gradients.device) if exact else ""

    def state_dict(self) -> dict[str, Any]:
        exponent = self._gradients.exponent if isinstance(self._gradients, ExactGradientSum) else 0
        return self._facts | {"exponent": exponent, "gpu": self._gpu}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        for name, value in self._facts.items():
            # A run that was begun before a fact was stated goes on: nothing is known against it.
            if state.get(name, value) != value:
                raise InputError(
                    f"the run was started with another value of {name}",
                    got=value,
                    allowed=f"{state.get(name)}: batches, random draws or sums would differ",
                    fix=f"{name}={state.get(name)}, or another run name to start from zero",
                )
        if isinstance(self._gradients, ExactGradientSum):
            _check_gpu(self._gpu, str(state.get("gpu", self._gpu)))
            self._gradients.exponent = int(state["exponent"])


def _gpu_of(device: torch.device) -> str:
    """Empty on a CPU."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else ""


def _check_gpu(ours: str, theirs: str) -> None:
    """Kernels of another type round differently, so the bits would depend on who has which shard."""
    if ours != theirs:
        raise InputError(
            "exact sums over different types of GPU",
            got=ours or "a CPU",
            allowed=f"{theirs or 'a CPU'}, on which the run was started",
            fix="one machine type for all nodes of the job, or exact=False under another run name",
        )
