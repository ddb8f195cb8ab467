# pyright: basic, reportMissingImports=false
"""A rank of torchtitan's loop in a gang with `sharded: true`, for tests: `python -m
workloads.library.tests.training.frameworks.sharded_titan SETTINGS`.

It waits after `gate_step` until the file `gate` is there, and shows by another that it does. Saves
are further apart than the training is long: nothing goes to the bucket without a notice.
"""

import json
import sys
import time
from pathlib import Path
from typing import Any

import torch

from workloads.library.tests.training.frameworks.titan import Trainer, run_trainer

NEVER = 1000


class GatedTrainer(Trainer):
    def __init__(self, settings: dict[str, Any]) -> None:
        super().__init__(settings["checkpoints"], settings["steps"], interval=NEVER)
        self._gate = Path(settings["gate"])
        self._gate_step = settings["gate_step"]

    def wait_between_steps(self) -> None:
        while self.step == self._gate_step and not self._gate.exists():
            Path(f"{self._gate}-reached").touch()
            self.checkpointer._checkpoints.poll()
            time.sleep(0.02)


if __name__ == "__main__":
    torch.set_num_threads(1)
    settings = json.loads(sys.argv[1])
    run_trainer(lambda: GatedTrainer(settings))
