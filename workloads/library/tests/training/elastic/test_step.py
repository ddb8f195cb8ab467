"""What an undisturbed step of an elastic gang does beyond the user's loop, counted: `make
bench-elastic` measures it.
"""

import sys
from collections import Counter
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch import nn

from workloads.library.tests.training.elastic.test_elastic_gang import one_node

TORCH = str(Path(torch.__file__).parent)
SHARDS = 3
STEPS = 40
MOST_CALLS = 95
"""Number of calls of Python and C functions."""
EXCHANGE_EVERY = 5
"""Steps between two comparisons of the members' pace."""


def test_an_undisturbed_step_makes_few_calls_and_seldom_a_tensor(tmp_path: Path) -> None:
    """Between two calls the model evicts them from the processor's caches: each call then costs
    microseconds, and a tensor 70.
    """
    steps: list[list[str]] = []

    def note(frame: FrameType, event: str, called: Any) -> None:
        if event not in ("call", "c_call"):
            return
        files = []
        for caller in (frame, frame.f_back):
            if caller:
                files.append(caller.f_code.co_filename)
        is_in_torch = any(TORCH in file for file in files)
        if is_in_torch or files[0] == __file__:
            return
        name = frame.f_code.co_qualname if event == "call" else called.__qualname__
        steps[-1].append(name)

    model = nn.Linear(2, 2)
    with one_node(tmp_path, model, shards=SHARDS) as gang:
        numbers = gang.steps(STEPS + 1)
        for _ in range(STEPS):
            steps.append([])
            sys.setprofile(note)
            next(numbers)
            for _ in gang.shards():
                gang.backward(model.weight.sum())
            gang.reduce()
            sys.setprofile(None)
    usual = sorted(steps, key=len)[STEPS // 2]
    assert len(usual) <= MOST_CALLS, Counter(usual)
    steps_with_tensors = 0
    for names in steps:
        if any("tensor" in name for name in names):
            steps_with_tensors += 1
    assert steps_with_tensors <= STEPS // EXCHANGE_EVERY
