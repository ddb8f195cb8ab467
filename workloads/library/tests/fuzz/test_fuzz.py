"""Some seconds of the campaign of `make fuzz`, and the proof that it finds what it looks for."""

import os
import random
from typing import Any

import pytest

from workloads.library.tests.fuzz.borders import BORDERS
from workloads.library.tests.fuzz.campaign import Border, campaign, made, trial
from workloads.library.tests.fuzz.mutations import mutated, nested

pytestmark = pytest.mark.process


# The same inputs each time, so that a change is judged by itself; `make fuzz` takes another seed by
# ARGS.
SEED = 20261122
CPU_S = 0.4
NEVER_TAKEN = {"epochs"}
"""The fence holds whatever the object contains."""
NEVER_REFUSED = {"event lines", "report", "gang answers", "linted files", "lists of checkpoints"}
"""What is odd there is counted, left out or a finding."""


@pytest.mark.timeout(600)
@pytest.mark.parametrize("border", BORDERS)
def test_no_border_answers_hostile_input_otherwise_than_by_a_refusal(border: str) -> None:
    # imports what it needs, before the clock
    trial(BORDERS[border], made(BORDERS[border], SEED, border, 0))
    result = campaign({border: BORDERS[border]}, cpu_s=CPU_S, seed=SEED)[border]
    assert not result.findings
    assert result.cases > result.refused or border in NEVER_TAKEN, (
        "nothing was accepted: the inputs reach no depth"
    )
    assert result.refused or border in NEVER_REFUSED, "nothing was refused: the inputs are harmless"


def test_a_value_that_nests_as_deeply_as_any_is_changed_again() -> None:
    deep: object = 1
    for _ in range(5):
        deep = nested(deep, 400)
    assert mutated(deep, random.Random(1)) is not deep


def _spins(data: bytes) -> None:
    while True:
        data = data[1:] + data[:1]


def _waits(_: bytes) -> None:
    os.read(os.pipe()[0], 1)


def _grows(_: bytes) -> None:
    bytearray(400 << 20)


@pytest.mark.parametrize(
    ("enter", "bounds", "what"),
    [
        (_spins, {"cpu_s": 0.2}, "CPU time"),
        (_waits, {"wall_s": 0.5}, "waited"),
        (_grows, {}, "MiB"),
        (lambda data: {}[data], {}, "KeyError"),
    ],
    ids=["spin", "hang", "growth", "traceback"],
)
def test_a_fault_is_found(enter: Any, bounds: dict[str, float], what: str) -> None:
    _grows(b"")  # a peak of this process, above all that it holds
    border = Border(make=lambda draw: draw.randbytes(8), enter=enter, **bounds)
    (found,) = campaign({"planted": border}, cpu_s=0.01, seed=1)["planted"].findings.values()
    assert what in found
