"""A quarter of a minute of the campaign of `make fuzz`, and the proof that it finds what it looks for."""

import random
from pathlib import Path

import pytest

from tests.fuzz.borders import BORDERS
from tests.fuzz.campaign import Border, campaign, drawn
from tests.fuzz.mutations import mutated, nested

pytestmark = pytest.mark.process


# The same inputs each time, so that a change is judged by itself; `make fuzz` draws new ones.
SEED = 20261122


@pytest.mark.timeout(600)
def test_no_border_answers_hostile_input_otherwise_than_by_a_refusal(tmp_path: Path) -> None:
    result = campaign(BORDERS, seconds=15.0, seed=SEED, out=tmp_path)
    assert not result.findings, "\n".join(finding.line() for finding in result.findings)
    accepted = {name for name, count in result.cases.items() if result.refused[name] < count}
    assert min(result.cases.values()) > 0 and accepted, "nothing was accepted: the inputs reach no depth"


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


def _raises(data: bytes) -> None:
    {}[data]  # type: ignore[index]


@pytest.mark.parametrize(
    ("enter", "what"),
    [(_spins, "CPU time"), (_grows, "MiB"), (_raises, "KeyError")],
    ids=["hang", "growth", "traceback"],
)
def test_a_fault_is_found_and_its_input_kept(tmp_path: Path, enter, what: str) -> None:  # type: ignore[no-untyped-def]
    bytearray(1 << 30)  # a peak of this process that lies above all that the planted fault will take
    border = Border(make=lambda draw: draw.randbytes(8), enter=enter, cpu_s=0.2)
    (finding,) = campaign({"planted": border}, seconds=1.0, seed=1, out=tmp_path).findings
    assert what in finding.what
    assert finding.input_at.read_bytes() == border.make(drawn(1, "planted", finding.case))
