"""What a checkpoint holds of the run apart from tensors, and what a resumed run checks against it."""

from collections.abc import Mapping
from typing import Any

from holdfast.contract.errors import InputError
from holdfast.runtime import logs
from holdfast.training.config import TrainConfig


class Progress:
    """Position in the data, and the facts without which that position means nothing. A Stateful."""

    def __init__(self, config: TrainConfig, *, fingerprint: str) -> None:
        self._facts: dict[str, Any] = {
            "seed": config.seed,
            "data": fingerprint,
            "model": config.model.to_json(),
            "world_size": config.world_size,
        }
        self._batch = config.batch
        self.consumed = 0
        """Samples taken in so far, over all ranks."""
        self.resized_from = 0
        """World size that wrote the checkpoint, when it differs from this one."""

    def advance(self) -> None:
        self.consumed += self._batch

    def state_dict(self) -> dict[str, Any]:
        return self._facts | {"consumed": self.consumed}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Raises InputError where another model, seed or text wrote the checkpoint."""
        for name, what, fix in _MUST_MATCH:
            if state[name] != self._facts[name]:
                raise InputError(
                    f"the checkpoint was written with another {what}",
                    got=self._facts[name],
                    allowed=f"{state[name]}, as in the checkpoint",
                    fix=fix,
                )
        self.consumed = int(state["consumed"])
        if state["world_size"] != self._facts["world_size"]:
            self.resized_from = int(state["world_size"])

    def log_resized(self) -> None:
        if self.resized_from:
            logs.warning(
                "restore",
                f"resumed on {self._facts['world_size']} ranks from {self.resized_from}: the samples go on where they "
                "were, dropout is drawn again for each (step, rank), sums are added in another order: not bit-exact",
            )


# Not the number of ranks: `consumed` counts samples, which any number can share out.
_MUST_MATCH = (
    ("model", "model shape", "use the model options of that run, or another --run to start afresh"),
    ("seed", "seed", "use the seed of that run, or another --run to start afresh"),
    ("data", "data folder", "put the data back as it was, or use another --run to start afresh"),
)
