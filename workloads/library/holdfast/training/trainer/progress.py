"""What a checkpoint holds of the run apart from tensors, and what a resumed run checks against it."""

from collections.abc import Mapping
from typing import Any

from holdfast.runtime import logs
from holdfast.support.errors import InputError
from holdfast.training.trainer.config import TrainConfig


def check_facts(facts: Mapping[str, Any], state: Mapping[str, Any]) -> None:
    """Raises InputError where a fact differs from that in the checkpoint."""
    for name, value in facts.items():
        # A run that was begun before a fact was stated goes on: nothing is known against it.
        if state.get(name, value) != value:
            raise InputError(
                f"the checkpoint was written with another value of {name}",
                got=repr(value),
                allowed=(
                    f"{state[name]!r}, as in the checkpoint: batches, random draws or sums would"
                    " differ"
                ),
                fix=f"use the {name} of that run, or another run name to start from zero",
            )


class Progress:
    """Position in the data, and the facts without which that position means nothing. A Stateful."""

    def __init__(self, config: TrainConfig, *, fingerprint: str) -> None:
        # Without the number of ranks: `consumed` counts samples, which any number can share out.
        self._facts = {
            "seed": config.seed,
            "data": fingerprint,
            "model": config.model.to_json(),
        }
        self._batch = config.batch
        self._world_size = config.world_size
        self.consumed = 0
        """Samples taken in so far, over all ranks."""
        self.resized_from = 0
        """World size that wrote the checkpoint, when it differs from this one."""

    def advance(self) -> None:
        self.consumed += self._batch

    def state_dict(self) -> dict[str, Any]:
        return self._facts | {"world_size": self._world_size, "consumed": self.consumed}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Raises InputError where another model, seed or text wrote the checkpoint."""
        check_facts(self._facts, state)
        self.consumed = int(state["consumed"])
        if state["world_size"] != self._world_size:
            self.resized_from = int(state["world_size"])

    def log_resized(self) -> None:
        if self.resized_from:
            logs.warning(
                "restore",
                f"resumed on {self._world_size} ranks from {self.resized_from}: the samples go on"
                " where they were, dropout is drawn again for each (step, rank), sums are added in"
                " another order: not bit-exact",
            )
