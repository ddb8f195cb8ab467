"""Twelve seconds of the campaign of `make fuzz`, and the proof that it finds what it looks for."""

import os
import random
import time
from pathlib import Path

import pytest

from workloads.library.tests.fuzz.borders import BORDERS
from workloads.library.tests.fuzz.campaign import Border, campaign, drawn, trial
from workloads.library.tests.fuzz.mutations import mutated, nested

pytestmark = pytest.mark.process


# The same inputs each time, so that a change is judged by itself; `make fuzz` draws new ones.
SEED = 20261122


CPU_S = 12.0
"""Of all borders together. Time of a core, so that a busy machine tries no fewer inputs."""
NEVER_TAKEN = {"epochs"}
"""The fence holds whatever the object contains."""
NEVER_REFUSED = {"event lines", "report", "gang answers", "linted files", "lists of checkpoints"}
"""What is odd there is counted, left out or a finding."""


@pytest.mark.timeout(600)
@pytest.mark.parametrize("border", BORDERS)
def test_no_border_answers_hostile_input_otherwise_than_by_a_refusal(tmp_path: Path, border: str) -> None:
    mine = BORDERS[border]
    trial(mine, mine.make(drawn(SEED, border, 0)))  # imports what it needs, before the clock
    result = campaign({border: mine}, seconds=CPU_S / len(BORDERS), seed=SEED, out=tmp_path, clock=time.process_time)
    assert not result.findings, "\n".join(finding.line() for finding in result.findings)
    taken = result.cases[border] - result.refused[border]
    assert taken or border in NEVER_TAKEN, "nothing was accepted: the inputs reach no depth"
    assert result.refused[border] or border in NEVER_REFUSED, "nothing was refused: the inputs are harmless"


def test_a_value_that_nests_as_deeply_as_any_is_changed_again() -> None:
    deep: object = 1
    for _ in range(5):
        deep = nested(deep, 400)
    assert mutated(deep, random.Random(1)) is not deep


def _spins(data: bytes) -> None:
    while True:
        data = data[1:] + data[:1]


def _grows(data: bytes) -> None:
    bytearray(400 << 20)


def _waits(data: bytes) -> None:
    reading, _ = os.pipe()
    os.read(reading, 1)


def _raises(data: bytes) -> None:
    {}[data]  # type: ignore[index]


@pytest.mark.parametrize(
    ("enter", "what"),
    [(_spins, "CPU time"), (_waits, "waited"), (_grows, "MiB"), (_raises, "KeyError")],
    ids=["spin", "hang", "growth", "traceback"],
)
def test_a_fault_is_found_and_its_input_kept(tmp_path: Path, enter, what: str) -> None:  # type: ignore[no-untyped-def]
    bytearray(1 << 30)  # a peak of this process that lies above all that the planted fault will take
    border = Border(make=lambda draw: draw.randbytes(8), enter=enter, cpu_s=0.2, waited_s=0.5)
    (finding,) = campaign({"planted": border}, seconds=1.0, seed=1, out=tmp_path).findings
    assert what in finding.what
    assert finding.input_at.read_bytes() == border.make(drawn(1, "planted", finding.case))
