"""What a gang's checkpoint holds beside the user's state, and what a resumed gang checks against it. A Stateful."""

from collections.abc import Mapping
from typing import Any

from holdfast.contract.errors import InputError
from holdfast.training.elastic.gradients import ExactGradientSum, GradientSum


class GangProgress:
    def __init__(self, *, shards: int, seed: int, facts: Mapping[str, str | int], gradients: GradientSum) -> None:
        exact = isinstance(gradients, ExactGradientSum)
        self._facts: dict[str, Any] = {"shards": shards, "seed": seed, "exact": exact, **facts}
        self._gradients = gradients

    def state_dict(self) -> dict[str, Any]:
        exponent = self._gradients.exponent if isinstance(self._gradients, ExactGradientSum) else 0
        return self._facts | {"exponent": exponent}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        for name, value in self._facts.items():
            if state.get(name) != value:
                raise InputError(
                    f"the run was begun with another value of {name}",
                    got=value,
                    allowed=f"{state.get(name)}: batches, draws or sums would not be the same training",
                    fix=f"{name}={state.get(name)}, or another run name to start afresh",
                )
        if isinstance(self._gradients, ExactGradientSum):
            self._gradients.exponent = int(state["exponent"])
