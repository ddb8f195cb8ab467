from itertools import accumulate

import pytest

from holdfast.contract.errors import InputError
from holdfast.training.trainer import StepTimeGuard


def judge(seconds: list[float]) -> None:
    moments = accumulate([0.0, *seconds])
    guard = StepTimeGuard(15, clock=lambda: next(moments))
    for _ in range(len(seconds) + 1):
        guard.step()


def test_a_step_longer_than_the_window_is_bad_input() -> None:
    with pytest.raises(InputError, match=r"steps of 12\.5 s in a window of 15 s"):
        judge([40.0, 12.5, 13.0])


def test_slow_first_steps_are_no_judgement() -> None:
    judge([60.0, 1.0, 60.0, 60.0])
