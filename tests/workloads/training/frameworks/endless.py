"""A backend for torch.compile whose first compile never ends: as far as a notice can tell, a large model's."""

import os
import threading
from typing import Any

import torch

ENV_ENDLESS = "HOLDFAST_TEST_ENDLESS_COMPILE"
SAID = "compiling"


def compiled(function: Any) -> Any:
    """`function`, compiled where the environment asks for it."""
    return torch.compile(function, backend=_backend) if os.environ.get(ENV_ENDLESS) else function


def _backend(graph: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> Any:
    print(SAID, flush=True)
    threading.Event().wait()
