"""What the scripts of the frameworks share: their data, their digest, and where a run waits for its
notice, so that no test has to be quick: a step, an evaluation, a compile that never ends.
"""

import gc
import hashlib
import os
import threading
import time
from typing import Any

import torch
from torch.utils.data import Dataset

from holdfast.runtime import shutdown as notices
from holdfast.runtime.stop import StopAgreement
from holdfast.vocabulary.environment import ENV_WINDOW_S

ENV_WAIT_AT = "HOLDFAST_TEST_WAIT_AT"
"""One of the moments that a script prints."""
KILL_BEFORE_STEP = "HOLDFAST_TEST_KILL_BEFORE_STEP"
COMPILING = "compiling"
EVALUATING = "evaluating"
_PATIENCE_S = 120.0
WINDOW_S = float(os.environ.get(ENV_WINDOW_S, "15"))


class Points(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """Points whose items add noise, drawn from torch's stream at each read, times `noise`."""

    def __init__(self, count: int = 64, noise: float = 0.0) -> None:
        self._count = count
        self._noise = noise

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        x = torch.randn(8, generator=torch.Generator().manual_seed(index))
        return x + self._noise * torch.rand(8), x.sum().reshape(1)


def digest(model: torch.nn.Module) -> str:
    return hashlib.sha256(
        b"".join(p.detach().numpy().tobytes() for p in model.parameters())
    ).hexdigest()


def announce(moment: str) -> None:
    """Prints the moment. If it is the one to wait at, rank 1 goes on when the notice has come and
    its ballot is cast.
    """
    print(moment, flush=True)
    if os.environ.get(ENV_WAIT_AT) == moment and os.environ["RANK"] == "1":
        notices.of_process().wait(_PATIENCE_S)
        _await_ballot()


def _await_ballot() -> None:
    # The watcher asks the store first, and steps of milliseconds would go on meanwhile.
    (agreement,) = (candidate for candidate in gc.get_objects() if type(candidate) is StopAgreement)
    until = time.monotonic() + _PATIENCE_S
    while not agreement._ballot.is_frozen and time.monotonic() < until:  # pyright: ignore[reportPrivateUsage]
        time.sleep(0.01)


def compile_if_asked(function: Any) -> Any:
    """Compiles a function without end if the environment asks for it. A notice cannot tell that
    from the first compile of a large model.
    """
    if os.environ.get(ENV_WAIT_AT) == COMPILING:
        return torch.compile(function, backend=_backend)
    return function


def _backend(graph: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> Any:
    print(COMPILING, flush=True)
    threading.Event().wait()
