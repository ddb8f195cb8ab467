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
DESCENDS = 0.5
COPIES = 0.07
"""Draws by which a change goes one level down, and by which it copies an element."""
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


class MultiplyingDraw(random.Random):
    """Draws four changes, each of which adds 300 copies of what the one before changed."""

    def __init__(self) -> None:
        super().__init__(0)
        self._kinds: list[float] = []
        for depth in reversed(range(4)):
            self._kinds += [DESCENDS] * depth + [COPIES]
        self._asks_for_kind = False

    def choice(self, options: Any) -> Any:
        return options[-1]

    def random(self) -> float:
        self._asks_for_kind = not self._asks_for_kind
        return DESCENDS if self._asks_for_kind else self._kinds.pop(0)


def count_values(value: Any, counts: dict[int, int]) -> int:
    """Counts the values in a list. Each list is looked at once, however often it occurs."""
    if not isinstance(value, list):
        return 1
    if id(value) not in counts:
        counts[id(value)] = sum(count_values(item, counts) for item in value)
    return counts[id(value)]


def test_repeated_copies_fit_in_memory() -> None:
    changed = mutate(nest(1, 4), MultiplyingDraw())
    assert 301 <= count_values(changed, {}) < 1_000_000


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
