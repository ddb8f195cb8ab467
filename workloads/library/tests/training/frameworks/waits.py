"""Where a run waits for its notice, so that no test has to be quick: a step, an evaluation, a compile that never ends."""

import gc
import os
import threading
import time
from typing import Any

import torch

from holdfast.runtime import shutdown as notices
from holdfast.runtime.stop import StopAgreement

ENV_WAIT_AT = "HOLDFAST_TEST_WAIT_AT"
"""One of the moments that a script prints."""
COMPILING, EVALUATING = "compiling", "evaluating"
_PATIENCE_S = 120.0


def announce(moment: str) -> None:
    """Print it; where it is the moment to wait at, rank 1 goes on when the notice has come and its ballot is cast."""
    print(moment, flush=True)
    if os.environ.get(ENV_WAIT_AT) == moment and os.environ["RANK"] == "1":
        notices.of_process().wait(_PATIENCE_S)
        _await_ballot()


def _await_ballot() -> None:
    # The watcher asks the store first, and steps of milliseconds would go on meanwhile.
    (agreement,) = (found for found in gc.get_objects() if type(found) is StopAgreement)
    until = time.monotonic() + _PATIENCE_S
    while not agreement._ballot.frozen and time.monotonic() < until:  # pyright: ignore[reportPrivateUsage]
        time.sleep(0.01)


def compiled(function: Any) -> Any:
    """`function`, compiled where the environment asks for it: a large model's first compile, for all a notice knows."""
    return torch.compile(function, backend=_backend) if os.environ.get(ENV_WAIT_AT) == COMPILING else function


def _backend(graph: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> Any:
    print(COMPILING, flush=True)
    threading.Event().wait()
