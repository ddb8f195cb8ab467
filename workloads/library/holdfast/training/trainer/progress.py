"""State of a run apart from its tensors: checkpoints hold it, and resumed runs are checked."""

from collections.abc import Mapping
from typing import Any

from holdfast.runtime import logs
from holdfast.support.errors import InputError
from holdfast.training.trainer.config import TrainConfig


def check_facts(facts: Mapping[str, Any], state: Mapping[str, Any]) -> None:
    """Raises InputError if a fact differs from that in the checkpoint."""
    for name, value in facts.items():
        # A checkpoint that was written before this fact existed is accepted.
        saved = state.get(name, value)
        if saved == value:
            continue
        raise InputError(
            f"the checkpoint was written with another value of {name}",
            got=repr(value),
            allowed=(
                f"{saved!r}, as in the checkpoint: batches, random draws or sums would differ"
            ),
            fix=f"use the {name} of that run, or another run name to start from zero",
        )


class Progress:
    """Position in the data, and the facts without which that position means nothing.

    An entry of the checkpoint's state.
    """

    def __init__(self, config: TrainConfig, *, fingerprint: str) -> None:
        # The number of ranks is no fact: `consumed` counts samples, which any number can share.
        self._facts = {
            "seed": config.seed,
            "data": fingerprint,
            "model": config.model.to_json(),
        }
        self._batch = config.batch
        self._world_size = config.world_size
        self.consumed = 0
        """Number of samples that all ranks have used so far."""
        self.resized_from = 0
        """World size that wrote the checkpoint if it differs from this run's, else 0."""

    def advance(self) -> None:
        self.consumed += self._batch

    def state_dict(self) -> dict[str, Any]:
        return self._facts | {
            "world_size": self._world_size,
            "consumed": self.consumed,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores the position. Raises InputError if the model, seed or text differs."""
        check_facts(self._facts, state)
        self.consumed = int(state["consumed"])
        if state["world_size"] != self._world_size:
            self.resized_from = int(state["world_size"])

    def log_resized(self) -> None:
        if not self.resized_from:
            return
        logs.warning(
            "restore",
            f"resumed on {self._world_size} ranks from {self.resized_from}: the order of samples"
            " continues, but dropout is drawn again for each (step, rank) and sums are added in"
            " another order: not bit-exact",
        )
