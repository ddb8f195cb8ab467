"""Some seconds of the campaign of `make fuzz`, and a check that it detects planted faults."""

import os
import random
from typing import Any

import pytest

from workloads.library.tests.fuzz.borders import BORDERS
from workloads.library.tests.fuzz.campaign import Border, campaign, make_input, run_case
from workloads.library.tests.fuzz.mutations import mutate, nest

pytestmark = pytest.mark.process


# The same inputs each time, so that only a change causes a failure. `make fuzz` takes another seed
# by ARGS.
SEED = 20261122
CPU_S = 0.4
NEVER_ACCEPTED = {"epochs"}
"""The fence holds whatever the object contains."""
NEVER_REFUSED = {"event lines", "report", "gang answers", "linted files", "lists of checkpoints"}
"""Borders that count odd input, leave it out or report it as a finding."""


@pytest.mark.timeout(600)
@pytest.mark.parametrize("border", BORDERS)
def test_border_refuses_hostile_input_and_does_not_fail(border: str) -> None:
    # The first input imports modules, before time is measured.
    run_case(BORDERS[border], make_input(BORDERS[border], SEED, border, 0))
    result = campaign({border: BORDERS[border]}, cpu_s=CPU_S, seed=SEED)[border]
    assert not result.findings
    if border not in NEVER_ACCEPTED:
        assert result.cases > result.refused, "nothing was accepted: the inputs reach no depth"
    if border not in NEVER_REFUSED:
        assert result.refused, "nothing was refused: the inputs are harmless"


def test_deeply_nested_value_is_mutated() -> None:
    deep: object = 1
    for _ in range(5):
        deep = nest(deep, 400)
    assert mutate(deep, random.Random(1)) is not deep


def _spin(data: bytes) -> None:
    while True:
        data = data[1:] + data[:1]


def _wait(_: bytes) -> None:
    os.read(os.pipe()[0], 1)


def _grow(_: bytes) -> None:
    bytearray(400 << 20)


@pytest.mark.parametrize(
    ("enter", "bounds", "message"),
    [
        (_spin, {"cpu_s": 0.2}, "CPU time"),
        (_wait, {"wall_s": 0.5}, "waited"),
        (_grow, {}, "MiB"),
        (lambda data: {}[data], {}, "KeyError"),
    ],
    ids=["spin", "hang", "growth", "traceback"],
)
def test_planted_fault_is_found(enter: Any, bounds: dict[str, float], message: str) -> None:
    # An earlier peak of this process must not hide the growth.
    _grow(b"")
    border = Border(make=lambda draw: draw.randbytes(8), enter=enter, **bounds)
    results = campaign({"planted": border}, cpu_s=0.01, seed=1)
    (finding,) = results["planted"].findings.values()
    assert message in finding
